"""Codec of the framed bookie wire (design.md §4): pure, no sockets, shared by both ends.

    frame  = prefix | head | entries                                                 (big-endian)
    prefix = u32 length | u8 version | u8 type | u16 flags | u64 request id
             | u32 head bytes | u32 crc of the prefix | u32 crc of prefix and head

`length` counts what follows it. The first crc32c covers the prefix before it, so that a length is
believed only when it is intact; the second one goes on over the head: every byte that decides
something is covered. Entries are not covered again, each has a digest of its own (E-2). A frame
that fails a crc is never decoded, its connection ends (R-15). Rare commands have a protobuf head
(proto/bookie.proto, octavo.proto.bookie_messages) and no entries. Add and read frames carry entries
back to back behind a table of lengths, never copied through protobuf:

    ADD         16s incarnation | u32 count | u32 length * count || entries
    ADD_REPLY   empty when flag ALL_OK is set, else u32 count | u16 status * count
    READ        16s incarnation | i64 ledger | i64 first | u32 max_count | u32 max_bytes
    READ_REPLY  u16 status | u16 0 | i64 lac | u32 count | u32 length * count || entries

Every length and count is checked before memory is allocated for it, and a large frame's memory
grows with what has arrived of it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from octavo.runtime.checksum import Buffer, crc32c
from octavo.runtime.errors import (
    CorruptFrame,
    InvalidRequest,
    MessageTooLarge,
    UnsupportedVersion,
)

VERSION = 2
"""Stands at the same place in every version of the prefix: each end can name the other's."""
PREFIX = struct.Struct(">IBBHQIII")
PREFIX_BYTES = PREFIX.size
_FIELDS = struct.Struct(">IBBHQI")
_COVERED = _FIELDS.size
_AFTER_LENGTH = PREFIX_BYTES - 4
_VERSION_AT = 4
MAX_FRAME_BYTES = 16 * 1024 * 1024
"""Above the entry limit times a small batch; checked before allocation."""
HELLO_FRAME_BYTES_MAX = 4096
"""Largest frame either end accepts before the hello: strangers get little memory."""
EAGER_BYTES = 1152 * 1024
"""A frame up to this size (a large batch and a bit) gets its memory at once, without copies; a
larger one gets twice what has arrived of it.
"""
MAX_ENTRIES_PER_FRAME = 4096
TARGET_FRAME_BYTES = 256 * 1024
"""Writers coalesce up to about this much; larger frames leave the CPU's cache (design.md §10)."""

_ADD = struct.Struct(">16sI")
_READ = struct.Struct(">16sqqII")
_READ_REPLY = struct.Struct(">HHqI")
_COUNT = struct.Struct(">I")
_CRCS = struct.Struct(">II")
_ADD_TYPE: Final = 5
_ADD_REPLY: Final = 6


class FrameType(IntEnum):
    """The command of a frame."""

    HELLO = 1
    HELLO_REPLY = 2
    PING = 3
    PONG = 4
    ADD = _ADD_TYPE
    ADD_REPLY = _ADD_REPLY
    READ = 7
    READ_REPLY = 8
    FENCE = 9
    FENCE_REPLY = 10
    READ_LAC = 11
    READ_LAC_REPLY = 12
    WRITE_LAC = 13
    WRITE_LAC_REPLY = 14
    ERROR = 15
    LIST_ENTRIES = 16
    LIST_ENTRIES_REPLY = 17


class Flags:
    """Bits of a frame's flags field; plain ints, for `&` with an IntFlag takes a microsecond."""

    NONE: Final = 0
    RECOVERY: Final = 1
    """Add or read on behalf of a recovery (R-13, R-17)."""
    FENCE: Final = 2
    """A read that must fence first (R-13)."""
    ALL_OK: Final = 4
    """An add reply in which every entry succeeded."""


class Status(IntEnum):
    """Outcome of one request at a bookie (spec/ledger.md §3.4, §6.5).

    Any two codes differ in at least four bits, and each differs so from 0: neither a damaged bit
    nor a field that was left out means success, or "not there".
    """

    OK = 0x00F
    FENCED = 0x033
    UNAUTHORIZED = 0x03C
    READONLY = 0x055
    DISK_FULL = 0x05A
    WRONG_INCARNATION = 0x066
    NOT_ADMITTED_RETRY = 0x069
    CONFLICT = 0x096
    BAD_DIGEST = 0x099
    TOO_LARGE = 0x0A5
    BAD_VERSION = 0x0AA
    OVERLOADED = 0x0C3
    NO_SUCH_ENTRY = 0x0CC
    NO_SUCH_LEDGER = 0x0F0
    EIO = 0x0FF
    UNKNOWN = 0x303
    NOT_READY = 0x30C
    INTERNAL = 0x330
    BAD_REQUEST = 0x33F
    TIMEOUT = 0x356
    """Made by the client: no reply in time."""
    DISCONNECTED = 0x359
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
    """One frame with a small body and no entries."""
    return _start(frame_type, flags, request_id, body)


