"""The fast lanes of a producer: many records, or Arrow columns, with one report for all.

Input is taken in bounded chunks, so a generator of any length streams with back-pressure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice, repeat
from types import TracebackType
from typing import NamedTuple, Self, TypeVar, cast

from octavo.client.messaging.cluster.topic_lives import created_again
from octavo.client.messaging.producing.batches import (
    RECORD_OVERHEAD_BYTES,
    Batch,
    Columns,
    Span,
)
from octavo.client.messaging.producing.intake import Intake, check_timestamp
from octavo.client.messaging.producing.sections import suspended
from octavo.client.messaging.producing.serializers import (
    ToBytes,
    header_list,
    headers_bytes,
    with_dedup_id,
)
from octavo.client.messaging.producing.terms import Terms
from octavo.client.messaging.records import NO_HEADERS, Headers
from octavo.client.messaging.tracing import with_context
from octavo.runtime.errors import ConfigError, OctavoError

CHUNK_RECORDS = 2_048
CHUNK_BYTES = 2 << 20
"""A chunk is appended under one lock once memory for all of it is free."""
ONCE_CHUNK_RECORDS = 256
"""The same of records with ids, of which a partition takes one for each answer (ADR 58)."""
ONCE_OPEN_MAX = 512
"""Records with ids that one bulk send has under way: more would wait in the buffer until their
`delivery_timeout_ms` is over."""
_NONE = type(None)
T = TypeVar("T")


class SendReport:
    """Where the records of one bulk send are. All of them are acknowledged."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.count = 0
        self.unknown_offsets = 0
        """Records stored for certain whose offset was not told (I5, or acks=0)."""
        self.duplicates = 0
        """Records that were there already, by their `dedup_ids`, and were not stored again."""
        self._ranges: dict[int, list[range]] = {}

    def note(self, span: Span) -> None:
        """Account for a stretch of an acknowledged batch."""
        self.count += span.size
        self.duplicates += span.size if span.batch.duplicate else 0
        if span.batch.base_offset < 0:
            self.unknown_offsets += span.size
            return
        first = span.batch.base_offset + span.start
        ranges = self._ranges.setdefault(span.batch.partition, [])
        if ranges and ranges[-1].stop == first:
            ranges[-1] = range(ranges[-1].start, first + span.size)
        else:
            ranges.append(range(first, first + span.size))

    @property
    def partitions(self) -> list[int]:
        """Partitions that received records."""
        return sorted(self._ranges)

    def offsets(self, partition: int) -> list[range]:
        """Where the records are in `partition`, in the order sent: a duplicate at its first one."""
        return list(self._ranges.get(partition, ()))

    def __repr__(self) -> str:
        known = f", {self.duplicates} of them duplicates" if self.duplicates else ""
        places = f"{self.count} records in {len(self._ranges)} partitions"
        return f"<SendReport {self.topic}: {places}{known}>"


class Chunk(NamedTuple):
    """Converted rows ready to be appended."""

    keys: Sequence[bytes | None] | None
    values: Sequence[bytes | None]
    headers: Sequence[Headers] | None
    timestamps_ms: Sequence[int]
    sizes: Sequence[int]
    size_bytes: int
    deciding: Sequence[bytes | None] | None
    """What decides each row's partition: its key, else its id (`intake.hashed_of`)."""


class ManyInput(NamedTuple):
    """The arguments of send_many."""

    topic: str
    values: Iterable[object]
    keys: Iterable[object] | None
    headers: Iterable[object] | None
    timestamps_ms: Iterable[int] | None
    partition: int | None
    terms: Terms
    dedup_ids: Iterable[object] | None


