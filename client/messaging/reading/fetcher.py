"""The shell of a reader: does what the ReadingCore wants, and tells it what came of that.

Owns the tasks that look up positions, owners and ranges, the timer, the waits of reading calls, and
through `fetch_streams` the Fetch streams. It decides nothing: errors that are the user's business
end up in a `Reading`, from where poll() raises them; so do faults of our own, after which the task
goes on. None of them ends unseen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Literal, TypeVar

from octavo.client.messaging.cluster.cluster import Cluster
from octavo.client.messaging.cluster.topic_lives import TopicView
from octavo.client.messaging.config import ConsumerConfig, parse_reset
from octavo.client.messaging.reading.buffers import Ends
from octavo.client.messaging.reading.fetch_streams import FetchStreams, RequestSizes
from octavo.client.messaging.reading.lost_tasks import LostTasks
from octavo.client.messaging.reading.outcomes import outcome_of
from octavo.client.messaging.reading.reading_core import ReadingCore
from octavo.client.messaging.reading.reading_errors import our_fault
from octavo.client.messaging.reading.readings import (
    Action,
    AskRange,
    FindOwner,
    Interrupt,
    LearnTopic,
    LifeIsOver,
    LookUp,
    OpenStream,
    OwnerIs,
    ReadingSettings,
    Tell,
    Wake,
    Work,
)
from octavo.client.messaging.records import TopicPartition
from octavo.client.messaging.user_code import ClientLog
from octavo.runtime.deadline import Deadline
from octavo.runtime.errors import IllegalStateError, OctavoError, RequestTimedOut

_log = ClientLog("octavo.client")
T = TypeVar("T")


class Fetcher:
    """Runs on the client's loop until `close`; not thread-safe."""

    def __init__(self, cluster: Cluster, config: ConsumerConfig) -> None:
        settings = ReadingSettings(
            max_bytes=config.fetch_max_bytes,
            partition_bytes=config.max_partition_fetch_bytes,
            prefetch_bytes=config.prefetch_max_bytes,
            prefetch_partition_bytes=config.prefetch_max_partition_bytes,
            max_wait_ms=config.fetch_max_wait_ms,
            reset=parse_reset(config.auto_offset_reset, cluster.clock.wall_ms()),
            backoff_initial_s=config.retry_backoff_ms / 1000,
            backoff_max_s=config.retry_backoff_max_ms / 1000,
        )
        self.core = ReadingCore(settings, cluster.topics.views, cluster.entropy)
        self._cluster = cluster
        self._now_s = cluster.clock.monotonic
        self._data = asyncio.Event()
        self._tasks = LostTasks("octavo-fetcher", self._data.set)
        sizes = RequestSizes(config.fetch_min_bytes, config.max_partition_fetch_bytes)
        self._streams = FetchStreams(cluster, self.core, self._tasks, self.perform, sizes)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._closed = False
        self._unwatch = cluster.owners.watch(self._view_changed)

    async def close(self) -> None:
        """End all streams and tasks, and every wait; harmless when repeated."""
        if not self._closed:
            self._unwatch()
        self._closed = True
        self._data.set()
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self._tasks.close()
        finally:  # also when it is cancelled
            self._streams.end()
            self.core.buffers.release()

    def spawn(self, coro: Coroutine[object, object, T], name: str) -> asyncio.Task[T]:
        """Start a task that ends with the fetcher."""
        return self._tasks.spawn(coro, name)

    # --- actions --------------------------------------------------------------------------------

    def perform(self, actions: list[Action]) -> None:
        """Do what the core wants."""
        for action in actions:
            if isinstance(action, Tell):
                self._data.set()
            elif isinstance(action, Wake):
                self._streams.wake(action.address)
            elif isinstance(action, LookUp | FindOwner | AskRange):
                self._start(action)
            elif isinstance(action, OpenStream):
                self._streams.open(action.address)
            elif isinstance(action, Interrupt):
                self._streams.interrupt(action.address)
            elif isinstance(action, OwnerIs):
                self._cluster.topics.owner_is(*action.where, action.address)
            elif isinstance(action, LifeIsOver):
                self._cluster.topics.life_is_over(action.topic, action.topic_id)
            elif isinstance(action, LearnTopic):
                self._learn(action.topic)
            else:
                _log.warning(action.text)
        self._set_timer()

    def _set_timer(self) -> None:
        due_s = self.core.next_deadline_s()
        if self._timer is not None:
            if due_s == self._timer_s:
                return
            self._timer.cancel()
            self._timer = None
        if due_s is not None and not self._closed:
            self._timer_s = due_s
            delay_s = max(due_s - self._now_s(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.perform(self.core.tick(self._now_s()))

    def _learn(self, topic: str) -> None:
        if not self._closed:
            self._tasks.start(
                self._cluster.topics.refresh_quietly(topic), f"metadata of {topic}", lambda: None
            )

    def _view_changed(self, view: TopicView) -> None:
        self.perform(self.core.view_changed(view, self._now_s()))

    # --- work in the background -----------------------------------------------------------------

    def _start(self, work: Work) -> None:
        """Do it in a task; after close() nothing is started any more."""
        if not self._closed:
            self._tasks.start(self._do(work), str(work), partial(self._lost, work))

    def _lost(self, work: Work) -> None:
        self.perform(self.core.lost(work, self._now_s()))

    async def _do(self, work: Work) -> None:
        """One attempt; what it should never raise is raised by poll() all the same."""
        if not work.wanted:
            return
        try:
            try:
                outcome = await outcome_of(work, self._cluster)
            except OctavoError as error:
                _log.info("%s: %s", work, error.cause)
                self.perform(self.core.failed(work, error, self._now_s()))
                return
            self.perform(self.core.found(work, outcome, self._now_s()))
        except Exception as error:  # noqa: BLE001 - poll() raises it
            _log.exception("%s failed", work)
            self.perform(self.core.failed(work, our_fault(str(work), error), self._now_s()))

    # --- what a reading call wants --------------------------------------------------------------

    def assign(
        self,
        wanted: Iterable[TopicPartition],
        start: str | int | Mapping[TopicPartition, int | Literal["earliest"]] | None = None,
        *,
        followed: Iterable[str] = (),
    ) -> None:
        """Set the assignment, as `ReadingCore.assign` does."""
        self.perform(self.core.assign(wanted, start, self._now_s(), followed=followed))

    def seek(self, where: TopicPartition, offset: int, *, chosen: bool = False) -> None:
        """Move one position; a request that waits elsewhere is interrupted."""
        self.perform(self.core.seek(where, offset, self._now_s(), chosen=chosen))

    def seek_by(self, wanted: Iterable[TopicPartition], policy: str | int) -> None:
        """Look positions up anew by policy (earliest, latest, epoch ms)."""
        self.perform(self.core.seek_by(wanted, policy, self._now_s()))

    def pause(self, wanted: Iterable[TopicPartition]) -> None:
        """Hand out nothing of them and ask for nothing more, until `resume`."""
        self.perform(self.core.pause(wanted, self._now_s()))

    def resume(self, wanted: Iterable[TopicPartition]) -> None:
        """Ask for these partitions again."""
        self.perform(self.core.resume(wanted, self._now_s()))

    def freeze(self, wanted: Iterable[TopicPartition]) -> None:
        """Drop their buffers and let their positions stand, until `thaw`."""
        self.core.buffers.freeze(wanted)
        self.perform(self.core.said(self._now_s()))

    def thaw(self, wanted: Iterable[TopicPartition]) -> None:
        """Undo `freeze`."""
        thawed = self.core.buffers.thaw(wanted)
        outdated: list[Action] = [Interrupt(reading.owner) for reading in thawed]
        self.perform([*outdated, *self.core.said(self._now_s()), Tell()])

    def tell(self) -> None:
        """Reading calls that wait look whether anything is for them."""
        self._data.set()

    def focus(self, ends: Ends | None) -> None:
        """Ask for nothing at or above `ends` while a reading up to them is under way."""
        if ends is not self.core.requests.ends:
            self.perform(self.core.focus(ends, self._now_s()))

    def go_back(self, firsts: Mapping[TopicPartition, int]) -> None:
        """What was taken from these offsets on reached nobody: nothing is skipped (F9)."""
        self.perform(self.core.go_back(firsts, self._now_s()))

    async def resolved(self, wanted: list[TopicPartition], deadline: Deadline) -> None:
        """Wait until positions are known; raises the error of the look-up, or RequestTimedOut."""
        while True:
            self._about_to_wait()
            if self._closed:
                raise IllegalStateError("the consumer was closed")
            open_ones = [self.core.buffers.reading(where) for where in wanted]
            open_ones = [reading for reading in open_ones if not reading.resolved]
            if not open_ones:
                return
            for reading in open_ones:
                if reading.error is not None and not reading.error.retriable:
                    error, reading.error = reading.error, None
                    self.perform(self.core.said(self._now_s()))
                    raise error
            if deadline.passed:
                cause = next((r.error for r in open_ones if r.error is not None), None)
                raise RequestTimedOut(
                    f"position of {open_ones[0].where} not known within {deadline.timeout_s:g} s"
                    + (f": {cause}" if cause else "")
                )
            await self._wait_data(deadline.wait_s())

    async def taken(
        self,
        take: Callable[[], list[T]],
        deadline: Deadline,
        ends: Ends | None = None,
        called_off: Callable[[], bool] | None = None,
    ) -> list[T] | None:
        """What `take` finds in the buffers, waiting for it until `deadline`, or `called_off`.

        Empty when the time is over; None once every position reached `ends`. Raises the error of a
        partition even while others have records: none waits for a lull. What an exception of a
        signal handler strikes while it is taken is handed out again.
        """
        buffers = self.core.buffers
        self.focus(ends)
        while True:
            self._about_to_wait()
            if self._closed:
                raise IllegalStateError("the consumer was closed")
            error = buffers.take_error()
            if error is not None:
                self.perform(self.core.said(self._now_s()))
                raise error
            touched = buffers.taking = {}
            try:
                out = take()
                if out:
                    self._streams.wake_all()  # there may be room to ask for more
                    return out
            except BaseException:
                self.go_back(touched)
                raise
            if ends is not None and buffers.reached(ends):
                return None
            if deadline.passed or (called_off is not None and called_off()):
                return out
            await self._wait_data(deadline.wait_s())

    def _about_to_wait(self) -> None:
        """Call before looking at the buffers: what arrives meanwhile wakes `_wait_data`."""
        self._data.clear()
        self._tasks.restart()

    async def _wait_data(self, timeout_s: float | None) -> None:
        """Until something changed, or `timeout_s` passed."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._data.wait()
        except TimeoutError:
            return
