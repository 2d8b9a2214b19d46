"""NATS JetStream: three nodes on loopback, a stream with three replicas in files."""

from __future__ import annotations

import asyncio
import pathlib
import re
import subprocess
import time
from collections.abc import Mapping

from bench import fetch
from bench.systems import System, free_ports, port_open, wait_until
from bench.systems.child import Child, stop_all

VERSION = "2.15.2"
TOOL_VERSION = "0.5.0"
NODES = 3
START_TIMEOUT_S = 60.0
TOOL_TIMEOUT_S = 180.0
NATIVE_RECORDS_MAX = 400_000
_RATE = re.compile(r"([\d,]+) msgs/sec")


class Nats(System):
    """Default: acknowledged by a majority, synced to disk every two minutes."""

    name = "nats"
    setting = "page cache, fsync every 2 min"
    driver = "nats"
    packs = True
    sync_interval = ""
    """`sync_interval` of JetStream; empty leaves the default."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        self._children: list[Child] = []
        self._ports: list[int] = []
        self._server = "nats-server"
        self._tool = "nats"

    def prepare(self) -> None:
        fetch.need_package("nats", "nats-py")
        self._server = fetch.go_program(
            "nats-server", f"github.com/nats-io/nats-server/v2@v{VERSION}"
        )
        self._tool = fetch.go_program("nats", f"github.com/nats-io/natscli/nats@v{TOOL_VERSION}")

    def start(self) -> None:
        ports = free_ports(2 * NODES)
        self._ports, routes = ports[:NODES], ports[NODES:]
        for number in range(NODES):
            node = self.folder / f"nats-{number + 1}"
            node.mkdir(parents=True)
            config = node / "nats.conf"
            config.write_text(self._config(number, routes, node), encoding="utf-8")
            self._children.append(
                Child(f"nats-{number + 1}", [self._server, "-c", str(config)], node)
            )
        wait_until(self._all_listen, START_TIMEOUT_S, "NATS to listen")
        wait_until(self._answers, START_TIMEOUT_S, "a JetStream leader")

    def _config(self, number: int, routes: list[int], node: pathlib.Path) -> str:
        sync = f"\n  sync_interval: {self.sync_interval}" if self.sync_interval else ""
        others = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
        return f"""
server_name: n{number + 1}
listen: 127.0.0.1:{self._ports[number]}
max_payload: 8MB
jetstream {{
  store_dir: "{node / "data"}"
  max_file_store: 40GB{sync}
}}
cluster {{
  name: bench
  listen: 127.0.0.1:{routes[number]}
  routes: [{others}]
}}
"""

    def _all_listen(self) -> bool:
        for child in self._children:
            child.check()
        return all(map(port_open, self._ports))

    def _answers(self) -> bool:
        done = subprocess.run(
            [self._tool, "-s", self._servers, "--no-context", "account", "info"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        return done.returncode == 0 and "JetStream" in done.stdout

    def stop(self) -> None:
        stop_all(self._children)
        self._children = []

    @property
    def _servers(self) -> str:
        return ",".join(f"nats://127.0.0.1:{port}" for port in self._ports)

    def endpoint(self) -> Mapping[str, str]:
        return {"servers": self._servers}

    def processes(self) -> Mapping[str, list[int]]:
        return {"server": [pid for child in self._children for pid in child.pids]}

    def create_topic(self, name: str, partitions: int) -> None:
        """One stream: its leader orders everything, so there is nothing to split."""
        asyncio.run(self._create(name))

    async def _create(self, name: str) -> None:
        import nats
        from nats.js.api import StorageType, StreamConfig

        client = await nats.connect(self._servers.split(","))
        stream = client.jetstream(timeout=5)
        config = StreamConfig(
            name=name, subjects=[name], storage=StorageType.FILE, num_replicas=NODES
        )
        until = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                await stream.add_stream(config)
                break
            except nats.errors.Error as error:  # a young cluster may still elect its leader
                if time.monotonic() > until:
                    raise RuntimeError(f"stream {name}: {error!r}") from error
                await asyncio.sleep(0.5)
        await client.close()

    def versions(self) -> Mapping[str, str]:
        import nats.aio.client

        return {"nats-server": VERSION, "nats-py": nats.aio.client.__version__}

    def native(self, seconds: float, mbps: float) -> Mapping[str, float]:
        """`nats bench js pub async`: 1 KiB messages, each acknowledged; the tool is in Go."""
        count = max(min(int(mbps * 1e6 / 1024 * seconds), NATIVE_RECORDS_MAX), 3_000)
        self.create_topic("native", 1)
        words = [self._tool, "-s", self._servers, "--no-context", "bench", "js", "pub", "async"]
        words += ["native", "--stream", "native", "--size", "1024", "--msgs", str(count)]
        done = subprocess.run(
            [*words, "--batch", "2000", "--no-progress"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TOOL_TIMEOUT_S,
            check=False,
        )
        found = _RATE.search(done.stdout + done.stderr)
        if done.returncode != 0 or found is None:
            raise RuntimeError(f"nats bench: {(done.stderr or done.stdout).strip()[-300:]}")
        return {"native_w1_1k_mbps": float(found.group(1).replace(",", "")) * 1024 / 1e6}


class NatsAlways(Nats):
    """Every message synced before it is acknowledged."""

    name = "nats-always"
    setting = "sync_interval: always"
    sync_interval = "always"