def chunks(intake: Intake, given: ManyInput, carried: Headers = NO_HEADERS) -> Iterator[Chunk]:
    """Convert, check and cut the input; errors name the record and leave earlier chunks sent.

    Every record gets the headers `carried`, too.
    """
    if isinstance(given.dedup_ids, str | bytes):  # else each of its characters would be an id
        raise ConfigError(
            f"dedup_ids={given.dedup_ids!r} is one id, not one for each record",
            hint="give as many ids as values; one record is sent with send(..., dedup_id=)",
        )
    values = iter(given.values)
    keys = None if given.keys is None else iter(given.keys)
    headers = None if given.headers is None else iter(given.headers)
    stamps = None if given.timestamps_ms is None else iter(given.timestamps_ms)
    ids = None if given.dedup_ids is None else iter(given.dedup_ids)
    while True:
        part = list(islice(values, CHUNK_RECORDS if ids is None else ONCE_CHUNK_RECORDS))
        if not part:
            _check_ended(keys=keys, headers=headers, timestamps_ms=stamps, dedup_ids=ids)
            return
        count = len(part)
        value_column = _convert(part, intake.to_value, bytes_pass=intake.bytes_pass)
        key_column = None
        if keys is not None:
            key_column = _convert(_next(keys, count, "keys"), intake.to_key, bytes_pass=True)
        header_column: list[Headers] | None = None
        if headers is not None:
            header_column = [
                header_list(item) if item else NO_HEADERS
                for item in _next(headers, count, "headers")
            ]
        if carried:
            header_column = [
                with_context(given_ones, carried)
                for given_ones in header_column or repeat(NO_HEADERS, count)
            ]
        if ids is not None:
            before = header_column or repeat(NO_HEADERS, count)
            named = zip(before, _next(ids, count, "dedup_ids"), strict=True)
            header_column = [with_dedup_id(*pair) for pair in named]
        if stamps is None:
            times: Sequence[int] = [intake.wall_ms()] * count
        else:
            times = cast("Sequence[int]", _next(stamps, count, "timestamps_ms"))
            for stamp in times:
                check_timestamp(stamp)
        sizes = _sizes(intake, given.topic, key_column, value_column, header_column)
        deciding = key_column if ids is None else _deciding(key_column, header_column or ())
        yield from _cut(
            key_column, value_column, header_column, times, sizes=sizes, deciding=deciding
        )


def _check_ended(**inputs: Iterator[object] | None) -> None:
    for name, rest in inputs.items():
        if rest is not None and next(rest, _NONE) is not _NONE:
            raise ConfigError(f"{name} has more items than values")


def _deciding(
    keys: Sequence[bytes | None] | None, headers: Sequence[Headers]
) -> Sequence[bytes | None]:
    """Keys, and ids where there is none: the same id must come to the same partition (X14)."""
    ids = [item[-1][1] for item in headers]
    if keys is None:
        return ids
    return [found if key is None else key for key, found in zip(keys, ids, strict=True)]


def _next(items: Iterator[object], count: int, name: str) -> list[object]:
    part = list(islice(items, count))
    if len(part) != count:
        raise ConfigError(f"{name} has fewer items than values")
    return part


def _convert(
    items: Sequence[object], to_bytes: ToBytes, *, bytes_pass: bool
) -> Sequence[bytes | None]:
    kinds = set(map(type, items))
    if bytes_pass and kinds <= {bytes, _NONE}:
        return cast("Sequence[bytes | None]", items)
    return [to_bytes(item) for item in items]


def _lengths(column: Sequence[bytes | None]) -> list[int]:
    try:
        return list(map(len, cast("Sequence[bytes]", column)))
    except TypeError:  # there are nulls
        return [0 if item is None else len(item) for item in column]


def _sizes(
    intake: Intake,
    topic: str,
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes | None],
    headers: Sequence[Headers] | None,
) -> list[int]:
    sizes = _lengths(values)
    if keys is not None:
        sizes = [a + b for a, b in zip(sizes, _lengths(keys), strict=True)]
    if headers is not None:
        sizes = [a + headers_bytes(b) for a, b in zip(sizes, headers, strict=True)]
    largest = max(sizes)
    if largest > intake.record_limit(topic):
        raise intake.too_large(topic, largest)
    return [size + RECORD_OVERHEAD_BYTES for size in sizes]


def _cut(
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes | None],
    headers: Sequence[Headers] | None,
    times: Sequence[int],
    *,
    sizes: list[int],
    deciding: Sequence[bytes | None] | None,
) -> Iterator[Chunk]:
    ends = list(accumulate(sizes))
    start = 0
    while start < len(ends):
        before = ends[start - 1] if start else 0
        stop = max(bisect_right(ends, before + CHUNK_BYTES), start + 1)
        yield Chunk(
            None if keys is None else keys[start:stop],
            values[start:stop],
            None if headers is None else headers[start:stop],
            times[start:stop],
            sizes[start:stop],
            ends[stop - 1] - before,
            None if deciding is None else deciding[start:stop],
        )
        start = stop


