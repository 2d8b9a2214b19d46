"""murmur2 of many keys at once with Arrow's wrapping uint32 arithmetic.

Keys of equal length form a matrix; column bytes come from strided slices, so no step runs per key
in Python. Imported only where pyarrow is present already.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def _scalar(value: int) -> pa.Scalar:
    return pa.scalar(value, pa.uint32())


_FACTOR = _scalar(_M)


def positive_hashes(keys: Sequence[bytes]) -> list[int]:
    """`murmur2(key) & 0x7fffffff` for each key, in order."""
    groups: dict[int, list[int]] = {}
    for index, length in enumerate(map(len, keys)):
        groups.setdefault(length, []).append(index)
    out = [0] * len(keys)
    for length, indexes in groups.items():
        hashed = _equal_length(b"".join([keys[i] for i in indexes]), length, len(indexes))
        for index, value in zip(indexes, hashed, strict=True):
            out[index] = value
    return out


def _column(data: bytes, length: int, start: int, width: int, count: int) -> pa.Array:
    """Bytes start..start+width of every key as one little-endian uint32 each."""
    wide = bytearray(4 * count)
    for byte in range(width):
        wide[byte::4] = data[start + byte :: length]
    return pa.Array.from_buffers(pa.uint32(), count, [None, pa.py_buffer(bytes(wide))])


def _xor_shift(values: pa.Array, bits: int) -> pa.Array:
    return pc.bit_wise_xor(values, pc.shift_right(values, _scalar(bits)))


def _equal_length(data: bytes, length: int, count: int) -> list[int]:
    h: pa.Array = pa.array([(_SEED ^ length) & _MASK] * count, pa.uint32())
    for start in range(0, length & ~3, 4):
        k = pc.multiply(_column(data, length, start, 4, count), _FACTOR)
        k = pc.multiply(_xor_shift(k, 24), _FACTOR)
        h = pc.bit_wise_xor(pc.multiply(h, _FACTOR), k)
    tail = length & 3
    if tail:
        rest = _column(data, length, length - tail, tail, count)
        h = pc.multiply(pc.bit_wise_xor(h, rest), _FACTOR)
    h = _xor_shift(pc.multiply(_xor_shift(h, 13), _FACTOR), 15)
    hashes: list[int] = pc.bit_wise_and(h, _scalar(0x7FFFFFFF)).to_pylist()
    return hashes
