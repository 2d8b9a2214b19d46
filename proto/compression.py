"""Codecs of a batch's body (F039): pure functions, and none that allocates more than is declared.

A reader knows how long a body must become before it opens it. Every codec is held to exactly that
length: a stream that ends early, goes on, or has bytes behind its end is CorruptBatch. It is
checked here because not every library does (pyarrow hands out what was in memory before when a
gzip or snappy stream is shorter than it was told).
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Final

import lz4.block

from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import CorruptBatch

if TYPE_CHECKING:
    import pyarrow as pa

_GZIP_WINDOW: Final = 31
"""zlib's word for: 32 KiB window, gzip's header and trailer."""
_GZIP_LEVEL: Final = 6
_ZSTD_LEVEL: Final = 3
"""The defaults of both formats' own tools and of other products' producers."""
_VARINT_BYTES: Final = 5


class Codec(IntEnum):
    """How the body is stored; the numbers are the header's."""

    NONE = 0
    LZ4 = 1
    """One LZ4 block, without a length before it."""
    ZSTD = 2
    """One frame (RFC 8878)."""
    SNAPPY = 3
    """One raw block: its length as a varint, then its elements."""
    GZIP = 4
    """One member (RFC 1952)."""


CODECS: Final = {codec.name.lower(): codec for codec in Codec}
"""By the names that settings and command lines use."""
_NUMBERS: Final = frozenset(int(codec) for codec in Codec)


def is_known(codec: int) -> bool:
    """Whether this version can open such a body."""
    return codec in _NUMBERS


@cache
def _arrow(codec: int) -> pa.Codec:
    import pyarrow as pa  # a third of a second to load, which most commands do not need

    return pa.Codec("snappy") if codec == Codec.SNAPPY else pa.Codec("zstd", _ZSTD_LEVEL)


def compress(codec: int, body: bytes) -> bytes:
    """The body as `codec` stores it; with NONE as it is."""
    if codec == Codec.LZ4:
        packed: bytes = lz4.block.compress(body, store_size=False)
        return packed
    if codec in (Codec.ZSTD, Codec.SNAPPY):
        return _arrow(codec).compress(body).to_pybytes()
    if codec == Codec.GZIP:
        return zlib.compress(body, _GZIP_LEVEL, _GZIP_WINDOW)
    return body


def decompress(codec: int, stored: Buffer, size_bytes: int) -> Buffer:
    """The body, of exactly `size_bytes`; with NONE a view of `stored`. Raises CorruptBatch."""
    try:
        body = _decompress(codec, stored, size_bytes)
    except (lz4.block.LZ4BlockError, zlib.error, OSError, ValueError) as error:  # Arrow's are both
        raise CorruptBatch(f"batch does not decompress: {error}") from error
    if len(body) != size_bytes:
        raise CorruptBatch(f"batch decompresses to {len(body)} bytes, not as declared")
    return body


def _decompress(codec: int, stored: Buffer, size_bytes: int) -> Buffer:
    if codec == Codec.LZ4:
        body: bytes = lz4.block.decompress(stored, uncompressed_size=size_bytes)
        return body
    if codec == Codec.GZIP:
        return _gunzip(stored, size_bytes)
    if codec == Codec.SNAPPY and _snappy_bytes(stored) != size_bytes:
        raise ValueError("the snappy block says another length than the batch")
    if codec in (Codec.SNAPPY, Codec.ZSTD):
        return memoryview(_arrow(codec).decompress(stored, size_bytes))
    return stored


def _gunzip(stored: Buffer, size_bytes: int) -> bytes:
    stream = zlib.decompressobj(_GZIP_WINDOW)
    body = stream.decompress(stored, size_bytes + 1)  # 0 would be no limit
    if not stream.eof or stream.unused_data:
        raise ValueError("the gzip stream does not end where the batch ends")
    return body


def _snappy_bytes(stored: Buffer) -> int:
    """The length at the head of a raw snappy block; pyarrow reads it and does not compare it."""
    size = 0
    for position, byte in enumerate(bytes(stored[:_VARINT_BYTES])):
        size |= (byte & 127) << (7 * position)
        if byte < 128:
            return size
    raise ValueError("the snappy block has no length")
