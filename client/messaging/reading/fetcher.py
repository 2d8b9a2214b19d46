"""Keeps the buffers of a FetchCore filled: one Fetch stream per broker, one request at a time.

Owns the streams, the search for owners and the look-up of start positions. Errors that are the
user's business end up in `Reading.error`, from where poll() raises them; so do faults of our own,
after which the task goes on: none of them ends unseen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import TypeVar

from octavo.client.messaging.cluster.cluster import Cluster
from octavo.client.messaging.cluster.progress import until_silent
from octavo.client.messaging.cluster.topic_lives import TopicView, created_again
from octavo.client.messaging.config import ConsumerConfig, parse_reset
from octavo.client.messaging.reading.fetch_core import Answer, FetchCore, FetchLimits, Plan, Reading
from octavo.client.messaging.reading.fetch_link import FetchLink
from octavo.client.messaging.reading.lost_tasks import LostTasks
from octavo.client.messaging.reading.offsets import list_edges, list_offsets
from octavo.client.messaging.reading.reading_errors import beyond_the_end, our_fault
from octavo.client.messaging.records import TopicPartition
from octavo.client.messaging.user_code import ClientLog
from octavo.proto import broker_pb2 as pb
from octavo.proto.edges import EARLIEST, EDGE_WORDS, LATEST, Edge
from octavo.proto.errors import from_wire
from octavo.proto.fetch_wire import PartitionReply, decode_reply
from octavo.runtime.deadline import Deadline
from octavo.runtime.errors import (
    BrokerUnavailable,
    IllegalStateError,
    InconsistentTopicId,
    InvalidRequest,
    LogTruncated,
    NoOffsetForPartition,
    OctavoError,
    OffsetOutOfRange,
    RequestTimedOut,
)
from octavo.runtime.retry import Backoff

_log = ClientLog("octavo.client")

ABOVE_END_ATTEMPTS = 3
"""F5: a position above the end is asked about this often before it counts as truncated."""
IDLE_LOOK_S = 0.5
"""An owner loop without anything to ask looks again after this, or when woken."""


T = TypeVar("T")
Mark = tuple[Reading, int]
"""A reading and the generation that a task in the background works for."""


class Fetcher:
    """Runs on the client's loop from `start` on until `close`."""

    def __init__(self, cluster: Cluster, config: ConsumerConfig) -> None:
        self.core = FetchCore(
            FetchLimits(
                max_bytes=config.fetch_max_bytes,
                partition_bytes=config.max_partition_fetch_bytes,
                prefetch_bytes=config.prefetch_max_bytes,
                prefetch_partition_bytes=config.prefetch_max_partition_bytes,
                max_wait_ms=config.fetch_max_wait_ms,
            )
        )
        self.requests_sent = 0
        self._cluster = cluster
        self._config = config
        self._reset = parse_reset(config.auto_offset_reset)
        self._owners: dict[str, FetchLink] = {}
        self._ranging: set[TopicPartition] = set()
        """Partitions whose range is being asked for (F5)."""
        self._data = asyncio.Event()
        self._tasks = LostTasks("octavo-fetcher", self._data.set)
        self._correlation = 0
        self._closed = False
        self._followed: dict[str, str | int] = {}
        """Topics read by name, all partitions, with the policy of their first positions."""
        self._unwatch = cluster.watch(self._view_changed)

    async def close(self) -> None:
        """End all streams and tasks, and every wait; harmless when repeated."""
        if not self._closed:
            self._unwatch()
        self._closed = True
        self._data.set()
        try:
            await self._tasks.close()
        finally:  # also when it is cancelled
            for owner in self._owners.values():
                owner.end()
            self.core.release()

    def spawn(self, coro: Coroutine[object, object, T], name: str) -> asyncio.Task[T]:
        """Start a task that ends with the fetcher."""
        return self._tasks.spawn(coro, name)

    def _background(
        self,
        body: Callable[[], Coroutine[object, object, object]],
        marks: list[Mark],
        what: str,
        again: Callable[[], None],
    ) -> None:
        """Start a task for these readings; after close() nothing is started any more."""
        if not self._closed:
            self._tasks.start(self._guarded(body, marks, what), what, again)

    async def _guarded(
        self, body: Callable[[], Coroutine[object, object, object]], marks: list[Mark], what: str
    ) -> None:
        """Run a task's body; what it should never raise is raised by poll() all the same."""
        try:
            await body()
        except Exception as error:  # noqa: BLE001 - poll() raises it
            _log.exception("%s failed", what)
            for reading, generation in marks:
                if reading.generation == generation:
                    reading.error = our_fault(what, error)
                    reading.retry_at_s = 0.0  # the error itself holds it back until poll()
            self._data.set()

    # --- positions ------------------------------------------------------------------------------

    def assign(self, wanted: list[TopicPartition], start: str | int | None = None) -> None:
        """Set the assignment; new partitions start at `start` (default: the reset policy)."""
        fresh = self.core.assign(wanted)
        policy = self._reset if start is None else start
        if fresh:
            self._resolve(fresh, policy)
        self._changed()

    def follow(self, topics: Iterable[str], start: str | int | None = None) -> None:
        """Read these topics by name: their new partitions, and their next lives, too."""
        self._followed = dict.fromkeys(topics, self._reset if start is None else start)

    def assign_at(self, starts: Mapping[TopicPartition, int]) -> None:
        """Set the assignment together with its positions, which are known to exist."""
        self.core.assign(starts)
        for where, offset in starts.items():
            self.core.seek(where, offset).topic_id = self._known_id(where)
        self._changed()

    def seek(self, where: TopicPartition, offset: int, *, chosen: bool = False) -> None:
        """Move one position; a request that waits elsewhere is interrupted.

        `chosen`: the user named the offset, which may not exist.
        """
        reading = self.core.seek(where, offset)
        reading.chosen = chosen
        reading.topic_id = self._known_id(where)
        self._interrupt(reading.owner)
        self._changed()

    def _known_id(self, where: TopicPartition) -> bytes:
        view = self._cluster.views.get(where.topic)
        return b"" if view is None else view.topic_id

    def focus(self, ends: Mapping[TopicPartition, int] | None) -> None:
        """Ask for nothing at or above `ends` while a reading up to them is under way."""
        if ends is not self.core.ends:
            self.core.ends = ends
            self.drained()

    def seek_by(self, wanted: list[TopicPartition], policy: str | int) -> None:
        """Look positions up anew by policy (earliest, latest, epoch ms)."""
        self._resolve([self.core.unresolve(where) for where in wanted], policy)

    def resume(self, wanted: list[TopicPartition]) -> None:
        """Ask for these partitions again."""
        for where in wanted:
            reading = self.core.reading(where)
            if reading.paused:
                reading.paused = False
                self._interrupt(reading.owner)
        self._changed()

    def _resolve(self, readings: list[Reading], policy: str | int) -> None:
        """Start looking up positions; chosen once and then fixed (F6)."""
        self._look_up_soon([(reading, reading.generation) for reading in readings], policy)

    def _look_up_soon(self, marks: list[Mark], policy: str | int) -> None:
        again = partial(self._look_up_soon, marks, policy)
        body = partial(self._look_up, marks, policy)
        self._background(body, marks, "looking up positions", again)

    async def _look_up(self, marks: list[Mark], policy: str | int) -> None:
        backoff = self._cluster.backoff()
        while True:
            marks = [mark for mark in marks if mark[0].generation == mark[1]]
            if not marks:
                return
            ids: dict[TopicPartition, bytes] = {}
            try:
                offsets = await self._by_policy([reading for reading, _ in marks], policy, ids)
                break
            except OctavoError as error:
                failure = error
            except Exception as error:  # noqa: BLE001 - poll() raises it
                _log.exception("looking up positions")
                failure = our_fault("looking up positions", error)
            for reading, generation in marks:
                if reading.generation == generation:
                    reading.error = failure
            self._data.set()
            if not failure.retriable:
                await self._wait_taken([reading for reading, _ in marks])
            await self._cluster.clock.sleep(backoff.next_s())
        for reading, generation in marks:
            if reading.generation == generation:
                reading.error = None
                reading.position = reading.fetch_at = offsets[reading.where]
                reading.topic_id = ids.get(reading.where, b"")
        for view in [self._cluster.views.get(reading.where.topic) for reading, _ in marks[:1]]:
            if view is not None:  # it may have changed while positions were looked up
                self._view_changed(view)
        self._changed()

    async def _wait_taken(self, readings: list[Reading]) -> None:
        """Until poll() raised the error: repeating the look-up before would be pointless."""
        while any(reading.error is not None for reading in readings):
            await self._cluster.clock.sleep(IDLE_LOOK_S)

    async def _by_policy(
        self, readings: list[Reading], policy: str | int, ids: dict[TopicPartition, bytes]
    ) -> dict[TopicPartition, int]:
        names = [reading.where for reading in readings]
        if policy == "none":
            raise NoOffsetForPartition(
                f"no position for {', '.join(map(str, names))} and auto_offset_reset is none",
                hint="seek() before the first poll, or choose earliest or latest",
            )
        deadline = self._deadline()
        if policy in EDGE_WORDS:
            edge = Edge(policy)
            return await list_edges(self._cluster, names, edge, deadline, ids)
        moment = dict.fromkeys(names, int(policy))
        timed = await list_offsets(self._cluster, moment, deadline, ids)
        found = {where: offset for where, offset in timed.items() if offset is not None}
        beyond = [where for where in names if where not in found]
        if beyond:  # F6: nothing that late: the end
            found.update(await list_edges(self._cluster, beyond, LATEST, deadline, ids))
        return found

    def _deadline(self) -> Deadline:
        """Of one request of the fetcher's own, all its attempts included."""
        return Deadline(self._cluster.clock, self._cluster.request_timeout_s)

    async def resolved(self, wanted: list[TopicPartition], deadline: Deadline) -> None:
        """Wait until positions are known; raises the error of the look-up, or RequestTimedOut."""
        while True:
            self.about_to_wait()
            if self._closed:
                raise IllegalStateError("the consumer was closed")
            open_ones = [self.core.reading(where) for where in wanted]
            open_ones = [reading for reading in open_ones if not reading.resolved]
            if not open_ones:
                return
            for reading in open_ones:
                if reading.error is not None and not reading.error.retriable:
                    error, reading.error = reading.error, None
                    raise error
            if deadline.passed:
                cause = next((r.error for r in open_ones if r.error is not None), None)
                raise RequestTimedOut(
                    f"position of {open_ones[0].where} not known within {deadline.timeout_s:g} s"
                    + (f": {cause}" if cause else "")
                )
            await self.wait_data(deadline.wait_s())

    # --- waiting --------------------------------------------------------------------------------

    def about_to_wait(self) -> None:
        """Call before looking at the buffers, so that data arriving meanwhile wakes `wait_data`."""
        self._data.clear()
        self._tasks.restart()

    async def wait_data(self, timeout_s: float | None) -> None:
        """Until something changed, or `timeout_s` passed."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._data.wait()
        except TimeoutError:
            return

    def said(self) -> None:
        """An error was raised to the user: its partition may be asked for again."""
        self._changed()

    def drained(self) -> None:
        """Records were handed out: there may be room to ask for more."""
        for owner in self._owners.values():
            owner.wake.set()

    # --- streams --------------------------------------------------------------------------------

    def _changed(self) -> None:
        self._find_owners()
        self.drained()
        self._data.set()

    def _interrupt(self, address: str) -> None:
        """What this broker's stream waits for is outdated: start it anew."""
        owner = self._owners.get(address)
        if owner is not None:
            owner.interrupt()

    def _find_owners(self) -> None:
        if self._closed:
            return
        now_s = self._cluster.clock.monotonic()
        for reading in self.core.ownerless(now_s):
            reading.finding = True
            mark = (reading, reading.generation)
            what = f"finding the owner of {reading.where}"
            again = partial(self._not_found, reading)
            self._background(partial(self._find_owner, reading), [mark], what, again)
        for address in {r.owner for r in self.core.readings.values() if r.owner}:
            if address not in self._owners:
                owner = self._owners[address] = FetchLink(self._cluster, address)
                again = partial(self._link_lost, address, owner)
                loop, watch = self._owner_loop(address, owner), self._watch_silence(address, owner)
                owner.tasks.append(self._tasks.start(loop, f"fetch-{address}", again))
                owner.tasks.append(self._tasks.start(watch, f"silence-{address}", again))

    def _not_found(self, reading: Reading) -> None:
        """Whoever looked for its owner is gone."""
        reading.finding = False
        self._changed()

    def _link_lost(self, address: str, owner: FetchLink) -> None:
        """One of the stream's two tasks is gone: begin with another stream."""
        if self._owners.get(address) is not owner:
            return
        del self._owners[address]
        owner.end()
        self.core.give_back_all(address)
        self._changed()

    async def _watch_silence(self, address: str, owner: FetchLink) -> None:
        """Give the stream up whenever its broker owes a reply and fell silent."""
        cluster = self._cluster
        while True:
            silent = await until_silent(address, owner.progress, cluster.clock, cluster.responds)
            owner.give_up(silent)

    async def _find_owner(self, reading: Reading) -> None:
        where = reading.where
        backoff = self._cluster.backoff()
        try:
            while self.core.readings.get(where) is reading and not reading.owner:
                try:
                    if reading.failures:
                        avoid = self._known_owner(where) if reading.failures > 1 else ""
                        owner = await self._cluster.find_owner(
                            where.topic, where.partition, avoid=avoid
                        )
                    else:
                        owner = await self._cluster.owner(where.topic, where.partition)
                    reading.owner = owner
                except OctavoError as error:
                    _log.info("no owner of %s yet: %s", where, error.cause)
                    self.core.refused(reading, error, 0.0)
                    if reading.error is not None:
                        break  # poll() raises it; asking goes on when it did
                    await self._cluster.pause_search(error, backoff)
        finally:
            reading.finding = False
        self._changed()

    def _known_owner(self, where: TopicPartition) -> str:
        """What the last metadata say; empty for a partition they do not have."""
        view = self._cluster.views.get(where.topic)
        return view.owners[where.partition] if view and where.partition < view.partitions else ""

    async def _owner_loop(self, address: str, owner: FetchLink) -> None:
        """Ask one broker as long as anything is wanted from it."""
        backoff = self._cluster.backoff()
        while True:
            try:
                await self._ask_once(address, owner, backoff)
            except Exception as error:  # noqa: BLE001 - poll() raises it
                _log.exception("fetching from broker %s", address)
                owner.drop()
                failure = our_fault(f"fetching from broker {address}", error)
                self.core.broken(address, failure)
                self._data.set()
                await self._cluster.clock.sleep(backoff.next_s())

    async def _ask_once(self, address: str, owner: FetchLink, backoff: Backoff) -> None:
        """One request and what came of it, or a wait for something to ask."""
        owner.wake.clear()
        now_s = self._cluster.clock.monotonic()
        plan = self.core.plan(address, now_s)
        if plan is None:
            await self._idle(address, owner, now_s)
            return
        try:
            reply = await self._exchange(address, owner, plan)
        except OctavoError as error:
            if owner.interrupted:
                self.core.give_back(plan)
                return
            _log.warning("fetch from broker %s failed, will retry: %s", address, error.cause)
            delay_s = backoff.next_s()
            self.core.failed(plan, self._cluster.clock.monotonic() + delay_s)
            await self._cluster.clock.sleep(delay_s)
            self._changed()
            return
        backoff.reset()
        self._take_reply(plan, reply)

    async def _idle(self, address: str, owner: FetchLink, now_s: float) -> None:
        retry_s = self.core.next_retry_s(address, now_s)
        wait_s = IDLE_LOOK_S if retry_s is None else min(retry_s - now_s, IDLE_LOOK_S)
        try:
            async with asyncio.timeout(wait_s):
                await owner.wake.wait()
        except TimeoutError:
            self._find_owners()

    async def _exchange(self, address: str, owner: FetchLink, plan: Plan) -> list[PartitionReply]:
        """One request and its reply on the broker's stream, which is opened when missing."""
        self._correlation += 1
        request = pb.FetchRequest(
            correlation=self._correlation,
            partitions=[
                pb.FetchPartition(
                    topic=reading.where.topic,
                    partition=reading.where.partition,
                    offset=offset,
                    max_bytes=self.core.limits.partition_bytes,
                    topic_id=reading.topic_id,
                )
                for reading, offset, _ in plan.asks
            ],
            min_bytes=self._config.fetch_min_bytes,
            max_bytes=plan.max_bytes,
            max_wait_ms=plan.max_wait_ms,
        )
        limit_s = plan.max_wait_ms / 1000 + self._cluster.request_timeout_s
        self.requests_sent += 1
        reply = await owner.exchange(request, limit_s, plan.max_wait_ms / 1000)
        try:
            correlation, partitions = decode_reply(reply)
        except InvalidRequest as error:
            owner.drop()
            raise BrokerUnavailable(f"{address}: {error.cause}") from error
        if correlation != request.correlation:
            owner.drop()
            raise BrokerUnavailable(f"{address}: fetch replies are out of step")
        return partitions

    def _take_reply(self, plan: Plan, partitions: list[PartitionReply]) -> None:
        answers = {
            TopicPartition(part.topic, part.partition): Answer(
                batches,
                part.next_offset,
                part.log_start,
                part.high_watermark,
                from_wire(part.error) if part.HasField("error") else None,
                part.topic_id,
            )
            for part, batches in partitions
        }
        now_s = self._cluster.clock.monotonic()
        for ask in plan.asks:
            reading = ask.reading
            where, before = reading.where, reading.owner
            retry_at_s = now_s + self._retry_delay_s(reading.failures)
            need = self.core.answered(ask, answers.get(where), retry_at_s)
            if isinstance(need, InconsistentTopicId):
                self._refused_life(reading)
            elif need is not None and where not in self._ranging:
                self._ranging.add(where)
                reading.retry_at_s = float("inf")  # until the range is known
                mark = (reading, reading.generation)
                what = f"finding the range of {where}"
                again = partial(self._range_lost, reading)
                body = partial(self._out_of_range, *mark, need)
                self._background(body, [mark], what, again)
            if reading.owner != before:
                self._cluster.owner_is(where.topic, where.partition, reading.owner)
                if reading.owner in self._owners:
                    self._owners[reading.owner].wake.set()
        self._find_owners()
        self._data.set()

    def _retry_delay_s(self, failures: int) -> float:
        config = self._config
        delay_ms = min(config.retry_backoff_ms << min(failures, 10), config.retry_backoff_max_ms)
        return delay_ms / 1000 * self._cluster.entropy.uniform(0.8, 1.2)

    # --- lives of a topic -----------------------------------------------------------------------

    def _refused_life(self, reading: Reading) -> None:
        """The owner says that the topic of this position is gone and another one has its name."""
        topic = reading.where.topic
        self._cluster.life_is_over(topic, reading.topic_id)
        if topic not in self._followed or self.core.ends is not None:
            reading.error = self._over(reading)
            self._data.set()
        view = self._cluster.views.get(topic)
        if view is not None:
            self._view_changed(view)

    @staticmethod
    def _over(reading: Reading) -> InconsistentTopicId:
        fate = f"position {reading.position} of {reading.where} was in the old one"
        return created_again(reading.where.topic, fate)

    def _view_changed(self, view: TopicView) -> None:
        """Metadata came: go on in the topic's next life, or say that a position has none (F6)."""
        mine = [r for r in self.core.readings.values() if r.where.topic == view.name]
        over = [
            reading
            for reading in mine
            if (reading.topic_id and view.topic_id and reading.topic_id != view.topic_id)
            or reading.where.partition >= view.partitions
        ]
        if view.name not in self._followed or (over and self.core.ends is not None):
            for reading in over:
                if reading.error is None:
                    reading.error = self._over(reading)
            self._data.set()
            return
        known = {reading.where.partition for reading in mine}
        fresh = [TopicPartition(view.name, n) for n in range(view.partitions) if n not in known]
        if not over and not fresh:
            return
        policy = self._followed[view.name]
        if over:
            _log.warning(
                "topic %s was deleted and created again; reading goes on at the start of the new "
                "one (%d partitions, %d before)", view.name, view.partitions, len(mine),
            )  # fmt: skip
        # What is met later was written later: "latest" was chosen once, at the beginning (F6).
        start = "earliest" if policy == "latest" else policy
        gone = {reading.where for reading in over if reading.where.partition >= view.partitions}
        wanted = [where for where in self.core.readings if where not in gone]
        readings = self.core.assign([*wanted, *fresh])
        stay = [self.core.unresolve(r.where) for r in over if r.where not in gone]
        for reading in stay:
            reading.owner = ""
        self._resolve([*readings, *stay], start)
        self._changed()

    def _range_lost(self, reading: Reading) -> None:
        """Nobody asks for its range any more: the next fetch finds out again."""
        self._ranging.discard(reading.where)
        reading.retry_at_s = 0.0
        self._changed()

    async def _out_of_range(self, reading: Reading, generation: int, error: OctavoError) -> None:
        """F5: ask the owner for its range, then continue, retry or reset."""
        where = reading.where
        deadline = self._deadline()
        ids: dict[TopicPartition, bytes] = {}
        try:
            start = (await list_edges(self._cluster, [where], EARLIEST, deadline))[where]
            end = (await list_edges(self._cluster, [where], LATEST, deadline, ids))[where]
        except OctavoError as failure:
            _log.warning("range of %s is not known yet: %s", where, failure.cause)
            start = end = -1
        finally:
            self._ranging.discard(where)
        if reading.generation != generation:
            return
        reading.retry_at_s = self._cluster.clock.monotonic() + self._retry_delay_s(0)
        told_id = ids.get(where)
        if told_id and reading.topic_id and told_id != reading.topic_id:
            self._refused_life(reading)
        elif start < 0 or start <= reading.fetch_at <= end:
            self._changed()
        elif reading.fetch_at > end and reading.above_end < ABOVE_END_ATTEMPTS:
            reading.above_end += 1
            self._changed()
        elif reading.chosen and reading.fetch_at > end and self._reset != "none":
            reading.error = beyond_the_end(where, reading.fetch_at, end)
            self._data.set()
        elif self._reset == "none":
            kind = LogTruncated if reading.fetch_at > end else OffsetOutOfRange
            reading.error = kind(
                f"position {reading.fetch_at} of {where} is outside {start}..{end} and "
                "auto_offset_reset is none",
                hint="seek() to an offset in the range",
                log_start=start,
                end=end,
            )
            self._data.set()
        else:
            _log.warning(
                "position %s of %s is outside %s..%s (%s), reset to %s",
                reading.fetch_at, where, start, end, error.code, self._config.auto_offset_reset,
            )  # fmt: skip
            self.seek_by([where], self._reset)
