"""A log that is written and cleaned over and over, beside what it says by the book (K4, K5, K8).

`CleanedLog` holds stored batches as segments would and runs passes over them. After each it
compares with all records ever written: nothing that counts is gone, nothing that is superseded
stays, offsets and order are as they were, and tombstones stay as long as they must and not much
longer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from octavo.metadata.partition_record import CleanMark
from octavo.proto.batch import BatchHeader, decode_rows, encode, stamp, verify
from octavo.serving.compaction.cleaning import Cleaning, Scope
from octavo.serving.compaction.marks import PARTS, after_pass, tombstones_below

AfterPass = Callable[..., tuple[CleanMark, ...]]
Headers = list[tuple[str, bytes | None]]


class BrokenPromise(AssertionError):
    """The log says what it may not say."""


class Row(NamedTuple):
    """One record as it was written."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers


class CleanedLog:
    """One partition's log and its cleaner."""

    def __init__(
        self,
        seed: int,
        *,
        cleaning: type[Cleaning] = Cleaning,
        marking: AfterPass = after_pass,
        delete_retention_ms: int = 1_000,
    ) -> None:
        self.chance = random.Random(seed)
        self.written: list[Row] = []
        self.batches: list[bytes] = []
        self.places: dict[int, BatchHeader] = {}
        """Of each batch as it was written, by its base offset."""
        self.log_start = 0
        self.cleaned_to = 0
        self.marks: tuple[CleanMark, ...] = ()
        self.now_ms = 0
        self.delete_retention_ms = delete_retention_ms
        self.passes = 0
        self.short_passes = 0
        self._cleaning = cleaning
        self._marking = marking
        self._covered_ms: dict[int, int] = {}
        """When a tombstone was first clean with everything before it, by offset."""

    def write(self) -> None:
        """One batch of a few keys."""
        chance = self.chance
        rows = [self._row() for _ in range(chance.choice((1, 1, 2, 5, 20)))]
        has_headers = chance.random() < 0.3
        made = encode(
            [row.timestamp_ms for row in rows],
            [row.key for row in rows],
            [row.value for row in rows],
            [row.headers for row in rows] if has_headers else None,
            codec=chance.choice((0, 1)),
            producer_id=7,
            producer_epoch=1,
            base_sequence=len(self.written),
        )
        if not has_headers:
            rows = [row._replace(headers=[]) for row in rows]
        base = len(self.written)
        self.batches.append(
            stamp(made, base_offset=base, owner_epoch=3, append_time_ms=self.now_ms)
        )
        self.places[base] = verify(self.batches[-1])
        self.written += rows

    def _row(self) -> Row:
        chance = self.chance
        key = None if chance.random() < 0.1 else b"k%d" % chance.randrange(12)
        value = chance.choice((None, b"", b"v%d" % len(self.written)))
        headers: Headers = (
            [("h", chance.choice((None, b"", b"x")))] if chance.random() < 0.5 else []
        )
        return Row(key, value, chance.randrange(1_000), headers)

    def trim(self) -> None:
        """The log begins somewhere later."""
        self.log_start = self.chance.randrange(self.log_start, len(self.written) + 1)

    def clean(self, memory_bytes: int) -> None:
        """One pass over all that is there, and the comparison."""
        below = tombstones_below(self.marks, self.delete_retention_ms, self.now_ms)
        scope = Scope(self.log_start, self.cleaned_to, len(self.written), below)
        work = self._cleaning(scope, memory_bytes)
        self.passes += 1
        for piece in self._pieces():
            if not work.learn([(one, verify(one)) for one in piece]):
                self.short_passes += 1
                break
        left: list[bytes] = []
        for piece in self._pieces():
            for one in work.clean([(one, verify(one)) for one in piece]):
                left.append(bytes(one.payload))
        self.batches = left
        for offset in range(self.cleaned_to, work.end):
            self._covered_ms[offset] = self.now_ms
        self.cleaned_to = max(self.cleaned_to, work.end)
        self.marks = self._marking(
            self.marks,
            removed_below=below,
            end_offset=work.end,
            retention_ms=self.delete_retention_ms,
            now_ms=self.now_ms,
        )
        self.compare()

    def _pieces(self) -> list[list[bytes]]:
        size = self.chance.choice((1, 3, 50))
        found = self.batches
        return [found[i : i + size] for i in range(0, len(found), size)]

    # --- by the book --------------------------------------------------------------------------

    def compare(self) -> None:
        """Raise BrokenPromise unless the log is what it may be."""
        stored = self._stored()
        _hold(list(stored) == sorted(stored), "offsets ascend")
        for offset, row in stored.items():
            _hold(row == self.written[offset], f"record {offset} is as it was written")
        last: dict[bytes | None, int] = {
            row.key: offset for offset, row in enumerate(self.written) if row.key is not None
        }
        last_clean = {
            row.key: offset
            for offset, row in enumerate(self.written[: self.cleaned_to])
            if row.key is not None
        }
        for offset in range(self.log_start, len(self.written)):
            row = self.written[offset]
            if offset in stored:
                if offset < self.cleaned_to and row.key is not None:
                    _hold(last_clean[row.key] == offset, f"{offset} is superseded and stays")
                    self._check_tombstone_is_due(offset, row)
            else:
                self._check_may_be_gone(offset, row, last)

    def _check_may_be_gone(self, offset: int, row: Row, last: dict[bytes | None, int]) -> None:
        _hold(row.key is not None, f"{offset} has no key, so nothing replaced it")
        _hold(offset < self.cleaned_to, f"{offset} is not clean yet and is gone")
        if last[row.key] == offset:
            _hold(row.value is None, f"{offset} is the last of its key and is gone")
            kept_ms = self.now_ms - self._covered_ms[offset]
            _hold(kept_ms >= self.delete_retention_ms, f"tombstone {offset} went early")

    def _check_tombstone_is_due(self, offset: int, row: Row) -> None:
        limit = self.delete_retention_ms * (1 + 2 / PARTS)
        kept_ms = self.now_ms - self._covered_ms[offset]
        _hold(row.value is not None or kept_ms <= limit, f"tombstone {offset} stays for ever")

    def _stored(self) -> dict[int, Row]:
        found: dict[int, Row] = {}
        end = 0
        for batch in self.batches:
            rows = decode_rows(batch)
            header = rows.header
            _hold(header.base_offset >= end, "places do not overlap")
            end = header.next_offset
            base = max(place for place in self.places if place <= header.base_offset)
            whole = self.places[base]
            _hold(header.next_offset <= whole.next_offset, "a batch stays in its place")
            _hold(
                header[6:8] == whole[6:8] and header.append_time_ms == whole.append_time_ms,
                "producer and append time stay",
            )
            _hold(
                header.base_sequence - whole.base_sequence == header.base_offset - base,
                "sequences stay with their offsets",
            )
            for i, offset in enumerate(rows.offsets):
                headers = list(rows.headers[i]) if rows.headers is not None else []
                row = Row(rows.keys[i], rows.values[i], rows.timestamps_ms[i], headers)
                _hold(row.timestamp_ms <= header.max_timestamp_ms, "no record is newer")
                found[offset] = row
        return {offset: row for offset, row in found.items() if offset >= self.log_start}


def run(log: CleanedLog, steps: int, *, memory: Sequence[int] = (1, 400, 1 << 20)) -> None:
    """A story of writes, pauses, trims and passes."""
    chance = log.chance
    for _ in range(steps):
        what = chance.random()
        if what < 0.6:
            log.write()
        elif what < 0.65:
            log.trim()
        elif what < 0.82:
            log.now_ms += chance.choice((1, 300, 400, 400, 1_500))
        else:
            log.clean(chance.choice(memory))
    log.now_ms += 2 * log.delete_retention_ms
    for _ in range(200):  # until a pass reaches the end, and one more
        log.clean(1 << 20)
        if log.cleaned_to == len(log.written):
            break
    log.clean(1 << 20)


def run_often(log: CleanedLog) -> None:
    """Passes that come much more often than a tombstone may go."""
    for _ in range(20):
        log.write()
        log.now_ms += 150
        log.clean(1 << 20)


def _hold(condition: object, what: str) -> None:
    if not condition:
        raise BrokenPromise(what)
