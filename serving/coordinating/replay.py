"""Reading a partition of groups from its log start to its high watermark (O8), a piece at a time.

Pieces are decoded and replayed by a worker thread, one behind the other, because 100,000 records
take seconds; memory is bounded by one piece.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from octavo.proto.batch import decode_rows
from octavo.proto.group_records import StoredRecord
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import CorruptEntry
from octavo.serving.cold import ColdRead
from octavo.serving.groups.partition_core import GroupPartitionCore
from octavo.serving.partition.read_path import ReadView, check_offset, read_at
from octavo.serving.partition.rereading import reread
from octavo.serving.partition.shell import PartitionShell

PIECE_BYTES = 1 << 20


class Replayed(NamedTuple):
    """What was read."""

    records: int
    size_bytes: int


async def replay_log(shell: PartitionShell, core: GroupPartitionCore) -> Replayed:
    """Replay everything below the present high watermark.

    Raises what reading raises (NotLeader, ReadUnknown …), UnsupportedVersion and CorruptEntry.
    """
    offset, end = shell.log_start, shell.high_watermark
    records = size_bytes = 0
    while offset < end:
        found = await reread(shell.view, partial(_piece, offset))
        if found.next_offset <= offset:
            raise CorruptEntry(f"{shell.name}: nothing to read at {offset}, below {end}")
        records += await asyncio.to_thread(_replay, core, found.batches, offset)
        size_bytes += found.size_bytes
        offset = found.next_offset
    return Replayed(records, size_bytes)


async def _piece(offset: int, view: ReadView) -> ColdRead:
    check_offset(view, offset)
    return await read_at(view, offset, PIECE_BYTES, at_least_one=True)


def _replay(core: GroupPartitionCore, batches: Sequence[Buffer], start: int) -> int:
    records = 0
    for batch in batches:
        rows = decode_rows(batch)
        for offset, key, value in zip(rows.offsets, rows.keys, rows.values, strict=True):
            if offset < start:
                continue
            if key is None:
                raise CorruptEntry(f"a record of groups at offset {offset} has no key")
            core.replay(StoredRecord(key, value))
            records += 1
    return records
