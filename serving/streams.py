"""The two long-lived gRPC streams of a client: produce and fetch (design.md §10).

Produce reads messages of many batches, hands each batch to its partition in order, and answers in
messages that take whatever acknowledgements queued while the last one was written. It stops reading
when this connection has too many batches pending or the broker too many bytes (BP-3). Fetch answers
one request after the other; the next request already in hand cuts a long poll short. Both leave a
client over its quota unread for a while, and say for how long (BP-4, ADR 52).
"""

from __future__ import annotations

import asyncio
import math
from functools import partial

import grpc
from google.protobuf.message import DecodeError

from octavo.metadata.topics import check_for_users
from octavo.proto import broker_pb2 as pb
from octavo.proto.errors import abort, to_wire
from octavo.proto.produce_wire import ProduceItem, decode_produce
from octavo.runtime.clock import Clock
from octavo.runtime.errors import InvalidRequest, NotLeader, OctavoError, Throttled
from octavo.runtime.histogram import Histogram
from octavo.serving.budget import ByteBudget
from octavo.serving.cold_pace import ColdPace
from octavo.serving.config import BrokerConfig
from octavo.serving.fetch import Fetcher
from octavo.serving.partition.log import (
    ACKS_NONE,
    UNCONDITIONAL,
    Answer,
    Conditions,
    Reply,
)
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.partition.validation import check_acks
from octavo.serving.quotas.clients import PAUSE_MAX_S, ClientUse
from octavo.serving.recompression import Recompressor
from octavo.serving.registry import PartitionRegistry
from octavo.serving.tracing import RequestTracing

ProduceContext = grpc.aio.ServicerContext[object, pb.ProduceReply]
FetchContext = grpc.aio.ServicerContext[object, bytes]

LOAD_WAIT_S = 1.0
"""How long a produce stream waits for a partition that is just being loaded (BP-4: bounded)."""
LOOKS_MAX = 2
"""How often one message looks for a partition that is not found: bounded work, yet a topic that is
created just then is met."""
CAPACITY_WAIT_S = 1.0
BREATH_BATCHES = 32
"""Batches of one message between two turns of the event loop."""
FETCH_AHEAD_REQUESTS = 4
"""Fetch requests read before they can be answered."""


