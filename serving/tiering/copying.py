"""One partition's closed segments into its topic's exported tree, by the exporter (F088, ADR 70).

Nothing is remembered here of an attempt: files are named by their content and count once a manifest
version names them, so an attempt that died anywhere is begun anew and finds what it had done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from octavo.client.exports.log_view import PartitionLog, TopicLog
from octavo.client.exports.run import export_log
from octavo.client.exports.tier_marker import typed
from octavo.client.segments.scan import scan, scan_headers
from octavo.metadata.partition_record import PartitionState
from octavo.proto.segments import Segment, StoredBatch, StoredHeader
from octavo.runtime.ids import LedgerId
from octavo.serving.ledger_backend import LedgerBackend
from octavo.serving.pace import Pace
from octavo.serving.partition.name import PartitionName
from octavo.serving.tiering.trees import TopicTree


class OwnedLog:
    """`LogSource` over the ledgers of one partition that is served here.

    Args:
        state: asked before each batch; raises NotLeader once the partition is not served here.
    """

    def __init__(
        self,
        name: PartitionName,
        state: Callable[[], PartitionState],
        *,
        backend: LedgerBackend,
        pace: Pace,
    ) -> None:
        self.name = name
        self._state = state
        self._backend = backend
        self._pace = pace
        self.size_bytes = 0
        """That were read."""

    async def describe(self, topic: str) -> TopicLog:
        """The closed segments whose ledgers are there."""
        state = self._state()
        closed = tuple(one for one in state.segments if one.closed and one.in_ledger)
        end = max((one.end_offset or 0 for one in closed), default=state.log_start_offset)
        log = PartitionLog(self.name.partition, state.log_start_offset, end, closed)
        return TopicLog(topic, self.name.topic_id.hex, {self.name.partition: log})

    async def batches(
        self, segment: Segment, start_offset: int, visible_end: int
    ) -> AsyncGenerator[StoredBatch, None]:
        """See `BatchSource.batches`; no faster than the pace."""
        reader = await self._backend.open_reader(segment.ledger_id)
        try:
            found = scan(reader, segment, start_offset, visible_end)
            async with aclosing(found):
                async for stored in found:
                    self._state()
                    self.size_bytes += len(stored.batch)
                    await self._pace.spend(len(stored.batch))
                    yield stored
        finally:
            await reader.close()

    async def headers(
        self, segment: Segment, start_offset: int, visible_end: int
    ) -> AsyncGenerator[Sequence[StoredHeader], None]:
        """See `BatchSource.headers`."""
        reader = await self._backend.open_reader(segment.ledger_id)
        try:
            found = scan_headers(reader, segment, start_offset, visible_end)
            async with aclosing(found):
                async for some in found:
                    yield some
        finally:
            await reader.close()


class PartitionCopier:
    """Copies one partition into the tree of its topic; a new one for each look."""

    def __init__(self, log: OwnedLog, tree: TopicTree) -> None:
        self._log = log
        self._tree = tree

    async def copy(self, version: int, *, verify: bool = False) -> None:
        """Copy what the tree lacks, and write damaged files again.

        `version` of the manifest was listed, or a later one. `verify` reads each byte of the
        topic's files for what is damaged, else their sizes are looked at. Raises what reading
        ledgers and writing files raises, NotLeader among it.
        """
        tree = self._tree
        await asyncio.to_thread(tree.require, version)
        with typed(tree.root):
            await export_log(
                self._log, tree.topic, tree.root, tree=tree.tree, index=True, verify=verify
            )

    async def held(self, segments: Sequence[Segment]) -> tuple[int, list[LedgerId]]:
        """The manifest's version now, and which of these segments files hold as of it."""
        version, ledgers = await asyncio.to_thread(self._tree.held, self._log.name.partition)
        there = [
            one.ledger_id
            for one in segments
            if one.ledger_id in ledgers or one.end_offset == one.base_offset
        ]
        return version, there if version else []
