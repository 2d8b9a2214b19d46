"""The frame codec against arbitrary bytes and arbitrary cuts (design.md §4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.proto.bookie_wire import (
    MAX_ENTRIES_PER_FRAME,
    PREFIX_BYTES,
    Flags,
    Frame,
    FrameDecoder,
    FrameType,
    ReadRequest,
    Status,
    decode_add,
    decode_add_reply,
    decode_read,
    decode_read_reply,
    encode_add,
    encode_add_reply,
    encode_frame,
    encode_read,
    encode_read_reply,
)
from octavo.runtime.errors import InvalidRequest, MessageTooLarge, OctavoError

frames = st.builds(
    Frame,
    st.integers(0, 255),
    st.integers(0, 65535),
    st.integers(0, 2**64 - 1),
    st.one_of(st.binary(max_size=300), st.integers(0, 200_000).map(lambda n: b"z" * n)),
)
entries = st.lists(st.binary(max_size=200), max_size=20)
int64 = st.integers(0, 2**63 - 1)
LIMIT = 1 << 20


def encoded(frame: Frame) -> bytes:
    return encode_frame(frame.type, frame.request_id, frame.body, frame.flags)


@given(st.lists(frames, max_size=6), st.lists(st.integers(1, 70_000), min_size=1, max_size=20))
def test_frames_survive_any_cutting(sent: list[Frame], cuts: list[int]) -> None:
    stream = b"".join(map(encoded, sent))
    decoder = FrameDecoder()
    found: list[Frame] = []
    position = 0
    while position < len(stream):
        size = cuts[len(found) % len(cuts)]
        found += decoder.feed(stream[position : position + size])
        position += size
    assert found == sent


@given(st.binary(max_size=2000), st.lists(frames, max_size=2))
def test_garbage_raises_only_typed_errors(garbage: bytes, before: list[Frame]) -> None:
    decoder = FrameDecoder()
    assert decoder.feed(b"".join(map(encoded, before))) == before
    try:
        decoder.feed(garbage)
    except OctavoError:
        return


@given(st.lists(frames, min_size=1, max_size=3), st.data())
def test_one_flipped_byte_never_crashes(sent: list[Frame], data: st.DataObject) -> None:
    stream = bytearray(b"".join(map(encoded, sent)))
    stream[data.draw(st.integers(0, len(stream) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        FrameDecoder().feed(bytes(stream))
    except OctavoError:
        return


def test_an_oversize_frame_is_refused_before_its_body_arrives() -> None:
    decoder = FrameDecoder(max_frame_bytes=100)
    with pytest.raises(MessageTooLarge):
        decoder.feed(encode_frame(FrameType.ADD, 1, b"x" * 100)[:PREFIX_BYTES])


@given(st.binary(min_size=16, max_size=16), entries)
def test_add_round_trip(incarnation: bytes, parts: list[bytes]) -> None:
    buffers = encode_add(9, incarnation, [[p[:5], p[5:]] for p in parts], Flags.RECOVERY)
    (frame,) = FrameDecoder().feed(b"".join(buffers))
    assert (frame.type, frame.flags, frame.request_id) == (FrameType.ADD, Flags.RECOVERY, 9)
    request = decode_add(frame.body, LIMIT)
    assert (request.incarnation, request.entries) == (incarnation, parts)
    assert request.run == b"".join(parts)


@given(st.lists(st.sampled_from(Status), min_size=1, max_size=50))
def test_add_reply_round_trip(statuses: list[Status]) -> None:
    (frame,) = FrameDecoder().feed(encode_add_reply(4, statuses))
    assert decode_add_reply(frame, len(statuses)) == statuses
    if set(statuses) != {Status.OK}:
        with pytest.raises(InvalidRequest):
            decode_add_reply(frame, len(statuses) + 1)


@given(st.binary(min_size=16, max_size=16), int64, int64, st.integers(1, 2**32 - 1))
def test_read_round_trip(incarnation: bytes, ledger: int, first: int, count: int) -> None:
    request = ReadRequest(incarnation, ledger, first, count, 77)
    (frame,) = FrameDecoder().feed(encode_read(3, request, Flags.FENCE))
    assert decode_read(frame.body) == request


@given(st.sampled_from(Status), st.integers(-1, 2**62), entries)
def test_read_reply_round_trip(status: Status, lac: int, found: list[bytes]) -> None:
    (frame,) = FrameDecoder().feed(b"".join(encode_read_reply(3, status, lac, found)))
    assert decode_read_reply(frame.body, LIMIT) == (status, lac, found)


@given(st.binary(max_size=200))
def test_bodies_of_arbitrary_bytes(body: bytes) -> None:
    for decode in (
        lambda: decode_add(body, LIMIT),
        lambda: decode_read(body),
        lambda: decode_read_reply(body, LIMIT),
        lambda: decode_add_reply(Frame(FrameType.ADD_REPLY, 0, 1, body), 3),
    ):
        try:
            decode()
        except OctavoError:
            continue


def test_counts_and_lengths_are_checked_first() -> None:
    huge = b"i" * 16 + (MAX_ENTRIES_PER_FRAME + 1).to_bytes(4, "big")
    with pytest.raises(MessageTooLarge):
        decode_add(huge, LIMIT)
    body = b"".join(encode_add(1, b"i" * 16, [[b"x" * 50]]))[PREFIX_BYTES:]
    with pytest.raises(MessageTooLarge):
        decode_add(body, 49)
