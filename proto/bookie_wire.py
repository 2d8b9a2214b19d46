"""Codec of the framed bookie wire (design.md §4): pure, no sockets, shared by both ends.

    frame = u32 length | u8 version | u8 type | u16 flags | u64 request id | body    (big-endian)

`length` counts what follows it. Rare commands carry a protobuf body (proto/bookie.proto). Add and
read frames carry entries back to back behind a table of lengths, never copied through protobuf:

    ADD         16s incarnation | u32 count | u32 length * count | entries
    ADD_REPLY   empty when flag ALL_OK is set, else u32 count | u16 status * count
    READ        16s incarnation | i64 ledger | i64 first | u32 max_count | u32 max_bytes
    READ_REPLY  u16 status | u16 0 | i64 lac | u32 count | u32 length * count | entries

Every length and count is checked before memory is allocated for it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import InvalidRequest, MessageTooLarge, UnsupportedVersion

VERSION = 1
PREFIX = struct.Struct(">IBBHQ")
PREFIX_BYTES = PREFIX.size
MAX_FRAME_BYTES = 16 * 1024 * 1024
"""Above the entry limit times a small batch; checked before allocation."""
MAX_ENTRIES_PER_FRAME = 4096
TARGET_FRAME_BYTES = 256 * 1024
"""Writers coalesce up to about this much; larger frames leave the CPU's cache (design.md §10)."""

_ADD = struct.Struct(">16sI")
_READ = struct.Struct(">16sqqII")
_READ_REPLY = struct.Struct(">HHqI")
_COUNT = struct.Struct(">I")


class FrameType(IntEnum):
    """The command of a frame."""

    HELLO = 1
    HELLO_REPLY = 2
    PING = 3
    PONG = 4
    ADD = 5
    ADD_REPLY = 6
    READ = 7
    READ_REPLY = 8
    FENCE = 9
    FENCE_REPLY = 10
    READ_LAC = 11
    READ_LAC_REPLY = 12
    WRITE_LAC = 13
    WRITE_LAC_REPLY = 14
    ERROR = 15


class Flags:
    """Bits of a frame's flags field. Plain ints: `&` with a member of an IntFlag takes a
    microsecond.
    """

    NONE: Final = 0
    RECOVERY: Final = 1
    """Add or read on behalf of a recovery (R-13, R-17)."""
    FENCE: Final = 2
    """A read that must fence first (R-13)."""
    ALL_OK: Final = 4
    """An add reply in which every entry succeeded."""


class Status(IntEnum):
    """Outcome of one request at a bookie (spec/ledger.md §3.4, §6.5)."""

    OK = 0
    FENCED = 1
    UNAUTHORIZED = 2
    READONLY = 3
    DISK_FULL = 4
    WRONG_INCARNATION = 5
    NOT_ADMITTED_RETRY = 6
    CONFLICT = 7
    BAD_DIGEST = 8
    TOO_LARGE = 9
    BAD_VERSION = 10
    OVERLOADED = 11
    NO_SUCH_ENTRY = 12
    NO_SUCH_LEDGER = 13
    EIO = 14
    UNKNOWN = 15
    NOT_READY = 16
    INTERNAL = 17
    BAD_REQUEST = 18
    TIMEOUT = 19
    """Made by the client: no reply in time."""
    DISCONNECTED = 20
    """Made by the client: the connection ended before the reply."""


class Frame(NamedTuple):
    """One whole frame."""

    type: int
    flags: int
    request_id: int
    body: Buffer
    """Nobody changes it: views of it may be kept."""


class AddRequest(NamedTuple):
    """The decoded body of an ADD frame."""

    incarnation: bytes
    entries: list[Buffer]
    """Views of the frame's body, not copies."""
    run: Buffer
    """All entries back to back, as they came."""


class ReadRequest(NamedTuple):
    """The decoded body of a READ frame."""

    incarnation: bytes
    ledger_id: int
    first_entry: int
    max_count: int
    max_bytes: int


class ReadReply(NamedTuple):
    """The decoded body of a READ_REPLY frame: entries first_entry, first_entry+1, …"""

    status: int
    lac: int
    entries: list[Buffer]
    """Views of the frame's body, not copies."""


def encode_frame(frame_type: int, request_id: int, body: Buffer = b"", flags: int = 0) -> bytes:
    """One frame with a small body."""
    return PREFIX.pack(12 + len(body), VERSION, frame_type, flags, request_id) + body


