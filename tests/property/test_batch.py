"""The batch codec: round trips in both views, limits, damage (design.md §3)."""

from __future__ import annotations

import struct

import lz4.block
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.client.messaging.producing.serializers import headers_bytes
from octavo.proto import batch as codec
from octavo.proto import batch_arrow
from octavo.proto.batch import BatchFlags
from octavo.proto.compression import Codec
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import CorruptBatch, InvalidRecord, MessageTooLarge, UnsupportedVersion

Headers = list[tuple[str, bytes | None]]
Record = tuple[int, bytes | None, bytes | None, Headers]

maybe_bytes = st.none() | st.binary(max_size=40)
records = st.lists(
    st.tuples(
        st.integers(min_value=-(2**40), max_value=2**45),
        maybe_bytes,
        maybe_bytes,
        st.lists(st.tuples(st.text(max_size=8), maybe_bytes), max_size=3),
    ),
    min_size=1,
    max_size=40,
)
codecs = st.sampled_from(Codec)


def _encode(rows: list[Record], kind: int = Codec.LZ4) -> bytes:
    encoded = codec.encode(
        [r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows], [r[3] for r in rows],
        codec=kind, producer_id=9, producer_epoch=2, base_sequence=77, schema_id=5,
    )  # fmt: skip
    return bytes(encoded)


@given(records, codecs)
def test_rows_round_trip_keeps_null_empty_and_headers(rows: list[Record], kind: Codec) -> None:
    out = codec.decode_rows(_encode(rows, kind))
    assert list(out.timestamps_ms) == [r[0] for r in rows]
    assert out.keys == [r[1] for r in rows]
    assert out.values == [r[2] for r in rows]
    wanted = [r[3] for r in rows]
    assert (out.headers or [[] for _ in rows]) == wanted
    header = out.header
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 77)
    assert (header.schema_id, header.base_timestamp_ms) == (5, rows[0][0])
    assert header.max_timestamp_ms == max(r[0] for r in rows)


@given(records, codecs)
def test_arrow_view_equals_row_view(rows: list[Record], kind: Codec) -> None:
    encoded = codec.stamp(_encode(rows, kind), base_offset=500, owner_epoch=3, append_time_ms=1)
    table = batch_arrow.decode_arrow(encoded)
    assert table.column("offset").to_pylist() == list(range(500, 500 + len(rows)))
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [r[0] for r in rows]
    assert table.column("key").to_pylist() == [r[1] for r in rows]
    assert table.column("value").to_pylist() == [r[2] for r in rows]
    got: list[list[dict[str, object]] | None] = table.column("headers").to_pylist()
    plain = [[(h["key"], h["value"]) for h in item or []] for item in got]
    assert plain == [r[3] for r in rows]


@given(records, st.data())
def test_arrow_encoder_agrees_with_the_row_encoder_on_slices(
    rows: list[Record], data: st.DataObject
) -> None:
    table = batch_arrow.decode_arrow(_encode(rows))
    start = data.draw(st.integers(0, len(rows) - 1))
    part = table.slice(start)
    encoded = batch_arrow.encode_arrow(
        part["timestamp"], part["key"], part["value"], part["headers"]
    )
    out = codec.decode_rows(encoded)
    assert out.keys == [r[1] for r in rows[start:]]
    assert out.values == [r[2] for r in rows[start:]]
    assert (out.headers or [[] for _ in rows[start:]]) == [r[3] for r in rows[start:]]


