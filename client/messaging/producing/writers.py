"""The claims of a producer that wants to be the only writer of its topics (X32, ADR 59). Loop only.

Each partition is claimed at its owner, in the order of their numbers, so that of two producers one
gets the first and the other none. A task tells the owners that the producer lives; once one of
them says that somebody else took a partition over, the producer ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass

from octavo.client.messaging.cluster.cluster import Cluster
from octavo.client.messaging.cluster.topic_lives import TopicView
from octavo.client.messaging.config import ProducerConfig
from octavo.client.messaging.producing.sender_core import of_unknown_fate
from octavo.client.messaging.user_code import ClientLog
from octavo.proto import broker_pb2 as pb
from octavo.proto.errors import from_wire
from octavo.runtime.deadline import Deadline
from octavo.runtime.errors import DeliveryFailed, OctavoError, ProducerClosed, RetriableError
from octavo.runtime.errors_of_writers import ExclusiveWriterBusy, ProducerFenced

_log = ClientLog("octavo.client")

RENEWALS_PER_LEASE = 3
ASKED_AT_ONCE = 32
"""Partitions whose owners are asked at a time."""
LEAVE_S = 2.0
"""The longest that closing tells owners that the producer is done."""


@dataclass(frozen=True)
class Held:
    """One partition that is claimed."""

    topic: str
    topic_id: bytes
    partition: int
    epoch: int


class WriterClaims:
    """Of one producer.

    `spawn` starts a task that ends with the producer; `ensure_topic` makes it know a topic, whose
    partitions it claims; `on_lost` is told why it cannot be the only writer any more.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: ProducerConfig,
        spawn: Callable[[Coroutine[object, object, None], str], asyncio.Task[object]],
        ensure_topic: Callable[[str], Awaitable[None]],
        *,
        on_lost: Callable[[OctavoError], None],
    ) -> None:
        self.token = cluster.entropy.token()
        self._cluster = cluster
        self._fences = config.access_mode == "exclusive_with_fencing"
        self._waits = config.access_mode == "wait_for_exclusive"
        self._block_s = config.max_block_ms / 1000
        self._spawn = spawn
        self._ensure_topic = ensure_topic
        self._on_lost = on_lost
        self._wanted: set[str] = set()
        """Topics of which more is being claimed."""
        self._held: dict[tuple[bytes, int], Held] = {}
        self._lease_s = 0.0
        self._renewing: asyncio.Task[object] | None = None
        self._lost = False
        """Somebody else took a partition over."""

    def epoch_of(self, topic_id: bytes, partition: int) -> int:
        """Under which epoch it is claimed; 0: it is not."""
        held = self._held.get((topic_id, partition))
        return 0 if held is None else held.epoch

    def covers(self, view: TopicView) -> bool:
        """Whether every partition that takes records is claimed."""
        return all((view.topic_id, number) in self._held for number in view.writable)

    async def take(self, view: TopicView) -> None:
        """Claim what is not claimed yet.

        Raises ExclusiveWriterBusy unless it is to wait for the seat, which takes as long as it
        takes; a broker that cannot be asked is asked for max_block_ms.
        """
        for number in view.writable:
            if (view.topic_id, number) not in self._held:
                held = await self._claim(view, number)
                self._held[view.topic_id, number] = held
        if self._renewing is None and self._held:
            self._renewing = self._spawn(self._renew(), "writer-lease")

    def want_more(self, topic: str) -> None:
        """The topic has more partitions, or is another one now: they are claimed before they are
        written to."""
        if topic not in self._wanted:
            self._wanted.add(topic)
            self._spawn(self._more(topic), "claim-writer")

    async def _more(self, topic: str) -> None:
        try:
            await self._ensure_topic(topic)
        except ProducerClosed:
            return
        except ProducerFenced as error:
            self._on_lost(of_unknown_fate(error))
        except OctavoError as error:
            if error.retriable and not isinstance(error, ExclusiveWriterBusy):
                _log.warning("what is new of topic %s is not claimed yet: %s", topic, error.cause)
                return  # the next metadata ask again
            self._on_lost(  # not the writer of all of it: it writes to none
                DeliveryFailed(
                    f"what is new of topic {topic!r} cannot be claimed: {error.cause}; what was "
                    "not acknowledged may or may not be stored",
                    hint=error.hint,
                )
            )
        finally:
            self._wanted.discard(topic)

    async def _claim(self, view: TopicView, number: int) -> Held:
        clock, calls = self._cluster.clock, self._cluster.calls
        deadline, backoff = Deadline(clock, self._block_s), calls.backoff()
        wanted = Held(view.name, view.topic_id, number, 0)
        said = False
        while True:
            try:
                reply = await self._ask(wanted, fence=self._fences)
            except ExclusiveWriterBusy as error:
                if not self._waits:
                    raise
                if not said:
                    _log.info("waiting to be the writer: %s", error.cause)
                said, deadline = True, Deadline(clock, self._block_s)
            except RetriableError as error:
                _log.info("%s-%s is not claimed yet: %s", view.name, number, error.cause)
                if deadline.passed:
                    raise
            else:
                self._lease_s = reply.lease_ms / 1000
                return Held(view.name, view.topic_id, number, reply.writer_epoch)
            await clock.sleep(backoff.next_s())

    async def _ask(
        self, held: Held, *, fence: bool = False, leave: bool = False
    ) -> pb.ClaimWriterReply:
        """One request to the owner of a partition; raises what it answers."""
        cluster = self._cluster
        request = pb.ClaimWriterRequest(
            topic=held.topic,
            topic_id=held.topic_id,
            partition=held.partition,
            writer=self.token,
            held_epoch=held.epoch,
            fence=fence,
            leave=leave,
        )
        try:
            owner = await cluster.owners.of(held.topic, held.partition)
            reply = await cluster.calls.ask(
                owner,
                lambda stub, limit: stub.ClaimWriter(request, timeout=limit),
                cluster.calls.request_timeout_s,
            )
            if reply.HasField("error"):
                raise from_wire(reply.error)
        except RetriableError as error:
            if not isinstance(error, ExclusiveWriterBusy):
                cluster.topics.owner_is(held.topic, held.partition, "")
            raise
        return reply

    async def _renew(self) -> None:
        """Say to each owner that the writer lives, as long as it does. One that is silent delays
        no other: it is asked anew in the next round."""
        while not self._lost:
            round_s = self._lease_s / RENEWALS_PER_LEASE
            await self._cluster.clock.sleep(round_s)
            await self._of_all(self._renew_one, round_s)

    async def _renew_one(self, held: Held) -> None:
        try:
            await self._ask(held)
        except ProducerFenced as error:
            _log.error("this producer is fenced: %s", error.cause)
            self._lost = True
            self._on_lost(of_unknown_fate(error))
        except RetriableError as error:
            _log.info("lease of %s-%s: %s", held.topic, held.partition, error.cause)
        except OctavoError as error:  # the topic is gone, or has no exclusive writer now
            _log.info("%s-%s is not held: %s", held.topic, held.partition, error.cause)
            self._held.pop((held.topic_id, held.partition), None)

    async def leave(self) -> None:
        """The next writer need not wait for the lease. Best effort, for LEAVE_S at most."""
        if self._renewing is not None:
            self._renewing.cancel()  # or it says of what was left that its writer lives
        if not await self._of_all(self._leave_one, LEAVE_S):
            _log.info("the next writer waits for a lease: owners did not answer in time")

    async def _leave_one(self, held: Held) -> None:
        try:
            await self._ask(held, leave=True)
        except OctavoError as error:
            _log.debug("%s-%s is left: %s", held.topic, held.partition, error)

    async def _of_all(self, call: Callable[[Held], Awaitable[None]], limit_s: float) -> bool:
        """Call for each partition, ASKED_AT_ONCE at a time; whether all ended within the limit."""
        gate = asyncio.Semaphore(ASKED_AT_ONCE)

        async def one(held: Held) -> None:
            async with gate:
                await call(held)

        try:
            async with asyncio.timeout(limit_s):
                await asyncio.gather(*map(one, list(self._held.values())))
        except TimeoutError:
            return False
        return True
