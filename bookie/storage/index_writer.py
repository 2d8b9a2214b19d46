"""The single thread that applies durable groups to the index, in stream order (B-5, B-10, B-11)."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable

from octavo.bookie.faults import is_full
from octavo.bookie.journal.item import CommittedGroup, JournalItem, RetiredSegment
from octavo.bookie.journal.segment import FooterBuilder
from octavo.bookie.storage.applier import IndexApplier
from octavo.bookie.storage.index import Index
from octavo.bookie.storage.index_jobs import IndexJob
from octavo.runtime.clock import Clock
from octavo.runtime.telemetry import get_logger
from octavo.runtime.workers import Worker

GROUPS_MAX = 256
"""Groups the index may lag behind the journal; beyond it the commit thread waits."""
LAG_BYTES_MAX = 32 * 1024 * 1024
"""Likewise for the bytes of their entries, which stay in memory until they are indexed."""
GATHER_S = 0.05
"""How long durable groups are collected before one RocksDB batch. Nobody waits for it: entries are
acknowledged after the sync and read from memory until the index answers for them (B-5).
"""
MERGE_RECORDS_MAX = 8192
"""Records applied in one RocksDB batch."""
JOBS_MAX = 64
"""Jobs that wait for the index thread; their owners wait beyond it."""


_log = get_logger("octavo.bookie.index-writer")


class IndexWriter:
    """Applies groups, says when they are visible, flushes on time, seals retired segments.

    Args:
        on_visible: called on the loop with items whose entries the index now answers for (B-5).
        on_failure: called on the loop once when the thread has stopped for good (B-8).
    """

    def __init__(
        self,
        index: Index,
        stream: int,
        *,
        flush_interval_s: float,
        flush_bytes: int,
        drop_retired: bool = False,
        clock: Clock,
        on_visible: Callable[[list[JournalItem]], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._index = index
        self._applier = IndexApplier(index, stream)
        self._flush_interval_s = flush_interval_s
        self._flush_bytes = flush_bytes
        self._unflushed_bytes = 0  # of full segments
        self._drop_retired = drop_retired  # full segments leave the page cache
        self._clock = clock
        self._flushed_s = clock.monotonic()
        self._on_visible = on_visible
        self._on_failure = on_failure
        self._condition = threading.Condition()
        self._queue: deque[CommittedGroup | RetiredSegment] = deque()  # guarded by _condition
        self._queued_bytes = 0  # guarded by _condition
        self._jobs: deque[tuple[IndexJob, asyncio.Future[None]]] = deque()  # guarded likewise
        self._job_places = asyncio.Semaphore(JOBS_MAX)
        self._stopping = False  # guarded by _condition
        self._footer = FooterBuilder()
        self._dirty = False
        self._job: tuple[IndexJob, asyncio.Future[None]] | None = None
        self._worker = Worker("index-writer", self._run, on_failure)
        self._dead = False  # guarded by _condition

    def start(self) -> None:
        """Start the thread; the running loop receives callbacks."""
        self._worker.start(asyncio.get_running_loop())

    def put(self, work: CommittedGroup | RetiredSegment) -> None:
        """Hand over durable work in stream order (commit thread); blocks while the index lags."""
        nbytes = 0
        if isinstance(work, CommittedGroup):
            for item in work.items:  # a frame less per item than a generator takes
                nbytes += item.nbytes
        with self._condition:
            # For each group: no hop through `_is_full`.
            while len(self._queue) >= GROUPS_MAX or self._queued_bytes >= LAG_BYTES_MAX:
                if self._dead:
                    break
                self._condition.wait()
            self._queue.append(work)
            self._queued_bytes += nbytes
            count = len(self._queue)
            if count == 1 or count >= GROUPS_MAX or self._queued_bytes >= LAG_BYTES_MAX:
                self._condition.notify_all()

    async def do(self, job: IndexJob) -> None:
        """Have the index thread do a job, behind all groups that are queued now, piece by piece.

        Returns when it is done. One that stop() finds waiting is cancelled.
        """
        async with self._job_places:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            with self._condition:
                if self._stopping or self._dead:
                    raise asyncio.CancelledError
                self._jobs.append((job, done))
                self._condition.notify_all()
            await done

    def stop(self) -> None:
        """Apply what is queued, flush, end the thread (blocking)."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        self._worker.join()

    def _run(self) -> None:
        try:
            while self._step():
                pass
            self._index.flush()
        finally:
            with self._condition:
                self._dead = True
                self._condition.notify_all()
                given_up, self._jobs = self._jobs, deque()
            for _, done in given_up:
                self._worker.tell(done.cancel)

    def _is_full(self) -> bool:
        return len(self._queue) >= GROUPS_MAX or self._queued_bytes >= LAG_BYTES_MAX

    def _take(self, timeout_s: float) -> list[CommittedGroup | RetiredSegment] | None:
        """All queued work after a moment of gathering; empty at the timeout, None to end.

        A job taken with it (`_job`) was submitted behind none of what is still queued.
        """
        with self._condition:
            if not self._queue and not self._jobs and not self._stopping:
                self._condition.wait(timeout_s)
            if self._queue and not self._stopping:
                self._condition.wait_for(lambda: self._stopping or self._is_full(), GATHER_S)
            self._job = self._jobs[0] if self._jobs else None
            if not self._queue:
                return None if self._stopping else []
            work = list(self._queue)
            self._queue.clear()
            self._queued_bytes = 0
            self._condition.notify_all()
            return work

    def _step(self) -> bool:
        """Handle what is queued; False to end."""
        due_s = self._flushed_s + self._flush_interval_s - self._clock.monotonic()
        if due_s <= 0:
            self._flush()
            return True
        work = self._take(due_s)
        if work is None:
            return False
        groups: list[CommittedGroup] = []
        records = 0
        for piece in work:
            if isinstance(piece, CommittedGroup):
                groups.append(piece)
                self._applier.add_group(piece, self._footer)
                for item in piece.items:
                    records += item.records
            if records >= MERGE_RECORDS_MAX or isinstance(piece, RetiredSegment):
                self._apply(groups)
                groups, records = [], 0
            if isinstance(piece, RetiredSegment):
                self._seal(piece)
                if self._unflushed_bytes >= self._flush_bytes:
                    self._flush()
        self._apply(groups)
        if self._job is not None:
            self._work(*self._job)
        return True

    def _work(self, job: IndexJob, done: asyncio.Future[None]) -> None:
        """A piece of the oldest job."""
        if done.cancelled() or job.step(self._index):
            with self._condition:
                self._jobs.popleft()
            self._worker.tell(_settle, done)
        self._dirty = True

    def _apply(self, groups: list[CommittedGroup]) -> None:
        if not groups:
            return
        self._applier.commit(groups[-1].mark)
        self._dirty = True
        self._worker.tell(self._visible, [item for group in groups for item in group.items])

    def _visible(self, items: list[JournalItem]) -> None:
        """On the loop. What a callback left half done must not be served from: fail-stop."""
        try:
            self._on_visible(items)
        except Exception as error:  # noqa: BLE001 - whatever it was
            self._on_failure(error)

    def _flush(self) -> None:
        """B-11: a flush in time bounds what a boot must replay."""
        if self._dirty:
            self._index.flush()
            self._dirty = False
        self._unflushed_bytes = 0
        self._flushed_s = self._clock.monotonic()

    def _seal(self, retired: RetiredSegment) -> None:
        """Write the footer of a full segment, give its unused space back; no add waits for it."""
        appender = retired.appender
        self._unflushed_bytes += appender.position
        try:
            appender.write(self._footer.encode(retired.header, appender.position))
            appender.sync()
            appender.trim()
        except OSError as error:
            if not is_full(error):
                raise
            # Who needs it scans the segment instead; a part of it is not taken for a footer.
            _log.warning("footer-left-out", segment=retired.header.number, cause=str(error))
        if self._drop_retired:
            appender.drop_cached(0)
        appender.close()
        self._footer = FooterBuilder()


def _settle(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
