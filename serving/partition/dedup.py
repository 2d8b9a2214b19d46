"""The ids of records that a partition keeps once (X14, ADR 58). Pure.

An id counts for `window_ms` after the append of the record that brought it. Decisions are made
against durable and pending ids together; an id becomes durable with its record (I3), and is
forgotten with a record that was not written. The window is part of the recovered state: snapshots
hold it, and what follows the newest snapshot is read from the batches themselves. Bounded: a full
window refuses, it never forgets an id early. Time comes in as a value.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from octavo.proto.dedup_ids import DIGEST_BYTES
from octavo.proto.segment_entries import DEDUP_ITEM_BYTES
from octavo.runtime.invariant import invariant
from octavo.serving.dedup_rule import IDS_MAX, DedupRule

T = TypeVar("T")

_ITEM = struct.Struct(f"<{DIGEST_BYTES}sqq")
invariant(_ITEM.size == DEDUP_ITEM_BYTES, "an id as it lies in a snapshot")


class Seen(Enum):
    """What is known of an id."""

    NEW = "new"
    """Append the record."""
    PENDING = "pending"
    """Its record is on its way: the answer is the same."""
    STORED = "stored"
    FULL = "full"
    """It would be one id too many."""


class Verdict(NamedTuple, Generic[T]):
    """What to do with a record."""

    seen: Seen
    pending: T | None = None
    offset: int = -1
    """STORED: of the record that brought the id."""
    append_time_ms: int = -1
    room_in_ms: int = 0
    """FULL: until the oldest id counts no longer; 0: not known, it is pending."""


class _Pending(NamedTuple, Generic[T]):
    token: T
    packed: bytes


class DedupWindow(Generic[T]):
    """Of one partition. T is what the caller attaches to a pending append."""

    def __init__(self, rule: DedupRule) -> None:
        self.rule = rule
        """May be replaced; ids that are too old by it are forgotten at the next look."""
        self._stored: OrderedDict[bytes, bytes] = OrderedDict()
        """By digest, as a snapshot has it; oldest append first."""
        self._pending: dict[bytes, _Pending[T]] = {}
        """In append order."""

    def __len__(self) -> int:
        return len(self._stored) + len(self._pending)

    def decide(self, digest: bytes, now_ms: int) -> Verdict[T]:
        """What to do with a record of this id; forgets what is too old."""
        waiting = self._pending.get(digest)
        if waiting is not None:
            return Verdict(Seen.PENDING, waiting.token)
        self.expire(now_ms)
        stored = self._stored.get(digest)
        if stored is not None:
            _, offset, append_time_ms = _ITEM.unpack(stored)
            return Verdict(Seen.STORED, offset=offset, append_time_ms=append_time_ms)
        if len(self) >= self.rule.ids_max:
            return Verdict(Seen.FULL, room_in_ms=self._room_in_ms(now_ms))
        return Verdict(Seen.NEW)

    def _room_in_ms(self, now_ms: int) -> int:
        for packed in self._stored.values():
            return max(_time_of(packed) + self.rule.window_ms - now_ms, 0)
        return 0

    def begin(self, digest: bytes, offset: int, append_time_ms: int, token: T) -> None:
        """Its record was given an offset; the id counts from now on, not yet as durable."""
        invariant(digest not in self._pending, "an id is pending once")
        self._pending[digest] = _Pending(token, _ITEM.pack(digest, offset, append_time_ms))

    def confirm(self, digest: bytes) -> None:
        """Its record is durable (I3)."""
        self._put(digest, self._pending.pop(digest).packed)

    def fail(self, digest: bytes) -> None:
        """Its record was not written, or nobody here knows: the id is new again."""
        del self._pending[digest]

    def replay(self, digest: bytes, offset: int, append_time_ms: int) -> None:
        """Take over a stored record at load; nothing is judged again (I9).

        What was too old when it was appended goes. Ids beyond IDS_MAX can only be such as counted
        no longer, by a rule that the topic had before: the oldest ones.
        """
        self.expire(append_time_ms)
        self._put(digest, _ITEM.pack(digest, offset, append_time_ms))
        if len(self._stored) > IDS_MAX:
            self._stored.popitem(last=False)

    def _put(self, digest: bytes, packed: bytes) -> None:
        self._stored.pop(digest, None)  # of a record whose time is over
        self._stored[digest] = packed

    def packed(self, counts: Callable[[T], bool]) -> bytes:
        """All ids for a snapshot, as if the pending ones whose token `counts` were durable."""
        pending = [one.packed for one in self._pending.values() if counts(one.token)]
        return b"".join([*self._stored.values(), *pending])

    def restore(self, packed: bytes) -> None:
        """Forget everything and take over the ids of a snapshot, however many they are."""
        self._stored.clear()
        self._pending.clear()
        for at in range(0, len(packed), DEDUP_ITEM_BYTES):
            item = packed[at : at + DEDUP_ITEM_BYTES]
            self._put(item[:DIGEST_BYTES], item)

    def expire(self, now_ms: int) -> int:
        """Forget the ids whose time is over; returns how many.

        Append times never go back in a partition, so the look ends at the first that counts.
        """
        before = len(self._stored)
        while self._stored:
            digest, packed = next(iter(self._stored.items()))
            if now_ms - _time_of(packed) < self.rule.window_ms:
                break
            del self._stored[digest]
        return before - len(self._stored)


def _time_of(packed: bytes) -> int:
    return int.from_bytes(packed[-8:], "little", signed=True)
