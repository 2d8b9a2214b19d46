"""Keeps the buffers of a FetchCore filled: one Fetch stream per broker, one request at a time.

Owns the streams, the search for owners and the look-up of start positions. Errors that are the
user's business end up in `Reading.error`, from where poll() raises them.
"""

from __future__ import annotations

import asyncio
import logging

import grpc

from octavo.client.messaging.cluster import Cluster, FetchCall
from octavo.client.messaging.config import ConsumerConfig, parse_reset
from octavo.client.messaging.fetch_core import Answer, FetchCore, FetchLimits, Plan, Reading
from octavo.client.messaging.offsets import EARLIEST, LATEST, list_edges, list_offsets
from octavo.client.messaging.progress import ProgressClock, until_silent
from octavo.client.messaging.records import TopicPartition
from octavo.proto import broker_pb2 as pb
from octavo.proto.errors import from_rpc_error, from_wire
from octavo.proto.fetch_wire import PartitionReply, decode_reply
from octavo.runtime.errors import (
    BrokerUnavailable,
    InvalidRequest,
    LogTruncated,
    NoOffsetForPartition,
    OctavoError,
    OffsetOutOfRange,
    RequestTimedOut,
)
from octavo.runtime.tasks import TaskOwner

_log = logging.getLogger("octavo.client")

ABOVE_END_ATTEMPTS = 3
"""F5: a position above the end is asked about this often before it counts as truncated."""
IDLE_LOOK_S = 0.5
"""An owner loop without anything to ask looks again after this, or when woken."""


