"""Codecs of bodies (F039): round trips, and no lie about a length is ever believed."""

from __future__ import annotations

import contextlib
import json
import zlib

import lz4.block
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.proto.compression import CODECS, Codec, compress, decompress, is_known
from octavo.runtime.errors import CorruptBatch

PACKING = [codec for codec in Codec if codec != Codec.NONE]
bodies = st.binary(max_size=2_000) | st.binary(min_size=1, max_size=20).map(lambda one: one * 300)
packing = st.sampled_from(PACKING)
BOMB = bytes(64 << 20)
LINES = b"\n".join(
    json.dumps(
        {"user": f"user-{n % 97}", "event": "click", "page": f"/items/{n}", "ms": n * 37}
    ).encode("utf-8")
    for n in range(800)
)


def test_f039_names_and_numbers_are_fixed_for_ever() -> None:
    assert CODECS == {"none": 0, "lz4": 1, "zstd": 2, "snappy": 3, "gzip": 4}
    assert [is_known(number) for number in range(-1, 7)] == [False] + [True] * 5 + [False] * 2


@given(bodies, st.sampled_from(Codec))
def test_bodies_come_back(body: bytes, codec: Codec) -> None:
    stored = compress(codec, body)
    assert bytes(decompress(codec, memoryview(stored), len(body))) == body


@given(bodies, packing, st.integers(-300, 300), st.data())
def test_another_length_than_the_stored_one_is_refused(
    body: bytes, codec: Codec, off_by: int, data: st.DataObject
) -> None:
    """Also a larger one: what lay in memory before is nobody's record."""
    size = data.draw(st.sampled_from([0, 1, len(body) * 2, len(body) + off_by]))
    if size < 0 or size == len(body):
        return
    with pytest.raises(CorruptBatch):
        decompress(codec, compress(codec, body), size)


@given(bodies, packing, st.data())
def test_cut_longer_and_doubled_streams_are_refused(
    body: bytes, codec: Codec, data: st.DataObject
) -> None:
    stored = compress(codec, body)
    cut = stored[: data.draw(st.integers(0, len(stored) - 1))]
    for damaged in (cut, stored + b"\0", stored + b"more", stored + stored):
        try:
            opened = bytes(decompress(codec, damaged, len(body)))
        except CorruptBatch:
            continue
        assert opened == body, "an LZ4 block may end early and be whole"


@given(st.binary(max_size=300), packing, st.integers(0, 1_000))
def test_noise_is_corrupt_or_exactly_as_long_as_declared(
    noise: bytes, codec: Codec, size: int
) -> None:
    with contextlib.suppress(CorruptBatch):
        assert len(decompress(codec, noise, size)) == size


@pytest.mark.parametrize("codec", PACKING)
def test_a_bomb_ends_at_the_declared_length(codec: Codec) -> None:
    stored = compress(codec, BOMB)
    before = pa.total_allocated_bytes()
    with pytest.raises(CorruptBatch):
        decompress(codec, stored, 1 << 20)
    assert pa.total_allocated_bytes() == before


@pytest.mark.parametrize("codec", PACKING)
def test_f039_repetitive_json_shrinks_at_least_three_times(codec: Codec) -> None:
    stored = compress(codec, LINES)
    assert len(LINES) / len(stored) >= 3.0


def test_what_other_tools_wrote_opens_and_ours_opens_there() -> None:
    assert bytes(decompress(Codec.GZIP, zlib.compress(LINES, 9, 31), len(LINES))) == LINES
    assert zlib.decompress(compress(Codec.GZIP, LINES), 31) == LINES
    for codec, name in ((Codec.ZSTD, "zstd"), (Codec.SNAPPY, "snappy"), (Codec.LZ4, "lz4_raw")):
        theirs = pa.Codec(name)
        ours = compress(codec, LINES)
        assert theirs.decompress(ours, len(LINES)).to_pybytes() == LINES
        assert bytes(decompress(codec, theirs.compress(LINES).to_pybytes(), len(LINES))) == LINES
    assert lz4.block.decompress(compress(Codec.LZ4, LINES), uncompressed_size=len(LINES)) == LINES