class ProduceStream:
    """One produce stream from its first to its last message."""

    def __init__(
        self,
        context: ProduceContext,
        registry: PartitionRegistry,
        budget: ByteBudget,
        config: BrokerConfig,
        *,
        client: ClientUse,
        clock: Clock,
        pace: ColdPace,
        recompressor: Recompressor,
        ack_seconds: Histogram,
        tracing: RequestTracing,
    ) -> None:
        self._tracing = tracing
        self._context = context
        self._registry = registry
        self._budget = budget
        self._client = client
        self._throttle_ms = 0
        """What the client is to be told with the next answers."""
        self._clock = clock
        self._pace = pace
        self._ack_seconds = ack_seconds
        self._oldest_s = math.inf
        """When the first of the batches arrived whose answers are in the outbox."""
        self._recompressor = recompressor
        self._pending_max = config.connection_pending_batches
        self._pending = 0
        self._outbox: list[pb.ProduceAck] = []
        self._leaving = 0
        """Answers in the message that is being written."""
        self._answered = asyncio.Event()
        self._room = asyncio.Event()
        self._ended = False
        """The client sent its last message, or is gone."""

    async def run(self) -> None:
        """Serve the stream; ends it with INVALID_ARGUMENT when a message is malformed."""
        writer = asyncio.ensure_future(self._write())
        try:
            await self._read()
            self._ended = True
            self._answered.set()
            await writer  # everything that is pending is still answered
        except InvalidRequest as error:
            await abort(self._context, error)  # type: ignore[arg-type]
        finally:
            self._ended = True
            writer.cancel()
            await asyncio.wait({writer})

    async def _read(self) -> None:
        while True:
            refusal = await self._within_quota()
            raw = await _next_message(self._context)
            if raw is None:
                return
            items, size_bytes = _checked(decode_produce(raw)), len(raw)
            if refusal is not None:
                items = await self._unrefused(items, refusal)
                size_bytes = sum(len(one.batch) for one in items)
            touched = await self._take(items)
            self._charge(size_bytes)
            if any(shell.backlog.is_shut for shell in touched):
                await self._slow_down_untold(items)
            while self.owed >= self._pending_max:
                self._room.clear()
                await self._room.wait()
            await self._budget.wait_below_limit()
            for shell in touched:
                if shell.congested:
                    await shell.wait_capacity(CAPACITY_WAIT_S)

    async def _within_quota(self) -> Throttled | None:
        """Wait until the client may send, for a bounded time; what its batches get if it may not
        then: others of its streams used what there was."""
        owed = self._client.owed_in(self._clock.monotonic())
        if not owed.seconds:
            return None
        await self._clock.sleep(owed.pause_s)
        owed = self._client.owed_in(self._clock.monotonic())
        return self._client.refusal(owed) if owed.seconds else None

    async def _unrefused(self, items: list[ProduceItem], refusal: Throttled) -> list[ProduceItem]:
        """Refuse what waits for an answer; nobody would send the rest again, so that waits here."""
        arrived_s = self._clock.monotonic()
        kept = [one for one in items if one.acks == ACKS_NONE]
        for one in items:
            if one.acks != ACKS_NONE:
                self._pending += 1
                self._budget.charge(len(one.batch))
                self._reply(one.correlation, len(one.batch), arrived_s, refusal)
        while kept and (owed := self._client.owed_in(self._clock.monotonic())).seconds:
            await self._clock.sleep(owed.pause_s)
        return kept

    async def _slow_down_untold(self, items: list[ProduceItem]) -> None:
        """Of a partition over its backlog quota batches without answers are stored all the same,
        for nobody would send them again; then nothing is read for a while (F162, F001)."""
        if any(one.acks == ACKS_NONE for one in items):
            self._throttle_ms = max(self._throttle_ms, int(PAUSE_MAX_S * 1000))
            self._answered.set()
            await self._clock.sleep(PAUSE_MAX_S)

    def _charge(self, size_bytes: int) -> None:
        """Count a message; the client is told at once if it should pause."""
        now_s = self._clock.monotonic()
        self._pace.wrote(size_bytes, now_s)
        throttle_ms = self._client.received(size_bytes, now_s).pause_ms
        if throttle_ms:
            self._throttle_ms = throttle_ms
            self._answered.set()

    @property
    def owed(self) -> int:
        """Batches whose answer this connection has not taken yet (BP-3)."""
        return self._pending + len(self._outbox) + self._leaving

    async def _take(self, items: list[ProduceItem]) -> set[PartitionShell]:
        touched: set[PartitionShell] = set()
        failed: dict[tuple[str, int, bytes], list[OctavoError]] = {}
        arrived_s = self._clock.monotonic()
        for number, one in enumerate(items, 1):
            if number % BREATH_BATCHES == 0:
                await asyncio.sleep(0)  # other connections have their turn
            batch, where = one.batch, (one.topic, one.partition, one.topic_id)
            self._pending += 1
            self._budget.charge(len(batch))
            reply: Reply = partial(self._answer, where, one.correlation, len(batch), arrived_s)
            if not one.traceparent:
                shell = await self._take_one(one, reply, failed)
            else:
                reply, traced = self._tracing.appending(one, reply)
                with traced:
                    shell = await self._take_one(one, reply, failed)
            if shell is not None:
                touched.add(shell)
        return touched

    async def _take_one(
        self,
        one: ProduceItem,
        reply: Reply,
        failed: dict[tuple[str, int, bytes], list[OctavoError]],
    ) -> PartitionShell | None:
        """Hand one batch to its partition, which is returned unless the batch is refused here."""
        batch = one.batch
        try:
            shell = self._registry.find(one.topic, one.partition)
            if shell is None or (one.topic_id and shell.name.topic_id.bytes != one.topic_id):
                shell = await self._resolve((one.topic, one.partition, one.topic_id), failed)
            if shell.is_internal:
                check_for_users(one.topic)
            if shell.codec is not None:
                limit = shell.settings.max_batch_bytes
                batch = await self._recompressor.under(shell.codec, batch, limit)
            conditions = UNCONDITIONAL
            if one.min_insync_replicas or one.writer_epoch:
                conditions = Conditions(one.min_insync_replicas, one.writer_epoch)
            shell.append(batch, one.acks, reply, conditions)
        except OctavoError as error:
            reply(error)
            return None
        return shell

    async def _resolve(
        self, where: tuple[str, int, bytes], failed: dict[tuple[str, int, bytes], list[OctavoError]]
    ) -> PartitionShell:
        """The partition; what failed LOOKS_MAX times in a message is not tried again in it."""
        errors = failed.setdefault(where, [])
        if len(errors) >= LOOKS_MAX:
            raise errors[-1]
        try:
            return await self._registry.resolve_life(*where, LOAD_WAIT_S, brief=True)
        except OctavoError as error:
            errors.append(error)
            raise

    def _answer(
        self,
        where: tuple[str, int, bytes],
        correlation: int,
        size: int,
        arrived_s: float,
        answer: Answer,
    ) -> None:
        """Reply; what is refused because its partition is handed over waits for the successor, so
        that the client finds it ready."""
        if isinstance(answer, NotLeader) and "owner_address" not in answer.details:
            then = partial(self._reply, correlation, size, arrived_s)
            if self._registry.when_moved(where[0], where[1], then):
                return
        self._reply(correlation, size, arrived_s, answer)

    def _reply(self, correlation: int, size: int, arrived_s: float, answer: Answer) -> None:
        self._pending -= 1
        self._budget.release(size)
        if isinstance(answer, OctavoError):
            ack = pb.ProduceAck(correlation=correlation, base_offset=-1, error=to_wire(answer))
        else:
            ack = pb.ProduceAck(
                correlation=correlation,
                base_offset=answer.base_offset,
                append_time_ms=answer.append_time_ms,
                duplicate=answer.duplicate,
                producer_was_unknown=answer.producer_was_unknown,
            )
        self._outbox.append(ack)
        if arrived_s < self._oldest_s:
            self._oldest_s = arrived_s
        self._answered.set()

    async def _write(self) -> None:
        while True:
            await self._answered.wait()
            self._answered.clear()
            acks, self._outbox = self._outbox, []
            throttle_ms, self._throttle_ms = self._throttle_ms, 0
            if acks or throttle_ms:
                self._leaving = len(acks)
                oldest_s, self._oldest_s = self._oldest_s, math.inf
                await self._context.write(pb.ProduceReply(acks=acks, throttle_ms=throttle_ms))
                if acks:
                    self._ack_seconds.observe(self._clock.monotonic() - oldest_s)
                self._leaving = 0
                self._room.set()
            elif self._ended and not self._pending:
                return
            if self._outbox or (self._ended and not self._pending):
                self._answered.set()


