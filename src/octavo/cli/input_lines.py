"""The lines of `octavo produce`: numbered, of bounded length, as they arrive."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from typing import BinaryIO

CHUNK_BYTES = 65_536
WAIT_MS = 50
Read = Callable[[int], bytes]
"""Up to so many bytes, as soon as there are any; b"" at the end."""


def reading(source: BinaryIO, meanwhile: Callable[[], bool]) -> Read:
    """Reads a file or pipe; while a pipe has nothing, `meanwhile()` is called until it is False.

    So what is under way is looked after although the next line lets itself be waited for.
    """
    read: Read = getattr(source, "read1", source.read)
    try:
        descriptor = source.fileno()
    except (AttributeError, OSError):
        return read
    watch = select.poll()
    watch.register(descriptor, select.POLLIN)

    def patient(size: int) -> bytes:
        while meanwhile() and not watch.poll(WAIT_MS):
            pass
        return read(size)

    return patient


def numbered_lines(
    read: Read, limit_bytes: int, on_long: Callable[[int], Callable[[bytes], object]]
) -> Iterator[tuple[int, bytes]]:
    """Number (from 1) and bytes of each line, without its line feed.

    An unfinished last line counts. Holds one line of `limit_bytes` and a chunk at most: when a line
    is longer, `on_long(number)` is asked, which may raise, or return where its bytes go instead.
    """
    number = 1
    rest = behind = b""
    while chunk := behind or read(CHUNK_BYTES):
        behind = b""
        pieces = (rest + chunk).split(b"\n") if rest else chunk.split(b"\n")
        rest = pieces.pop()
        for piece in pieces:
            if len(piece) > limit_bytes:
                on_long(number)(piece + b"\n")
            else:
                yield number, piece
            number += 1
        if len(rest) > limit_bytes:
            behind = _read_past(read, rest, on_long(number))
            rest = b""
            number += 1
    if rest:
        yield number, rest


def _read_past(read: Read, begun: bytes, take: Callable[[bytes], object]) -> bytes:
    """Hand the rest of a long line on, chunk by chunk; returns what was read behind it."""
    take(begun)
    while chunk := read(CHUNK_BYTES):
        line, feed, behind = chunk.partition(b"\n")
        take(line + feed)
        if feed:
            return behind
    return b""
