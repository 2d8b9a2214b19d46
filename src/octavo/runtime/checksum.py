"""CRC32C over one or several buffers (package crc32c; 15 GB/s, so it is verified at every hop)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import crc32c as _library

Buffer: TypeAlias = bytes | memoryview
"""Bytes that nobody changes: a `bytes`, or a view of somebody's larger piece."""

_KEEP_GIL = 0
"""A check takes some microseconds; waiting for the interpreter lock afterwards could take far
longer."""


def crc32c(data: Buffer, start: int = 0) -> int:
    """CRC32C of `data`, continuing from `start` (the CRC of what came before)."""
    return _library.crc32c(data, start, _KEEP_GIL)


def crc32c_parts(parts: Iterable[Buffer], start: int = 0) -> int:
    """CRC32C of the concatenation of `parts` without joining them."""
    crc = start
    for part in parts:
        crc = _library.crc32c(part, crc, _KEEP_GIL)
    return crc
