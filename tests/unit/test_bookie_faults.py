"""What an error of the disk means: full, not accessible, damaged, failed; never one for another."""

from __future__ import annotations

import errno
import os

import pytest

from octavo.bookie.faults import UNAVAILABLE, from_os_error, from_rocksdb
from octavo.runtime.errors import (
    DiskFailed,
    StorageDamaged,
    StorageFailed,
    StorageFull,
    StorageUnavailable,
)

EXPECTED: dict[int, type[StorageFailed]] = {
    errno.ENOSPC: StorageFull,
    errno.EDQUOT: StorageFull,
    **dict.fromkeys(UNAVAILABLE, StorageUnavailable),
    errno.EIO: DiskFailed,
    errno.ENXIO: DiskFailed,
}


@pytest.mark.parametrize("number", EXPECTED)
def test_each_errno_has_its_cause_and_advice(number: int) -> None:
    error = from_os_error("writing", OSError(number, os.strerror(number), "/data/x"))
    assert type(error) is EXPECTED[number]
    assert "/data/x" in error.cause
    assert error.hint
    assert "accept" not in error.hint, "none of these is lost history"


@pytest.mark.parametrize(
    ("text", "expected", "named"),
    [
        (
            "IO error: No space left on device: While appending to file: /i/MANIFEST-000012: x",
            StorageFull,
            "No space left",
        ),
        ("IO error: Disk quota exceeded: While appending to file: /i/3.sst", StorageFull, "quota"),
        (
            "IO error: lock hold by current process, acquire time 1 acquiring thread 2: /i/LOCK",
            StorageUnavailable,
            "/i/LOCK",
        ),
        (
            "IO error: While lock file: /i/LOCK: Resource temporarily unavailable",
            StorageUnavailable,
            "/i/LOCK",
        ),
        (
            "IO error: While open a file for appending: /i/LOG: Permission denied",
            StorageUnavailable,
            "Permission",
        ),
        (
            "IO error: While open a file for random read: /i/000009.sst: Too many open files",
            StorageUnavailable,
            "Too many",
        ),
        (
            "Corruption: block checksum mismatch: stored = 1, computed = 2, type = 4  in "
            "/i/000009.sst offset 0 size 1127",
            StorageDamaged,
            "/i/000009.sst",
        ),
        (
            "IO error: No such file or directory: While open a file for random read: /i/000009.sst",
            StorageDamaged,
            "/i/000009.sst",
        ),
        (
            "IO error: While pread offset 0 len 100: /i/000009.sst: Input/output error",
            StorageDamaged,
            "/i/000009.sst",
        ),
        ("IO error: While fdatasync: /i/000009.sst: Input/output error", DiskFailed, "fdatasync"),
        ("something of a newer RocksDB", StorageDamaged, "/i"),
    ],
)
def test_each_text_of_rocksdb_has_its_cause(
    text: str, expected: type[StorageFailed], named: str
) -> None:
    error = from_rocksdb("an index read failed", "/i", Exception(text))
    assert type(error) is expected
    assert named in error.cause
