"""What a result was measured on."""

from __future__ import annotations

import datetime
import os
import pathlib
import platform
import subprocess
from collections.abc import Mapping

import psutil

GIB = 1 << 30
_CPUINFO = pathlib.Path("/proc/cpuinfo")
ROOT = pathlib.Path(__file__).resolve().parent.parent


def describe(work: pathlib.Path) -> Mapping[str, str]:
    """Date, processor, memory, disk of `work`, operating system, Python, commit."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else "?"),
        "memory": f"{psutil.virtual_memory().total / GIB:.0f} GiB",
        "filesystem": _filesystem(work),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "commit": _commit(),
    }


def load_now() -> float:
    """Average number of runnable processes of the last minute: above the cores, others work too."""
    return os.getloadavg()[0]


def _processor() -> str:
    if _CPUINFO.exists():
        for line in _CPUINFO.read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _filesystem(work: pathlib.Path) -> str:
    best = ("?", "/")
    for part in psutil.disk_partitions(all=True):
        inside = str(work.resolve()).startswith(part.mountpoint.rstrip("/") + "/")
        if inside and len(part.mountpoint) >= len(best[1]):
            best = (part.fstype, part.mountpoint)
    return best[0]


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "?"
