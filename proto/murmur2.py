"""Kafka's murmur2: how a text becomes a partition in every process of a cluster (G1, P2, P3).

Python's built-in `hash()` is salted for each process and never used for this.
"""

from __future__ import annotations

import struct

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
POSITIVE = 0x7FFFFFFF
"""Kafka's mask: partition = (murmur2 & POSITIVE) mod n (P2)."""

_BLOCKS = [struct.Struct(f"<{blocks}I") for blocks in range(65)]


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2 as an unsigned number (P2, P3)."""
    length = len(data)
    blocks = length >> 2
    h = _SEED ^ (length & _MASK)
    table = _BLOCKS[blocks] if blocks <= 64 else struct.Struct(f"<{blocks}I")
    for k in table.unpack_from(data):
        k = k * _M & _MASK
        h = h * _M & _MASK ^ (k ^ k >> 24) * _M & _MASK
    tail = length & 3
    if tail:
        h = (h ^ int.from_bytes(data[-tail:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key among `partitions` (P2)."""
    return (murmur2(key) & POSITIVE) % partitions
