"""Pieces hold every row of a task once, in its partition's order, and fit into their topic."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from octavo.client.messaging.partitioner import KeyHashes
from octavo.spark.sink_options import SinkColumns
from octavo.spark.sink_rows import Portion
from octavo.spark.staged import Piece, PieceCount, Plan, Target, decode_piece, encode_piece
from octavo.spark.staging_rows import Pieces, TopicTerms

ID = b"t" * 16
WRITABLE = (0, 2, 3)
PIECE_BYTES = 400
TERMS = TopicTerms("t", ID, 4, WRITABLE, 10_000, 2 * PIECE_BYTES)
COLUMNS = SinkColumns("value", key="key")
ATTEMPT = b"a" * 16

KEYS = st.none() | st.sampled_from([b"a", b"b", b"c", b"dd"])
VALUES = st.none() | st.binary(max_size=300)
PARTS = st.lists(
    st.tuples(
        st.none() | st.sampled_from(WRITABLE),
        st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=12),
    ),
    max_size=6,
)
Part = tuple[int | None, list[tuple[bytes | None, bytes | None]]]


def portion(part: Part) -> Portion:
    partition, rows = part
    columns = {
        "key": pa.array([key for key, _ in rows], pa.binary()),
        "value": pa.array([value for _, value in rows], pa.binary()),
    }
    return Portion("t", partition, pa.record_batch(columns))


def gathered(parts: list[Part]) -> list[tuple[Target, pa.RecordBatch]]:
    pieces = Pieces(COLUMNS, {"t": TERMS}.__getitem__, lambda count: count - 1)
    found = [item for part in parts for item in pieces.add(portion(part))]
    return [*found, *pieces.rest()]


@given(PARTS)
def test_every_row_is_in_one_piece_in_its_order(parts: list[Part]) -> None:
    hashes = KeyHashes()
    wanted: dict[int, list[tuple[bytes | None, bytes | None]]] = {}
    for partition, rows in parts:
        for key, value in rows:
            to = partition
            if to is None:
                to = WRITABLE[-1] if key is None else WRITABLE[hashes.get(key) % len(WRITABLE)]
            wanted.setdefault(to, []).append((key, value))
    found: dict[int, list[tuple[bytes | None, bytes | None]]] = {}
    for target, piece in gathered(parts):
        assert (target.topic, target.topic_id) == ("t", ID)
        keys, values = piece.column("key").to_pylist(), piece.column("value").to_pylist()
        found.setdefault(target.partition, []).extend(zip(keys, values, strict=True))
    assert found == wanted


@given(PARTS)
def test_a_piece_of_several_rows_is_no_larger_than_it_may_be(parts: list[Part]) -> None:
    for _, rows in gathered(parts):
        keys, values = rows.column("key").to_pylist(), rows.column("value").to_pylist()
        size_bytes = sum(len(item or b"") for item in (*keys, *values))
        assert rows.num_rows == 1 or size_bytes <= PIECE_BYTES


@given(PARTS)
def test_what_is_staged_comes_back_whatever_lies_between(parts: list[Part]) -> None:
    """Pieces of an attempt that lost lie between those of the one that counts."""
    mine = [Piece(ATTEMPT, n, *item) for n, item in enumerate(gathered(parts))]
    others = [piece._replace(attempt=b"b" * 16) for piece in mine]
    log = [encode_piece(piece) for pair in zip(mine, others, strict=True) for piece in pair]
    plan = Plan(0, {ATTEMPT: len(mine)}, 0)
    count = PieceCount(plan)
    back: list[Piece] = []
    for value, headers in log:
        piece = decode_piece(value, headers, plan.attempts)
        if piece is not None:
            count.seen(piece)
            back.append(piece)
    count.check_complete()
    assert back == mine
