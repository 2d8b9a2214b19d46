"""A real little cluster for tests: real processes, a real disk, and handles to break it.

    from octavo.testing import LocalCluster

    with LocalCluster(bookies=3, brokers=1) as cluster:
        client = Client(cluster.bootstrap_servers)
        cluster.kill("bookie-2")

It runs `octavo up` as a child process and talks to it through its standard input and output, so
that a test which is stopped in any way takes the cluster with it. As a pytest fixture:

    @pytest.fixture(scope="session")
    def cluster():
        with LocalCluster() as running:
            yield running
"""

from __future__ import annotations

import json
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import IO, Self, cast

import psutil

from octavo.runtime.errors import IllegalStateError, NotReady, RequestTimedOut
from octavo.supervisor.cluster_file import ClusterFile, ProcessEntry, read_cluster_file
from octavo.supervisor.spec import EMBEDDED

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 60.0
EVENT_TIMEOUT_S = 60.0
POLL_S = 0.01
SUPERVISOR = "supervisor"
_EVENTS_MAX = 10_000


class LocalCluster:
    """A cluster under one data folder; use it as a context manager, or `start()` and `stop()` it.

    Args:
        bookies, brokers: how many of each.
        data: folder to keep; without it a temporary one is made and removed at the end.
        metadata: "embedded", or the address of a running ZooKeeper, `zk://host:2181/octavo`.
        port: port of broker-1; 0 takes free ports, which stay the same over restarts.
        bookie_settings, broker_settings: settings given to each server, by field name.
    """

    def __init__(
        self,
        bookies: int = 3,
        brokers: int = 1,
        *,
        data: str | os.PathLike[str] | None = None,
        metadata: str = EMBEDDED,
        port: int = 0,
        bookie_settings: Mapping[str, object] | None = None,
        broker_settings: Mapping[str, object] | None = None,
    ) -> None:
        self._words = ["--bookies", str(bookies), "--brokers", str(brokers)]
        self._words += ["--metadata", metadata, "--port", str(port), "--control"]
        for option, settings in (
            ("--bookie-set", bookie_settings),
            ("--broker-set", broker_settings),
        ):
            for key, value in (settings or {}).items():
                self._words += [option, f"{key}={value}"]
        self._keep = data is not None
        self._data = pathlib.Path(data).absolute() if data is not None else None
        self._process: subprocess.Popen[str] | None = None
        self._events: queue.Queue[dict[str, str]] = queue.Queue(_EVENTS_MAX)
        self._reader: threading.Thread | None = None
        self._frozen: set[str] = set()

    # --- life ------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all processes, on the data and addresses of before; returns when they are ready.

        Raises NotReady with the reason when that fails.
        """
        if self._process is not None and self._process.poll() is None:
            raise IllegalStateError("the cluster is running already")
        self._reap()
        if self._data is None:
            self._data = pathlib.Path(tempfile.mkdtemp(prefix="octavo-test-"))
        (self._data / "logs").mkdir(parents=True, exist_ok=True)
        self._frozen.clear()
        self._events = queue.Queue(_EVENTS_MAX)
        with self._up_log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "octavo", "up", "--data", str(self._data), *self._words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env={**os.environ, "PYTHONSAFEPATH": "1"},
            )
        self._reader = threading.Thread(
            target=_read_events,
            args=(_pipe(self._process.stdout), self._events),
            name="octavo-test-cluster",
            daemon=True,
        )
        self._reader.start()
        try:
            self._wait_event(lambda event: event["event"] == "up", START_TIMEOUT_S, "the start")
        except BaseException:
            self._kill_all()
            raise

    def stop(self) -> None:
        """Stop all processes in order; the data stays until `close()` or the end of the `with`."""
        if self._process is not None and self._process.poll() is None:
            for name in list(self._frozen):
                self.thaw(name)
            _pipe(self._process.stdin).close()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._kill_all()
                raise RequestTimedOut(
                    f"the cluster did not stop in {STOP_TIMEOUT_S:.0f} s and was killed"
                ) from None
        self._reap()

    def close(self) -> None:
        """Stop and, unless `data` was given, remove the data."""
        try:
            self.stop()
        finally:
            if self._data is not None and not self._keep:
                shutil.rmtree(self._data, ignore_errors=True)
                self._data = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- what is there ---------------------------------------------------------------------

    @property
    def data(self) -> pathlib.Path:
        """The data folder."""
        if self._data is None:
            raise IllegalStateError("the cluster was not started")
        return self._data

    @property
    def cluster(self) -> ClusterFile:
        """What DATA/cluster.json says now."""
        found = read_cluster_file(self.data)
        if found is None:
            raise IllegalStateError("the cluster was not started")
        return found

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of all brokers for `Client(...)`."""
        return self.cluster.bootstrap_servers

    @property
    def metadata(self) -> str:
        """Address of the metadata store, for `connect_store` and for servers of your own."""
        return self.cluster.metadata

    @property
    def processes(self) -> dict[str, ProcessEntry]:
        """Role, pid, address, log and state of each server by name."""
        return {entry.name: entry for entry in self.cluster.children}

    def process(self, name: str) -> ProcessEntry:
        """One server; raises IllegalStateError for an unknown name."""
        found = self.cluster.child(name)
        if found is None:
            raise IllegalStateError(
                f"no process called {name!r}", hint=f"known: {', '.join(self.processes)}"
            )
        return found

    def log(self, name: str) -> str:
        """Everything that a server, or "supervisor", has logged so far."""
        path = self.data / "logs" / f"{name}.log"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    # --- breaking it -----------------------------------------------------------------------

    def kill(self, name: str) -> None:
        """SIGKILL a server and return once it is gone; "supervisor" takes everything with it."""
        if name == SUPERVISOR:
            self._kill_supervisor()
            return
        self._signal(name, signal.SIGKILL)
        self._frozen.discard(name)
        self._wait_event(
            lambda event: event["event"] == "down" and event["name"] == name,
            EVENT_TIMEOUT_S,
            f"the end of {name}",
        )

    def terminate(self, name: str) -> None:
        """SIGTERM a server, which stops cleanly, and return once it is gone."""
        self._signal(name, signal.SIGTERM)
        self._wait_event(
            lambda event: event["event"] == "down" and event["name"] == name,
            EVENT_TIMEOUT_S,
            f"the end of {name}",
        )

    def restart(self, name: str) -> None:
        """Start a server again (killing it first if it runs) and return once it is ready."""
        self.process(name)
        self._frozen.discard(name)
        self._say(f"restart {name}")
        answered = self._wait_event(
            lambda event: event["event"] in ("restarted", "failed"),
            START_TIMEOUT_S,
            f"the restart of {name}",
        )
        if answered["event"] == "failed":
            raise NotReady(answered["text"])

    def freeze(self, name: str) -> None:
        """SIGSTOP a server: it holds its connections and answers nothing."""
        pid = self._signal(name, signal.SIGSTOP)
        self._frozen.add(name)
        _wait_until(
            lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, f"{name} to freeze"
        )

    def thaw(self, name: str) -> None:
        """SIGCONT a frozen server."""
        self._signal(name, signal.SIGCONT)
        self._frozen.discard(name)

    def _signal(self, name: str, number: signal.Signals) -> int:
        pid = self.process(name).pid
        if pid <= 0:
            raise IllegalStateError(f"{name} does not run")
        os.kill(pid, number)
        return pid

    # --- the process behind it -------------------------------------------------------------

    @property
    def _up_log(self) -> pathlib.Path:
        return self.data / "logs" / "up.log"

    def _say(self, command: str) -> None:
        if self._process is None or self._process.poll() is not None:
            raise IllegalStateError("the cluster does not run")
        pipe = _pipe(self._process.stdin)
        pipe.write(command + "\n")
        pipe.flush()

    def _wait_event(
        self, wanted: Callable[[dict[str, str]], bool], timeout_s: float, what: str
    ) -> dict[str, str]:
        while True:
            try:
                event = self._events.get(timeout=timeout_s)
            except queue.Empty:
                raise RequestTimedOut(
                    f"no sign of {what} within {timeout_s:.0f} s",
                    hint=f"logs: {self.data / 'logs'}",
                ) from None
            if wanted(event):
                return event
            if event["event"] == "ended":
                raise NotReady(
                    f"`octavo up` ended while waiting for {what}: {self._last_words()}",
                    hint=f"logs: {self.data / 'logs'}",
                )

    def _last_words(self) -> str:
        lines = self._up_log.read_text("utf-8", "replace").strip().splitlines()
        wrong = [line for line in lines if line.startswith("error: ")]
        return (wrong or lines or ["it said nothing"])[-1].removeprefix("error: ")

    def _kill_supervisor(self) -> None:
        if self._process is None:
            raise IllegalStateError("the cluster does not run")
        children = [entry.pid for entry in self.cluster.children if entry.pid > 0]
        self._process.kill()
        self._reap()
        _wait_until(
            lambda: not any(psutil.pid_exists(pid) for pid in children), "the children to be gone"
        )

    def _kill_all(self) -> None:
        if self._process is None:
            return
        found = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        for child in found:
            if child.is_running():
                child.kill()
        psutil.wait_procs(found, timeout=STOP_TIMEOUT_S)
        self._reap()

    def _reap(self) -> None:
        """Wait for the ended process and close what belonged to it."""
        if self._process is None:
            return
        self._process.wait(STOP_TIMEOUT_S)
        if self._reader is not None:
            self._reader.join(STOP_TIMEOUT_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process = None


def _pipe(pipe: IO[str] | None) -> IO[str]:
    if pipe is None:
        raise IllegalStateError("the cluster's pipe is closed")
    return pipe


def _read_events(pipe: IO[str], events: queue.Queue[dict[str, str]]) -> None:
    """Body of the reader thread: JSON lines into the queue, then "ended"."""
    for line in pipe:
        events.put(cast("dict[str, str]", json.loads(line)))
    events.put({"event": "ended", "name": SUPERVISOR, "text": ""})


def _wait_until(condition: Callable[[], bool], what: str) -> None:
    tick = threading.Event()
    for _ in range(round(EVENT_TIMEOUT_S / POLL_S)):
        if condition():
            return
        tick.wait(POLL_S)
    raise RequestTimedOut(f"waited {EVENT_TIMEOUT_S:.0f} s for {what}")
