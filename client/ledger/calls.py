"""The rare commands, as calls that end in a `Status` instead of an exception (§4, §5, R-15).

Owns encoding, decoding and checking of single requests to one bookie. A lost, late or malformed
reply is TIMEOUT, DISCONNECTED, EIO or UNKNOWN: never a negative. A "no" comes only in the status of
the reply that was asked for, never in an ERROR frame.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from octavo.client.ledger.pool import BookiePool
from octavo.proto import bookie_pb2
from octavo.proto.bookie_messages import parse_body
from octavo.proto.bookie_wire import (
    Flags,
    FrameType,
    ReadReply,
    ReadRequest,
    Status,
    decode_read_reply,
    encode_read_body,
)
from octavo.proto.entry import MAX_ENTRY_BYTES, lac_digest, verify
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import (
    BookieUnavailable,
    CorruptEntry,
    Fenced,
    NotReady,
    OctavoError,
    Overloaded,
    RequestTimedOut,
)
from octavo.runtime.ids import NO_ENTRY, EntryId, LedgerId, Member

_log = logging.getLogger("octavo.ledger.calls")

_STATUS_OF: tuple[tuple[type[OctavoError], Status], ...] = (
    (RequestTimedOut, Status.TIMEOUT),
    (BookieUnavailable, Status.DISCONNECTED),
    (Overloaded, Status.OVERLOADED),
    (NotReady, Status.NOT_READY),
    (Fenced, Status.FENCED),
)


class LacReply(NamedTuple):
    """What a bookie knows of a ledger's end."""

    status: Status
    lac: EntryId
    fenced: bool


class ListReply(NamedTuple):
    """Which entries a bookie's index has; what is above `through` was not looked at."""

    status: Status
    through: int
    runs: tuple[tuple[int, int], ...]


def known_status(value: int) -> Status:
    """The status of this number; one that this build does not know is UNKNOWN (R-15)."""
    try:
        return Status(value)
    except ValueError:
        return Status.UNKNOWN


def _status_of(error: OctavoError) -> Status:
    """What a failed call means; no exception is an explicit negative (R-15)."""
    for cls, status in _STATUS_OF:
        if isinstance(error, cls):
            return status
    return Status.UNKNOWN


def encode_lac(ledger_id: LedgerId, lac: EntryId, member: Member) -> bytes:
    """Body of an explicit-LAC frame (E-4, RD-6)."""
    return bookie_pb2.WriteLac(
        ledger_id=ledger_id,
        last_add_confirmed=lac,
        crc32c=lac_digest(ledger_id, lac),
        incarnation=str(member.incarnation),
    ).SerializeToString()


