"""The hello of a bookie connection: who answered, or why it is refused."""

from __future__ import annotations

import uuid

import pytest

from octavo.client.ledger.greeting import Greeting
from octavo.proto import bookie_pb2
from octavo.proto.bookie_wire import VERSION, Frame, FrameDecoder, FrameType, Status, encode_frame
from octavo.runtime.errors import (
    BookieUnavailable,
    InvalidRequest,
    NotReady,
    OctavoError,
    UnsupportedVersion,
    WrongCluster,
)

INCARNATION = uuid.UUID(int=7)
OURS = Greeting("broker-1", "c-1", "bookie-1")


def _frame(raw: bytes) -> Frame:
    decoder = FrameDecoder(1 << 16)
    decoder.get_buffer()[: len(raw)] = raw
    return decoder.received(len(raw))[0]


def _reply(
    bookie: str = "bookie-1", cluster: str = "c-1", version: int = VERSION, incarnation: str = ""
) -> Frame:
    body = bookie_pb2.HelloReply(
        protocol_version=version,
        max_frame_bytes=1 << 20,
        max_entries_per_frame=1,
        max_entry_bytes=1,
        cluster_id=cluster,
        bookie_id=bookie,
        incarnation=incarnation or str(INCARNATION),
    )
    return _frame(encode_frame(FrameType.HELLO_REPLY, 0, body.SerializeToString()))


def test_the_hello_says_who_asks_and_for_what() -> None:
    frame = _frame(OURS.frame("add"))
    said = bookie_pb2.Hello.FromString(bytes(frame.body))
    assert frame.type == FrameType.HELLO
    assert (said.client_name, said.cluster_id, said.purpose) == ("broker-1", "c-1", "add")
    assert said.protocol_version == VERSION


def test_the_expected_bookie_answers_with_its_incarnation() -> None:
    assert OURS.check(_reply(), "h:1") == INCARNATION.bytes
    anywhere = OURS._replace(cluster_id="")
    assert anywhere.check(_reply(cluster="c-2"), "h:1") == INCARNATION.bytes


@pytest.mark.parametrize(
    ("reply", "refusal"),
    [
        (_reply(bookie="bookie-2"), BookieUnavailable),
        (_reply(cluster="c-2"), WrongCluster),
        (_reply(version=VERSION + 1), UnsupportedVersion),
        (_reply(incarnation="none"), InvalidRequest),
        (_frame(encode_frame(FrameType.READ_REPLY, 0, b"")), InvalidRequest),
        (
            _frame(
                encode_frame(
                    FrameType.ERROR,
                    0,
                    bookie_pb2.ErrorReply(status=Status.NOT_READY).SerializeToString(),
                )
            ),
            NotReady,
        ),
        (_frame(encode_frame(FrameType.ERROR, 0, b"\xff")), BookieUnavailable),
    ],
)
def test_anybody_else_is_refused(reply: Frame, refusal: type[OctavoError]) -> None:
    with pytest.raises(refusal):
        OURS.check(reply, "h:1")
