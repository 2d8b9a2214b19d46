"""What a boot may trust of the journal: a pure judgement over segment bytes (spec/ledger.md §6.8,
B-13..B-16).

Owns the difference between a torn tail (never acknowledged, cut) and corruption of something that
was durable (uncertain boot, B-23). It reads bytes through a callable and changes nothing;
`octavo.bookie.boot` applies the records it approves.
"""

from __future__ import annotations

import itertools
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
from octavo.runtime.errors import CorruptEntry, UnsupportedVersion

Load = Callable[[int], bytes]


class Span(NamedTuple):
    """Batches of one segment to replay, in order."""

    segment: int
    batches: list[BatchInfo]


class Verdict(NamedTuple):
    """What replay found."""

    spans: list[Span]
    end: Position
    """Durable end of the stream: goes into the header of the next segment."""
    problems: list[str]
    """Not empty: the history is in doubt (B-23); nothing may be served under the present
    incarnation."""
    open_ends: list[Position]
    """Ends of segments a crash left without footer; what follows was never acknowledged (B-16)."""


def judge(
    mark: Position,
    numbers: Sequence[int],
    load: Load,
    instance_id: uuid.UUID,
    *,
    salvage: bool = False,
) -> Verdict:
    """Walk the segments from the durable mark on and decide what holds.

    Args:
        mark: position up to which the index is complete (B-10).
        numbers: segment numbers present on disk, ascending.
        load: whole bytes of a segment.
        instance_id: the cluster; a segment of another one is refused.
        salvage: also take valid batches found behind damage (B-25: under a new incarnation only).
    """
    scans: list[SegmentScan] = []
    problems: list[str] = []
    for number in numbers:
        if number < mark.segment:
            continue
        start = mark.offset if number == mark.segment else HEADER_BYTES
        scan = _scan(number, start, load, problems)
        if scan is None:
            continue
        if scan.header.number != number or scan.header.instance_id != instance_id:
            problems.append(f"segment {number} belongs to another place or cluster")
            continue
        scans.append(scan)
    _check_chain(mark, scans, problems)
    open_ends = [
        Position(scan.header.number, scan.end)
        for scan in scans
        if not scan.sealed and scan.end >= _required_end(mark, scans, scan)
    ]
    spans = [Span(s.header.number, s.batches + s.beyond if salvage else s.batches) for s in scans]
    end = Position(scans[-1].header.number, scans[-1].end) if scans else mark
    return Verdict(spans, end, problems, open_ends)


def _scan(number: int, start: int, load: Load, problems: list[str]) -> SegmentScan | None:
    try:
        data = load(number)
    except OSError as error:
        problems.append(f"segment {number} cannot be read: {error}")
        return None
    try:
        return scan_segment(data, start)
    except UnsupportedVersion as error:
        problems.append(f"segment {number}: {error.cause}")
    except CorruptEntry:
        # A creation cut short by a crash leaves no byte behind the header: nothing was stored in
        # it.
        if data[HEADER_BYTES:].strip(b"\0"):
            problems.append(f"segment {number} has a damaged header in front of data")
    return None


def _check_chain(mark: Position, scans: list[SegmentScan], problems: list[str]) -> None:
    first = scans[0].header if scans else None
    if mark != START and (first is None or first.number != mark.segment):
        problems.append(f"segment {mark.segment} of the durable mark is missing")
    elif mark == START and first is not None and first.durable_up_to != START:
        problems.append(f"segments before {first.number} are missing")
    for before, after in itertools.pairwise(scans):
        if after.header.durable_up_to.segment != before.header.number:
            problems.append(
                f"segment {after.header.number} follows {after.header.durable_up_to.segment}, "
                f"but {before.header.number} is what is here"
            )
    for scan in scans:
        required = _required_end(mark, scans, scan)
        if scan.end < required:
            problems.append(
                f"segment {scan.header.number} is damaged at {scan.end}: "
                f"bytes up to {required} were durable"
            )


def _required_end(mark: Position, scans: list[SegmentScan], scan: SegmentScan) -> int:
    """The offset up to which `scan` is proven durable by anything valid in this journal (B-15)."""
    number = scan.header.number
    proofs = [scan.proven_end]
    if number == mark.segment:
        proofs.append(mark.offset)
    proofs += [
        other.header.durable_up_to.offset
        for other in scans
        if other.header.durable_up_to.segment == number
    ]
    return max(proofs)


def span_records(span: Span, data: bytes) -> Iterator[tuple[BatchInfo, list[Record]]]:
    """The records of a span, batch by batch."""
    for batch in span.batches:
        yield batch, list(batch_records(data, batch))
