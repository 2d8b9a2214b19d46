"""Small files become larger ones: which of them, and how (spec/spark.md §5, compaction of a tree).

Who closes ledgers often gets small files. Adjacent ones of a partition are rewritten as one, which
holds their rows in the same order and names the ledgers of all; one manifest version adds it and
removes them. The removed files stay for the grace time, so a query that was planned before goes on.

Sizes come in classes: the largest is the wanted size, each further one an eighth of the one before.
Neighbours that are all smaller than a class are joined once together they fill it. So a byte is
rewritten once for each class at most, and of each class fewer than eight files are left behind one
another. Files with an index are left alone: they stand for their ledgers, and somebody may be told
to find these by the file's name (ADR 68). The choice is pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from octavo.client.exports.arrow_files import (
    FILE_BYTES_MAX,
    LedgerExporter,
    checks_of,
    read_file,
)
from octavo.client.exports.columns import EXPORTED
from octavo.client.exports.layout import folder_of
from octavo.client.exports.manifest import FileEntry
from octavo.client.exports.tree import Tree

JOIN_FACTOR = 8
"""How many times larger each class of sizes is than the next smaller one."""
JOIN_BYTES_MIN = 4096
"""The smallest class: a file of one record is about so large."""


@dataclass(frozen=True)
class Join:
    """Adjacent files of one partition that one file is to replace."""

    files: tuple[FileEntry, ...]


def next_join(files: Sequence[FileEntry], target_bytes: int) -> Join | None:
    """What to join first, the smallest files before larger ones; `files` in offset order."""
    for limit in _classes(target_bytes):
        run: list[FileEntry] = []
        filled = arrow_bytes = 0
        for entry in files:
            weight = _weight(entry, target_bytes)
            fits = arrow_bytes + entry.arrow_bytes <= FILE_BYTES_MAX
            small = weight < limit and not entry.index
            if run and not (small and fits and _alike(run[-1], entry)):
                run, filled, arrow_bytes = [], 0, 0
            if not small:
                continue
            run.append(entry)
            filled += weight
            arrow_bytes += entry.arrow_bytes
            if filled >= limit and len(run) > 1:
                return Join(tuple(run))
    return None


def join_files(tree: Tree, topic: str, join: Join) -> list[FileEntry]:
    """Write the rows of the files anew, all checked; no reader knows the result yet. Blocking.

    Raises StorageFailed when one of them is damaged or gone.
    """
    first = join.files[0]
    fmt = first.file.rpartition(".")[2]
    writer = LedgerExporter(tree, topic, first.partition, codec=first.codec, fmt=fmt)
    try:
        for entry in join.files:
            for ledger in entry.ledgers:
                writer.begin_ledger(ledger)
            place = tree.open(f"{folder_of(topic)}/{entry.file}")
            for rows in read_file(place, EXPORTED, checks=checks_of(entry), fmt=fmt):
                writer.add_rows(rows, entry.schema_id)
        return writer.finish()
    finally:
        writer.abort()


def _classes(target_bytes: int) -> Iterator[int]:
    """The sizes of all classes, the smallest first."""
    limits = [target_bytes]
    while limits[-1] // JOIN_FACTOR >= JOIN_BYTES_MIN:
        limits.append(limits[-1] // JOIN_FACTOR)
    return reversed(limits)


def _weight(entry: FileEntry, target_bytes: int) -> int:
    """Its share of the wanted size: of that of files, or of their rows if these compress well."""
    return max(entry.bytes, entry.arrow_bytes * target_bytes // FILE_BYTES_MAX)


def _alike(one: FileEntry, other: FileEntry) -> bool:
    """Whether both may lie in one file."""
    return (one.schema_id, one.codec) == (other.schema_id, other.codec)
