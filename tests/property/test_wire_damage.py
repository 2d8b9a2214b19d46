"""Damage on the bookie wire is never believed: not in a frame, not in a field left out (R-15)."""

from __future__ import annotations

import random
from itertools import combinations, islice

import pytest

from octavo.proto import bookie_pb2
from octavo.proto.bookie_messages import parse_body
from octavo.proto.bookie_wire import (
    EAGER_BYTES,
    HELLO_FRAME_BYTES_MAX,
    MAX_FRAME_BYTES,
    Flags,
    Frame,
    FrameDecoder,
    FrameType,
    Status,
    decode_add_reply,
    encode_add,
    encode_frame,
)
from octavo.proto.entry import encode_header
from octavo.runtime.errors import (
    CorruptFrame,
    InvalidRequest,
    MessageTooLarge,
    OctavoError,
    UnsupportedVersion,
)
from tests.bookie_rig import announcing
from tools.wire_flips import believed, run, sample_frames


def test_r15_each_single_flipped_bit_of_each_kind_of_frame_is_refused() -> None:
    for whole in islice(sample_frames(random.Random(3)), 15):
        (sent,) = FrameDecoder().feed(whole)
        for bit in range(8 * len(whole)):
            changed = bytearray(whole)
            changed[bit // 8] ^= 1 << bit % 8
            try:
                found = FrameDecoder().feed(bytes(changed))
            except OctavoError:
                continue
            assert not any(believed(sent, got) for got in found), f"type {sent.type}, bit {bit}"


def test_r15_random_damage_is_refused() -> None:
    outcome = run(seed=7, flips=2_000)
    assert (outcome.accepted, outcome.waiting) == (0, 0)
    assert outcome.refused == outcome.tried == 2_000


def test_r15_damage_in_a_large_frame_is_refused() -> None:
    payload = bytes(EAGER_BYTES)
    stored = [encode_header(1, i, i - 1, len(payload), payload) + payload for i in range(3)]
    whole = b"".join(encode_add(9, bytes(16), [[e] for e in stored]))
    assert len(FrameDecoder().feed(whole)) == 1
    for at in (2, 5, 8, 16, 20, 24, 28, 28 + 16, 28 + 20):
        changed = bytearray(whole)
        changed[at] ^= 0x10
        with pytest.raises((CorruptFrame, MessageTooLarge)):
            FrameDecoder().feed(bytes(changed))


def test_codes_of_statuses_lie_four_bits_apart_and_none_is_a_default() -> None:
    codes = [0, 0xFFFF, *map(int, Status)]
    assert all((a ^ b).bit_count() >= 4 for a, b in combinations(codes, 2))


KINDS = (
    bookie_pb2.Hello,
    bookie_pb2.HelloReply,
    bookie_pb2.FenceRequest,
    bookie_pb2.FenceReply,
    bookie_pb2.ReadLacRequest,
    bookie_pb2.ReadLacReply,
    bookie_pb2.WriteLac,
    bookie_pb2.WriteLacReply,
    bookie_pb2.ErrorReply,
)


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_body_is_no_message(kind: type[bookie_pb2.Hello]) -> None:
    """An empty FenceReply would read as an answer about entry 0."""
    with pytest.raises(InvalidRequest):
        parse_body(kind, b"")


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_that_decide_have_no_default(kind: type[bookie_pb2.Hello]) -> None:
    """The kind, for fields added later: a status, an id, a LAC or a flag is `optional`."""
    for field in kind.DESCRIPTOR.fields:
        if field.type != field.TYPE_STRING:
            assert field.has_presence or field.name == "last_entry_stored", field.name


def test_a_fence_reply_needs_each_of_its_fields() -> None:
    assert parse_body(
        bookie_pb2.FenceReply,
        bookie_pb2.FenceReply(status=Status.OK, last_add_confirmed=0).SerializeToString(),
    )
    for part in (
        bookie_pb2.FenceReply(status=Status.OK),
        bookie_pb2.FenceReply(last_add_confirmed=7),
    ):
        with pytest.raises(InvalidRequest):
            parse_body(bookie_pb2.FenceReply, part.SerializeToString())


def test_an_add_reply_says_ok_in_one_way_only() -> None:
    assert decode_add_reply(Frame(FrameType.ADD_REPLY, Flags.ALL_OK, 1, b""), 2) == [Status.OK] * 2
    for wrong in (
        Frame(FrameType.ADD_REPLY, Flags.NONE, 1, b""),
        Frame(FrameType.ADD_REPLY, Flags.ALL_OK, 1, b"x"),
        Frame(FrameType.WRITE_LAC_REPLY, Flags.ALL_OK, 1, b""),
    ):
        with pytest.raises(InvalidRequest):
            decode_add_reply(wrong, 2)


def test_another_version_is_named_as_soon_as_its_byte_is_there() -> None:
    with pytest.raises(UnsupportedVersion, match="frame version 1"):
        FrameDecoder().feed(b"\0\0\0\x20\x01")


def test_before_the_hello_frames_are_small() -> None:
    decoder = FrameDecoder(HELLO_FRAME_BYTES_MAX)
    (hello,) = decoder.feed(encode_frame(FrameType.HELLO, 0, bytes(HELLO_FRAME_BYTES_MAX - 24)))
    assert len(hello.body) == HELLO_FRAME_BYTES_MAX - 24
    assert len(decoder.get_buffer()) <= HELLO_FRAME_BYTES_MAX
    with pytest.raises(MessageTooLarge):
        decoder.feed(announcing(HELLO_FRAME_BYTES_MAX + 1))


def test_allowing_larger_frames_keeps_what_was_received() -> None:
    decoder = FrameDecoder(HELLO_FRAME_BYTES_MAX)
    ping, large = encode_frame(FrameType.PING, 1), encode_frame(FrameType.READ, 2, b"x" * 200_000)
    assert decoder.feed(ping + ping[:10]) == [Frame(FrameType.PING, 0, 1, b"")]
    decoder.allow(MAX_FRAME_BYTES)
    assert [frame.type for frame in decoder.feed(ping[10:] + large)] == [
        FrameType.PING,
        FrameType.READ,
    ]


def test_a_buffer_grows_with_what_arrives() -> None:
    """A prefix that announces 16 MiB costs what was received, times two."""
    decoder = FrameDecoder(eager_bytes=100_000)
    decoder.feed(announcing(MAX_FRAME_BYTES))
    seen = [len(decoder.get_buffer())]
    for _ in range(5):
        decoder.feed(bytes(len(decoder.get_buffer())))
        seen.append(len(decoder.get_buffer()))
    assert seen == [100_000 * 2**n for n in (0, 0, 1, 2, 3, 4)]
