"""What the blocking classes do otherwise than run an async method on the loop thread.

The rest of each class is written by `tools/gen_sync.py`. By hand are: how they begin and end, what
must give records back when a wait is interrupted, and iteration, which yields without a hop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from octavo.client.messaging.api.admin import AsyncAdmin
from octavo.client.messaging.api.arrow_access import arrow_reading
from octavo.client.messaging.api.callbacks import CallbackDue
from octavo.client.messaging.api.client import AsyncClient
from octavo.client.messaging.api.consumer import ARROW_POLL_BYTES, AsyncConsumer
from octavo.client.messaging.api.forking import CLIENT_THREAD
from octavo.client.messaging.api.group_consumer import CLOSE_S, AsyncGroupConsumer
from octavo.client.messaging.api.leaving import leave
from octavo.client.messaging.api.options import ClientOptions
from octavo.client.messaging.api.reader import AsyncReader
from octavo.client.messaging.api.table_view import AsyncTableView, TableRows
from octavo.client.messaging.membership.tickets import Outcome
from octavo.client.messaging.membership.values import Duty
from octavo.client.messaging.records import Record, TopicPartition
from octavo.client.messaging.sync.ending import Held, forget, opened
from octavo.client.messaging.sync.loop_thread import LoopThread

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class ConsumerByHand:
    """Polls that give back what reached nobody, iteration, and the end."""

    def __init__(self, thread: LoopThread, consumer: AsyncConsumer, held: Held) -> None:
        self._thread = thread
        self._held = held
        self._async = consumer
        self._hand_over = consumer.hand_over

    def __repr__(self) -> str:
        return repr(self._async).replace("<Async", "<", 1)

    def poll(self, max_records: int | None = None, timeout: float | None = 1.0) -> list[Record]:
        """Up to `max_records` records; empty when `timeout` seconds passed (F107).

        0 hands out buffered records only; None waits until there is one. Raises what needs the
        user: damaged data, no position with policy none, an offset that does not exist.
        """
        records = self._thread.run(
            self._hand_over.poll_within(max_records, timeout), self._hand_over.rewind
        )
        finishing = self._hand_over.finishing
        if finishing is None:
            return records
        return finishing.many(records, self._rewind)

    def _rewind(self, records: Sequence[Record]) -> None:
        self._thread.call(partial(self._hand_over.rewind, records))

    def poll_arrow(
        self, max_bytes: int = ARROW_POLL_BYTES, timeout: float | None = 1.0
    ) -> pa.RecordBatch | None:
        """Buffered batches as one RecordBatch with the Kafka-source columns; None after `timeout`.

        The columns are key, value, topic, partition, offset, timestamp, timestampType, headers.
        """
        functions = arrow_reading()
        taken = self._thread.run(
            self._hand_over.batches(max_bytes, timeout), self._hand_over.untake
        )
        if taken is None:
            return None
        try:  # here and not on the loop, which goes on fetching meanwhile
            return functions.to_record_batch(taken)
        except BaseException:
            self._thread.call(partial(self._hand_over.untake, taken))
            raise

    def __iter__(self) -> Iterator[Record]:
        handout = self._hand_over.handout
        finishing = self._hand_over.finishing
        while True:
            # the body may seek, pause or assign, and may take long
            while handout.ready and monotonic() < handout.good_until_s:
                record = handout.ready[0]
                if finishing is not None:
                    made = finishing.one(record)
                    if not handout.ready or handout.ready[0] is not record:
                        continue  # taken away meanwhile: it is handed out again, or is not ours
                    record = made
                del handout.ready[0]  # no call, so no Ctrl-C, between this and the caller
                yield record
            if not self._refill():
                return

    def _refill(self) -> bool:
        return self._thread.run(self._hand_over.refill())

    def close(self, timeout: float | None = None) -> None:
        """Stop reading. Iterations and polls under way end. Closing twice is harmless."""
        if not self._thread.closed:
            self._thread.run(self._async.close(timeout), limit_s=timeout)

    def __enter__(self) -> Self:
        self._thread.check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        leave(self.close, error)


class GroupConsumerByHand(ConsumerByHand):
    """Callbacks on the thread that asks for records, and the end."""

    def __init__(self, thread: LoopThread, consumer: AsyncGroupConsumer, held: Held) -> None:
        super().__init__(thread, consumer, held)
        self._async: AsyncGroupConsumer = consumer
        consumer.group_hand_over.blocking = True

    def poll(self, max_records: int | None = None, timeout: float | None = 1.0) -> list[Record]:
        """Up to `max_records` records; empty when `timeout` seconds passed (F107).

        0 hands out buffered records only; None waits until there is one. Raises what needs the
        user: damaged data, no position with policy none, an offset that does not exist, a group
        that does not take this member, and what a callback raises.
        """
        return self._calling_back(partial(super().poll, max_records), timeout)

    def poll_arrow(
        self, max_bytes: int = ARROW_POLL_BYTES, timeout: float | None = 1.0
    ) -> pa.RecordBatch | None:
        """Buffered batches as one RecordBatch with the Kafka-source columns; None after `timeout`.

        The columns are key, value, topic, partition, offset, timestamp, timestampType, headers.
        """
        return self._calling_back(partial(super().poll_arrow, max_bytes), timeout)

    def _refill(self) -> bool:
        return self._calling_back(lambda _: super(GroupConsumerByHand, self)._refill(), None)

    def _calling_back(self, call: Callable[[float | None], T], timeout: float | None) -> T:
        """The call, and every callback that comes first, here; all of it takes `timeout`."""
        began_s, left_s = monotonic(), timeout
        while True:
            try:
                return call(left_s)
            except CallbackDue as due:
                duty = due.duty
            self._call_back(duty)
            if timeout is not None:
                left_s = max(began_s + timeout - monotonic(), 0.0)

    def _call_back(self, duty: Duty | Outcome) -> None:
        session = self._async.group_opening.session
        if session is None:
            return  # it was never asked for anything

        async def begin() -> Duty | Outcome:
            session.begin(duty)
            return duty

        async def end() -> None:
            session.end(duty)

        self._thread.run(begin(), session.not_begun)
        try:
            self._async.group_hand_over.callbacks.run(duty)
        finally:
            self._thread.begin(end())

    def close(self, timeout: float | None = None, *, leave_group: bool = False) -> None:
        """Commit (with auto-commit), call `on_revoke`, leave the group, end. Twice is harmless.

        Takes `timeout` seconds at most, one without it, whatever callbacks do: the last one runs on
        a thread of its own. A static member only says that it will be back, but for `leave_group`.
        A block that ends with an exception does not commit: what was handed out last comes again.
        """
        self._end(timeout, leave_group=leave_group, commits=True)

    def _end(self, timeout: float | None, *, leave_group: bool, commits: bool) -> None:
        if not self._thread.closed:
            ending = self._async.end(timeout, leave_group=leave_group, commits=commits)
            self._thread.run(ending, limit_s=CLOSE_S if timeout is None else timeout)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        leave(lambda _: self._end(None, leave_group=False, commits=error is None), error)


class ReaderByHand(ConsumerByHand):
    """The start, and iterations that end."""

    def __init__(self, thread: LoopThread, reader: AsyncReader, held: Held) -> None:
        super().__init__(thread, reader, held)
        self._reader = reader

    def __enter__(self) -> Self:
        super().__enter__()
        self._thread.run(self._reader.start())
        return self

    def read_to_end(self) -> Iterator[Record]:
        """Every record up to the end offsets seen at the call, then stop.

        Paused partitions are left out.
        """
        ends = self._thread.run(self._reader.begin_to_end())
        return self._until(ends)

    def _until(self, ends: Mapping[TopicPartition, int]) -> Iterator[Record]:
        handout = self._hand_over.handout
        finishing = self._hand_over.finishing
        while True:
            while handout.ready:
                record = handout.ready[0]
                if finishing is not None:
                    record = finishing.one(record)
                del handout.ready[0]
                yield record
            if not self._thread.run(self._hand_over.refill_until(ends)):
                return


class TableViewByHand(TableRows):
    """Loading, and the end."""

    def __init__(self, thread: LoopThread, view: AsyncTableView, held: Held) -> None:
        self._thread = thread
        self._held = held
        self._async = view
        self.table = view.table

    def __repr__(self) -> str:
        return repr(self._async).replace("<Async", "<", 1)

    def close(self, timeout: float | None = None) -> None:
        """Stop following; reading raises IllegalStateError then. Twice is harmless."""
        if not self._thread.closed:
            self._thread.run(self._async.close(timeout), limit_s=timeout)

    def __enter__(self) -> Self:
        self._thread.check()
        self._thread.run(self._async.load())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        leave(self.close, error)


class AdminByHand:
    """The beginning and the end."""

    def __init__(self, thread: LoopThread, admin: AsyncAdmin, held: Held) -> None:
        self._thread = thread
        self._held = held
        self._async = admin

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None


class ClientByHand:
    """The loop thread, and the end of everything."""

    def __init__(
        self, bootstrap_servers: str | Iterable[str], **options: Unpack[ClientOptions]
    ) -> None:
        self._async = AsyncClient(bootstrap_servers, **options)
        self._thread = LoopThread(CLIENT_THREAD, partial(opened, self._async))
        self._held = Held(self._thread)

    def __repr__(self) -> str:
        return repr(self._async).replace("<Async", "<", 1)

    def close(self, timeout: float | None = None) -> None:
        """Close every part, then the connections; raises the first error of a part.

        Closing twice, or in a forked child, is harmless.
        """
        if self._thread.closed:
            return
        self._thread.refuse_own()
        forget(self._thread)
        try:
            if self._thread.started:
                self._thread.run(self._async.close(timeout), limit_s=timeout)
        finally:
            self._thread.stop()

    def __enter__(self) -> Self:
        self._thread.check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        leave(self.close, error)
