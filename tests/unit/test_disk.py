"""The real disk: what it keeps in the operating system's page cache."""

from __future__ import annotations

import ctypes
import mmap
import pathlib

from octavo.runtime.disk import DROP_STEP_BYTES, RealDisk

STEPS = 6


def is_cached(path: pathlib.Path, offset: int) -> bool:
    """Whether the page of this byte is in memory (mincore, which touches nothing)."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        first = ctypes.c_char.from_buffer(mapped, offset)
        answer = ctypes.c_ubyte()
        failed = ctypes.CDLL(None, use_errno=True).mincore(
            ctypes.c_void_p(ctypes.addressof(first)),
            ctypes.c_size_t(mmap.PAGESIZE),
            ctypes.byref(answer),
        )
        del first
        if failed:
            raise OSError(ctypes.get_errno(), "mincore")
        return bool(answer.value & 1)


def test_synced_bytes_leave_the_page_cache_but_for_the_last_ones(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file"
    appender = RealDisk().create(path, (STEPS + 1) * DROP_STEP_BYTES)
    for step in range(STEPS):
        appender.write([bytes([step]) * DROP_STEP_BYTES])
    appender.sync()
    assert is_cached(path, 0)
    appender.drop_cached(keep_bytes=2 * DROP_STEP_BYTES)
    kept = [is_cached(path, step * DROP_STEP_BYTES) for step in range(STEPS)]
    assert kept == [False] * (STEPS - 2) + [True] * 2
    appender.drop_cached(keep_bytes=0)
    appender.close()
    assert not any(is_cached(path, step * DROP_STEP_BYTES) for step in range(STEPS))
    assert path.read_bytes()[::DROP_STEP_BYTES] == bytes(range(STEPS)) + b"\0"


def test_less_than_a_step_is_not_worth_a_call(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file"
    appender = RealDisk().create(path, 0)
    appender.write([b"x" * (DROP_STEP_BYTES - 1)])
    appender.sync()
    appender.drop_cached(keep_bytes=0)
    assert is_cached(path, 0)
    appender.close()
