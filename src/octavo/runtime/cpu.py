"""How much processor time this process used, and how much there is."""

from __future__ import annotations

import os
import time
from typing import NamedTuple


class CpuTimes(NamedTuple):
    """Seconds of processor time since some origin."""

    process_s: float
    """All threads together."""
    thread_s: float
    """The thread that asks: on the event loop, what the loop itself took."""


def cpu_times() -> CpuTimes:
    """As of now."""
    return CpuTimes(time.process_time(), time.thread_time())


def usable_cpus() -> int:
    """Processors that this process may run on, at least one."""
    return max(1, len(os.sched_getaffinity(0)))