async def _next_message(context: ProduceContext | FetchContext) -> bytes | None:
    """The next raw message; None at the end of the stream."""
    raw = await context.read()
    return raw if isinstance(raw, bytes) else None


def _checked(items: list[ProduceItem]) -> list[ProduceItem]:
    for one in items:
        check_acks(one.acks)
        if not one.topic or one.partition < 0:
            raise InvalidRequest("a batch names no topic or a negative partition")
    return items


class FetchStream:
    """One fetch stream."""

    def __init__(
        self,
        context: FetchContext,
        registry: PartitionRegistry,
        budget: ByteBudget,
        config: BrokerConfig,
        *,
        client: ClientUse,
        clock: Clock,
        pace: ColdPace,
    ) -> None:
        self._context = context
        self._client = client
        self._clock = clock
        self._pace = pace
        self._fetcher = Fetcher(registry, budget, config, clock, client)
        self._requests: asyncio.Queue[pb.FetchRequest | None] = asyncio.Queue(FETCH_AHEAD_REQUESTS)
        self._ahead = 0  # requests read and not answered, the present one included
        self._malformed: InvalidRequest | None = None

    async def run(self) -> None:
        """Serve the stream; ends it with INVALID_ARGUMENT when a request is malformed."""
        reader = asyncio.ensure_future(self._read())
        try:
            while (request := await self._requests.get()) is not None:
                owed = self._client.owed_out(self._clock.monotonic())
                if owed.seconds:  # BP-4: nothing is read for it, but not for ever
                    await self._clock.sleep(owed.pause_s)
                self._fetcher.hurry(hurry=self._ahead > 1)
                result = await self._fetcher.fetch(request)
                self._ahead -= 1
                try:
                    await self._context.write(result.message)
                finally:
                    result.written()
                pause_s = self._pace.read(self, result.cold_bytes, self._clock.monotonic())
                if pause_s:  # F078: tails of other topics go first
                    await self._clock.sleep(pause_s)
            if self._malformed is not None:
                raise self._malformed
        except InvalidRequest as error:
            await abort(self._context, error)  # type: ignore[arg-type]
        finally:
            self._pace.left(self)
            reader.cancel()
            await asyncio.wait({reader})

    async def _read(self) -> None:
        while True:
            raw = await _next_message(self._context)
            if raw is None:
                break
            try:
                request = pb.FetchRequest.FromString(raw)
            except DecodeError as error:
                self._malformed = InvalidRequest(f"not a FetchRequest: {error}")
                break
            self._ahead += 1
            self._fetcher.hurry(hurry=self._ahead > 1)
            await self._requests.put(request)
        await self._requests.put(None)  # the last request may still wait as long as it asked for
