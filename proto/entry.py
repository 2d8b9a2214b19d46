"""The bytes a bookie stores for one entry (spec/ledger.md §3.1, E-1..E-4).

    int64 ledger_id | int64 entry_id | int64 lac | int64 length | uint32 crc | payload  (big-endian)

`length` is the ledger's cumulative payload length including this entry (E-1). The crc covers the
first 32 bytes and the payload (E-2). `lac` is the writer's LAC when the entry was encoded and
never changes (E-3).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from octavo.runtime.checksum import Buffer, crc32c
from octavo.runtime.errors import CorruptEntry
from octavo.runtime.ids import EntryId, LedgerId

HEADER = struct.Struct(">qqqqI")
"""For hot paths that decode in place; others use the functions below."""
HEADER_BYTES = HEADER.size
MAX_PAYLOAD_BYTES = 5 * 1024 * 1024
"""E-4: larger payloads are rejected before an entry id is assigned."""
MAX_ENTRY_BYTES = HEADER_BYTES + MAX_PAYLOAD_BYTES

_IDS = struct.Struct(">qqqq")
_CRC = struct.Struct(">I")
_LAC = struct.Struct(">qq")


class EntryHeader(NamedTuple):
    """The fixed head of an entry."""

    ledger_id: LedgerId
    entry_id: EntryId
    lac: EntryId
    length: int
    crc: int


def encode_header(ledger_id: int, entry_id: int, lac: int, length: int, payload: bytes) -> bytes:
    """The HEADER_BYTES that go before `payload`."""
    head = _IDS.pack(ledger_id, entry_id, lac, length)
    return head + _CRC.pack(crc32c(payload, crc32c(head)))


def decode_header(entry: Buffer) -> EntryHeader:
    """Read the head without verifying anything; raises CorruptEntry when too short."""
    if len(entry) < HEADER_BYTES:
        raise CorruptEntry(f"entry of {len(entry)} bytes is shorter than its header")
    return EntryHeader._make(HEADER.unpack_from(entry))


def digest_of(entry: Buffer) -> int:
    """The digest that an entry of at least HEADER_BYTES should carry (E-2)."""
    head: int = crc32c(entry[: _IDS.size])
    return crc32c(entry[HEADER_BYTES:], head)


def lac_digest(ledger_id: int, lac: int) -> int:
    """The digest that goes with an explicit LAC: crc32c of both as int64, big-endian."""
    return crc32c(_LAC.pack(ledger_id, lac))


def verify(entry: Buffer) -> EntryHeader:
    """Check the digest (E-2) and return the head; raises CorruptEntry."""
    header = decode_header(entry)
    if digest_of(memoryview(entry)) != header.crc:
        raise CorruptEntry(f"entry {header.ledger_id}/{header.entry_id} fails its crc32c")
    return header


def payload_view(entry: Buffer) -> memoryview:
    """The payload of a verified entry, which stays alive with it."""
    return memoryview(entry)[HEADER_BYTES:]


def payload_of(entry: Buffer) -> bytes:
    """The payload of a verified entry, copied."""
    return bytes(payload_view(entry))