class BookieCalls:
    """Single requests to members over the pool's channels."""

    def __init__(self, pool: BookiePool) -> None:
        self._pool = pool

    async def fence(
        self, ledger_id: LedgerId, member: Member, *, timeout_s: float
    ) -> tuple[Status, EntryId]:
        """R-2: fence, and the LAC the bookie knows."""
        body = bookie_pb2.FenceRequest(
            ledger_id=ledger_id, incarnation=str(member.incarnation)
        ).SerializeToString()
        try:
            channel = self._pool.channel(member.bookie_id, "recovery")
            frame = await channel.call(FrameType.FENCE, body, timeout_s=timeout_s)
            reply = parse_body(bookie_pb2.FenceReply, frame.body)
        except OctavoError as error:
            return _status_of(error), NO_ENTRY
        return known_status(reply.status), EntryId(reply.last_add_confirmed)

    async def read(
        self,
        request: ReadRequest,
        member: Member,
        *,
        recovery: bool,
        timeout_s: float,
    ) -> ReadReply:
        """Read entries; every entry returned is verified and is the one asked for (E-2).

        A damaged first entry gives EIO; damage further on shortens the reply.
        """
        purpose = "recovery" if recovery else "read"
        flags = Flags.RECOVERY | Flags.FENCE if recovery else Flags.NONE
        body = encode_read_body(request)
        try:
            channel = self._pool.channel(member.bookie_id, purpose)
            frame = await channel.call(FrameType.READ, body, timeout_s=timeout_s, flags=flags)
            reply = decode_read_reply(frame.body, MAX_ENTRY_BYTES)
        except OctavoError as error:
            return ReadReply(_status_of(error), NO_ENTRY, [])
        status = known_status(reply.status)
        if status is not Status.OK:
            return ReadReply(status, reply.lac, [])
        entries = _verified(reply.entries, request)
        if not entries:
            _log.error("%s: entry %s of ledger %s is damaged", member, *_where(request))
            return ReadReply(Status.EIO, reply.lac, [])
        return ReadReply(Status.OK, reply.lac, entries)

    async def add_recovered(self, member: Member, entry: bytes, *, timeout_s: float) -> Status:
        """R-5, R-17: write verbatim bytes back with the recovery flag."""
        try:
            channel = self._pool.channel(member.bookie_id, "recovery")
            status = await channel.call_add(
                member.incarnation.bytes, entry, flags=Flags.RECOVERY, timeout_s=timeout_s
            )
        except OctavoError as error:
            return _status_of(error)
        return known_status(status)

    async def read_lac(
        self, ledger_id: LedgerId, member: Member, *, previous: int, wait_s: float, timeout_s: float
    ) -> LacReply:
        """RD-7: the LAC, held back by the bookie up to `wait_s` until it is above `previous`."""
        body = bookie_pb2.ReadLacRequest(
            ledger_id=ledger_id,
            previous=previous,
            timeout_ms=round(wait_s * 1000),
            incarnation=str(member.incarnation),
        ).SerializeToString()
        try:
            channel = self._pool.channel(member.bookie_id, "read")
            frame = await channel.call(FrameType.READ_LAC, body, timeout_s=wait_s + timeout_s)
            reply = parse_body(bookie_pb2.ReadLacReply, frame.body)
        except OctavoError as error:
            return LacReply(_status_of(error), NO_ENTRY, False)
        status = known_status(reply.status)
        return LacReply(status, EntryId(reply.last_add_confirmed), reply.fenced)

    async def list_entries(
        self, ledger_id: LedgerId, member: Member, first: int, last: int, *, timeout_s: float
    ) -> ListReply:
        """A-2: which of first..last the bookie has durably, as runs.

        Only an OK tells anything of absence; a reply that contradicts itself is UNKNOWN.
        """
        body = bookie_pb2.ListEntriesRequest(
            ledger_id=ledger_id, incarnation=str(member.incarnation), first=first, last=last
        ).SerializeToString()
        try:
            channel = self._pool.channel(member.bookie_id, "recovery")
            frame = await channel.call(FrameType.LIST_ENTRIES, body, timeout_s=timeout_s)
            reply = parse_body(bookie_pb2.ListEntriesReply, frame.body)
        except OctavoError as error:
            return ListReply(_status_of(error), -1, ())
        status = known_status(reply.status)
        if status is not Status.OK:
            return ListReply(status, -1, ())
        if len(reply.run_firsts) != len(reply.run_lasts):
            return ListReply(Status.UNKNOWN, -1, ())
        runs = tuple(zip(reply.run_firsts, reply.run_lasts, strict=True))
        edges = [edge for run in runs for edge in run]
        ordered = all(a <= b for a, b in pairwise(edges))
        inside = first <= reply.through <= last and (
            not edges or (first <= edges[0] and edges[-1] <= reply.through)
        )
        if not ordered or not inside:
            return ListReply(Status.UNKNOWN, -1, ())
        return ListReply(status, reply.through, runs)


def _where(request: ReadRequest) -> tuple[int, int]:
    return request.first_entry, request.ledger_id


def _verified(entries: Sequence[Buffer], request: ReadRequest) -> list[Buffer]:
    good: list[Buffer] = []
    for position, entry in enumerate(entries[: request.max_count]):
        try:
            header = verify(entry)
        except CorruptEntry:
            break
        if header.ledger_id != request.ledger_id:
            break
        if header.entry_id != request.first_entry + position:
            break
        good.append(entry)
    return good