def append_chunk(intake: Intake, given: ManyInput, chunk: Chunk, block_s: float) -> list[Span]:
    """Append one chunk; blocks the thread up to `block_s` for memory, then BufferFull."""
    accumulator = intake.accumulator
    if accumulator.mine():
        with suspended():  # the caller interrupted this thread inside; it will wait anyway
            return append_chunk(intake, given, chunk, block_s)
    spans: list[Span] = []
    state, router = intake.topics[given.topic], intake.router
    keys = chunk.deciding if router.custom is None else chunk.keys  # partitioners get the key
    chosen = router.choose_many(state, given.partition, keys, chunk.values, chunk.headers)
    with accumulator.lock:
        if intake.closed is not None:
            raise intake.refusal()
        if accumulator.free_bytes < chunk.size_bytes:
            intake.wait_space(chunk.size_bytes, block_s)
        groups = router.group(state, chosen, keys, chunk.sizes)
        for slot, rows in groups:
            spans += accumulator.append_many(slot, _columns(chunk, rows), given.terms)
        intake.wake_if_wanted()
    return spans


def append_batch(intake: Intake, batch: Batch, block_s: float) -> list[Span]:
    """Append a batch that is complete already; blocks as `append_chunk`."""
    accumulator = intake.accumulator
    if accumulator.mine():
        with suspended():
            return append_batch(intake, batch, block_s)
    with accumulator.lock:
        if intake.closed is not None:
            raise intake.refusal()
        if accumulator.free_bytes < batch.size_bytes:
            intake.wait_space(batch.size_bytes, block_s)
        state = intake.topics[batch.topic]
        if batch.life != state.life:
            raise created_again(batch.topic, "this piece was cut for the old one")
        accumulator.append_made(state.slots[batch.partition], batch)
        intake.wake_if_wanted()
    return [Span(batch, 0, batch.count)]


def _columns(chunk: Chunk, rows: Sequence[int]) -> Columns:
    keys = chunk.keys
    return Columns(
        _pick(chunk.timestamps_ms, rows),
        [None] * len(rows) if keys is None else _pick(keys, rows),
        _pick(chunk.values, rows),
        None if chunk.headers is None else _pick(chunk.headers, rows),
        _pick(chunk.sizes, rows),
    )


def _pick(column: Sequence[T], rows: Sequence[int]) -> Sequence[T]:
    """Selected rows: by slice where they are evenly spaced, else one by one."""
    if isinstance(rows, range):
        return column[rows.start : rows.stop : rows.step]
    return [column[row] for row in rows]


class BulkSend:
    """One bulk send under way: collects outcomes as they come, so memory stays bounded.

    Used in `with`: a span ends with the block.
    """

    def __init__(self, intake: Intake, topic: str, terms: Terms) -> None:
        self._sending = None if intake.tracing is None else intake.tracing.sending(topic)
        self.carried = NO_HEADERS if self._sending is None else self._sending.carried
        """Headers of each record besides its own."""
        self._intake = intake
        self._once = terms.once
        self._report = SendReport(topic)
        self._spans: deque[Span] = deque()
        self._failed = 0
        self._error: OctavoError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._sending is None:
            return
        self._sending.counted(self._report.count)
        if error is not None:
            self._sending.failed(error)
        else:
            partitions = self._report.partitions
            self._sending.delivered(partitions[0] if len(partitions) == 1 else -1)

    def add(self, spans: Sequence[Span]) -> None:
        """More records were appended."""
        self._spans.extend(spans)
        while self._spans and self._spans[0].batch.done:
            self._note(self._spans.popleft())

    def _note(self, span: Span) -> None:
        span.batch.observed = True
        if span.batch.error is None:
            self._report.note(span)
        else:
            self._failed += span.size
            self._error = self._error or span.batch.error

    def awaited(self) -> Batch | None:
        """The batch to wait for before more is added, if there are too many (ONCE_OPEN_MAX)."""
        self.add(())
        return self._spans[0].batch if self._once and len(self._spans) > ONCE_OPEN_MAX else None

    @property
    def stopped(self) -> bool:
        """Records with ids failed: those behind them would wait as long, one window after another.

        They are not sent; whoever sends all again has each kept once.
        """
        return self._once and self._error is not None

    def expedite(self) -> None:
        """Nothing more follows: do not linger."""
        self._intake.expedite_all()

    @property
    def open(self) -> list[Batch]:
        """Batches without an outcome yet."""
        return list(dict.fromkeys(span.batch for span in self._spans if not span.batch.done))

    def result(self) -> SendReport:
        """The report; raises the first error when any record failed, with a note of how many."""
        self.add(())
        if self._error is not None:
            rest = ", what came after them was not sent" if self._once else ""
            self._error.add_note(
                f"send_many to {self._report.topic}: {self._report.count} records acknowledged, "
                f"{self._failed} failed{rest}"
            )
            raise self._error
        return self._report
