"""What a boot may trust of the journal: a pure judgement over segment bytes (B-13..B-16, ADR 14).

Owns the difference between a torn tail (never acknowledged, cut) and corruption of something that
was durable (uncertain boot, B-23), and the border between what is proven durable and what a boot
only happens to see (page cache) and must write again before it counts. It reads bytes through a
callable and changes nothing; `octavo.bookie.boot` applies what it approves.

The log is a chain, followed from the newest segment down: each header names the position from
which its segment goes on. Segments, and ends of segments, that the chain leaves out were superseded
by the boot that created their successor, which copied what was in them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from octavo.bookie.journal.segment import (
    HEADER_BYTES,
    START,
    BatchInfo,
    Position,
    Record,
    SegmentScan,
    batch_records,
    scan_segment,
)
from octavo.runtime.errors import CorruptEntry

Load = Callable[[int], bytes]


class Evidence(NamedTuple):
    """A proof that the log was durable up to a position, kept outside of the segments."""

    position: Position
    source: str
    """Where it was found, for people."""


class Span(NamedTuple):
    """Batches of one segment to replay, in order."""

    segment: int
    batches: list[BatchInfo]


class Verdict(NamedTuple):
    """What replay found."""

    spans: list[Span]
    """Proven durable: may be applied where they lie."""
    tail: list[Span]
    """Valid, but proven by nothing: must be written again and synced before any of it counts."""
    durable: Position
    """Proven durable end of the log: goes into the header of the next segment."""
    problems: list[str]
    """Not empty: the history is in doubt (B-23); nothing may be served under the present
    incarnation.
    """
    open_ends: list[Position]
    """Ends of segments a crash left without footer; what follows was never acknowledged (B-16)."""


def judge(
    mark: Position,
    numbers: Sequence[int],
    load: Load,
    instance_id: uuid.UUID,
    *,
    evidence: Sequence[Evidence] = (),
    salvage: bool = False,
) -> Verdict:
    """Walk the segments from the durable mark on and decide what holds.

    Raises UnsupportedVersion for a segment of another format.

    Args:
        mark: position up to which the index is complete (B-10).
        numbers: segment numbers present on disk, ascending.
        load: whole bytes of a segment.
        instance_id: the cluster; a segment of another one is refused.
        evidence: positions known to be durable from outside the segments.
        salvage: also take valid batches found behind damage (B-25: under a new incarnation only).
    """
    return _Judge(mark, load, instance_id, evidence).judge(numbers, salvage=salvage)


class _Judge:
    """The state of one judgement."""

    def __init__(
        self,
        mark: Position,
        load: Load,
        instance_id: uuid.UUID,
        evidence: Sequence[Evidence],
    ) -> None:
        self._mark = mark
        self._load = load
        self._instance_id = instance_id
        self._evidence = [*evidence, Evidence(mark, "the index")]
        self._problems: list[str] = []
        self._scans: dict[int, SegmentScan] = {}
        self._broken: dict[int, str] = {}
        """Segments without a usable header, and what is wrong with them."""

    def judge(self, numbers: Sequence[int], *, salvage: bool) -> Verdict:
        for number in numbers:
            if number >= self._mark.segment:
                self._scan(number)
        chain = self._chain()
        self._check_bottom(chain)
        self._check_evidence(chain)
        for index, scan in enumerate(chain):
            proof = self._proof(scan, chain[index + 1] if index + 1 < len(chain) else None)
            if scan.end < proof.position.offset:
                self._problems.append(
                    f"segment {scan.number} is damaged at {scan.end}: "
                    f"{proof.source} says that bytes up to {proof.position.offset} were durable"
                )
        durable = self._durable(chain)
        spans, tail = self._salvage() if salvage else self._spans(chain, durable)
        open_ends = [
            Position(scan.number, scan.end)
            for scan in self._scans.values()
            if not scan.sealed and not self._problems
        ]
        return Verdict(spans, tail, durable, self._problems, open_ends)

    def _scan(self, number: int) -> None:
        start = self._mark.offset if number == self._mark.segment else HEADER_BYTES
        try:
            data = self._load(number)
        except OSError as error:
            self._broken[number] = f"cannot be read: {error}"
            return
        try:
            scan = scan_segment(data, start)
        except CorruptEntry:
            # A creation cut short by a crash leaves no byte behind the header: nothing was stored
            # in it. The header is synced before anything is written behind it.
            has_data = bool(data[HEADER_BYTES:].strip(b"\0"))
            self._broken[number] = "has a damaged header in front of data" if has_data else ""
            return
        if scan.number != number or scan.header.instance_id != self._instance_id:
            self._broken[number] = "belongs to another place or cluster"
            return
        self._scans[number] = scan

    def _chain(self) -> list[SegmentScan]:
        """The segments of the log, oldest first; everything found but left out is superseded."""
        chain: list[SegmentScan] = []
        for number in sorted({*self._scans, *self._broken}, reverse=True):
            scan = self._scans.get(number)
            if chain:
                before = chain[-1].header.durable_up_to.segment
                if number > before:
                    continue
                if number < before:
                    self._problems.append(
                        f"segment {chain[-1].number} follows {before}, but {number} is what is here"
                    )
            if scan is None:
                what = self._broken[number]
                if what or chain or self._knows(number):
                    self._problems.append(f"segment {number} {what or 'has no valid header'}")
            elif chain or scan.established or scan.proven_end or self._knows(number):
                chain.append(scan)
        return chain[::-1]

    def _knows(self, number: int) -> bool:
        """Some evidence says that this segment was created durably."""
        return any(proof.position.segment == number for proof in self._evidence)

    def _check_bottom(self, chain: list[SegmentScan]) -> None:
        mark = self._mark
        if mark != START and (not chain or chain[0].number != mark.segment):
            self._problems.append(f"segment {mark.segment} of the durable mark is missing")
        elif mark == START and chain and chain[0].header.durable_up_to != START:
            self._problems.append(f"segments before {chain[0].number} are missing")

    def _check_evidence(self, chain: list[SegmentScan]) -> None:
        """What is proven from outside must be on the chain."""
        members = {scan.number for scan in chain}
        for position, source in self._evidence:
            if position.segment in members or position.segment < self._mark.segment:
                continue
            later = next((scan for scan in chain if scan.number > position.segment), None)
            if position != START and (later is None or position > later.header.durable_up_to):
                self._problems.append(
                    f"segment {position.segment} is missing or unusable: "
                    f"{source} proves it durable up to {position.offset}"
                )

    def _proof(self, scan: SegmentScan, successor: SegmentScan | None = None) -> Evidence:
        """How far `scan` is proven durable by anything valid, and by what (B-15)."""
        proofs = [
            Evidence(Position(scan.number, scan.proven_end), "the segment itself"),
            *self._outside(scan),
        ]
        if successor is not None and successor.header.durable_up_to.segment == scan.number:
            source = f"the header of segment {successor.number}"
            proofs.append(Evidence(successor.header.durable_up_to, source))
        return max(proofs)

    def _outside(self, scan: SegmentScan) -> list[Evidence]:
        """Outside evidence about `scan`; it is written when what was carried over is durable."""
        floor = Position(scan.number, scan.header.carried_end)
        return [
            Evidence(max(position, floor), source)
            for position, source in self._evidence
            if position.segment == scan.number
        ]

    def _durable(self, chain: list[SegmentScan]) -> Position:
        """The proven durable end.

        Each proof was written after the sync it speaks of, so it is true even if nobody knows that
        the proof itself is durable.
        """
        if not chain:
            return self._mark
        newest = chain[-1]
        own = min(self._proof(newest).position.offset, newest.end)
        if own >= newest.header.carried_end and (own > HEADER_BYTES or self._outside(newest)):
            return Position(newest.number, own)
        return newest.header.durable_up_to

    def _spans(self, chain: list[SegmentScan], durable: Position) -> tuple[list[Span], list[Span]]:
        """What is proven, and what is not; the latter lies at the end of the newest segment."""
        spans: list[Span] = []
        tail: list[Span] = []
        for index, scan in enumerate(chain):
            batches = scan.batches
            if index + 1 < len(chain):
                limit = chain[index + 1].header.durable_up_to.offset
                batches = [batch for batch in batches if batch.end <= limit]
            sure = [b for b in batches if Position(scan.number, b.end) <= durable]
            spans.append(Span(scan.number, sure))
            tail.append(Span(scan.number, _with_records(batches[len(sure) :])))
        return spans, [span for span in tail if span.batches]

    def _salvage(self) -> tuple[list[Span], list[Span]]:
        """B-25: every valid batch of every segment, also behind damage and off the chain."""
        spans: list[Span] = []
        tail: list[Span] = []
        claims = [scan.header.durable_up_to for scan in self._scans.values()]
        for number, scan in sorted(self._scans.items()):
            own = [claim.offset for claim in claims if claim.segment == number]
            proven = max(self._proof(scan).position.offset, *own, 0)
            batches = scan.batches + scan.beyond
            spans.append(Span(number, [b for b in batches if b.end <= proven]))
            tail.append(Span(number, _with_records([b for b in batches if b.end > proven])))
        return spans, [span for span in tail if span.batches]


def _with_records(batches: list[BatchInfo]) -> list[BatchInfo]:
    """Without idle marks: they only prove what is before them."""
    return [batch for batch in batches if batch.record_count]


def span_records(span: Span, data: bytes) -> Iterator[tuple[BatchInfo, list[Record]]]:
    """The records of a span, batch by batch."""
    for batch in span.batches:
        yield batch, list(batch_records(data, batch))