@settings(max_examples=40)
@given(records, codecs, st.data())
def test_a_flipped_bit_of_the_producers_bytes_is_always_detected(
    rows: list[Record], kind: Codec, data: st.DataObject
) -> None:
    encoded = bytearray(_encode(rows, kind))
    covered = [*range(56), *range(codec.HEADER_BYTES, len(encoded))]
    at = data.draw(st.sampled_from(covered))
    encoded[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises((CorruptBatch, UnsupportedVersion, MessageTooLarge)):
        codec.verify(bytes(encoded))


@settings(max_examples=60)
@given(records, st.binary(min_size=1, max_size=30), st.data())
def test_hostile_bodies_with_a_valid_crc_raise_and_never_crash(
    rows: list[Record], junk: bytes, data: st.DataObject
) -> None:
    """A writer may lie with a correct checksum: both decoders must refuse or stay in bounds."""
    encoded = _encode(rows, Codec.NONE)
    header = codec.decode_header(encoded)
    body = bytearray(encoded[codec.HEADER_BYTES :])
    at = data.draw(st.integers(0, len(body) - 1))
    body[at : at + len(junk)] = junk
    lied = codec.seal(
        [bytes(body)], header.record_count, (0, 0),
        flags=header.flags, codec=Codec.NONE, producer=(-1, -1, -1), schema_id=0,
    )  # fmt: skip
    outcomes: list[object] = []
    for decode in (codec.decode_rows, batch_arrow.decode_arrow):
        try:
            outcomes.append(decode(lied))
        except CorruptBatch:
            outcomes.append(None)
    assert len(outcomes) == 2


@given(st.lists(st.tuples(records, codecs), min_size=1, max_size=5))
def test_joined_batches_equal_their_single_views(batches: list[tuple[list[Record], Codec]]) -> None:
    encoded: list[bytes] = []
    for number, (rows, kind) in enumerate(batches):
        base = 1000 * number
        encoded.append(
            codec.stamp(_encode(rows, kind), base_offset=base, owner_epoch=1, append_time_ms=1)
        )
    joined = batch_arrow.join_arrow((batch, codec.verify(batch)) for batch in encoded)
    single: list[dict[str, object]] = []
    for batch in encoded:
        single += batch_arrow.decode_arrow(batch).to_pylist()
    assert joined.to_pylist() == single


@settings(max_examples=60)
@given(records, st.binary(min_size=1, max_size=30), st.data())
def test_a_lying_batch_among_good_ones_is_refused_exactly_if_it_is_alone(
    rows: list[Record], junk: bytes, data: st.DataObject
) -> None:
    """Joining checks offsets after it moved them: nothing may slip through, nothing be invented."""
    good = _encode(rows, Codec.NONE)
    header = codec.decode_header(good)
    body = bytearray(good[codec.HEADER_BYTES :])
    at = data.draw(st.integers(0, len(body) - 1))
    body[at : at + len(junk)] = junk
    lied = codec.seal(
        [bytes(body)], header.record_count, (0, 0),
        flags=header.flags, codec=Codec.NONE, producer=(-1, -1, -1), schema_id=0,
    )  # fmt: skip

    def rows_of(*batches: Buffer) -> list[list[object]] | None:
        try:
            joined = batch_arrow.join_arrow((batch, codec.verify(batch)) for batch in batches)
        except CorruptBatch:
            return None
        # Without the times: the lie may be one that Python cannot show.
        return [joined.column(name).to_pylist() for name in ("key", "value", "headers")]

    alone, plain = rows_of(lied), rows_of(good)
    assert plain is not None
    wanted = None
    if alone is not None:
        wanted = [a + b + a for a, b in zip(plain, alone, strict=True)]
    assert rows_of(good, lied, good) == wanted


@given(st.binary(max_size=300))
def test_garbage_is_a_typed_error(data: bytes) -> None:
    with pytest.raises((CorruptBatch, UnsupportedVersion)):
        codec.verify(data)


@given(records)
def test_stamp_changes_only_the_brokers_fields_and_with_sequence_only_the_identity(
    rows: list[Record],
) -> None:
    encoded = _encode(rows)
    stamped = codec.stamp(encoded, base_offset=2**40, owner_epoch=7, append_time_ms=123)
    assert stamped[:56] == encoded[:56]
    assert stamped[80:] == encoded[80:]
    header = codec.verify(stamped)
    assert (header.base_offset, header.owner_epoch, header.append_time_ms) == (2**40, 7, 123)
    assert header.next_offset == 2**40 + len(rows)
    renamed = codec.verify(codec.with_sequence(stamped, 1, 2, 3))
    assert (renamed.producer_id, renamed.producer_epoch, renamed.base_sequence) == (1, 2, 3)
    assert (
        codec.decode_rows(codec.with_sequence(stamped, 1, 2, 3))[1:]
        == codec.decode_rows(stamped)[1:]
    )


@given(
    maybe_bytes,
    maybe_bytes,
    st.lists(st.tuples(st.text(max_size=8), maybe_bytes), max_size=200),
    st.sampled_from(["", "empty", "null", "wide"]),
    codecs,
)
def test_f153_a_batch_is_no_larger_than_its_record_and_its_envelope(
    key: bytes | None, value: bytes | None, headers: Headers, more: str, kind: Codec
) -> None:
    """A topic takes a record of its limit whatever its headers look like."""
    names: dict[str, Headers] = {
        "empty": [("", b"")] * 5000,
        "null": [("n", None)] * 5000,
        "wide": [("\u6f22" * 200, b"x")] * 50,
    }
    headers = headers + names.get(more, [])
    size = len(key or b"") + len(value or b"") + headers_bytes(headers)
    rows: list[Record] = [(1, key, value, headers)]
    for made in (_encode(rows, kind), _encode_arrow(rows, kind)):
        assert len(made) <= size + codec.RECORD_ENVELOPE_BYTES
        header = codec.decode_header(made)
        assert header.uncompressed_bytes <= size + codec.RECORD_ENVELOPE_BYTES


def _encode_arrow(rows: list[Record], kind: int) -> Buffer:
    table = batch_arrow.decode_arrow(_encode(rows, kind))
    return batch_arrow.encode_arrow(
        table.column("timestamp").cast(pa.int64()),
        table.column("key"),
        table.column("value"),
        table.column("headers"),
        codec=kind,
        producer=(9, 2, 77),
    )


def test_one_record_costs_less_than_160_bytes() -> None:
    """design.md §3: with the entry header of 36 bytes, for any padding."""
    for size in range(1, 17):
        one = codec.encode([1], [b"k" * size], [b"v" * size])
        assert len(one) + 36 - 2 * size < 160


@pytest.mark.parametrize("size", [2**20 - 1, 2**20, 2**20 + 1])
def test_a_record_around_one_mebibyte_round_trips(size: int) -> None:
    """The record limit is the client's; the codec holds one record a little above it."""
    value = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    out = codec.decode_rows(codec.encode([1], [None], [value]))
    assert out.values == [value]


def test_limits_are_enforced_before_sending() -> None:
    with pytest.raises(MessageTooLarge):
        codec.encode([1], [None], [b"x" * (9 << 20)])
    with pytest.raises(InvalidRecord):
        codec.encode([], [], [])
    with pytest.raises(InvalidRecord):
        codec.encode([1, 2], [None], [b""])
    with pytest.raises(InvalidRecord):
        codec.encode([0] * 100_001, [None] * 100_001, [b""] * 100_001)
    for stamps in ([1 << 63] * 2, [1, 1 << 63]):
        with pytest.raises(InvalidRecord):
            codec.encode(stamps, [None] * 2, [b""] * 2)


def _declare(encoded: bytes, at: int, value: int) -> bytes:
    changed = bytearray(encoded)
    struct.pack_into("<I", changed, at, value)
    return bytes(codec.with_sequence(bytes(changed), -1, -1, -1))


def test_a_bomb_is_refused_from_its_declared_size_alone() -> None:
    """The declared size is checked first; a lie about it fails after at most that size."""
    bomb = lz4.block.compress(b"\0" * (8 << 20), store_size=False)
    sealed = codec.seal(
        [bomb], 1, (0, 0), flags=0, codec=Codec.NONE, producer=(-1, -1, -1), schema_id=0
    )
    as_lz4 = bytearray(sealed)
    as_lz4[2] = Codec.LZ4
    with pytest.raises(MessageTooLarge):
        codec.decode_rows(_declare(bytes(as_lz4), 12, 8 << 20))
    with pytest.raises(CorruptBatch):
        codec.decode_rows(_declare(bytes(as_lz4), 12, 1024))


@pytest.mark.parametrize("flag", [BatchFlags.ARROW_IPC, 64, 128])
def test_unknown_flags_are_a_typed_error(flag: int) -> None:
    encoded = bytearray(codec.encode([1], [None], [b"x"]))
    encoded[3] |= flag
    with pytest.raises(UnsupportedVersion):
        codec.decode_header(bytes(encoded))


def test_compacted_offsets_have_gaps_in_both_views() -> None:
    body_source = codec.encode([1, 2], [b"a", b"b"], [b"1", b"2"], codec=Codec.NONE)
    body = bytes(body_source[codec.HEADER_BYTES :]) + struct.pack("<ii", 0, 5)
    sealed = codec.seal(
        [body], 2, (1, 2), flags=BatchFlags.COMPACTED, codec=Codec.NONE,
        producer=(-1, -1, -1), schema_id=0,
    )  # fmt: skip
    stamped = bytearray(codec.stamp(sealed, base_offset=10, owner_epoch=0, append_time_ms=0))
    struct.pack_into("<i", stamped, 64, 5)
    assert list(codec.decode_rows(bytes(stamped)).offsets) == [10, 15]
    assert batch_arrow.decode_arrow(bytes(stamped))["offset"].to_pylist() == [10, 15]
    assert codec.decode_header(bytes(stamped)).next_offset == 16
