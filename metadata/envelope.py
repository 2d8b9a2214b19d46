"""The checksum around each value of the metadata store (M-7): one codec for all three stores.

    4 bytes magic "OVM1" | u32 big-endian CRC32C of the value | value

A store seals what it writes and opens what it reads at its own boundary, so that no caller can
forget it, and damage is refused by the key's name whoever did it: a disk, a wire, or a foreign
hand in ZooKeeper. The checksum covers the value alone, not its path: a cluster may be moved under
another root. That a record is not of another key, its own content says (ids, names).
"""

from __future__ import annotations

import struct

from octavo.runtime.checksum import crc32c
from octavo.runtime.errors import MetadataCorrupt

MAGIC = b"OVM1"
_HEAD = struct.Struct(">4sI")
OVERHEAD_BYTES = _HEAD.size

RESTORE_HINT = (
    "the record counts as existing and is not used; restore the metadata from a copy, "
    "or write this record again"
)


def seal(value: bytes) -> bytes:
    """The bytes to store for `value`."""
    return _HEAD.pack(MAGIC, crc32c(value)) + value


def unseal(key: str, stored: bytes) -> bytes:
    """The value that was sealed; raises MetadataCorrupt naming `key`."""
    if len(stored) < OVERHEAD_BYTES:
        raise _corrupt(key, f"{len(stored)} bytes are no sealed record")
    magic, crc = _HEAD.unpack_from(stored)
    value = stored[OVERHEAD_BYTES:]
    if magic != MAGIC:
        raise _corrupt(key, "it carries no checksum")
    if crc != crc32c(value):
        raise _corrupt(key, "its checksum is wrong")
    return value


SEALED_EMPTY = seal(b"")
"""What directories and counters hold."""


def _corrupt(key: str, why: str) -> MetadataCorrupt:
    return MetadataCorrupt(f"metadata record {key} is damaged: {why}", hint=RESTORE_HINT, key=key)
