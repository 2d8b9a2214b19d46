"""A disk that is full at any byte of an export: said as what it is, nothing half is left on it.

The bound is the kernel's (RLIMIT_FSIZE): a write beyond it fails in the middle of a buffer, at the
end of a file, in a footer, as it does on a full disk.
"""

from __future__ import annotations

import errno
import gc
import pathlib
import resource
import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest

from octavo.client.exports.manifest import Manifest
from octavo.client.exports.run import export_log
from octavo.client.exports.tree import LocalTree
from tests.spark_memory import MemoryTopic, numbered


@contextmanager
def file_bytes_max(size_bytes: int) -> Generator[None]:
    """No file of this process grows beyond this."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def left(root: pathlib.Path) -> list[str]:
    return [path.name for path in root.rglob(".tmp-*")]


def bounds(full: int) -> Iterator[int]:
    """Sizes at which something else is written each time."""
    yield from (0, 5, 600)  # magic bytes, the schema, the first rows
    yield from (full // 2, full - 10)


@pytest.mark.parametrize("index", [False, True])
@pytest.mark.parametrize("fmt", ["arrow", "parquet"])
async def test_a_full_disk_leaves_nothing_half(
    tmp_path: pathlib.Path, fmt: str, index: bool
) -> None:
    topic = MemoryTopic()
    topic.append([numbered(9000)])
    whole = await export_log(topic, "orders", tmp_path / "whole", fmt=fmt, index=index)
    (file,) = whole.files
    root = tmp_path / "full"
    gc.freeze()  # of a whole suite: only what happens now is looked through
    for bound in bounds((tmp_path / "whole" / "orders" / file).stat().st_size):
        with file_bytes_max(bound), pytest.raises(OSError, match="too large") as caught:
            await export_log(topic, "orders", root, fmt=fmt, index=index)
        assert caught.value.errno == errno.EFBIG
        gc.collect()  # a writer that is forgotten does not try again, nor complains
        assert left(root) == []
        assert not Manifest(LocalTree(root), "orders").load().files
    gc.unfreeze()
    again = await export_log(topic, "orders", root, fmt=fmt, index=index)
    assert (again.files, again.rows) == (whole.files, 9000)


def test_a_checkpoint_that_finds_no_room_leaves_nothing(tmp_path: pathlib.Path) -> None:
    tree = LocalTree(tmp_path)
    with file_bytes_max(10), pytest.raises(OSError, match="too large"):
        tree.replace("checkpoint", b"x" * 100)
    assert list(tmp_path.iterdir()) == []
