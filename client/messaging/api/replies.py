"""Replies of brokers that carry an error instead of an answer (G4)."""

from __future__ import annotations

from typing import Literal, Protocol

from octavo.proto import broker_pb2 as pb
from octavo.proto.errors import from_wire


class Reply(Protocol):
    """A message with an `error` of its own."""

    @property
    def error(self) -> pb.Error:
        """What went wrong."""
        ...

    def HasField(self, field_name: Literal["error"], /) -> bool:  # protobuf's own name
        """Whether a field is set."""
        ...


def check_reply(reply: Reply) -> None:
    """Raise the error a reply carries."""
    if reply.HasField("error"):
        raise from_wire(reply.error)
