"""Tuning of glibc's allocator for large short-lived buffers (design.md §10)."""

from __future__ import annotations

import ctypes
import os
import sys

_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3


def tune_malloc() -> bool:
    """Keep large buffers inside the heap instead of mapping and unmapping each (design.md §10).

    glibc only; returns whether the settings are in force. `OCTAVO_MALLOC_TUNING=0` turns it off.
    """
    if os.environ.get("OCTAVO_MALLOC_TUNING") == "0" or not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    mallopt = getattr(libc, "mallopt", None)
    if mallopt is None:
        return False
    settings = (
        (_M_MMAP_THRESHOLD, 32 << 20),
        (_M_TRIM_THRESHOLD, 1 << 30),
        (_M_TOP_PAD, 64 << 20),
    )
    return all(mallopt(ctypes.c_int(key), ctypes.c_int(value)) == 1 for key, value in settings)