def _start(
    frame_type: int, flags: int, request_id: int, head: Buffer, entries_bytes: int = 0
) -> bytes:
    """Prefix and head of a frame; its entries follow as they are."""
    size = len(head)
    length = _AFTER_LENGTH + size + entries_bytes
    fields = _FIELDS.pack(length, VERSION, frame_type, flags, request_id, size)
    crc = crc32c(fields)
    if not size:
        return fields + _CRCS.pack(crc, crc)
    return b"".join((fields, _CRCS.pack(crc, crc32c(head, crc)), head))


def encode_add(
    request_id: int, incarnation: bytes, entries: Sequence[Sequence[bytes]], flags: int = 0
) -> list[bytes]:
    """Buffers of an ADD frame; each entry is given as its parts, which are passed on uncopied."""
    lengths = [sum(map(len, parts)) for parts in entries]
    table = struct.pack(f">{len(lengths)}I", *lengths)
    head = _ADD.pack(incarnation, len(lengths)) + table
    out = [_start(_ADD_TYPE, flags, request_id, head, sum(lengths))]
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
    head = _ADD.pack(incarnation, count) + struct.pack(f">{count}I", *lengths)
    out = [_start(_ADD_TYPE, flags, request_id, head, total_bytes)]
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
    if statuses.count(Status.OK) == len(statuses):
        return encode_add_ok(request_id)
    body = _COUNT.pack(len(statuses)) + struct.pack(f">{len(statuses)}H", *statuses)
    return _start(_ADD_REPLY, 0, request_id, body)


def encode_add_ok(request_id: int) -> bytes:
    """The reply to an ADD frame in which every entry succeeded."""
    return _start(_ADD_REPLY, Flags.ALL_OK, request_id, b"")


def decode_add_reply(frame: Frame, expected: int) -> list[int]:
    """Statuses of an ADD_REPLY for a request of `expected` entries; raises InvalidRequest."""
    body = frame.body
    if frame.type != _ADD_REPLY:
        raise InvalidRequest(f"a frame of type {frame.type} is no reply to an add")
    if frame.flags & Flags.ALL_OK and not body:
        return [Status.OK] * expected
    if len(body) != 4 + 2 * expected or _COUNT.unpack_from(body)[0] != expected:
        raise InvalidRequest(f"add reply does not match a request of {expected} entries")
    return list(struct.unpack_from(f">{expected}H", body, 4))


def encode_read(request_id: int, request: ReadRequest, flags: int = 0) -> bytes:
    """A READ frame."""
    return encode_frame(FrameType.READ, request_id, encode_read_body(request), flags)


