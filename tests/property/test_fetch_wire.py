"""The fetch reply's own codec writes and reads what protobuf does, and survives garbage."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.proto import broker_pb2 as pb
from octavo.proto.fetch_wire import PartitionReply, decode_reply, encode_reply
from octavo.runtime.errors import InvalidRequest

offsets = st.integers(min_value=-(2**63), max_value=2**63 - 1)


def _part(topic: str, partition: int, end: int, code: str) -> pb.FetchedPartition:
    error = pb.Error(code=code) if code else None
    return pb.FetchedPartition(topic=topic, partition=partition, next_offset=end, error=error)


parts = st.builds(
    _part,
    st.text(max_size=5),
    st.integers(0, 2**31 - 1),
    offsets,
    st.sampled_from(["", "NOT_LEADER"]),
)
replies = st.lists(st.tuples(parts, st.lists(st.binary(max_size=300), max_size=4)), max_size=4)
correlations = st.integers(0, 2**64 - 1)


def _as_message(
    correlation: int, found: list[tuple[pb.FetchedPartition, list[bytes]]]
) -> pb.FetchReply:
    message = pb.FetchReply(correlation=correlation)
    for fields, batches in found:
        part = message.partitions.add()
        part.CopyFrom(fields)
        part.batches.extend(batches)
    return message


@given(correlations, replies)
def test_protobuf_reads_what_we_write(
    correlation: int, found: list[tuple[pb.FetchedPartition, list[bytes]]]
) -> None:
    written = encode_reply(correlation, [PartitionReply(*one) for one in found])
    assert pb.FetchReply.FromString(written) == _as_message(correlation, found)


@given(correlations, replies)
def test_we_read_what_protobuf_writes(
    correlation: int, found: list[tuple[pb.FetchedPartition, list[bytes]]]
) -> None:
    message = _as_message(correlation, found)
    read, partitions, throttle_ms = decode_reply(message.SerializeToString())
    assert (read, throttle_ms) == (correlation, 0)
    assert [(one.fields, list(map(bytes, one.batches))) for one in partitions] == found


@given(st.binary(max_size=200))
def test_garbage_is_a_typed_error_or_a_reply(data: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        decode_reply(data)


@given(replies, st.data())
def test_a_cut_or_changed_message_never_reaches_beyond_its_end(
    found: list[tuple[pb.FetchedPartition, list[bytes]]], data: st.DataObject
) -> None:
    whole = bytearray(encode_reply(7, [PartitionReply(*one) for one in found]))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    del whole[data.draw(st.integers(0, len(whole))) :]
    try:
        partitions = decode_reply(bytes(whole)).partitions
    except InvalidRequest:
        return
    assert sum(len(batch) for one in partitions for batch in one.batches) <= len(whole)


def test_a_length_beyond_the_message_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="outside"):
        decode_reply(b"\x12\x7f\x08\x01")


def test_a_small_batch_does_not_keep_its_message_alive() -> None:
    fields = pb.FetchedPartition(topic="t")
    whole = encode_reply(1, [PartitionReply(fields, [b"x" * 10, b"y" * 5000])], throttle_ms=70)
    _, (one,), throttle_ms = decode_reply(whole)
    assert throttle_ms == 70
    assert isinstance(one.batches[0], bytes)
    assert isinstance(one.batches[1], memoryview)
