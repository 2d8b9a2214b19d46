"""Reading every copy of a ledger's entries and comparing them with each other (E-1, E-2, INV-5).

Copies are compared by their headers, whose checksum covers the payload; the digest of each copy was
verified when it was read. A few entries of all copies are held at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from octavo.client.autorecovery.found import Findings
from octavo.client.autorecovery.pace import Pace
from octavo.client.autorecovery.slots import Run, Slot, stored_runs, without
from octavo.client.ledger.calls import BookieCalls
from octavo.metadata.ledger_record import LedgerMetadata
from octavo.proto.bookie_wire import MAX_ENTRIES_PER_FRAME, ReadRequest, Status
from octavo.proto.entry import HEADER_BYTES, decode_header
from octavo.runtime.checksum import Buffer

WINDOW_ENTRIES = min(64, MAX_ENTRIES_PER_FRAME)
"""Entries of which all copies are compared together."""
READ_MAX_BYTES = 1 << 20
_MISSING = (Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER)

PREFIX_BYTES = 128
"""Of a payload that is kept of each copy."""

OnEntry = Callable[[int, bytes], None]
"""Told each entry that some copy of is intact, in order: its id and how its payload begins."""


class _Copy(NamedTuple):
    """What is kept of an intact copy."""

    head: bytes
    """Its header."""
    begins: bytes
    """`PREFIX_BYTES` of its payload."""
    payload_bytes: int


class _Read(NamedTuple):
    """What one place of an ensemble gave of a window."""

    copies: dict[int, _Copy]
    """Intact."""
    missing: list[int]
    damaged: list[int]
    unread: list[tuple[int, int, str]]
    """First entry, how many, why."""


class Comparison:
    """One reading of one ledger."""

    def __init__(
        self,
        record: LedgerMetadata,
        calls: BookieCalls,
        found: Findings,
        *,
        pace: Pace,
        timeout_s: float,
        on_entry: OnEntry | None,
    ) -> None:
        self._record = record
        self._calls = calls
        self._found = found
        self._pace = pace
        self._timeout_s = timeout_s
        self._on_entry = on_entry
        self._next = 0
        self._length: int | None = 0
        """Of the entry before `_next` (E-1); None: it was not seen."""

    async def run(self, slots: Sequence[Slot], gaps: Mapping[Slot, Sequence[Run]]) -> None:
        """Read what these places hold; `gaps`: what they are known to lack, told already."""
        for start in sorted({slot.start for slot in slots}):
            fragment = [slot for slot in slots if slot.start == start]
            first, end = fragment[0].first, fragment[0].last
            while first <= end:
                window = (first, min(end, first + WINDOW_ENTRIES - 1))
                await self._window(fragment, gaps, window)
                first = window[1] + 1
        self._check_end()

    async def _window(
        self, slots: list[Slot], gaps: Mapping[Slot, Sequence[Run]], window: Run
    ) -> None:
        read = await asyncio.gather(
            *(self._read(slot, _wanted(self._record, slot, window, gaps)) for slot in slots)
        )
        kinds: dict[int, dict[_Copy, list[str]]] = {}
        for slot, one in zip(slots, read, strict=True):
            name = slot.member.bookie_id
            self._tell(name, one)
            for entry, copy in one.copies.items():
                kinds.setdefault(entry, {}).setdefault(copy, []).append(name)
        for entry in sorted(kinds):
            self._compare(entry, kinds[entry])
            self._follow(entry, max(kinds[entry].items(), key=lambda kind: len(kind[1]))[0])

    def _tell(self, name: str, one: _Read) -> None:
        for entry in one.missing:
            self._found.missing(f"{name}: entry {entry} cannot be read: NO_SUCH_ENTRY", 1)
        for entry in one.damaged:
            self._found.damaged(f"{name}: entry {entry} cannot be read: EIO")
        for entry, count, why in one.unread:
            self._found.not_known(f"{name}: entry {entry}: {why}", count)

    def _compare(self, entry: int, kinds: dict[_Copy, list[str]]) -> None:
        if len(kinds) < 2:
            return
        alike = sorted(", ".join(sorted(names)) for names in kinds.values())
        fewer = sum(map(len, kinds.values())) - max(map(len, kinds.values()))
        self._found.damaged(f"entry {entry} differs: {' | '.join(alike)} (INV-5)", fewer)

    def _follow(self, entry: int, copy: _Copy) -> None:
        """E-1 and E-3 of one entry, behind the one before it."""
        header = decode_header(copy.head)
        before = self._length if entry == self._next else None
        if before is not None and header.length != before + copy.payload_bytes:
            self._found.damaged(
                f"entry {entry} says that the ledger has {header.length} bytes, "
                f"with it they are {before + copy.payload_bytes} (E-1)"
            )
        if header.lac >= entry:
            self._found.damaged(f"entry {entry} says that {header.lac} was acknowledged (E-3)")
        self._next, self._length = entry + 1, header.length
        if self._on_entry is not None:
            self._on_entry(entry, copy.begins)

    def _check_end(self) -> None:
        record = self._record
        if record.last_entry is None or not record.closed_for_good:
            return
        if self._next == record.last_entry + 1 and self._length not in (None, record.length):
            self._found.damaged(
                f"its record says {record.length} bytes, its last entry {self._length} (E-1)"
            )

    async def _read(self, slot: Slot, runs: Sequence[Run]) -> _Read:
        one = _Read({}, [], [], [])
        for first, last in runs:
            at = first
            while at <= last:
                request = ReadRequest(
                    slot.member.incarnation.bytes,
                    self._record.ledger_id,
                    at,
                    last - at + 1,
                    READ_MAX_BYTES,
                )
                reply = await self._calls.read(
                    request, slot.member, recovery=False, timeout_s=self._timeout_s
                )
                nbytes = sum(map(len, reply.entries))
                self._found.looked(read_bytes=nbytes)
                await self._pace.spend(nbytes)
                one.copies.update((at + i, _kept(e)) for i, e in enumerate(reply.entries))
                at += len(reply.entries)
                if reply.entries:
                    continue
                status = Status(reply.status)
                if status in _MISSING:
                    one.missing.append(at)
                elif status is Status.EIO:
                    one.damaged.append(at)
                else:  # it does not tell now: it is not asked about the rest of the window
                    left = last - at + 1 + sum(b - a + 1 for a, b in runs if a > last)
                    one.unread.append((at, left, status.name))
                    return one
                at += 1
        return one


def _kept(entry: Buffer) -> _Copy:
    view = memoryview(entry)
    payload = view[HEADER_BYTES:]
    return _Copy(bytes(view[:HEADER_BYTES]), bytes(payload[:PREFIX_BYTES]), len(payload))


def _wanted(
    record: LedgerMetadata, slot: Slot, window: Run, gaps: Mapping[Slot, Sequence[Run]]
) -> list[Run]:
    """What `slot` should hold of `window`, without what it is known to lack."""
    return without(stored_runs(record.quorum, slot.number, *window), gaps.get(slot, ()))
