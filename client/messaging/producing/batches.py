"""Batches of records of one partition: cells and columns on their way to their encoded form.

No object per record: a record is four cells of a flat list, or an item in each of a few columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from octavo.client.messaging.producing.futures import Completion
from octavo.client.messaging.producing.terms import Terms
from octavo.client.messaging.records import NO_HEADERS, Headers
from octavo.proto import batch as batch_format
from octavo.proto.batch import BatchMarks
from octavo.runtime.checksum import Buffer

RECORD_OVERHEAD_BYTES = 24
"""Counted for each record: timestamp, two offsets, validity bits."""
MAX_BATCH_RECORDS = batch_format.MAX_RECORDS
ALL_COPIES = Terms()


class Columns(NamedTuple):
    """Equal-length columns to append to one partition."""

    timestamps_ms: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Headers] | None
    sizes: Sequence[int]

    def part(self, start: int, stop: int) -> Columns:
        """Rows `start` .. `stop`."""
        headers = None if self.headers is None else self.headers[start:stop]
        return Columns(
            self.timestamps_ms[start:stop],
            self.keys[start:stop],
            self.values[start:stop],
            headers,
            self.sizes[start:stop],
        )


Cell = int | bytes | Headers | None
CELLS = 4
"""Timestamp, key, value and headers of one record, in this order."""


class Batch(Completion):
    """Records of one partition that are stored whole or not at all (A2)."""

    __slots__ = (
        "cells",
        "count",
        "created_s",
        "due",
        "has_headers",
        "life",
        "make",
        "parts",
        "payload",
        "payload_producer",
        "size_bytes",
        "terms",
        "traceparent",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        created_s: float,
        resolver: int = 0,
        terms: Terms = ALL_COPIES,
    ) -> None:
        super().__init__(topic, partition, resolver)
        self.terms = terms
        """What each record in it was sent with."""
        self.parts: tuple[Columns, ...] = ()
        """Records appended in bulk, and single ones before them."""
        self.cells: list[Cell] = []
        """Single records behind `parts`, CELLS each."""
        self.has_headers = False
        self.life = 0
        """Of a batch made before it is appended: for which life of the topic it was cut."""
        self.count = 0
        self.size_bytes = 0
        self.created_s = created_s
        self.due = False
        """To be sent as soon as the partition has room: linger over, flush, or a waiting send."""
        self.make: Callable[[tuple[int, int, int]], Buffer] | None = None
        """Encodes columns that are Arrow already, given (producer id, epoch, sequence)."""
        self.payload: Buffer = b""
        """The encoded batch, kept for retries."""
        self.traceparent = ""
        """Of the span that sent its first record, once it was looked for."""
        self.payload_producer: tuple[int, int, int] = (-1, -1, -1)

    @property
    def is_numbered(self) -> bool:
        """Whether an idempotent producer gives it a sequence: not if its record has an id (X14)."""
        return not self.terms.once

    @property
    def acks(self) -> int:
        """Whose promise it waits for."""
        return self.terms.acks

    @property
    def records(self) -> int:
        """How many records it holds."""
        return self.count

    @property
    def first_headers(self) -> Headers:
        """Those of its first record, while its columns are there."""
        if self.parts:
            headers = self.parts[0].headers
            return NO_HEADERS if headers is None else headers[0]
        return cast("Headers", self.cells[CELLS - 1]) if self.cells else NO_HEADERS

    def parts_with(self, rows: Columns | None) -> tuple[Columns, ...]:
        """`parts` and `cells`, and `rows` behind them."""
        cells = self.cells
        single: tuple[Columns, ...] = ()
        if cells:
            columns = cast("Sequence[Sequence[object]]", [cells[at::CELLS] for at in range(CELLS)])
            stamps, keys, values, headers = columns
            single = (
                Columns(
                    cast("Sequence[int]", stamps),
                    cast("Sequence[bytes | None]", keys),
                    cast("Sequence[bytes | None]", values),
                    cast("Sequence[Headers]", headers) if self.has_headers else None,
                    (),
                ),
            )
        return (*self.parts, *single) if rows is None else (*self.parts, *single, rows)

    def columns(self) -> Columns:
        """All records, sizes left out."""
        parts = self.parts_with(None)
        if len(parts) == 1:
            return parts[0]
        headers: list[Headers] | None = None
        if self.has_headers:
            headers = []
            for part in parts:
                headers += [NO_HEADERS] * len(part.values) if part.headers is None else part.headers
        return Columns(
            [stamp for part in parts for stamp in part.timestamps_ms],
            [key for part in parts for key in part.keys],
            [value for part in parts for value in part.values],
            headers,
            (),
        )

    def encoded(self, codec: int, producer: tuple[int, int, int]) -> Buffer:
        """The batch's bytes under `producer`; columns are released once encoded."""
        if not self.payload:
            self.payload = self._encode(codec, producer)
            self._release_columns()
        elif producer != self.payload_producer:
            self.payload = batch_format.with_sequence(self.payload, *producer)
        self.payload_producer = producer
        return self.payload

    def _encode(self, codec: int, producer: tuple[int, int, int]) -> Buffer:
        if self.make is not None:
            return self.make(producer)
        columns = self.columns()
        self.timestamps_ms = columns.timestamps_ms
        return batch_format.encode(
            columns.timestamps_ms,
            columns.keys,
            columns.values,
            columns.headers,
            codec=codec,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
            marks=BatchMarks.DEDUP if self.terms.once else BatchMarks.NONE,
        )

    def _release_columns(self) -> None:
        self.parts = ()
        self.cells = []
        self.make = None

    def release(self) -> None:
        """Drop the bytes of a batch that is done."""
        self._release_columns()
        self.payload = b""


Row = tuple[int, bytes | None, bytes | None, Headers, int]
"""One record in its stored form: timestamp, key, value, headers, size with overhead. A plain tuple:
this is the one place where an object with names would cost as much as the append itself."""


class Span(NamedTuple):
    """Records `start` .. `start + size` of one batch."""

    batch: Batch
    start: int
    size: int