def encode_add(
    request_id: int, incarnation: bytes, entries: Sequence[Sequence[bytes]], flags: int = 0
) -> list[bytes]:
    """Buffers of an ADD frame; each entry is given as its parts, which are passed on uncopied."""
    lengths = [sum(map(len, parts)) for parts in entries]
    table = struct.pack(f">{len(lengths)}I", *lengths)
    head = _ADD.pack(incarnation, len(lengths)) + table
    total = 12 + len(head) + sum(lengths)
    out = [PREFIX.pack(total, VERSION, FrameType.ADD, flags, request_id) + head]
    for parts in entries:
        out.extend(parts)
    return out


def encode_add_runs(
    request_id: int,
    incarnation: bytes,
    runs: Sequence[tuple[Sequence[int], Sequence[bytes]]],
    total_bytes: int,
    flags: int = 0,
) -> list[bytes]:
    """Buffers of an ADD frame from runs of (entry lengths, buffers); nothing is measured again.

    `total_bytes` is the sum of all lengths. The buffers are passed on uncopied.
    """
    lengths = runs[0][0] if len(runs) == 1 else [n for run in runs for n in run[0]]
    count = len(lengths)
    body_bytes = _ADD.size + 4 * count + total_bytes
    out = [
        PREFIX.pack(12 + body_bytes, VERSION, FrameType.ADD, flags, request_id)
        + _ADD.pack(incarnation, count)
        + struct.pack(f">{count}I", *lengths)
    ]
    for _, parts in runs:
        out.extend(parts)
    return out


def decode_add(body: Buffer, max_entry_bytes: int) -> AddRequest:
    """Split an ADD body; raises InvalidRequest or MessageTooLarge."""
    if len(body) < _ADD.size:
        raise InvalidRequest(f"add frame of {len(body)} bytes is too short")
    incarnation, count = _ADD.unpack_from(body)
    view = memoryview(body)
    entries = _split(view, _ADD.size, count, max_entry_bytes)
    return AddRequest(incarnation, entries, view[_ADD.size + 4 * count :])


def encode_add_reply(request_id: int, statuses: Sequence[int]) -> bytes:
    """The reply to one ADD frame, one status per entry in its order."""
    if not any(statuses):
        return encode_frame(FrameType.ADD_REPLY, request_id, flags=Flags.ALL_OK)
    body = _COUNT.pack(len(statuses)) + struct.pack(f">{len(statuses)}H", *statuses)
    return encode_frame(FrameType.ADD_REPLY, request_id, body)


_ADD_REPLY = int(FrameType.ADD_REPLY)


def encode_add_ok(request_id: int) -> bytes:
    """The reply to an ADD frame in which every entry succeeded."""
    return PREFIX.pack(12, VERSION, _ADD_REPLY, Flags.ALL_OK, request_id)


def decode_add_reply(frame: Frame, expected: int) -> list[int]:
    """Statuses of an ADD_REPLY for a request of `expected` entries; raises InvalidRequest."""
    if frame.flags & Flags.ALL_OK:
        return [0] * expected
    body = frame.body
    if len(body) != 4 + 2 * expected or _COUNT.unpack_from(body)[0] != expected:
        raise InvalidRequest(f"add reply does not match a request of {expected} entries")
    return list(struct.unpack_from(f">{expected}H", body, 4))


def encode_read(request_id: int, request: ReadRequest, flags: int = 0) -> bytes:
    """A READ frame."""
    return encode_frame(FrameType.READ, request_id, _READ.pack(*request), flags)


def decode_read(body: Buffer) -> ReadRequest:
    """Read a READ body; raises InvalidRequest."""
    if len(body) != _READ.size:
        raise InvalidRequest(f"read frame of {len(body)} bytes, expected {_READ.size}")
    request = ReadRequest._make(_READ.unpack(body))
    if request.ledger_id < 0 or request.first_entry < 0 or request.max_count < 1:
        raise InvalidRequest("read frame names a negative ledger, entry or count")
    return request


def encode_read_reply(
    request_id: int, status: int, lac: int, entries: Sequence[Buffer]
) -> list[Buffer]:
    """Buffers of a READ_REPLY; entries are passed on uncopied."""
    lengths = [len(entry) for entry in entries]
    head = _READ_REPLY.pack(status, 0, lac, len(lengths)) + struct.pack(
        f">{len(lengths)}I", *lengths
    )
    total = 12 + len(head) + sum(lengths)
    return [PREFIX.pack(total, VERSION, FrameType.READ_REPLY, 0, request_id) + head, *entries]


