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

HEADER_BYTES = 36
MAX_PAYLOAD_BYTES = 5 * 1024 * 1024
"""E-4: larger payloads are rejected before an entry id is assigned."""

_IDS = struct.Struct(">qqqq")
_CRC = struct.Struct(">I")
_HEADER = struct.Struct(">qqqqI")


class EntryHeader(NamedTuple):
    """The fixed head of an entry."""

    ledger_id: LedgerId
    entry_id: EntryId
    lac: EntryId
    length: int
    crc: int


def encode_header(ledger_id: int, entry_id: int, lac: int, length: int, payload: bytes) -> bytes:
    """The 36 bytes that go before `payload`."""
    head = _IDS.pack(ledger_id, entry_id, lac, length)
    return head + _CRC.pack(crc32c(payload, crc32c(head)))


def decode_header(entry: Buffer) -> EntryHeader:
    """Read the head without verifying anything; raises CorruptEntry when too short."""
    if len(entry) < HEADER_BYTES:
        raise CorruptEntry(f"entry of {len(entry)} bytes is shorter than its header")
    return EntryHeader._make(_HEADER.unpack_from(entry))


def verify(entry: Buffer) -> EntryHeader:
    """Check the digest (E-2) and return the head; raises CorruptEntry."""
    header = decode_header(entry)
    view = memoryview(entry)
    if crc32c(view[HEADER_BYTES:], crc32c(view[:32])) != header.crc:
        raise CorruptEntry(f"entry {header.ledger_id}/{header.entry_id} fails its crc32c")
    return header


def payload_of(entry: Buffer) -> bytes:
    """The payload of a verified entry, copied."""
    return bytes(memoryview(entry)[HEADER_BYTES:])
