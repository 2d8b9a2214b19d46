"""The exported trees of topics at the brokers' `tier_root`, one for each life of a topic (ADR 70).

    TIER_ROOT/<topic>-<topic id>/          an exported tree with indexes, of this topic alone

So a topic that is created again never meets files of the one before, nor does what a broker writes
late that lost the partition: that lies in a tree which nobody reads any more. Everything here
blocks and is for threads; an error of the file system is StorageFailed, never "there is none".
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Sequence

from octavo.client.exports.arrow_files import check_bytes
from octavo.client.exports.index_files import check_index
from octavo.client.exports.layout import control_folder, folder_of, index_folder
from octavo.client.exports.manifest import FOLDER, Change, FileEntry, Manifest, ManifestState
from octavo.client.exports.sweep import sweep
from octavo.client.exports.tier_marker import typed
from octavo.client.exports.tier_place import tree_root
from octavo.client.exports.tree import LocalTree
from octavo.proto.segments import Segment
from octavo.runtime.errors import StorageFailed
from octavo.serving.partition.name import PartitionName


class TopicTree:
    """The tree of one life of a topic. One call at a time; others wait."""

    def __init__(self, tier_root: str, name: PartitionName) -> None:
        self.topic = name.topic
        self.root = tree_root(tier_root, name.topic, name.topic_id)
        self.tree = LocalTree(self.root)
        self._manifest = Manifest(self.tree, name.topic)
        self._state: ManifestState | None = None
        self._lock = threading.Lock()

    def files_of(self, partition: int, first: int, end: int, version: int) -> tuple[FileEntry, ...]:
        """The files of offsets [first, end) as of manifest version `version` or later, in order.

        Raises StorageFailed, MetadataCorrupt and UnsupportedVersion.
        """
        with self._lock, typed(self.root):
            if self._state is None or self._state.version < version:
                self._state = self._loaded(version)
            return tuple(
                one
                for one in self._state.of_partition(partition)
                if one.first < end and one.last >= first
            )

    def forget(self) -> None:
        """Read the manifest anew: a file that it named was not there."""
        with self._lock:
            self._state = None

    def _loaded(self, version: int) -> ManifestState:
        state = self._manifest.load()
        if state.version < version:
            raise StorageFailed(
                f"the manifest of {self.root} ends at version {state.version}, and version "
                f"{version} was listed",
                hint="is tier_root the same on every broker, and is its file system there?",
            )
        return state

    def require(self, version: int) -> None:
        """Raise StorageFailed unless the tier's root is there, and this version of the manifest in
        it, if it is not 0: a file system that is not mounted looks like an empty folder."""
        parent = os.path.dirname(self.root)
        if not os.path.isdir(parent):
            raise StorageFailed(
                f"tier_root {parent} is no folder", hint="create it, or mount what holds it"
            )
        if version:
            with self._lock, typed(self.root):
                self._state = self._loaded(version)

    def held(self, partition: int) -> tuple[int, frozenset[int]]:
        """The manifest's version now, and the ledgers whose every record is in the tree.

        Both are durable: a list will believe them after a loss of power.
        """
        with self._lock, typed(self.root):
            state = self._state = self._manifest.load()
            self._settle(state)
            return state.version, state.ledgers(partition)

    def _settle(self, state: ManifestState) -> None:
        """Names that some process gave and whose sync failed there are not durable yet."""
        if state.version:
            control = control_folder(self.topic)
            for folder in (folder_of(self.topic), index_folder(self.topic), f"{control}/{FOLDER}"):
                self.tree.settle(folder)

    def whole(self, partition: int, segment: Segment, first: int) -> tuple[FileEntry, ...]:
        """The files of a segment from offset `first` on, by the manifest as it is now, durable.

        Raises StorageFailed unless they hold each offset of it.
        """
        end = segment.end_offset if segment.end_offset is not None else segment.base_offset
        with self._lock, typed(self.root):
            self._state = self._loaded(segment.object_version or 0)
            self._settle(self._state)
        files = self.files_of(partition, first, end, segment.object_version or 0)
        check_whole(segment, first, files)
        return files

    def check(self, entry: FileEntry) -> None:
        """Read each byte of a file and of its index; raises StorageFailed for what is damaged."""
        with typed(self.root):
            check_bytes(self.tree.path(f"{folder_of(self.topic)}/{entry.file}"), entry)
            check_index(self.tree, self.topic, entry, deep=True)

    def remove_below(self, partition: int, log_start: int, is_there: bool) -> int:
        """Publish that files wholly below the log's start are gone; how many.

        They stay for the grace time, for readers that planned before; then `sweep` deletes them.
        `is_there`: lists name files of the partition, so that there is a tree: StorageFailed where
        there is none, which is not "they are gone".
        """
        removed = 0

        def decide(state: ManifestState) -> Change | None:
            nonlocal removed
            gone = [one.file for one in state.of_partition(partition) if one.last < log_start]
            removed = len(gone)
            return Change(remove=tuple(gone)) if gone else None

        with self._lock, typed(self.root):
            if os.path.isdir(self.root):
                self._state = self._manifest.publish(decide)
            elif is_there:
                raise StorageFailed(
                    f"the exported tree {self.root} is not there, and files of it are listed",
                    hint="put it back, or delete the topic",
                )
        return removed

    def sweep(self) -> None:
        """Delete files that were removed, or never named, longer ago than the grace time."""
        with self._lock, typed(self.root):
            sweep(self.tree, self._manifest, self.topic)

    def delete(self) -> None:
        """Remove the whole tree; again after a crash. Raises StorageFailed."""
        with self._lock, typed(self.root):
            self._state = None
            if os.path.lexists(self.root):
                shutil.rmtree(self.root)


def check_whole(segment: Segment, offset: int, files: Sequence[FileEntry]) -> None:
    """Raise StorageFailed unless files hold each offset of a segment from `offset` on.

    Offsets are dense unless it was compacted (INV-13); then the manifest cannot tell.
    """
    if segment.compacted:
        return
    for entry in files:
        if entry.first > offset:
            break
        offset = entry.last + 1
    if segment.end_offset is not None and offset < segment.end_offset:
        raise StorageFailed(f"no exported file holds offset {offset} of ledger {segment.ledger_id}")
