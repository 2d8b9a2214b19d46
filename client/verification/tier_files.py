"""Do the files of a tier hold what lists say they hold? (F088, ADR 70)

Each file that a listed segment needs is read to its last byte and compared with the manifest: its
digest, its rows, its offsets, its index. What is missing is named with the offsets that no bookie
holds any more. Blocking: for threads. A tier that cannot be looked at is unknown, never lost.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from octavo.client.exports.arrow_files import checks_of, verify_file
from octavo.client.exports.checked_file import CheckedFile
from octavo.client.exports.cold import ColdFile
from octavo.client.exports.index_files import check_index
from octavo.client.exports.layout import folder_of
from octavo.client.exports.manifest import FileEntry, Manifest
from octavo.client.exports.tier_marker import TierMark, check_mark, read_mark, typed
from octavo.client.exports.tier_place import tree_root
from octavo.client.exports.tree import LocalTree
from octavo.metadata.partition_record import PartitionState
from octavo.proto.segments import Segment
from octavo.runtime.errors import OctavoError

TREES_KEPT_MAX = 64
"""Topics whose manifests are kept, so that each is read once for all of its partitions."""
Span = tuple[int, int]
"""Offsets [first, end)."""


class Plan(NamedTuple):
    """What of a tier a partition's list needs."""

    files: tuple[FileEntry, ...] = ()
    problems: tuple[str, ...] = ()
    """What no file is named for."""


class TierTree:
    """One topic's tree; any thread may call."""

    def __init__(self, tier_root: str, topic: str, state: PartitionState) -> None:
        self.topic = topic
        self.root = tree_root(tier_root, topic, state.topic_id)
        self._tree = LocalTree(self.root)
        self._manifest = Manifest(self._tree, topic)
        self._lock = threading.Lock()

    def plan(self, state: PartitionState) -> Plan:
        """The files of a list, and which offsets none of them holds.

        Raises StorageFailed, MetadataCorrupt and UnsupportedVersion.
        """
        with self._lock, typed(self.root):
            found = self._manifest.load()
        return judge_files(state, found.version, found.of_partition(state.partition))

    def check(self, entry: FileEntry, *, read: bool) -> None:
        """Compare a file and its index with the manifest; `read`: every byte and every row.

        Raises StorageFailed and what else keeps it from being read.
        """
        name = f"{folder_of(self.topic)}/{entry.file}"
        with typed(self.root):
            CheckedFile(self._tree.open(name), checks_of(entry)).close()
            check_index(self._tree, self.topic, entry, deep=read)
            if read:
                verify_file(self._tree.path(name), entry)
                ColdFile(self._tree, self.topic, entry).close()  # its index counts its rows


class Tier:
    """The tier of a cluster, as one machine sees it."""

    def __init__(self, tier_root: str, mark: TierMark) -> None:
        self.tier_root = tier_root
        self._mark = mark
        self._trees: OrderedDict[str, TierTree] = OrderedDict()

    def require(self) -> None:
        """Raise OctavoError unless the folder is there and this cluster's."""
        check_mark(self.tier_root, read_mark(self.tier_root), self._mark)

    def tree(self, topic: str, state: PartitionState) -> TierTree:
        """A topic's tree."""
        key = state.topic_id.hex
        tree = self._trees.get(key)
        if tree is None:
            tree = self._trees[key] = TierTree(self.tier_root, topic, state)
        self._trees.move_to_end(key)
        if len(self._trees) > TREES_KEPT_MAX:
            self._trees.popitem(last=False)
        return tree


def needs_files(state: PartitionState) -> bool:
    """Whether a list names files."""
    return any(one.object_version is not None for one in state.segments)


def judge_files(state: PartitionState, version: int, entries: Iterable[FileEntry]) -> Plan:
    """Pure: the files that a list needs, in order, and what is missing, in words."""
    listed = max((one.object_version or 0 for one in state.segments), default=0)
    problems: list[str] = []
    if version < listed:
        problems.append(f"the manifest ends at version {version}, and version {listed} was listed")
    needed: dict[str, FileEntry] = {}
    by_offset = sorted(entries, key=lambda one: one.first)
    for segment, (first, end) in _spans(state):
        files = [one for one in by_offset if one.first < end and one.last >= first]
        needed.update((one.file, one) for one in files)
        if not segment.compacted:  # there offsets are missing that the manifest cannot tell
            problems += [
                f"no file holds {_words([gap])} of ledger {segment.ledger_id}{_fate(state, gap)}"
                for gap in _gaps(files, first, end)
            ]
    return Plan(tuple(needed.values()), tuple(problems))


def said_of(state: PartitionState, entry: FileEntry, error: OctavoError) -> str:
    """What a file that cannot be read means, in words."""
    span = (entry.first, entry.last + 1)
    return f"file {entry.file} ({_words([span])}): {error.cause}{_fate(state, span)}"


def _fate(state: PartitionState, span: Span) -> str:
    """Whether bookies hold what files do not."""
    lost = [
        (max(first, span[0]), min(end, span[1]))
        for segment, (first, end) in _spans(state)
        if not segment.in_ledger and first < span[1] and end > span[0]
    ]
    return f"; {_words(_merged(lost))} lost: no bookie holds them" if lost else "; on bookies still"


def _spans(state: PartitionState) -> list[tuple[Segment, Span]]:
    """The segments that files hold, with what of them is in the log."""
    found: list[tuple[Segment, Span]] = []
    for segment in state.segments:
        end = segment.end_offset or 0
        first = max(segment.base_offset, state.log_start_offset)
        if segment.object_version is not None and first < end:
            found.append((segment, (first, end)))
    return found


def _gaps(files: Sequence[FileEntry], first: int, end: int) -> list[Span]:
    gaps: list[Span] = []
    for entry in files:
        if entry.first > first:
            gaps.append((first, entry.first))
        first = max(first, entry.last + 1)
    return [*gaps, (first, end)] if first < end else gaps


def _merged(spans: Sequence[Span]) -> list[Span]:
    merged: list[Span] = []
    for first, end in sorted(spans):
        if merged and merged[-1][1] >= first:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((first, end))
    return merged


def _words(spans: Sequence[Span]) -> str:
    return "offsets " + ", ".join(f"{first} to {end - 1}" for first, end in spans)
