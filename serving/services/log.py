"""Offsets of partitions, and their logs as readers of bookies need them (F6, F076)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from octavo.client.exports.tier_place import tree_root
from octavo.metadata.topics import check_for_users
from octavo.proto import broker_pb2 as pb
from octavo.proto.errors import to_wire
from octavo.proto.segment_codecs import to_info
from octavo.proto.segments import Segment
from octavo.runtime.errors import (
    InvalidRequest,
    MetadataUnavailable,
    NoSuchLedger,
    OctavoError,
    OffsetOutOfRange,
    RequestTimedOut,
)
from octavo.serving.compaction.rounds import CompactionRounds
from octavo.serving.config import BrokerConfig
from octavo.serving.partition.name import PartitionName
from octavo.serving.partition.read_path import Found, offset_for_time
from octavo.serving.partition.rereading import reread
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.registry import PartitionRegistry
from octavo.serving.services.caller import Caller
from octavo.serving.services.rpc import Handlers, unary
from octavo.serving.services.views import bookie_infos
from octavo.serving.storage import Storage
from octavo.serving.store_answers import StoreAnswers

LIST_OFFSETS_MAX = 10_000
CONCURRENT_READS = 32

_OnePartition = (
    pb.ListOffset
    | pb.DescribeLogRequest
    | pb.RollRequest
    | pb.DeleteRecordsRequest
    | pb.CompactRequest
)
"""Requests that name one partition, perhaps of one life of its topic."""


class LogService:
    """The requests about one log. Errors of one partition travel in the reply's `Error`."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        storage: Storage,
        registry: PartitionRegistry,
        compaction: CompactionRounds,
        store_answers: StoreAnswers,
    ) -> None:
        self._config = config
        self._storage = storage
        self._registry = registry
        self._compaction = compaction
        self._during = store_answers.during

    def handlers(self) -> Handlers:
        """See `Service`."""
        return {
            "ListOffsets": unary(pb.ListOffsetsRequest, self.list_offsets),
            "DescribeLog": unary(pb.DescribeLogRequest, self.describe_log),
            "Roll": unary(pb.RollRequest, self.roll),
            "DeleteRecords": unary(pb.DeleteRecordsRequest, self.delete_records),
            "Compact": unary(pb.CompactRequest, self.compact),
        }

    async def list_offsets(
        self, request: pb.ListOffsetsRequest, _caller: Caller
    ) -> pb.ListOffsetsReply:
        """Earliest, latest, or the first record at or after a time (F6)."""
        if len(request.offsets) > LIST_OFFSETS_MAX:
            raise InvalidRequest(f"more than {LIST_OFFSETS_MAX} offsets asked for")
        gate = asyncio.Semaphore(CONCURRENT_READS)
        silent: MetadataUnavailable | None = None  # once it is, none waits for the store any more

        async def one(asked: pb.ListOffset) -> pb.ListedOffset:
            nonlocal silent
            listed = pb.ListedOffset(topic=asked.topic, partition=asked.partition)
            try:
                async with gate:
                    if silent and self._registry.find(asked.topic, asked.partition) is None:
                        raise silent
                    shell = await self._resolve(asked)
                    listed.topic_id = shell.name.topic_id.bytes
                    await self._during(self._find(shell, asked, listed))
            except OctavoError as error:
                silent = error if isinstance(error, MetadataUnavailable) else silent
                listed.error.CopyFrom(to_wire(error))
            return listed

        found = await asyncio.gather(*(one(asked) for asked in request.offsets))
        return pb.ListOffsetsReply(offsets=found)

    @staticmethod
    async def _find(shell: PartitionShell, asked: pb.ListOffset, listed: pb.ListedOffset) -> None:
        match asked.WhichOneof("at"):
            case "earliest":
                listed.offset = shell.log_start
            case "latest":
                await shell.prove_end()
                listed.offset = shell.high_watermark
            case "timestamp_ms":
                found = await _by_time(shell, asked.timestamp_ms)
                if found is None:  # "none is that late" speaks of the end
                    await shell.prove_end()
                    found = await _by_time(shell, asked.timestamp_ms)
                if found is not None:
                    listed.offset, listed.timestamp_ms = found
            case _:
                raise InvalidRequest("an offset is asked for by time, as earliest or as latest")

    async def _resolve(self, asked: _OnePartition) -> PartitionShell:
        return await self._registry.resolve_life(
            asked.topic, asked.partition, asked.topic_id, self._config.load_wait_s
        )

    async def describe_log(
        self, request: pb.DescribeLogRequest, _caller: Caller
    ) -> pb.DescribeLogReply:
        """F076: segments with their ledger records, as a reader of bookies needs them."""
        try:
            shell = await self._resolve(request)
            await shell.prove_end()
            # All of one moment: what is rolled or trimmed meanwhile is not told.
            log_start, segments = shell.log_start, shell.described()
            high_watermark = shell.high_watermark
            try:
                infos = await self._during(self._segment_infos(segments, high_watermark))
            except NoSuchLedger:  # one was trimmed and deleted meanwhile
                log_start, segments = shell.log_start, shell.described()
                infos = await self._during(self._segment_infos(segments, high_watermark))
        except OctavoError as error:
            return pb.DescribeLogReply(error=to_wire(error))
        return pb.DescribeLogReply(
            log_start=log_start,
            high_watermark=high_watermark,
            segments=infos,
            bookies=bookie_infos(self._storage.bookies()),
            owner_epoch=shell.owner_epoch,
            topic_id=shell.name.topic_id.bytes,
            tier_tree=self._tier_tree(shell.name, segments),
        )

    def _tier_tree(self, name: PartitionName, segments: Iterable[Segment]) -> str:
        """Where the files of a topic lie that has some; empty: it has none, or nobody said."""
        root = self._config.tier_root
        if not root or all(one.object_version is None for one in segments):
            return ""
        return tree_root(root, name.topic, name.topic_id)

    async def _segment_infos(
        self, segments: Iterable[Segment], high_watermark: int
    ) -> list[pb.SegmentInfo]:
        gate = asyncio.Semaphore(CONCURRENT_READS)

        async def one(segment: Segment) -> pb.SegmentInfo:
            if not segment.in_ledger:
                return to_info(segment, high_watermark)
            async with gate:
                record = await self._storage.read_record(segment.ledger_id)
            described = replace(segment, ledger_record=record.to_bytes())
            return to_info(described, high_watermark)

        return list(await asyncio.gather(*(one(segment) for segment in segments)))

    async def roll(self, request: pb.RollRequest, _caller: Caller) -> pb.RollReply:
        """Close the open segment so that exports see it."""
        try:
            shell = await self._resolve(request)
            async with asyncio.timeout(self._config.unload_deadline_s):
                high_watermark = await shell.roll()
                await shell.prove_end()
                return pb.RollReply(high_watermark=high_watermark)
        except TimeoutError:
            slow = RequestTimedOut(  # it goes on and may well succeed: worth asking again
                f"the open segment of {request.topic}-{request.partition} is still being closed "
                f"after {self._config.unload_deadline_s:g} s"
            )
            return pb.RollReply(error=to_wire(slow))
        except OctavoError as refused:
            return pb.RollReply(error=to_wire(refused))

    async def delete_records(
        self, request: pb.DeleteRecordsRequest, _caller: Caller
    ) -> pb.DeleteRecordsReply:
        """Cut off the beginning of a log (R4, ML-8)."""
        try:
            check_for_users(request.topic)
            shell = await self._resolve(request)
            try:
                log_start = await self._during(shell.trim(request.before))
            except OffsetOutOfRange:  # that the log is shorter speaks of its end
                await shell.prove_end()
                log_start = await self._during(shell.trim(request.before))
        except OctavoError as refused:
            return pb.DeleteRecordsReply(error=to_wire(refused))
        return pb.DeleteRecordsReply(log_start=log_start)

    async def compact(self, request: pb.CompactRequest, _caller: Caller) -> pb.CompactReply:
        """Clean a partition now; it goes on when the caller leaves."""
        try:
            check_for_users(request.topic)
            shell = await self._resolve(request)
            done = await self._compaction.compact(shell)
            await shell.prove_end()
        except OctavoError as refused:
            return pb.CompactReply(error=to_wire(refused))
        return pb.CompactReply(
            cleaned_to=done.cleaned_to,
            records_removed=done.records_removed,
            bytes_before=done.bytes_before,
            bytes_after=done.bytes_after,
        )


async def _by_time(shell: PartitionShell, timestamp_ms: int) -> Found | None:
    return await reread(shell.view, lambda view: offset_for_time(view, timestamp_ms))
