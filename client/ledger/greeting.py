"""The hello of a bookie connection, and what a bookie says when it refuses (P-1).

Pure: bytes and errors. `connection.py` sends and receives.
"""

from __future__ import annotations

from typing import NamedTuple

from octavo.proto import bookie_pb2
from octavo.proto.bookie_messages import parse_body
from octavo.proto.bookie_wire import VERSION, Frame, FrameType, encode_frame
from octavo.proto.errors import status_error
from octavo.runtime.errors import (
    BookieUnavailable,
    InvalidRequest,
    OctavoError,
    UnsupportedVersion,
    WrongCluster,
)
from octavo.runtime.ids import Member


class Greeting(NamedTuple):
    """Who we are, and whom we expect."""

    client_name: str
    cluster_id: str
    """Empty: any cluster."""
    bookie_id: str

    def frame(self, purpose: str) -> bytes:
        """The first frame of a connection."""
        body = bookie_pb2.Hello(
            protocol_version=VERSION,
            cluster_id=self.cluster_id,
            client_name=self.client_name,
            purpose=purpose,
        ).SerializeToString()
        return encode_frame(FrameType.HELLO, 0, body)

    def check(self, frame: Frame, address: str) -> bytes:
        """The incarnation of the bookie that answered; raises when it is not the one expected."""
        if frame.type == FrameType.ERROR:
            raise error_of(frame, self.bookie_id)
        if frame.type != FrameType.HELLO_REPLY:
            raise InvalidRequest(f"{address} answered hello with type {frame.type}")
        try:
            reply = parse_body(bookie_pb2.HelloReply, frame.body)
            incarnation = Member.parse(f"{reply.bookie_id}@{reply.incarnation}").incarnation
        except ValueError as error:
            raise InvalidRequest(f"{address} sent a broken hello: {error}") from error
        if reply.protocol_version != VERSION:
            raise UnsupportedVersion(f"{address} speaks version {reply.protocol_version}")
        if reply.bookie_id != self.bookie_id:
            raise BookieUnavailable(f"{address} is {reply.bookie_id}, not {self.bookie_id}")
        if self.cluster_id and reply.cluster_id != self.cluster_id:
            raise WrongCluster(f"{address} belongs to cluster {reply.cluster_id}")
        return incarnation.bytes


def error_of(frame: Frame, bookie_id: str) -> OctavoError:
    """The exception of an ERROR frame."""
    try:
        reply = parse_body(bookie_pb2.ErrorReply, frame.body)
    except InvalidRequest:
        return BookieUnavailable(f"{bookie_id} sent an unreadable error")
    return status_error(reply.status, f"{bookie_id}: {reply.cause}", hint=reply.hint)
