"""Bodies of the bookie wire's rare commands, parsed strictly: what is missing decides nothing.

Proto3 reads a missing number as 0 and an empty message as all zeros: an empty FenceReply would be
an answer about entry 0. Fields that decide something are `optional` in `proto/bookie.proto`, and
here each of them must be there.
"""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import InvalidRequest

M = TypeVar("M", bound=Message)


def parse_body(kind: type[M], body: Buffer) -> M:
    """The message in a frame's body; raises InvalidRequest when it is none, or lacks a field."""
    message = kind()
    try:
        message.ParseFromString(bytes(body))
    except DecodeError as error:
        raise InvalidRequest(f"not a {kind.__name__}: {error}") from error
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            raise InvalidRequest(f"a {kind.__name__} without {field.name}")
    return message