def encode_read_body(request: ReadRequest) -> bytes:
    """The body of a READ frame."""
    return _READ.pack(*request)


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
    return [_start(FrameType.READ_REPLY, 0, request_id, head, sum(lengths)), *entries]


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
small frames at once need.
"""


class _LargeFrame:
    """A frame that is received straight into a buffer of its own."""

    __slots__ = ("body_bytes", "buffer", "crc", "fill", "flags", "head_bytes", "request_id", "type")

    def __init__(
        self, frame_type: int, flags: int, request_id: int, body_bytes: int, head_bytes: int
    ) -> None:
        self.type = frame_type
        self.flags = flags
        self.request_id = request_id
        self.body_bytes = body_bytes
        self.head_bytes = head_bytes
        self.crc: tuple[int, int] = (0, 0)  # of the prefix; as declared
        self.buffer = bytearray()
        self.fill = 0


class FrameDecoder:
    """Turns received bytes into frames, in the shape of asyncio.BufferedProtocol.

    Small frames land in a scratch buffer; a large body is received straight into its own
    bytearray, which the frame's body then is a view of. `get_buffer()` gives where to write next;
    `received(n)` returns the frames completed by `n` bytes. Raises CorruptFrame, MessageTooLarge or
    UnsupportedVersion, after which the connection must be closed.

    Args:
        max_frame_bytes: larger frames are refused; raise it with `allow()` after the hello.
        eager_bytes: up to this size a frame gets its memory at once; beyond it memory grows with
            what arrives.
    """

    def __init__(
        self, max_frame_bytes: int = MAX_FRAME_BYTES, *, eager_bytes: int = EAGER_BYTES
    ) -> None:
        self._max = max_frame_bytes
        self._eager = eager_bytes
        self._size = min(_SCRATCH_BYTES, max(max_frame_bytes, HELLO_FRAME_BYTES_MAX))
        self._scratch = bytearray(self._size)
        self._view = memoryview(self._scratch)
        self._low = 0  # first unread byte of the scratch
        self._high = 0  # end of received bytes in the scratch
        self._large: _LargeFrame | None = None

    def allow(self, max_frame_bytes: int, *, eager_bytes: int = EAGER_BYTES) -> None:
        """Accept frames up to this size from now on."""
        self._max, self._eager = max_frame_bytes, eager_bytes
        size = min(_SCRATCH_BYTES, max(max_frame_bytes, HELLO_FRAME_BYTES_MAX))
        if size > self._size:
            larger = bytearray(size)
            larger[: self._high] = self._view[: self._high]
            self._scratch, self._view, self._size = larger, memoryview(larger), size

    def get_buffer(self) -> memoryview:
        """The writable region for the next bytes; never empty."""
        large = self._large
        if large is not None:
            return memoryview(large.buffer)[large.fill :]
        if self._low == self._high:
            self._low = self._high = 0
        elif self._low and self._high == self._size:
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
            return self._received_large(self._large, n)
        self._high += n
        frames: list[Frame] = []
        while self._high - self._low >= PREFIX_BYTES:
            length, version, frame_type, flags, request_id, head_bytes, prefix_crc, crc = (
                PREFIX.unpack_from(self._scratch, self._low)
            )
            if version != VERSION:
                raise _other_version(version)
            if crc32c(self._view[self._low : self._low + _COVERED]) != prefix_crc:
                raise _damaged(frame_type, request_id)
            body_bytes = length - _AFTER_LENGTH
            if body_bytes < 0 or length > self._max:
                raise MessageTooLarge(f"frame of {length} bytes, limit {self._max}")
            if head_bytes > body_bytes:
                raise CorruptFrame(f"frame of {length} bytes declares a head of {head_bytes}")
            start = self._low + PREFIX_BYTES
            have = self._high - start
            if have >= body_bytes:
                if crc32c(self._view[start : start + head_bytes], prefix_crc) != crc:
                    raise _damaged(frame_type, request_id)
                body = bytes(self._view[start : start + body_bytes])
                self._low = start + body_bytes
                frames.append(Frame(frame_type, flags, request_id, body))
            elif PREFIX_BYTES + body_bytes > self._size // 4:
                large = _LargeFrame(frame_type, flags, request_id, body_bytes, head_bytes)
                large.crc = (prefix_crc, crc)
                large.buffer = bytearray(min(body_bytes, max(self._eager, 2 * have)))
                large.buffer[:have] = self._view[start : self._high]
                large.fill = have
                self._large = large
                self._low = self._high = 0
                break
            else:
                break
        if self._high - self._low > _VERSION_AT:
            version = self._scratch[self._low + _VERSION_AT]
            if version != VERSION:  # said at once, even if the rest of the prefix never comes
                raise _other_version(version)
        return frames

    def _received_large(self, large: _LargeFrame, n: int) -> list[Frame]:
        large.fill += n
        if large.fill < len(large.buffer):
            return []
        if large.fill < large.body_bytes:
            larger = bytearray(min(large.body_bytes, 2 * large.fill))
            larger[: large.fill] = large.buffer
            large.buffer = larger
            return []
        self._large = None
        whole = memoryview(large.buffer).toreadonly()
        known, declared = large.crc
        if crc32c(whole[: large.head_bytes], known) != declared:
            raise _damaged(large.type, large.request_id)
        return [Frame(large.type, large.flags, large.request_id, whole)]


def _other_version(version: int) -> UnsupportedVersion:
    return UnsupportedVersion(
        f"frame version {version}, this build speaks {VERSION}",
        hint="run one release on clients, brokers and bookies, and check the port",
    )


def _damaged(frame_type: int, request_id: int) -> CorruptFrame:
    return CorruptFrame(f"frame of type {frame_type}, request {request_id} fails its crc32c")
