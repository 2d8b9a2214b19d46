"""One Fetch stream per broker, one request at a time: carries out the plans of a ReadingCore."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from octavo.client.messaging.cluster.cluster import Cluster
from octavo.client.messaging.cluster.progress import until_silent
from octavo.client.messaging.reading.fetch_link import FetchLink
from octavo.client.messaging.reading.lost_tasks import LostTasks
from octavo.client.messaging.reading.reading_core import ReadingCore
from octavo.client.messaging.reading.reading_errors import our_fault
from octavo.client.messaging.reading.readings import Action, Answer, Plan
from octavo.client.messaging.records import TopicPartition
from octavo.client.messaging.user_code import ClientLog
from octavo.proto import broker_pb2 as pb
from octavo.proto.errors import from_wire
from octavo.proto.fetch_wire import PartitionReply, decode_reply
from octavo.runtime.errors import BrokerUnavailable, InvalidRequest, OctavoError

_log = ClientLog("octavo.client")


class RequestSizes(NamedTuple):
    """What is the same in every request, in bytes."""

    min_bytes: int
    partition_bytes: int


class FetchStreams:
    """The streams of one reader, each with the two tasks that work on it.

    Args:
        perform: does what the core wants after an event.
    """

    def __init__(
        self,
        cluster: Cluster,
        core: ReadingCore,
        tasks: LostTasks,
        perform: Callable[[list[Action]], None],
        sizes: RequestSizes,
    ) -> None:
        self._cluster = cluster
        self._now_s = cluster.clock.monotonic
        self._core = core
        self._tasks = tasks
        self._perform = perform
        self._sizes = sizes
        self._links: dict[str, FetchLink] = {}
        self._correlation = 0

    def end(self) -> None:
        """Close every stream for ever."""
        for link in self._links.values():
            link.end()

    def wake(self, address: str) -> None:
        """There may be something to ask this broker for."""
        self._links[address].wake.set()

    def wake_all(self) -> None:
        """There may be something to ask any of them for."""
        for link in self._links.values():
            link.wake.set()

    def interrupt(self, address: str) -> None:
        """What this broker's request waits for is outdated."""
        if address in self._links:
            self._links[address].interrupt()

    def open(self, address: str) -> None:
        """Begin to ask a broker; after the end nothing is begun any more."""
        link = self._links[address] = FetchLink(self._cluster, address)
        if self._tasks.closed:
            return
        again = partial(self._link_lost, address, link)
        loop, watch = self._ask_for_ever(address, link), self._watch_silence(address, link)
        link.tasks.append(self._tasks.start(loop, f"fetch-{address}", again))
        link.tasks.append(self._tasks.start(watch, f"silence-{address}", again))

    def _link_lost(self, address: str, link: FetchLink) -> None:
        """One of the stream's two tasks is gone: begin with another stream."""
        if self._links.get(address) is link:
            del self._links[address]
            link.end()
            self._perform(self._core.stream_lost(address, self._now_s()))

    async def _watch_silence(self, address: str, link: FetchLink) -> None:
        """Give the stream up whenever its broker owes a reply and fell silent."""
        clock, responds = self._cluster.clock, self._cluster.calls.responds
        while True:
            silent = await until_silent(address, link.progress, clock, responds)
            link.give_up(silent)

    async def _ask_for_ever(self, address: str, link: FetchLink) -> None:
        """Ask one broker as long as anything is wanted from it."""
        while True:
            try:
                await self._ask_once(address, link)
            except Exception as error:  # noqa: BLE001 - poll() raises it
                _log.exception("fetching from broker %s", address)
                link.drop()
                failure = our_fault(f"fetching from broker {address}", error)
                self._perform(self._core.stream_broken(address, failure, self._now_s()))

    async def _ask_once(self, address: str, link: FetchLink) -> None:
        """One request and what came of it, or a wait for something to ask."""
        await link.throttle.over()
        link.wake.clear()
        plan = self._core.requests.plan(address, self._now_s())
        if plan is None:
            await link.wake.wait()
            return
        try:
            reply = await self._exchange(link, plan)
        except OctavoError as error:
            if link.interrupted:
                self._perform(self._core.request_interrupted(plan, self._now_s()))
                return
            _log.warning("fetch from broker %s failed, will retry: %s", address, error.cause)
            self._perform(self._core.request_failed(plan, self._now_s()))
            return
        answers = {
            TopicPartition(part.topic, part.partition): Answer(
                batches,
                part.next_offset,
                from_wire(part.error) if part.HasField("error") else None,
                part.topic_id,
            )
            for part, batches in reply
        }
        self._perform(self._core.answered(plan, answers, self._now_s()))

    async def _exchange(self, link: FetchLink, plan: Plan) -> list[PartitionReply]:
        """One request and its reply on the broker's stream, which is opened when missing."""
        self._correlation += 1
        request = pb.FetchRequest(
            correlation=self._correlation,
            partitions=[
                pb.FetchPartition(
                    topic=reading.where.topic,
                    partition=reading.where.partition,
                    offset=offset,
                    max_bytes=self._sizes.partition_bytes,
                    topic_id=reading.topic_id,
                )
                for reading, offset, _ in plan.asks
            ],
            min_bytes=self._sizes.min_bytes,
            max_bytes=plan.max_bytes,
            max_wait_ms=plan.max_wait_ms,
        )
        limit_s = plan.max_wait_ms / 1000 + self._cluster.calls.request_timeout_s
        reply = await link.exchange(request, limit_s, plan.max_wait_ms / 1000)
        try:
            correlation, partitions, throttle_ms = decode_reply(reply)
        except InvalidRequest as error:
            link.drop()
            raise BrokerUnavailable(f"{link.address}: {error.cause}") from error
        if correlation != request.correlation:
            link.drop()
            raise BrokerUnavailable(f"{link.address}: fetch replies are out of step")
        link.throttle.told(throttle_ms, self._cluster.config.client_id)
        return partitions
