"""The produce codec against the protobuf runtime: the same messages, the same refusals."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from octavo.proto import broker_pb2 as pb
from octavo.proto.produce_wire import ProduceItem, decode_produce, encode_produce
from octavo.runtime.errors import InvalidRequest

int32 = st.integers(-(2**31), 2**31 - 1)
items = st.lists(
    st.builds(
        ProduceItem,
        st.integers(0, 2**64 - 1),
        st.text(max_size=200),
        int32,
        int32,
        st.binary(max_size=300),
        st.binary(max_size=16),
        int32,
        st.integers(-(2**63), 2**63 - 1),
        st.text(max_size=60),
    ),
    max_size=6,
)


def by_runtime(raw: bytes) -> list[ProduceItem]:
    return [
        ProduceItem(
            one.correlation,
            one.topic,
            one.partition,
            one.acks,
            one.batch,
            one.topic_id,
            one.min_insync_replicas,
            one.writer_epoch,
            one.traceparent,
        )
        for one in pb.ProduceRequest.FromString(raw).batches
    ]


@given(items)
def test_the_runtime_reads_what_is_encoded(given_items: list[ProduceItem]) -> None:
    raw = encode_produce(given_items)
    assert by_runtime(raw) == given_items
    assert decode_produce(raw) == given_items


@given(items)
def test_what_the_runtime_writes_is_decoded(given_items: list[ProduceItem]) -> None:
    request = pb.ProduceRequest()
    for one in given_items:
        request.batches.add(
            correlation=one.correlation,
            topic=one.topic,
            partition=one.partition,
            acks=one.acks,
            batch=bytes(one.batch),
            topic_id=one.topic_id,
            min_insync_replicas=one.min_insync_replicas,
            writer_epoch=one.writer_epoch,
            traceparent=one.traceparent,
        )
    assert decode_produce(request.SerializeToString()) == given_items


@given(items, st.data())
def test_damage_is_refused_or_means_what_the_runtime_reads(
    given_items: list[ProduceItem], data: st.DataObject
) -> None:
    raw = bytearray(encode_produce(given_items))
    if raw:
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + 1] = data.draw(st.binary(max_size=3))
    try:
        found = decode_produce(bytes(raw))
    except InvalidRequest:
        return
    try:
        wanted = by_runtime(bytes(raw))
    except DecodeError:
        return  # stricter than ours (groups, nesting); what was read is checked by its own crc
    assert found == wanted


@pytest.mark.parametrize(
    "extra",
    [b"\x78\x05", b"\x7a\x03abc", b"\x79" + b"8" * 8, b"\x7d" + b"4" * 4],
    ids=["varint", "bytes", "fixed64", "fixed32"],
)
def test_unknown_fields_are_skipped_in_message_and_batch(extra: bytes) -> None:
    known = pb.ProduceBatch(correlation=7, topic="t", partition=3, acks=-1, batch=b"body")
    inner = extra + known.SerializeToString() + extra
    raw = extra + b"\x0a" + bytes((len(inner),)) + inner + extra
    assert decode_produce(raw) == [ProduceItem(7, "t", 3, -1, b"body")] == by_runtime(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x0a",
        b"\x0a\x05ab",
        b"\x0a\x04\x2a\x09ab",
        b"\xff" * 11,
        b"\x0b",
        b"\x00",
        b"\x0a\x03\x12\x01\xff",
        b"\x79123",
    ],
)
def test_garbage_is_a_typed_refusal(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_produce(raw)
    with pytest.raises(DecodeError):
        by_runtime(raw)
