"""CPU time and memory of groups of processes, by psutil, while something runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import NamedTuple, Self

import psutil

SAMPLE_EVERY_S = 0.25
MIB = 1024 * 1024


class Use(NamedTuple):
    """What one named process, or group of processes, used."""

    cpu_s: float
    rss_peak_mib: float


class Snapshot(NamedTuple):
    """One look at a group."""

    cpu_s: float
    rss_bytes: int
    open_files: int
    threads: int


def look(pids: Iterable[int]) -> Snapshot:
    """Sum over processes; one that is gone counts as nothing."""
    cpu_s = 0.0
    rss = files = threads = 0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            with process.oneshot():
                times = process.cpu_times()
                cpu_s += times.user + times.system
                rss += process.memory_info().rss
                threads += process.num_threads()
                files += process.num_fds()
    return Snapshot(cpu_s, rss, files, threads)


class Meter:
    """Measures named groups of process ids inside a `with` block."""

    def __init__(self, groups: Mapping[str, Iterable[int]]) -> None:
        self._groups = {name: tuple(pids) for name, pids in groups.items()}
        self._before: dict[str, Snapshot] = {}
        self._peak: dict[str, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="bench-meter", daemon=True)
        self.used: dict[str, Use] = {}

    def __enter__(self) -> Self:
        self._before = {name: look(pids) for name, pids in self._groups.items()}
        self._peak = {name: shot.rss_bytes for name, shot in self._before.items()}
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        for name, pids in self._groups.items():
            after = look(pids)
            peak = max(self._peak[name], after.rss_bytes)
            self.used[name] = Use(after.cpu_s - self._before[name].cpu_s, peak / MIB)

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_EVERY_S):
            for name, pids in self._groups.items():
                self._peak[name] = max(self._peak[name], look(pids).rss_bytes)

    @property
    def total(self) -> Use:
        """All groups together; the peak is the sum of the groups' peaks."""
        return Use(
            sum(use.cpu_s for use in self.used.values()),
            sum(use.rss_peak_mib for use in self.used.values()),
        )


def family(pids: Iterable[int]) -> list[int]:
    """The processes and all their descendants."""
    found: list[int] = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            found += [pid, *(child.pid for child in process.children(recursive=True))]
    return list(dict.fromkeys(found))
