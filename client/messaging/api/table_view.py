"""A topic as a table: of each key its last value, kept up to date (F086).

`TableRows` is what both flavours have: reading. `AsyncTableView` loads and follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from octavo.client.messaging.api.binding import Binding
from octavo.client.messaging.api.leaving import leave_async
from octavo.client.messaging.api.reader import AsyncReader
from octavo.client.messaging.reading.reading_errors import our_fault
from octavo.client.messaging.records import Record, TopicPartition
from octavo.client.messaging.user_code import ClientLog
from octavo.runtime.deadline import check_timeout
from octavo.runtime.errors import (
    DeserializationFailed,
    IllegalStateError,
    OctavoError,
    RequestTimedOut,
)
from octavo.runtime.tasks import TaskOwner

FOLLOW_POLL_S = 0.2
"""How long one look for news lasts; `refresh` notices a tail without records so much later."""

_log = ClientLog("octavo.client")


class Table:
    """What both flavours of one view share."""

    def __init__(self) -> None:
        self.rows: dict[Any, Any] = {}
        self.is_loaded = False
        self.failure: OctavoError | None = None
        """Why it follows no more."""

    def apply(self, records: Iterable[Record]) -> None:
        """Take records in, in order; a value of None deletes, what has no key is no row.

        Raises DeserializationFailed for a key that no dict takes.
        """
        rows = self.rows
        for record in records:
            key, value = record.key, record.value
            if key is None:
                continue
            try:
                if value is None:
                    rows.pop(key, None)
                else:
                    rows[key] = value
            except Exception as error:  # its hash and its equality are the user's
                raise DeserializationFailed(
                    f"the key of {record.topic_partition} offset {record.offset} cannot be the "
                    f"key of a row: {error!r}",
                    hint="give a key_deserializer whose results are hashable",
                    topic=record.topic,
                    partition=record.partition,
                    offset=record.offset,
                ) from error

    def end(self, error: OctavoError) -> None:
        """Reading raises `error` from now on, unless it raises another one already."""
        self.failure = self.failure or error

    def current(self) -> dict[Any, Any]:
        """The rows; raises while they are not loaded, and once they are not followed any more."""
        if self.failure is not None:
            raise self.failure
        if not self.is_loaded:
            raise IllegalStateError(
                "the table is not loaded", hint="use it inside `with` or `async with`"
            )
        return self.rows


class TableRows(Mapping[Any, Any]):
    """Of each key its last value; reading waits for nothing.

    A view that follows its topic changes while it is iterated: `snapshot` gives one moment.
    Reading raises the error that ended following, so that no old value passes for the last one.
    """

    table: Table

    def __getitem__(self, key: object) -> Any:
        return self.table.current()[key]

    def __contains__(self, key: object) -> bool:
        return key in self.table.current()

    def __len__(self) -> int:
        return len(self.table.current())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.snapshot())

    def __eq__(self, other: object) -> bool:
        return self is other  # it changes: what it holds now is compared as `snapshot()`

    def __hash__(self) -> int:
        return id(self)

    def snapshot(self) -> dict[Any, Any]:
        """A copy of all rows as they are now."""
        return dict(self.table.current())


class AsyncTableView(TableRows):
    """The last value of each key of topics; made by `AsyncClient.table_view()`.

    `async with` loads everything up to the end offsets seen then, and follows from there on. Rows
    are in memory. Keys that lie in several partitions, because partitions were added, have the
    value that was read last.
    """

    def __init__(self, binding: Binding, reader: AsyncReader) -> None:
        self.table = Table()
        self._binding = binding
        self._reader = reader
        self._tasks = TaskOwner("table-view")
        self._news = asyncio.Event()
        """Set at the next news, and replaced by another then."""
        self._is_closed = False

    def __repr__(self) -> str:
        rows = f", {len(self.table.rows)} rows"
        return self._binding.describe("AsyncTableView", closed=self._is_closed, more=rows)

    async def __aenter__(self) -> Self:
        await self.load()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await leave_async(self.close, error)

    async def load(self) -> None:
        """Read up to the end offsets seen now, then follow; the second time it does nothing.

        Raises what reading raises; then it is closed.
        """
        self._check_open()
        if self.table.is_loaded:
            return
        try:
            await self._reader.start()
            ends = await self._reader.begin_to_end()
            while (records := await self._reader.hand_over.run_until(ends)) is not None:
                self.table.apply(records)
        except BaseException:
            await self.close()
            raise
        self._check_open()  # somebody may have closed it meanwhile
        if not self.table.is_loaded:  # or loaded it
            self.table.is_loaded = True
            self._tasks.spawn(self._follow(), name="follow").add_done_callback(self._ended)

    def _check_open(self) -> None:
        if self._is_closed:
            raise IllegalStateError("the table is closed", hint="make a new one")

    async def _follow(self) -> None:
        try:
            while True:
                self.table.apply(await self._reader.poll(timeout=FOLLOW_POLL_S))
                self._tell()
        except OctavoError as error:  # every read and `refresh` raises it from now on
            self.table.end(error)
        except Exception as error:  # noqa: BLE001  it reaches whoever reads
            self.table.end(our_fault("following a table", error))
            _log.error("a table is not followed any more: %r", error, exc_info=error)

    def _ended(self, _: asyncio.Task[None]) -> None:
        """Nobody follows, whatever ended it: also a cancellation before it began."""
        ended = "the table is not followed any more"
        self.table.end(IllegalStateError(ended, hint="make a new one"))
        self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def refresh(self, timeout: float | None = 30.0) -> None:
        """Return when the table has everything up to the end offsets seen at the call.

        So a record that was acknowledged before is in it. Raises RequestTimedOut, and the error
        that ended following.
        """
        self.table.current()
        limit_s = check_timeout(timeout)
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                await self._refresh()
        except TimeoutError:
            if not limit.expired():
                raise
            self.table.current()
            raise RequestTimedOut(
                f"the table has not reached the end of its topics after {limit_s:g} s"
            ) from None

    async def _refresh(self) -> None:
        ends = await self._reader.end_offsets()
        while True:
            news = self._news  # of what comes while the positions are asked for
            self.table.current()
            if await self._has_reached(ends):
                break
            await news.wait()
        self.table.current()

    async def _has_reached(self, ends: Mapping[TopicPartition, int]) -> bool:
        for where, end in ends.items():
            if await self._reader.position(where) < end:
                return False
        return True

    async def close(self, timeout: float | None = None) -> None:
        """Stop following; reading raises IllegalStateError then. Twice is harmless."""
        self._is_closed = True
        self._binding.forget(self)
        self.table.end(IllegalStateError("the table is closed", hint="make a new one"))
        self._tell()
        try:
            await self._tasks.close()
        finally:
            await self._reader.close(timeout)
