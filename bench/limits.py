"""What the machine itself allows: appended bytes made durable per second."""

from __future__ import annotations

import os
import pathlib
import time

PREALLOCATED_BYTES = 512 * 1024 * 1024


def fsync_mb_per_s(folder: pathlib.Path, block_bytes: int, total_bytes: int) -> float:
    """MB/s of writing `block_bytes` and fdatasync, one after the other, to a preallocated file."""
    block = os.urandom(block_bytes)
    path = folder / "fsync-limit"
    fd = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    try:
        os.posix_fallocate(fd, 0, PREALLOCATED_BYTES)
        os.fsync(fd)
        count = min(total_bytes, PREALLOCATED_BYTES) // block_bytes
        began = time.perf_counter()
        for _ in range(count):
            os.write(fd, block)
            os.fdatasync(fd)
        return count * block_bytes / (time.perf_counter() - began) / 1e6
    finally:
        os.close(fd)
        path.unlink()