def decode_read_reply(body: Buffer, max_entry_bytes: int) -> ReadReply:
    """Split a READ_REPLY body; raises InvalidRequest or MessageTooLarge."""
    if len(body) < _READ_REPLY.size:
        raise InvalidRequest(f"read reply of {len(body)} bytes is too short")
    status, _, lac, count = _READ_REPLY.unpack_from(body)
    entries = _split(memoryview(body), _READ_REPLY.size, count, max_entry_bytes)
    return ReadReply(status, lac, entries)


def _split(body: memoryview, start: int, count: int, max_entry_bytes: int) -> list[Buffer]:
    if count > MAX_ENTRIES_PER_FRAME:
        raise MessageTooLarge(f"{count} entries in one frame, limit {MAX_ENTRIES_PER_FRAME}")
    position = start + 4 * count
    if position > len(body):
        raise InvalidRequest(f"table of {count} lengths does not fit {len(body)} bytes")
    lengths = struct.unpack_from(f">{count}I", body, start)
    if position + sum(lengths) != len(body):
        raise InvalidRequest("entry lengths do not add up to the frame's length")
    entries: list[Buffer] = []
    for length in lengths:
        if length > max_entry_bytes:
            raise MessageTooLarge(f"entry of {length} bytes, limit {max_entry_bytes}")
        entries.append(body[position : position + length])
        position += length
    return entries


_SCRATCH_BYTES = 64 * 1024
"""What of a large frame arrives in the scratch is copied once more, so this is no larger than many
small frames at once need."""


class FrameDecoder:
    """Turns received bytes into frames, in the shape of asyncio.BufferedProtocol.

    Small frames land in a scratch buffer; a large body is received straight into its own
    bytearray, which the frame's body then is a view of. `get_buffer()` gives where to write next;
    `received(n)` returns the frames completed by `n` bytes. Raises MessageTooLarge or
    UnsupportedVersion, after which the connection must be closed.
    """

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max = max_frame_bytes
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._view = memoryview(self._scratch)
        self._low = 0  # first unread byte of the scratch
        self._high = 0  # end of received bytes in the scratch
        self._large: bytearray | None = None  # a frame's rest being received directly
        self._large_fill = 0
        self._large_head: tuple[int, int, int] = (0, 0, 0)

    def get_buffer(self) -> memoryview:
        """The writable region for the next bytes; never empty."""
        if self._large is not None:
            return memoryview(self._large)[self._large_fill :]
        if self._low == self._high:
            self._low = self._high = 0
        elif self._low and self._high == _SCRATCH_BYTES:
            kept = self._high - self._low
            self._scratch[:kept] = self._scratch[self._low : self._high]
            self._low, self._high = 0, kept
        return self._view[self._high :]

    def feed(self, data: bytes) -> list[Frame]:
        """Convenience for tests and blocking callers: copy `data` in and return whole frames."""
        frames: list[Frame] = []
        view = memoryview(data)
        while len(view):
            target = self.get_buffer()
            n = min(len(target), len(view))
            target[:n] = view[:n]
            frames.extend(self.received(n))
            view = view[n:]
        return frames

    def received(self, n: int) -> list[Frame]:
        """Account for `n` bytes written into the last buffer; returns completed frames."""
        if self._large is not None:
            self._large_fill += n
            if self._large_fill < len(self._large):
                return []
            frame_type, flags, request_id = self._large_head
            whole = memoryview(self._large).toreadonly()
            self._large = None
            return [Frame(frame_type, flags, request_id, whole)]
        self._high += n
        frames: list[Frame] = []
        while self._high - self._low >= PREFIX_BYTES:
            length, version, frame_type, flags, request_id = PREFIX.unpack_from(
                self._scratch, self._low
            )
            body_bytes = length - 12
            if body_bytes < 0 or length > self._max:
                raise MessageTooLarge(f"frame of {length} bytes, limit {self._max}")
            if version != VERSION:
                raise UnsupportedVersion(f"frame version {version}, this build speaks {VERSION}")
            start = self._low + PREFIX_BYTES
            have = self._high - start
            if have >= body_bytes:
                body = bytes(self._view[start : start + body_bytes])
                self._low = start + body_bytes
                frames.append(Frame(frame_type, flags, request_id, body))
            elif PREFIX_BYTES + body_bytes > _SCRATCH_BYTES // 4:
                self._large = bytearray(body_bytes)
                self._large[:have] = self._view[start : self._high]
                self._large_fill = have
                self._large_head = (frame_type, flags, request_id)
                self._low = self._high = 0
                break
            else:
                break
        return frames
