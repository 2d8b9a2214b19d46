"""What the disk allows: appended bytes made durable per second, and how long one sync takes."""

from __future__ import annotations

import os
import pathlib
import threading
import time

from bench.stats import Latency, latency

PREALLOCATED_BYTES = 512 * 1024 * 1024
COPIES = 3


def fsync_mb_per_s(folder: pathlib.Path, block_bytes: int, total_bytes: int) -> float:
    """MB/s of writing `block_bytes` and fdatasync, one after the other, to a preallocated file."""
    return _append(folder / "fsync-limit", block_bytes, total_bytes)


def fsync_together_mb_per_s(
    folder: pathlib.Path, block_bytes: int, total_bytes: int, files: int = COPIES
) -> float:
    """MB/s that each of `files` files gets when all are appended and synced at the same time.

    This is what three bookies on one disk can share; the system calls leave the interpreter lock.
    """
    speeds = [0.0] * files

    def one(number: int) -> None:
        speeds[number] = _append(folder / f"fsync-limit-{number}", block_bytes, total_bytes)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(files)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return min(speeds)


def fsync_latency(folder: pathlib.Path, block_bytes: int, count: int) -> Latency:
    """Append `block_bytes` and fdatasync, `count` times, one after the other."""
    samples: list[float] = []
    _append(folder / "fsync-limit", block_bytes, block_bytes * count, samples)
    return latency(samples)


def _append(
    path: pathlib.Path, block_bytes: int, total_bytes: int, samples: list[float] | None = None
) -> float:
    block = os.urandom(block_bytes)
    fd = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    try:
        os.posix_fallocate(fd, 0, min(max(total_bytes, block_bytes), PREALLOCATED_BYTES))
        os.fsync(fd)
        count = max(min(total_bytes, PREALLOCATED_BYTES) // block_bytes, 1)
        began = time.perf_counter()
        for _ in range(count):
            started = time.perf_counter()
            os.write(fd, block)
            os.fdatasync(fd)
            if samples is not None:
                samples.append(time.perf_counter() - started)
        return count * block_bytes / (time.perf_counter() - began) / 1e6
    finally:
        os.close(fd)
        path.unlink()
