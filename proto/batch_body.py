"""Reading an untrusted batch body, buffer by buffer (`octavo.proto.batch` tells the layout)."""

from __future__ import annotations

from array import array
from itertools import pairwise

from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import CorruptBatch


class BodyReader:
    """Cuts typed buffers off an untrusted body in order; every violation is a CorruptBatch."""

    def __init__(self, body: Buffer) -> None:
        self._body = body
        self._at = 0

    def _take(self, size: int) -> bytes:
        start = self._at
        end = start + size
        self._at = end + (-size % 8)
        if self._at > len(self._body):
            raise CorruptBatch("batch body ends inside a buffer")
        return bytes(self._body[start:end])

    def int64s(self, count: int) -> array[int]:
        """i64[count]."""
        out = array("q")
        out.frombytes(self._take(8 * count))
        return out

    def int32s(self, count: int) -> array[int]:
        """i32[count]."""
        out = array("i")
        out.frombytes(self._take(4 * count))
        return out

    def offsets(self, count: int) -> list[int]:
        """i32[count+1] that start at 0 and never fall."""
        offsets = self.int32s(count + 1).tolist()
        if offsets[0] != 0 or sorted(offsets) != offsets:
            raise CorruptBatch("batch body has offsets that do not ascend from 0")
        return offsets

    def binaries(self, count: int) -> list[bytes | None]:
        """One nullable binary column of `count` values."""
        bitmap_bytes = (count + 7) // 8
        bitmap = self._take(bitmap_bytes)
        offsets = self.offsets(count)
        data = self._take(offsets[-1])
        valid = int.from_bytes(bitmap, "little") & ((1 << count) - 1)
        if not valid:
            return [None] * count
        if valid == (1 << count) - 1:
            return [data[a:b] for a, b in pairwise(offsets)]
        bits = reversed(f"{valid:0{count}b}")  # the lowest bit is the first record
        return [
            data[a:b] if bit == "1" else None
            for (a, b), bit in zip(pairwise(offsets), bits, strict=True)
        ]

    def headers(self, count: int) -> list[list[tuple[str, bytes | None]]]:
        """The headers of `count` records."""
        lists = self.offsets(count)
        total = lists[-1]
        name_offsets = self.offsets(total)
        data = self._take(name_offsets[-1])
        try:
            names = [data[a:b].decode() for a, b in pairwise(name_offsets)]
        except UnicodeDecodeError as error:
            raise CorruptBatch("batch has a header name that is not UTF-8") from error
        pairs = list(zip(names, self.binaries(total), strict=True))
        return [pairs[a:b] for a, b in pairwise(lists)]

    def expect_end(self) -> None:
        """Raise unless everything was taken."""
        if self._at != len(self._body):
            raise CorruptBatch(f"batch body has {len(self._body) - self._at} bytes too many")