class _OwnerLoop:
    """The stream to one broker and the wish to interrupt what it waits for."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.call: FetchCall | None = None
        self.interrupted = False
        self.progress = ProgressClock()
        self.silent: OctavoError | None = None
        """Why the stream was given up, until its reader saw it."""


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
        self._tasks = TaskOwner("octavo-fetcher")
        self._owners: dict[str, _OwnerLoop] = {}
        self._ranging: set[TopicPartition] = set()
        """Partitions whose range is being asked for (F5)."""
        self._data = asyncio.Event()
        self._correlation = 0

    async def close(self) -> None:
        """End all streams and tasks."""
        for owner in self._owners.values():
            if owner.call is not None:
                owner.call.cancel()
        await self._tasks.close()

    # --- positions ------------------------------------------------------------------------------

    def assign(self, wanted: list[TopicPartition], start: str | int | None = None) -> None:
        """Set the assignment; new partitions start at `start` (default: the reset policy)."""
        fresh = self.core.assign(wanted)
        policy = self._reset if start is None else start
        if fresh:
            self._resolve(fresh, policy)
        self._changed()

    def seek(self, where: TopicPartition, offset: int) -> None:
        """Move one position; a request that waits elsewhere is interrupted."""
        reading = self.core.seek(where, offset)
        self._interrupt(reading.owner)

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
        self._data.set()

    def _resolve(self, readings: list[Reading], policy: str | int) -> None:
        """Start looking up positions; chosen once and then fixed (F6)."""
        marks = [(reading, reading.generation) for reading in readings]
        self._tasks.spawn(self._look_up(marks, policy), name="positions")

    async def _look_up(self, marks: list[tuple[Reading, int]], policy: str | int) -> None:
        backoff = self._cluster.backoff()
        while True:
            marks = [mark for mark in marks if mark[0].generation == mark[1]]
            try:
                offsets = await self._by_policy([reading for reading, _ in marks], policy)
                break
            except OctavoError as error:
                for reading, generation in marks:
                    if reading.generation == generation:
                        reading.error = error
                self._data.set()
                if not error.retriable:
                    await self._wait_taken([reading for reading, _ in marks])
                await self._cluster.clock.sleep(backoff.next_s())
        for reading, generation in marks:
            if reading.generation == generation:
                reading.error = None
                reading.position = reading.fetch_at = offsets[reading.where]
        self._changed()

    async def _wait_taken(self, readings: list[Reading]) -> None:
        """Until poll() raised the error: repeating the look-up before would be pointless."""
        while any(reading.error is not None for reading in readings):
            await self._cluster.clock.sleep(IDLE_LOOK_S)

    async def _by_policy(
        self, readings: list[Reading], policy: str | int
    ) -> dict[TopicPartition, int]:
        names = [reading.where for reading in readings]
        if policy == "none":
            raise NoOffsetForPartition(
                f"no position for {', '.join(map(str, names))} and auto_offset_reset is none",
                hint="seek() before the first poll, or choose earliest or latest",
            )
        limit_s = self._cluster.request_timeout_s
        if policy in ("earliest", "latest"):
            at = EARLIEST if policy == "earliest" else LATEST
            return await list_edges(self._cluster, names, at, limit_s)
        timed = await list_offsets(self._cluster, dict.fromkeys(names, int(policy)), limit_s)
        found = {where: offset for where, offset in timed.items() if offset is not None}
        beyond = [where for where in names if where not in found]
        if beyond:  # F6: nothing that late: the end
            found.update(await list_edges(self._cluster, beyond, LATEST, limit_s))
        return found

    async def resolved(self, wanted: list[TopicPartition], timeout_s: float | None) -> None:
        """Wait until positions are known; raises the error of the look-up, or RequestTimedOut."""
        deadline_s = None if timeout_s is None else self._cluster.clock.monotonic() + timeout_s
        while True:
            self._data.clear()
            open_ones = [self.core.reading(where) for where in wanted]
            open_ones = [reading for reading in open_ones if not reading.resolved]
            if not open_ones:
                return
            for reading in open_ones:
                if reading.error is not None and not reading.error.retriable:
                    error, reading.error = reading.error, None
                    raise error
            left_s = None if deadline_s is None else deadline_s - self._cluster.clock.monotonic()
            if left_s is not None and left_s <= 0:
                cause = next((r.error for r in open_ones if r.error is not None), None)
                raise RequestTimedOut(
                    f"position of {open_ones[0].where} not known within {timeout_s:g} s"
                    + (f": {cause}" if cause else "")
                )
            await self.wait_data(left_s)

    # --- waiting --------------------------------------------------------------------------------

    def about_to_wait(self) -> None:
        """Call before looking at the buffers, so that data arriving meanwhile wakes `wait_data`."""
        self._data.clear()

    async def wait_data(self, timeout_s: float | None) -> None:
        """Until something changed, or `timeout_s` passed."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._data.wait()
        except TimeoutError:
            return

    def wake(self) -> None:
        """End a wait, for close()."""
        self._data.set()

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
        if owner is not None and owner.call is not None:
            owner.interrupted = True
            owner.call.cancel()
        self._changed()

    def _find_owners(self) -> None:
        now_s = self._cluster.clock.monotonic()
        for reading in self.core.ownerless(now_s):
            reading.finding = True
            self._tasks.spawn(self._find_owner(reading), name="find-owner")
        for address in {r.owner for r in self.core.readings.values() if r.owner}:
            if address not in self._owners:
                self._owners[address] = _OwnerLoop()
                self._tasks.spawn(
                    self._owner_loop(address, self._owners[address]), name=f"fetch-{address}"
                )
                self._tasks.spawn(
                    self._watch_silence(address, self._owners[address]), name=f"silence-{address}"
                )

    async def _watch_silence(self, address: str, owner: _OwnerLoop) -> None:
        """Give the stream up whenever its broker owes a reply and fell silent."""
        cluster = self._cluster
        while True:
            silent = await until_silent(address, owner.progress, cluster.clock, cluster.responds)
            owner.progress.cleared()
            if owner.call is not None:
                owner.silent = silent
                owner.call.cancel()

    async def _find_owner(self, reading: Reading) -> None:
        where = reading.where
        backoff = self._cluster.backoff()
        try:
            while self.core.readings.get(where) is reading and not reading.owner:
                try:
                    if reading.failures:
                        view = self._cluster.views.get(where.topic)
                        known = view.owners[where.partition] if view else ""
                        avoid = known if reading.failures > 1 else ""
                        owner = await self._cluster.find_owner(
                            where.topic, where.partition, avoid=avoid
                        )
                    else:
                        owner = await self._cluster.owner(where.topic, where.partition)
                    reading.owner = owner
                except OctavoError as error:
                    reading.failures += 1
                    _log.info("no owner of %s yet: %s", where, error.cause)
                    await self._cluster.pause_search(error, backoff)
        finally:
            reading.finding = False
        self._changed()

    async def _owner_loop(self, address: str, owner: _OwnerLoop) -> None:
        """Ask one broker as long as anything is wanted from it."""
        backoff = self._cluster.backoff()
        while True:
            owner.wake.clear()
            now_s = self._cluster.clock.monotonic()
            plan = self.core.plan(address, now_s)
            if plan is None:
                await self._idle(address, owner, now_s)
                continue
            owner.interrupted = False
            try:
                reply = await self._exchange(address, owner, plan)
            except OctavoError as error:
                owner.call = None
                owner.progress.cleared()
                if owner.interrupted:
                    self._give_back(plan)
                    continue
                _log.warning("fetch from broker %s failed, will retry: %s", address, error.cause)
                delay_s = backoff.next_s()
                self.core.failed(plan, self._cluster.clock.monotonic() + delay_s)
                await self._cluster.clock.sleep(delay_s)
                self._changed()
                continue
            backoff.reset()
            self._take_reply(plan, reply)

    @staticmethod
    def _give_back(plan: Plan) -> None:
        for reading, _, generation in plan.asks:
            if reading.generation == generation:
                reading.asked = False

    async def _idle(self, address: str, owner: _OwnerLoop, now_s: float) -> None:
        retry_s = self.core.next_retry_s(address)
        wait_s = IDLE_LOOK_S if retry_s is None else max(min(retry_s - now_s, IDLE_LOOK_S), 0.001)
        try:
            async with asyncio.timeout(wait_s):
                await owner.wake.wait()
        except TimeoutError:
            self._find_owners()

    async def _exchange(self, address: str, owner: _OwnerLoop, plan: Plan) -> list[PartitionReply]:
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
                )
                for reading, offset, _ in plan.asks
            ],
            min_bytes=self._config.fetch_min_bytes,
            max_bytes=plan.max_bytes,
            max_wait_ms=plan.max_wait_ms,
        )
        limit_s = plan.max_wait_ms / 1000 + self._cluster.request_timeout_s
        self.requests_sent += 1
        try:
            if owner.call is None:
                owner.call = self._cluster.fetch_stream(address)
            call = owner.call
            owner.silent = None
            now_s = self._cluster.clock.monotonic()
            owner.progress.asked(now_s, long_poll_s=plan.max_wait_ms / 1000)
            async with asyncio.timeout(limit_s):
                await call.write(request)
                reply = await call.read()
            owner.progress.heard(self._cluster.clock.monotonic(), 1)
        except TimeoutError:
            raise RequestTimedOut(f"{address}: no fetch reply within {limit_s:g} s") from None
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, address) from error
        except asyncio.InvalidStateError:
            raise BrokerUnavailable(f"{address}: the fetch stream ended") from None
        except asyncio.CancelledError:
            if owner.silent is not None and not _being_cancelled():
                raise owner.silent from None
            if owner.interrupted and not _being_cancelled():
                raise BrokerUnavailable(f"{address}: the fetch was interrupted") from None
            raise
        if not isinstance(reply, bytes):
            raise BrokerUnavailable(f"{address}: closed the fetch stream")
        try:
            correlation, partitions = decode_reply(reply)
        except InvalidRequest as error:
            call.cancel()
            raise BrokerUnavailable(f"{address}: {error.cause}") from error
        if correlation != request.correlation:
            call.cancel()
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
            )
            for part, batches in partitions
        }
        now_s = self._cluster.clock.monotonic()
        for ask in plan.asks:
            reading = ask.reading
            where, before = reading.where, reading.owner
            retry_at_s = now_s + self._retry_delay_s(reading.failures)
            need = self.core.answered(ask, answers.get(where), retry_at_s)
            if need is not None and where not in self._ranging:
                self._ranging.add(where)
                reading.retry_at_s = float("inf")  # until the range is known
                self._tasks.spawn(
                    self._out_of_range(reading, reading.generation, need), name="out-of-range"
                )
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

    async def _out_of_range(self, reading: Reading, generation: int, error: OctavoError) -> None:
        """F5: ask the owner for its range, then continue, retry or reset."""
        where = reading.where
        limit_s = self._cluster.request_timeout_s
        try:
            start = (await list_edges(self._cluster, [where], EARLIEST, limit_s))[where]
            end = (await list_edges(self._cluster, [where], LATEST, limit_s))[where]
        except OctavoError as failure:
            _log.warning("range of %s is not known yet: %s", where, failure.cause)
            start = end = -1
        finally:
            self._ranging.discard(where)
        if reading.generation != generation:
            return
        reading.retry_at_s = self._cluster.clock.monotonic() + self._retry_delay_s(0)
        if start < 0 or start <= reading.fetch_at <= end:
            self._changed()
        elif reading.fetch_at > end and reading.above_end < ABOVE_END_ATTEMPTS:
            reading.above_end += 1
            self._changed()
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


def _being_cancelled() -> bool:
    """Whether the current task itself is asked to end, not only its RPC."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
