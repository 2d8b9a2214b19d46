"""RabbitMQ: three nodes on loopback; a quorum queue, or a stream, with three copies."""

from __future__ import annotations

import os
import pathlib
import re
import secrets
import shutil
import subprocess
from collections.abc import Mapping

from bench import fetch
from bench.systems import System, Unavailable, free_ports, port_open, wait_until
from bench.systems.child import Child, stop_all

NODES = 3
START_TIMEOUT_S = 120.0
TOOL_TIMEOUT_S = 120.0
TOOL_VERSION = "2.22.1"
_WHO = "{length(rabbit_nodes:all_running()), rabbit_misc:version()}."
_RATE = re.compile(r"sending rate avg: ([\d,.]+) msg/s")


class RabbitQuorum(System):
    """Raft log, synced to disk by a majority before the confirm."""

    name = "rabbit-quorum"
    setting = "quorum queue, fsync before confirm"
    driver = "rabbit_queue"
    packs = True
    reads_once = True

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        self._children: list[Child] = []
        self._amqp: list[int] = []
        self._stream: list[int] = []
        self._server = pathlib.Path("rabbitmq-server")
        self._env: dict[str, str] = {}
        self._version = "?"
        self._names: list[str] = []

    def prepare(self) -> None:
        fetch.need_package("pika", "pika")
        found = fetch.debian_program("rabbitmq-server", "rabbitmq-server")
        # Past Debian's wrapper, which would switch to a system account and its folders.
        self._server = pathlib.Path(found).resolve().parent / "rabbitmq-server"
        if not self._server.exists() or shutil.which("epmd") is None:
            raise Unavailable("rabbitmq-server is installed in a way that cannot be used here")

    # --- life --------------------------------------------------------------------------------

    def start(self) -> None:
        ports = free_ports(3 * NODES + 1)
        self._amqp, self._stream = ports[:NODES], ports[NODES : 2 * NODES]
        dist, epmd = ports[2 * NODES : 3 * NODES], ports[-1]
        mark = secrets.token_hex(3)
        self._names = [f"bench{mark}{number}@localhost" for number in range(1, NODES + 1)]
        self.folder.mkdir(parents=True, exist_ok=True)
        cookie = self.folder / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16), encoding="ascii")
        cookie.chmod(0o400)
        self._env = {"HOME": str(self.folder), "ERL_EPMD_PORT": str(epmd)}
        self._children.append(Child("epmd", ["epmd", "-port", str(epmd)], self.folder, self._env))
        wait_until(lambda: port_open(epmd), START_TIMEOUT_S, "epmd to listen")
        for number in range(NODES):
            node = self.folder / f"rabbit-{number + 1}"
            node.mkdir()
            env = self._node_env(number, dist[number], node)
            self._children.append(Child(f"rabbit-{number + 1}", [str(self._server)], node, env))
        wait_until(self._all_listen, START_TIMEOUT_S, "RabbitMQ to listen")
        wait_until(self._all_joined, START_TIMEOUT_S, "three RabbitMQ nodes")

    def _node_env(self, number: int, dist_port: int, node: pathlib.Path) -> dict[str, str]:
        config = node / "rabbitmq.conf"
        peers = [
            f"cluster_formation.classic_config.nodes.{n} = {name}"
            for n, name in enumerate(self._names, 1)
        ]
        config.write_text(
            "\n".join(
                (
                    f"listeners.tcp.1 = 127.0.0.1:{self._amqp[number]}",
                    f"stream.listeners.tcp.1 = 127.0.0.1:{self._stream[number]}",
                    "stream.frame_max = 8388608",
                    "stream.advertised_host = 127.0.0.1",
                    f"stream.advertised_port = {self._stream[number]}",
                    "cluster_formation.peer_discovery_backend = classic_config",
                    *peers,
                    "log.console = true",
                    "log.console.level = warning",
                    "",
                )
            ),
            encoding="ascii",
        )
        plugins = node / "enabled_plugins"
        plugins.write_text("[rabbitmq_stream].\n", encoding="ascii")
        return {
            **self._env,
            "RABBITMQ_NODENAME": self._names[number],
            "RABBITMQ_DIST_PORT": str(dist_port),
            "RABBITMQ_MNESIA_BASE": str(node / "data"),
            "RABBITMQ_LOG_BASE": str(node / "log"),
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_CONF_ENV_FILE": str(node / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_PID_FILE": str(node / "pid"),
        }

    def _all_listen(self) -> bool:
        for child in self._children:
            child.check()
        return all(map(port_open, [*self._amqp, *self._stream]))

    def _ctl(self, *words: str) -> str:
        ctl = self._server.parent / "rabbitmqctl"
        done = subprocess.run(
            [str(ctl), "-n", self._names[0], *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, **self._env},
            check=False,
        )
        return done.stdout if done.returncode == 0 else ""

    def _all_joined(self) -> bool:
        said = self._ctl(
            "-q", "eval", "{length(rabbit_nodes:all_running()), rabbit_misc:version()}."
        )
        found = re.search(r'\{(\d+),\s*"([\d.]+)"', said)
        if found is None or int(found.group(1)) < NODES:
            return False
        self._version = found.group(2)
        return True

    def stop(self) -> None:
        stop_all(self._children[1:])
        stop_all(self._children[:1])
        self._children = []

    # --- what clients need -------------------------------------------------------------------

    def endpoint(self) -> Mapping[str, str]:
        return {"amqp": str(self._amqp[0]), "stream": str(self._stream[0])}

    def processes(self) -> Mapping[str, list[int]]:
        return {"server": [pid for child in self._children for pid in child.pids]}

    def create_topic(self, name: str, partitions: int) -> None:
        self._declare(name, {"x-queue-type": "quorum", "x-quorum-initial-group-size": NODES})

    def _declare(self, name: str, arguments: Mapping[str, object]) -> None:
        import pika

        where = pika.ConnectionParameters("127.0.0.1", self._amqp[0])
        connection = pika.BlockingConnection(where)
        connection.channel().queue_declare(name, durable=True, arguments=dict(arguments))
        connection.close()

    def versions(self) -> Mapping[str, str]:
        import pika

        return {"rabbitmq-server": self._version, "pika": pika.__version__}

    def native(self, seconds: float, mbps: float) -> Mapping[str, float]:
        """RabbitMQ's PerfTest (Java): 1 KiB messages, 500 unconfirmed at most."""
        java = fetch.java()
        classes = fetch.jars("rabbitmq-perf-test", (("com.rabbitmq", "perf-test", TOOL_VERSION),))
        self.create_topic("native", 1)
        words = ["-h", f"amqp://guest:guest@127.0.0.1:{self._amqp[0]}", "-u", "native", "-p"]
        words += ["-x", "1", "-y", "0", "-s", "1024", "-c", "500", "-f", "persistent"]
        words += ["-z", f"{max(seconds, 1):.0f}"]
        done = subprocess.run(
            [
                java,
                "-cp",
                classes,
                "com.rabbitmq.perf.PerfTest",
                *words,
                "-z",
                f"{max(seconds, 1):.0f}",
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TOOL_TIMEOUT_S,
            check=False,
        )
        found = _RATE.search(done.stdout)
        if done.returncode != 0 or found is None:
            raise RuntimeError(f"PerfTest: {(done.stderr or done.stdout).strip()[-300:]}")
        return {"native_w1_1k_mbps": float(found.group(1).replace(",", "")) * 1024 / 1e6}


class RabbitStream(RabbitQuorum):
    """An append-only stream: a majority has it in memory, nobody syncs."""

    name = "rabbit-stream"
    setting = "stream, page cache, no fsync"
    driver = "rabbit_stream"
    packs = True
    reads_once = False

    def prepare(self) -> None:
        super().prepare()
        fetch.need_package("rstream", "rstream")

    def create_topic(self, name: str, partitions: int) -> None:
        self._declare(name, {"x-queue-type": "stream", "x-initial-cluster-size": NODES})

    def versions(self) -> Mapping[str, str]:
        from importlib.metadata import version

        return {"rabbitmq-server": self._version, "rstream": version("rstream")}

    def native(self, seconds: float, mbps: float) -> Mapping[str, float]:
        """The stream load tool is not published where Maven looks."""
        return {}
