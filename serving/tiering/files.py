"""Batches of segments that lie in exported files: found, read and rebuilt. Blocking, for threads.

A bounded number of files stays open. Whatever keeps a batch from being read is ReadUnknown, which
is retriable: a store that is away, a file that is damaged, a broker that was not told where files
are. It is never an answer with fewer batches.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

from octavo.client.exports.cold import ColdFile
from octavo.client.exports.manifest import FileEntry
from octavo.proto.batch import BatchHeader
from octavo.proto.segments import Segment, StoredBatch
from octavo.runtime.errors import OctavoError, ReadUnknown
from octavo.serving.partition.name import PartitionName
from octavo.serving.tiering.root import TierRoot
from octavo.serving.tiering.trees import TopicTree, check_whole

TREES_MAX = 256
"""Topics whose manifests stay in memory."""
T = TypeVar("T")
_Key = tuple[str, str]
"""Root of a tree and a file of it."""


class _Open:
    """A file that is open, and how many calls use it."""

    __slots__ = ("file", "used_s", "users")

    def __init__(self, file: ColdFile) -> None:
        self.file = file
        self.users = 0
        self.used_s = 0.0
        """When somebody was seen to use it."""


class TierFiles:
    """Of one broker; any thread may call.

    Args:
        root: with an empty path this broker was told of none.
        open_max: files that stay open; more only while as many are being read at once.
    """

    def __init__(self, root: TierRoot, open_max: int) -> None:
        self._root = root
        self._open_max = open_max
        self._lock = threading.Lock()
        self._trees: OrderedDict[str, TopicTree] = OrderedDict()
        self._open: OrderedDict[_Key, _Open] = OrderedDict()

    def tree(self, name: PartitionName) -> TopicTree:
        """The tree of a topic; raises ReadUnknown when there is no `tier_root`."""
        if not self._root.path:
            raise ReadUnknown(
                f"records of {name} are in exported files, and this broker has no tier_root",
                hint="start every broker with OCTAVO_BROKER_TIER_ROOT=<the folder of before>",
            )
        key = name.topic_id.hex
        with self._lock:
            found = self._trees.get(key)
            if found is None:
                found = self._trees[key] = TopicTree(self._root.path, name)
            self._trees.move_to_end(key)
            while len(self._trees) > TREES_MAX:
                self._trees.popitem(last=False)
            return found

    def batches(
        self, name: PartitionName, segment: Segment, offset: int, size_bytes_max: int
    ) -> list[StoredBatch]:
        """Batches of a segment from the one with `offset` on, in order, at least one; none when no
        more are in the segment. Raises ReadUnknown.
        """

        def read(files: tuple[FileEntry, ...], tree: TopicTree) -> list[StoredBatch]:
            found: list[StoredBatch] = []
            size = 0
            for entry in files:
                with self._opened(tree, entry) as file:
                    found += file.batches(offset, max(size_bytes_max - size, 1), _end(segment))
                size = sum(len(one.batch) for one in found)
                if size >= size_bytes_max:
                    break
            return found

        return self._reading(name, segment, offset, read)

    def header(self, name: PartitionName, segment: Segment, offset: int) -> BatchHeader | None:
        """The header of the batch with `offset` or, in a gap, of the next one of the segment."""

        def read(files: tuple[FileEntry, ...], tree: TopicTree) -> BatchHeader | None:
            for entry in files:
                with self._opened(tree, entry) as file:
                    at = file.find(offset)
                    if at < file.entries:
                        header = file.header(at).header
                        return header if header.base_offset < _end(segment) else None
            return None

        return self._reading(name, segment, offset, read)

    def offset_for_time(
        self, name: PartitionName, segment: Segment, timestamp_ms: int, first: int
    ) -> int | None:
        """Base offset of the first batch from offset `first` on with a record at or after this
        time; None: the segment surely has none."""

        def read(files: tuple[FileEntry, ...], tree: TopicTree) -> int | None:
            for entry in files:
                if entry.max_timestamp_ms < timestamp_ms:
                    continue
                with self._opened(tree, entry) as file:
                    # What is late below `first` hides no later batch: these are looked through.
                    for at in range(
                        max(file.find_time(timestamp_ms), file.find(first)), file.entries
                    ):
                        header = file.header(at).header
                        if header.base_offset >= _end(segment):
                            return None
                        if header.max_timestamp_ms >= timestamp_ms:
                            return header.base_offset
            return None

        return self._reading(name, segment, first, read)

    def close_idle(self, now_s: float, idle_s: float) -> None:
        """Close the files that nobody was seen to use for so long."""
        with self._lock:
            for one in self._open.values():
                one.used_s = now_s if one.users or not one.used_s else one.used_s
            idle = [key for key, one in self._open.items() if one.used_s + idle_s < now_s]
            left = [self._open.pop(key).file for key in idle]
        for file in left:
            file.close()

    def close(self) -> None:
        """Close all files; what is being read ends first."""
        with self._lock:
            left = [one.file for one in self._open.values()]
            self._open.clear()
        for file in left:
            file.close()

    # --- files --------------------------------------------------------------------------------

    def _reading(
        self,
        name: PartitionName,
        segment: Segment,
        offset: int,
        read: Callable[[tuple[FileEntry, ...], TopicTree], T],
    ) -> T:
        """Once more with a new manifest when a file is not what it said: it was written anew."""
        tree = self.tree(name)
        version = segment.object_version or 0
        for is_last in (False, True):
            try:
                files = tree.files_of(name.partition, offset, _end(segment), version)
                check_whole(segment, offset, files)
                return read(files, tree)
            except OctavoError as error:
                if is_last:
                    why = self._why(error)
                    raise ReadUnknown(
                        f"offset {offset} of {name} is in exported files, which cannot be read "
                        f"now: {why.cause}",
                        hint=why.hint,
                    ) from error
                tree.forget()
        raise AssertionError("unreachable")

    def _why(self, error: OctavoError) -> OctavoError:
        """Files that are not found say little where the whole folder is another one."""
        try:
            self._root.check()
        except OctavoError as of_root:
            return of_root
        return error

    @contextmanager
    def _opened(self, tree: TopicTree, entry: FileEntry) -> Generator[ColdFile]:
        key = (tree.root, entry.file)
        with self._lock:
            one = self._open.get(key)
            if one is not None:
                one.users += 1
                self._open.move_to_end(key)
        if one is None:
            one = self._keep(key, ColdFile(tree.tree, tree.topic, entry))
        try:
            yield one.file
        except OctavoError:
            self._drop(key, one)  # what is wrong with it may be mended by then
            raise
        finally:
            with self._lock:
                one.users -= 1
                one.used_s = 0.0  # counted from the next look on

    def _keep(self, key: _Key, file: ColdFile) -> _Open:
        """Two threads may have opened it: one of them is kept."""
        idle: list[ColdFile] = []
        with self._lock:
            one = self._open.get(key)
            if one is not None:
                idle.append(file)
            else:
                one = self._open[key] = _Open(file)
            one.users += 1
            over = len(self._open) - self._open_max
            for old in [name for name, kept in self._open.items() if not kept.users][
                : max(over, 0)
            ]:
                idle.append(self._open.pop(old).file)
        for gone in idle:
            gone.close()
        return one

    def _drop(self, key: _Key, one: _Open) -> None:
        with self._lock:
            if self._open.get(key) is one:
                del self._open[key]
        one.file.close()


def _end(segment: Segment) -> int:
    return segment.end_offset if segment.end_offset is not None else segment.base_offset
