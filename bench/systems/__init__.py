"""Server halves: start a system the way its users run it, say what it promises, stop it."""

from __future__ import annotations

import contextlib
import pathlib
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence


class Unavailable(RuntimeError):
    """The system cannot run here; the text is one line saying why and what to install."""


class System(ABC):
    """One system in one setting. Started on an empty folder each round, stopped after it."""

    name: str
    """Short and unique: the column of the table."""
    setting: str
    """What is special, in a few words."""
    driver: str
    """Name in `bench.drivers`."""
    packs = False
    """True where clients have no batches: w1 then sends messages as large as a batch."""
    reads_once = False
    """True where reading consumes."""
    has_arrow = False
    has_lz4 = False
    settle_steps_min = 1
    settle_steps_max = 3
    """Steps of writing before the first measure; a JIT-compiled server needs more of them."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    @abstractmethod
    def prepare(self) -> None:
        """Fetch what is missing, by package name; raises Unavailable."""

    @abstractmethod
    def start(self) -> None:
        """Start on an empty folder; returns when clients can work."""

    @abstractmethod
    def stop(self) -> None:
        """Stop everything; harmless when nothing runs."""

    @abstractmethod
    def endpoint(self) -> Mapping[str, str]:
        """What a driver needs to connect."""

    @abstractmethod
    def processes(self) -> Mapping[str, list[int]]:
        """Process ids by role."""

    @abstractmethod
    def create_topic(self, name: str, partitions: int) -> None:
        """Make a topic, stream or queue with three copies."""

    @abstractmethod
    def versions(self) -> Mapping[str, str]:
        """Versions of server and client."""

    def forget_caches(self, topics: Sequence[str]) -> None:
        """Drop what the servers themselves keep in memory of recent records, where they do.

        The topics are ready to be read afterwards.
        """
        return

    def native(self, seconds: float, mbps: float) -> Mapping[str, float]:
        """Results of the system's own load tool: `native_*` measures. Empty without one.

        `mbps` is what the Python client reached: the tool is given about `seconds` of work.
        """
        return {}


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that are free now, all different."""
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        for _ in range(count):
            opened = stack.enter_context(socket.socket())
            opened.bind(("127.0.0.1", 0))
            found.append(int(opened.getsockname()[1]))
        return found


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Look a few times a second until `condition` holds; raises RuntimeError."""
    tick = threading.Event()
    until = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError(f"waited {timeout_s:.0f} s for {what}")
        tick.wait(0.2)


def port_open(port: int) -> bool:
    """Whether something listens on the loopback interface."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0
