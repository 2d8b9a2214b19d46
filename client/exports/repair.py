"""Which exported files are damaged, and which ledgers give them again (P8).

The exported file is a copy while its ledgers live, and the only copy afterwards. So each run looks
at the size of every file, `verify` at every byte, and what is damaged is written anew from the
ledgers that still exist. What cannot be written anew is reported and stays damaged: a reader gets a
typed error, never fewer rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from octavo.client.exports.arrow_files import check_bytes, checks_of
from octavo.client.exports.checked_file import CheckedFile
from octavo.client.exports.index_files import check_index
from octavo.client.exports.layout import folder_of, index_folder
from octavo.client.exports.log_view import PartitionLog
from octavo.client.exports.manifest import FileEntry, ManifestState
from octavo.client.exports.plan import Group
from octavo.client.exports.tree import Tree
from octavo.runtime.errors import StorageFailed

OnChecked = Callable[[FileEntry, StorageFailed | None], None]
"""Told of every file that was looked at, with what is wrong with it."""


def damaged_files(
    tree: Tree,
    topic: str,
    state: ManifestState,
    partitions: Collection[int],
    *,
    deep: bool,
    tell: OnChecked | None = None,
) -> list[FileEntry]:
    """The files of `partitions` that are gone or differ from the manifest, or whose index does;
    blocking.

    `deep` reads each byte; else only files are opened whose size in a listing is another one.
    """
    found: list[FileEntry] = []
    sizes = {} if deep else tree.sizes(folder_of(topic))
    indexes = {} if deep else tree.sizes(index_folder(topic))
    for entry in (state.files[name] for name in sorted(state.files)):
        if entry.partition not in partitions:
            continue
        name = f"{folder_of(topic)}/{entry.file}"
        if (
            sizes.get(entry.file) == entry.bytes
            and (not entry.index or indexes.get(entry.index) == entry.index_bytes)
            and checks_of(entry).is_complete()
        ):
            if tell is not None:
                tell(entry, None)
            continue
        wrong: StorageFailed | None = None
        try:
            if deep:
                check_bytes(tree.open(name), entry)
            else:
                CheckedFile(tree.open(name), checks_of(entry)).close()
            check_index(tree, topic, entry, deep=deep)
        except StorageFailed as error:
            wrong = error
            found.append(entry)
        if tell is not None:
            tell(entry, wrong)
    return found


def sharing(entries: Iterable[FileEntry], damaged: FileEntry) -> list[FileEntry]:
    """The files of one partition that hold ledgers of `damaged`, directly or over other files.

    They are written anew together, for a ledger is always exported whole.
    """
    left = sorted(
        (e for e in entries if e.partition == damaged.partition), key=lambda entry: entry.first
    )
    ledgers = set(damaged.ledgers)
    while more := {n for e in left if ledgers & set(e.ledgers) for n in e.ledgers} - ledgers:
        ledgers |= more
    return [entry for entry in left if ledgers & set(entry.ledgers)]


def repair_group(log: PartitionLog | None, entries: list[FileEntry]) -> Group | None:
    """The ledgers that give `entries` again, None unless all of them still exist, closed, whole."""
    if log is None:
        return None
    wanted = {ledger for entry in entries for ledger in entry.ledgers}
    segments = tuple(s for s in log.segments if s.closed and s.ledger_id in wanted)
    if {segment.ledger_id for segment in segments} != wanted:
        return None
    end = segments[-1].end_below(log.high_watermark)
    if segments[0].base_offset > entries[0].first or end <= entries[-1].last:
        return None
    size_bytes = sum(segment.size_bytes for segment in segments)
    return Group(log.partition, segments, size_bytes, entries[0].first)
