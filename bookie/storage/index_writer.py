"""The single thread that applies durable groups to the index, in stream order (spec/ledger.md B-5,
B-10, B-11)."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable

from octavo.bookie.journal.item import CommittedGroup, JournalItem, RetiredSegment
from octavo.bookie.journal.segment import FooterBuilder
from octavo.bookie.storage.index import EntryIndex, IndexApplier
from octavo.runtime.clock import Clock

GROUPS_MAX = 16
"""Groups the index may lag behind the journal; beyond it the commit thread waits."""
MERGE_RECORDS_MAX = 8192
"""Records applied in one RocksDB batch."""


class IndexWriter:
    """Applies groups, tells the loop when they are visible, flushes on time and seals retired
    segments.

    Args:
        on_visible: called on the loop with items whose entries the index now answers for (B-5).
        on_failure: called on the loop once when the thread has stopped for good (B-8).
    """

    def __init__(
        self,
        index: EntryIndex,
        stream: int,
        *,
        flush_interval_s: float,
        clock: Clock,
        on_visible: Callable[[list[JournalItem]], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._index = index
        self._applier = IndexApplier(index, stream)
        self._flush_interval_s = flush_interval_s
        self._clock = clock
        self._flushed_s = clock.monotonic()
        self._on_visible = on_visible
        self._on_failure = on_failure
        self._queue: queue.Queue[CommittedGroup | RetiredSegment | None] = queue.Queue(GROUPS_MAX)
        self._footer = FooterBuilder()
        self._dirty = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._dead = threading.Event()

    def start(self) -> None:
        """Start the thread; the running loop receives callbacks."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="index-writer", daemon=True)
        self._thread.start()

    def put(self, work: CommittedGroup | RetiredSegment) -> None:
        """Hand over durable work, in stream order; blocks while the index lags (commit thread
        only)."""
        while not self._dead.is_set():
            try:
                self._queue.put(work, timeout=1.0)
            except queue.Full:
                continue
            return

    def stop(self) -> None:
        """Apply what is queued, flush, end the thread (blocking)."""
        if self._thread is None:
            return
        while not self._dead.is_set():
            try:
                self._queue.put(None, timeout=1.0)
            except queue.Full:
                continue
            break
        self._thread.join()

    def _call_loop(self, function: Callable[..., None], argument: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function, argument)
        except RuntimeError:
            return  # the loop is closed: nobody is left to tell

    def _run(self) -> None:
        try:
            while self._step():
                pass
            self._index.flush()
        except Exception as error:  # noqa: BLE001 - B-8: whatever failed, the process must stop
            self._call_loop(self._on_failure, error)
        finally:
            self._dead.set()

    def _step(self) -> bool:
        """Handle one piece of work and what queued behind it; False to end."""
        due_s = self._flushed_s + self._flush_interval_s - self._clock.monotonic()
        if due_s <= 0:
            self._flush()
            return True
        try:
            work = self._queue.get(timeout=due_s)
        except queue.Empty:
            return True
        groups: list[CommittedGroup] = []
        records = 0
        while isinstance(work, CommittedGroup):
            groups.append(work)
            self._applier.add_group(work, self._footer)
            records += sum(item.records for item in work.items)
            if records >= MERGE_RECORDS_MAX:
                work = None
                break
            try:
                work = self._queue.get_nowait()
            except queue.Empty:
                work = None
                break
        else:
            self._apply(groups)
            return self._other(work)
        self._apply(groups)
        return True

    def _apply(self, groups: list[CommittedGroup]) -> None:
        if not groups:
            return
        self._applier.commit(groups[-1].mark)
        self._dirty = True
        self._call_loop(self._on_visible, [item for group in groups for item in group.items])

    def _other(self, work: RetiredSegment | None) -> bool:
        if work is None:
            return False
        self._seal(work)
        return True

    def _flush(self) -> None:
        """B-11: a flush in time bounds what a boot must replay."""
        if self._dirty:
            self._index.flush()
            self._dirty = False
        self._flushed_s = self._clock.monotonic()

    def _seal(self, retired: RetiredSegment) -> None:
        """Write the footer of a full segment and give its unused space back; off the
        acknowledgement path."""
        appender = retired.appender
        appender.write(self._footer.encode(retired.header, appender.position))
        appender.sync()
        appender.trim()
        appender.close()
        self._footer = FooterBuilder()
