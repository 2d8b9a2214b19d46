"""CRC32C over one or several chunks (google-crc32c; 10 GB/s, so it is verified at every hop)."""

from __future__ import annotations

from collections.abc import Iterable

import google_crc32c


def crc32c(data: bytes, start: int = 0) -> int:
    """CRC32C of `data`, continuing from `start` (the CRC of what came before).

    The C extension takes `bytes` only; passing a view would cost a copy, so callers keep bytes.
    """
    return google_crc32c.extend(start, data)


def crc32c_parts(parts: Iterable[bytes], start: int = 0) -> int:
    """CRC32C of the concatenation of `parts` without joining them."""
    crc = start
    for part in parts:
        crc = google_crc32c.extend(crc, part)
    return crc
