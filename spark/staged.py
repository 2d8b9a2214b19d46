"""What a batch is while it is staged: pieces of rows, a plan that names them (ADR 67). Pure.

A task cuts its rows into *pieces*: rows of one partition of one topic, at most a batch of records.
Each is one record of the sink's staging topic. Which partition a row goes to is said in the piece:
it must not depend on when, or how often, the batch is published. The plan lists the attempts of
tasks that make up the batch, and how many pieces each has; pieces of other attempts count for
nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, cast

import pyarrow as pa

from octavo.proto.batch_arrow import HEADER_TYPE
from octavo.runtime.errors import StorageFailed

PIECE_BYTES = 512 << 10
"""Keys, values and headers of a piece, but for a row that is larger alone. Half of the smallest
limit on records that a cluster would have."""
FRAME_BYTES = 64 << 10
"""What a staged row may need besides itself."""
_KIND = "octavo-kind"
_PIECE, _PLAN = b"piece", b"plan"
_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADER_TYPE),
    ]
)
_COMPRESSION = pa.ipc.IpcWriteOptions(compression="lz4")

Headers = Iterable[tuple[str, bytes | None]]


class Target(NamedTuple):
    """One partition of one life of a topic."""

    topic: str
    topic_id: bytes
    partition: int


class Piece(NamedTuple):
    """Rows that become one batch of records."""

    attempt: bytes
    """16 random bytes of the task's attempt."""
    number: int
    """Of its attempt, from 0 on."""
    target: Target
    rows: pa.RecordBatch
    """Columns key, value, headers."""


class Plan(NamedTuple):
    """What a batch consists of."""

    batch_id: int
    attempts: Mapping[bytes, int]
    """How many pieces each attempt has."""
    first_offset: int
    """Of the staging topic: no piece lies before it."""


@dataclass(frozen=True)
class Pointer:
    """Where a plan lies: what the cluster remembers of a decision."""

    topic: str
    topic_id: str
    offset: int

    def to_bytes(self) -> bytes:
        """As the cluster keeps it."""
        return json.dumps([self.topic, self.topic_id, self.offset]).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Pointer:
        """Parse; raises StorageFailed."""
        try:
            topic, topic_id, offset = cast("list[object]", json.loads(data))
        except (ValueError, TypeError) as error:
            raise StorageFailed(f"a sink's decision cannot be read: {error}") from error
        if not (isinstance(topic, str) and isinstance(topic_id, str) and isinstance(offset, int)):
            raise StorageFailed(f"a sink's decision cannot be read: {data!r}")
        return cls(topic, topic_id, offset)


NOTHING = Pointer("", "", -1)
"""The decision that a batch has no rows."""


def rows_of(keys: pa.Array, values: pa.Array, headers: pa.Array) -> pa.RecordBatch:
    """Columns of equal length in the form of a piece."""
    columns = [keys.cast(pa.binary()), values.cast(pa.binary()), headers.cast(HEADER_TYPE)]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def encode_piece(piece: Piece) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Value and headers of the record that stages a piece."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA, options=_COMPRESSION) as stream:
        stream.write_batch(piece.rows)
    target = piece.target
    headers = [
        (_KIND, _PIECE),
        ("attempt", piece.attempt),
        ("number", b"%d" % piece.number),
        ("topic", target.topic.encode()),
        ("topic_id", target.topic_id),
        ("partition", b"%d" % target.partition),
    ]
    return sink.getvalue().to_pybytes(), headers


def encode_plan(plan: Plan) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Value and headers of the record that is a plan."""
    body = {
        "batch_id": plan.batch_id,
        "first_offset": plan.first_offset,
        "attempts": {attempt.hex(): pieces for attempt, pieces in plan.attempts.items()},
    }
    return json.dumps(body).encode(), [(_KIND, _PLAN)]


def decode_plan(value: bytes | None, headers: Headers) -> Plan:
    """Parse; raises StorageFailed when the record is no plan."""
    try:
        if value is None or dict(headers).get(_KIND) != _PLAN:
            raise ValueError("the record is of another kind")
        body = cast("dict[str, object]", json.loads(value))
        attempts = {
            bytes.fromhex(attempt): int(pieces)
            for attempt, pieces in cast("dict[str, int]", body["attempts"]).items()
        }
        return Plan(cast("int", body["batch_id"]), attempts, cast("int", body["first_offset"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageFailed(f"the plan of a batch cannot be read: {error!r}") from error


def decode_piece(
    value: bytes | None, headers: Headers, wanted: Mapping[bytes, int]
) -> Piece | None:
    """A piece of one of the `wanted` attempts; None for anything else. Raises StorageFailed."""
    found = dict(headers)
    attempt = found.get("attempt")
    if found.get(_KIND) != _PIECE or attempt is None or attempt not in wanted:
        return None
    try:
        target = Target(
            (found["topic"] or b"").decode(),
            found["topic_id"] or b"",
            int(found["partition"] or b""),
        )
        number = int(found["number"] or b"")
        (rows,) = list(pa.ipc.open_stream(pa.BufferReader(value or b"")))
        rows.validate(full=True)
    except (ValueError, KeyError, pa.ArrowException) as error:
        raise StorageFailed(f"a staged piece cannot be read: {error!r}") from error
    return Piece(attempt, number, target, rows)


class PieceCount:
    """Sees that what is published is what was planned: each piece once, none missing."""

    def __init__(self, plan: Plan) -> None:
        self._wanted = plan.attempts
        self._next = dict.fromkeys(plan.attempts, 0)

    def seen(self, piece: Piece) -> None:
        """The next piece in the log; raises StorageFailed when another one was due."""
        due = self._next[piece.attempt]
        if piece.number != due:
            raise StorageFailed(
                f"piece {piece.number} of a task's attempt comes where {due} is due"
            )
        self._next[piece.attempt] = due + 1

    def check_complete(self) -> None:
        """Raise StorageFailed unless every piece was seen."""
        for attempt, pieces in self._wanted.items():
            if self._next[attempt] != pieces:
                raise StorageFailed(
                    f"{self._next[attempt]} of {pieces} staged pieces of an attempt were found",
                    hint="was the staging topic deleted or trimmed by hand?",
                )
