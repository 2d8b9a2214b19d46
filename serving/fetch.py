"""Long-poll fetch over many partitions (spec groups F1-F5): event driven, whole batches, bounded.

One `Fetcher` serves one stream. It answers when enough bytes are readable, when a partition has
an error or moved, when the client sent its next request, or at max_wait; partitions wake it by
callback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from octavo.proto import broker_pb2 as pb
from octavo.proto.batch import MAX_BATCH_BYTES
from octavo.proto.errors import to_wire
from octavo.proto.fetch_wire import PartitionReply, encode_reply
from octavo.runtime.checksum import Buffer
from octavo.runtime.clock import Clock
from octavo.runtime.errors import InvalidRequest, NotLeader, OctavoError, OffsetOutOfRange
from octavo.serving.budget import ByteBudget
from octavo.serving.cold import ColdRead
from octavo.serving.config import BrokerConfig
from octavo.serving.partition.read_path import (
    ReadView,
    available_bytes,
    check_offset,
    check_start,
    read_at,
    warm_at,
)
from octavo.serving.partition.rereading import reread
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.quotas.clients import ClientUse
from octavo.serving.registry import PartitionRegistry

DEFAULT_PARTITION_BYTES = 1_048_576
COPIES_IN_FLIGHT = 2
"""How often a reply is in memory until a slow connection took it: read from the cache or a bookie
and as a message, then as a message and as gRPC's copy of it. The budget counts each (BP-2)."""
WARM_PARTITIONS = 8
"""Partitions of one fetch whose cold reads begin while an earlier one is being read."""
LOAD_WAIT_MIN_S = 1.0
"""A partition that is just being loaded is waited for at least this long before NOT_LEADER."""


@dataclass
class _Slot:
    """One partition of the request."""

    asked: pb.FetchPartition
    shell: PartitionShell | None = None
    error: OctavoError | None = None
    available: int = 0
    """Bytes that could be read at the last look."""

    @property
    def says_end(self) -> bool:
        """Whether the answer says where the log ends: no bytes, or an offset beyond it."""
        if self.error is not None:
            return isinstance(self.error, OffsetOutOfRange)
        return self.available == 0

    @property
    def max_bytes(self) -> int:
        return self.asked.max_bytes if self.asked.max_bytes > 0 else DEFAULT_PARTITION_BYTES


class FetchResult:
    """A reply and the bytes it holds of the broker's budget until it was written (BP-2)."""

    def __init__(
        self, message: bytes, budget: ByteBudget, reserved: int, cold_bytes: int = 0
    ) -> None:
        self.message = message
        self.cold_bytes = cold_bytes
        """What of it did not come from a tail cache."""
        self._budget = budget
        self._reserved = reserved

    def written(self) -> None:
        """The reply left: drop it and give the budget back.

        The stream may hold this object until its next reply, which waits for the budget too.
        """
        self.message = b""
        self._budget.release(self._reserved)
        self._reserved = 0


