"""Rows become pieces of one partition each, and what is published is what was planned (ADR 67)."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from octavo.client.messaging.partitioner import KeyHashes
from octavo.errors import InvalidPartition, InvalidRecord, MessageTooLarge
from octavo.proto.sink_staging import staging_topic
from octavo.runtime.errors import StorageFailed
from octavo.spark.sink_options import SinkColumns
from octavo.spark.sink_rows import Portion
from octavo.spark.staged import (
    NOTHING,
    PIECE_BYTES,
    Piece,
    PieceCount,
    Plan,
    Pointer,
    Target,
    decode_piece,
    decode_plan,
    encode_piece,
    encode_plan,
    rows_of,
)
from octavo.spark.staging_rows import OPEN_BYTES_MAX, Pieces, TopicTerms

ID = b"i" * 16
TERMS = TopicTerms("t", ID, 4, (0, 1, 3), 8 << 20, 8 << 20)
COLUMNS = SinkColumns("value", key="key", headers="headers")
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
ATTEMPT = b"a" * 16


def pieces(terms: TopicTerms = TERMS, keyless: Callable[[int], int] = lambda _: 2) -> Pieces:
    return Pieces(COLUMNS, {"t": terms}.__getitem__, keyless)


def batch(
    keys: list[str | None], values: list[bytes | None], headers: list[object] | None = None
) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "key": pa.array(keys, pa.string()),
            "value": pa.array(values, pa.binary()),
            "headers": pa.array(headers or [None] * len(keys), HEADERS),
        }
    )


def all_of(gathering: Pieces, *portions: Portion) -> list[tuple[int, pa.RecordBatch]]:
    found = [item for portion in portions for item in gathering.add(portion)]
    return [(target.partition, rows) for target, rows in [*found, *gathering.rest()]]


def test_keys_go_where_the_sdk_sends_them_and_rows_keep_their_order() -> None:
    keys = [f"k{n % 17}" if n % 5 else None for n in range(200)]
    rows = batch([*keys], [b"%d" % n for n in range(200)])
    found = all_of(
        pieces(), Portion("t", None, rows.slice(0, 90)), Portion("t", None, rows.slice(90))
    )
    hashes = KeyHashes()
    wanted: dict[int, list[bytes]] = {}
    for n, key in enumerate(keys):
        number = 2 if key is None else hashes.get(key.encode()) % 3
        wanted.setdefault(TERMS.writable[number], []).append(b"%d" % n)
    assert {to: part.column("value").to_pylist() for to, part in found} == wanted


def test_a_piece_is_no_larger_than_a_batch_of_its_topic_but_for_a_row_alone() -> None:
    small = TERMS.__class__("t", ID, 4, (0,), 1 << 20, 20_000)
    rows = batch(["k"] * 9, [b"x" * size for size in (4000, 4000, 4000, 15_000, *[1000] * 5)])
    found = all_of(pieces(small), Portion("t", 0, rows))
    assert [part.num_rows for _, part in found] == [2, 1, 1, 5]
    joined = pa.Table.from_batches([part for _, part in found])
    assert joined.column("value").to_pylist() == rows.column("value").to_pylist()
    assert TERMS.piece_bytes == PIECE_BYTES


def test_what_waits_for_more_rows_is_bounded() -> None:
    wide = TopicTerms("t", ID, 100, range(100), 8 << 20, 8 << 20)
    gathering = pieces(wide)
    waiting = 0
    for partition in range(100):
        rows = batch(["k"], [b"x" * (PIECE_BYTES // 2)])
        waiting += 1 - len(list(gathering.add(Portion("t", partition, rows))))
        assert waiting * (PIECE_BYTES // 2) <= OPEN_BYTES_MAX
    assert len(list(gathering.rest())) == waiting > 50


@pytest.mark.parametrize(
    ("terms", "partition", "rows", "error", "says"),
    [
        (TERMS, 2, batch(["k"], [b"v"]), InvalidPartition, "no partition 2"),
        (
            TopicTerms("t", ID, 1, (0,), 100, 1000),
            None,
            batch(["k"], [b"v" * 101]),
            MessageTooLarge,
            "100 are the limit",
        ),
        (
            TopicTerms("t", ID, 1, (0,), 100, 1000, needs_keys=True),
            None,
            batch(["k", None], [b"v", b"w"]),
            InvalidRecord,
            "1 rows have no key",
        ),
        (
            TERMS,
            None,
            batch(["k"], [b"v"], [[{"key": None, "value": b"x"}]]),
            InvalidRecord,
            "has no name",
        ),
    ],
)
def test_what_no_owner_would_store_is_refused_before_it_is_decided(
    terms: TopicTerms,
    partition: int | None,
    rows: pa.RecordBatch,
    error: type[Exception],
    says: str,
) -> None:
    with pytest.raises(error, match=says):
        all_of(pieces(terms), Portion("t", partition, rows))


def piece(number: int = 0, attempt: bytes = ATTEMPT) -> Piece:
    nothing = pa.array([[{"key": "h", "value": None}], None], HEADERS)
    rows = rows_of(pa.array([b"k", None]), pa.array([None, b"v"]), nothing)
    return Piece(attempt, number, Target("töpic", ID, 7), rows)


def test_pieces_and_plans_survive_their_record() -> None:
    value, headers = encode_piece(piece(3))
    assert decode_piece(value, headers, {ATTEMPT: 4}) == piece(3)
    assert decode_piece(value, headers, {b"b" * 16: 4}) is None  # of an attempt that lost
    plan = Plan(9, {ATTEMPT: 4, b"b" * 16: 1}, 77)
    plan_value, plan_headers = encode_plan(plan)
    assert decode_plan(plan_value, plan_headers) == plan
    assert decode_piece(plan_value, plan_headers, {ATTEMPT: 4}) is None
    pointer = Pointer("t", "ab", 5)
    assert Pointer.from_bytes(pointer.to_bytes()) == pointer
    assert Pointer.from_bytes(NOTHING.to_bytes()) == NOTHING


def test_what_is_damaged_is_refused() -> None:
    value, headers = encode_piece(piece())
    for damaged in (value[:40], b"", None):
        with pytest.raises(StorageFailed, match="a staged piece cannot be read"):
            decode_piece(damaged, headers, {ATTEMPT: 1})
    for told, of in ((value, headers), (b"{}", encode_plan(Plan(0, {}, 0))[1])):
        with pytest.raises(StorageFailed, match="the plan of a batch"):
            decode_plan(told, of)
    for data in (b"x", b"5", b"null", b"[1]", b"[1,2,3]"):
        with pytest.raises(StorageFailed, match="decision cannot be read"):
            Pointer.from_bytes(data)


def test_each_piece_is_published_once_and_none_is_missing() -> None:
    count = PieceCount(Plan(0, {ATTEMPT: 2}, 0))
    count.seen(piece(0))
    with pytest.raises(StorageFailed, match="1 of 2 staged pieces"):
        count.check_complete()
    with pytest.raises(StorageFailed, match="piece 0 of a task's attempt comes where 1 is due"):
        count.seen(piece(0))
    count.seen(piece(1))
    count.check_complete()


def test_a_staging_topic_has_a_valid_name_of_its_own() -> None:
    names = {staging_topic(sink_id) for sink_id in ("query/1", "query/2", "txn/query/1")}
    assert len(names) == 3
    assert all(name.startswith("spark-staging-") and len(name) < 60 for name in names)