class Fetcher:
    """Answers the fetch requests of one stream, one after the other."""

    def __init__(
        self,
        registry: PartitionRegistry,
        budget: ByteBudget,
        config: BrokerConfig,
        clock: Clock,
        client: ClientUse,
    ) -> None:
        self._client = client
        self._registry = registry
        self._budget = budget
        self._config = config
        self._clock = clock
        self._filled_by = ("", -1)
        """The last partition that had bytes in the last reply that had any."""
        self._cold_bytes = 0
        """Of the present reply."""
        self._look = asyncio.Event()
        self._hurry = False

    def hurry(self, *, hurry: bool = True) -> None:
        """The client already sent its next request: do not wait any longer."""
        self._hurry = hurry
        self._look.set()

    async def fetch(self, request: pb.FetchRequest) -> FetchResult:
        """Answer one request; raises InvalidRequest only for what cannot be answered at all."""
        self._check(request)
        max_wait_ms = min(max(0, request.max_wait_ms), self._config.fetch_max_wait_ms)
        deadline_s = self._clock.monotonic() + max_wait_ms / 1000
        owed = self._client.owed_out(self._clock.monotonic())
        if owed.seconds:  # others of its streams used what there was
            return self._refused(request, self._client.refusal(owed))
        slots = await self._resolve(request.partitions, max_wait_ms / 1000)
        max_bytes = request.max_bytes if request.max_bytes > 0 else self._config.fetch_max_bytes
        reply_bytes = max(self._config.fetch_reply_bytes, request.min_bytes)
        max_bytes = min(max_bytes, self._config.fetch_max_bytes, reply_bytes)
        max_bytes = self._client.answer_bytes(max_bytes)
        shells = {slot.shell for slot in slots if slot.shell is not None}
        for shell in shells:
            shell.watchers.add(self._look.set)
        try:
            min_bytes = max(0, min(request.min_bytes, max_bytes))
            await self._wait(slots, min_bytes, deadline_s)
        finally:
            for shell in shells:
                shell.watchers.remove(self._look.set)
        await self._prove_ends(slots)
        size_bytes = min(max_bytes, sum(min(slot.available, slot.max_bytes) for slot in slots))
        largest = max((slot.available for slot in slots), default=0)
        # One batch is read however small the limits are (F2).
        reserved = max(size_bytes, min(largest, MAX_BATCH_BYTES)) * COPIES_IN_FLIGHT
        await self._budget.take(reserved)
        try:
            partitions = await self._read(slots, max_bytes)
        except BaseException:
            self._budget.release(reserved)
            raise
        sent_bytes = sum(len(batch) for one in partitions for batch in one.batches)
        held = COPIES_IN_FLIGHT * sent_bytes
        self._budget.charge(held)
        self._budget.release(reserved)
        excess = self._client.sends(sent_bytes, self._clock.monotonic())
        message = encode_reply(request.correlation, partitions, throttle_ms=excess.pause_ms)
        return FetchResult(message, self._budget, held, self._cold_bytes)

    def _refused(self, request: pb.FetchRequest, error: OctavoError) -> FetchResult:
        """The same error for each partition; nothing was read."""
        told = to_wire(error)
        partitions = [
            PartitionReply(
                pb.FetchedPartition(
                    topic=asked.topic,
                    partition=asked.partition,
                    next_offset=asked.offset,
                    topic_id=asked.topic_id,
                    error=told,
                ),
                (),
            )
            for asked in request.partitions
        ]
        message = encode_reply(
            request.correlation, partitions, throttle_ms=int(error.details["throttle_ms"])
        )
        return FetchResult(message, self._budget, 0)

    def _check(self, request: pb.FetchRequest) -> None:
        count = len(request.partitions)
        if count > self._config.fetch_max_partitions:
            raise InvalidRequest(
                f"fetch names {count} partitions, limit {self._config.fetch_max_partitions}"
            )
        for asked in request.partitions:
            if not asked.topic or asked.partition < 0:
                raise InvalidRequest("fetch names no topic or a negative partition")

    async def _resolve(self, asked: Sequence[pb.FetchPartition], max_wait_s: float) -> list[_Slot]:
        slots = [_Slot(one) for one in asked]
        missing: list[_Slot] = []
        for slot in slots:
            asked_id = slot.asked.topic_id
            shell = self._registry.find(slot.asked.topic, slot.asked.partition)
            if shell is None or (asked_id and shell.name.topic_id.bytes != asked_id):
                missing.append(slot)
            else:
                slot.shell = shell
        if missing:
            wait_s = max(LOAD_WAIT_MIN_S, max_wait_s)
            await asyncio.gather(*(self._resolve_one(slot, wait_s) for slot in missing))
        return slots

    async def _resolve_one(self, slot: _Slot, wait_s: float) -> None:
        try:
            slot.shell = await self._registry.resolve_life(
                slot.asked.topic, slot.asked.partition, slot.asked.topic_id, wait_s
            )
        except OctavoError as error:
            slot.error = error

    async def _wait(self, slots: list[_Slot], min_bytes: int, deadline_s: float) -> None:
        """Wait as F1 says."""
        while True:
            self._look.clear()
            available = self._look_at(slots)
            left_s = deadline_s - self._clock.monotonic()
            failed = any(slot.error is not None for slot in slots)
            if available >= min_bytes or failed or left_s <= 0 or self._hurry:
                return
            try:
                async with asyncio.timeout(left_s):
                    await self._look.wait()
            except TimeoutError:
                self._look_at(slots)
                return

    def _look_at(self, slots: list[_Slot]) -> int:
        available = 0
        for slot in slots:
            if slot.error is not None or slot.shell is None:
                continue
            asked = slot.asked
            try:
                if self._registry.find(asked.topic, asked.partition) is not slot.shell:
                    # Moved, unloaded, or the session is lost (G3).
                    raise slot.shell.gone or NotLeader(f"{slot.shell.name} is not served here now")
                view = slot.shell.view()
                check_offset(view, asked.offset)
                slot.available = available_bytes(view, asked.offset)
                available += slot.available
            except OctavoError as error:
                slot.error = error
        return available

    async def _prove_ends(self, slots: list[_Slot]) -> None:
        """ "Nothing is there" and "beyond the end" are said only by whoever surely is the owner."""
        if not self._registry.certain():
            await asyncio.gather(*(self._prove_end(slot) for slot in slots if slot.says_end))

    @staticmethod
    async def _prove_end(slot: _Slot) -> None:
        try:
            if slot.shell is not None:
                await slot.shell.prove_end()
        except OctavoError as error:
            slot.error = error

    async def _read(self, slots: list[_Slot], max_bytes: int) -> list[PartitionReply]:
        """What each slot has, beginning behind the one that filled the last reply (F2)."""
        replies: list[PartitionReply] = []
        left = max_bytes
        self._cold_bytes = 0
        names = [(slot.asked.topic, slot.asked.partition) for slot in slots]
        start = names.index(self._filled_by) + 1 if self._filled_by in names else 0
        nothing_yet = True
        turn = slots[start:] + slots[:start]
        self._warm(turn[1 : 1 + WARM_PARTITIONS])
        for slot in turn:
            reply = await self._read_slot(slot, left, at_least_one=nothing_yet)
            size = sum(map(len, reply.batches))
            left -= size
            if size and slot.shell is not None:
                offsets = reply.fields.next_offset - slot.asked.offset
                slot.shell.traffic.read(offsets, size)
                nothing_yet = False
                self._filled_by = (slot.asked.topic, slot.asked.partition)
            replies.append(reply)
        return replies

    @staticmethod
    def _warm(slots: list[_Slot]) -> None:
        """Let ledgers of the next partitions open while the first one is read, not in its turn."""
        for slot in slots:
            if slot.shell is None or slot.error is not None:
                continue
            try:
                warm_at(slot.shell.view(), slot.asked.offset)
            except OctavoError:
                continue  # the read that follows meets it and answers with it

    async def _read_slot(self, slot: _Slot, left: int, *, at_least_one: bool) -> PartitionReply:
        asked = slot.asked
        fields = pb.FetchedPartition(
            topic=asked.topic, partition=asked.partition, next_offset=asked.offset
        )
        shell = slot.shell
        if shell is not None:
            fields.log_start = shell.log_start
            fields.high_watermark = shell.high_watermark
            fields.last_stable_offset = shell.high_watermark
            fields.owner_epoch = shell.owner_epoch
            fields.topic_id = shell.name.topic_id.bytes
        if shell is None or slot.error is not None:
            fields.error.CopyFrom(to_wire(slot.error or NotLeader()))
            return PartitionReply(fields, ())
        batches: Sequence[Buffer] = ()
        try:
            view = shell.view()
            check_start(view, asked.offset)  # trimmed since it was looked at
            limit = min(left, slot.max_bytes)
            is_cold = not view.tail.holds(asked.offset)
            if is_cold:
                whole = limit + self._cold_bytes
                piece = view.cold.pace.piece_bytes(whole, self._clock.monotonic())
                limit = piece - self._cold_bytes
            if asked.offset < view.high_watermark and (limit > 0 or at_least_one):
                found = await reread(
                    shell.view, partial(_read_from, asked.offset, limit, at_least_one), view
                )
                self._cold_bytes += found.size_bytes if is_cold else 0
                batches = found.batches
                fields.next_offset = found.next_offset
            end = max(view.high_watermark, fields.next_offset)  # a later view may have been read
            fields.high_watermark = fields.last_stable_offset = end
        except OctavoError as error:
            fields.error.CopyFrom(to_wire(error))
        return PartitionReply(fields, batches)


async def _read_from(offset: int, limit: int, at_least_one: bool, view: ReadView) -> ColdRead:
    check_start(view, offset)  # trimmed while it was read (R4)
    return await read_at(view, offset, limit, at_least_one=at_least_one)
