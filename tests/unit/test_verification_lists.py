"""What a list of segments must agree with, and what the batches of a ledger must (ML-1, INV-13)."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from octavo.client.verification.lists import OffsetRun, judge_list, owner_of
from octavo.client.verification.totals import Finding, Totals, Verdict
from octavo.metadata.ledger_record import LedgerMetadata, LedgerState, Quorum
from octavo.metadata.partition_record import PartitionState
from octavo.proto.segment_entries import encode_mark
from octavo.proto.segments import Segment
from octavo.runtime.ids import EntryId, LedgerId, Member
from tests.segment_world import snapshot, stored_batch

TOPIC_ID = uuid.UUID(int=7)
MEMBERS = tuple(Member(f"b{n}", uuid.UUID(int=n)) for n in range(3))


def ledger(number: int, last: int | None, *, partition: int = 0, **changes: object) -> object:
    record = LedgerMetadata(
        LedgerId(number),
        Quorum(3, 3, 2),
        LedgerState.OPEN if last is None else LedgerState.CLOSED,
        ((EntryId(0), MEMBERS),),
        last_entry=None if last is None else EntryId(last),
        length=None if last is None else 10,
        custom={"topic": "t", "topic_id": TOPIC_ID.hex, "partition": str(partition)},
    )
    return replace(record, **changes)  # type: ignore[arg-type]


def listed(**changes: object) -> PartitionState:
    state = PartitionState(
        TOPIC_ID,
        0,
        (
            Segment(LedgerId(1), 0, 10, last_entry=EntryId(4)),
            Segment(LedgerId(2), 10, 10, last_entry=EntryId(0)),
            Segment(LedgerId(5), 10),
        ),
        max_ledger_id_ever=5,
    )
    return replace(state, **changes)  # type: ignore[arg-type]


def judged(state: PartitionState, **ledgers: object) -> list[str]:
    known = {"1": ledger(1, 4), "2": ledger(2, 0), "5": ledger(5, None), **ledgers}
    return judge_list(state, lambda number: known[str(number)])  # type: ignore[return-value, arg-type]


def test_a_list_and_its_ledgers_that_agree() -> None:
    assert judged(listed()) == []
    assert judged(listed(), **{"5": ledger(5, 3)}) == [], "closed, and the list not told yet"
    assert judged(listed(), **{"1": "cannot be read"}) == [], "told with the ledger"
    assert judged(listed(), **{"1": ledger(1, 4, custom={})}) == [], "of a release before owners"


@pytest.mark.parametrize(
    ("known", "problem"),
    [
        ({"1": None}, "ledger 1 (offsets 0 to 9) does not exist"),
        ({"2": None}, "ledger 2 (no records at offset 10) does not exist"),
        ({"5": None}, "ledger 5 (offsets 10 to) does not exist"),
        ({"1": ledger(1, 3)}, "its last entry is 4 in the list, 3 by its record"),
        ({"2": ledger(2, None)}, "it is closed in the list, and OPEN by its record"),
        ({"5": ledger(5, None, partition=1)}, "it was made for partition 1 of t"),
    ],
)
def test_ml4_what_a_list_and_a_ledger_disagree_about(
    known: dict[str, object], problem: str
) -> None:
    (said,) = judged(listed(), **known)
    assert problem in said


def test_offsets_before_the_first_segment_are_a_gap() -> None:
    late = listed(segments=(Segment(LedgerId(5), 10),), log_start_offset=4)
    assert "offsets 4 to 9 are in no segment" in judged(late)[0]
    assert judged(replace(late, log_start_offset=10)) == []


def test_a_ledger_of_no_topic_has_no_owner() -> None:
    record = ledger(1, 4)
    assert isinstance(record, LedgerMetadata)
    assert owner_of(record) == ("t", TOPIC_ID, 0)
    for custom in ({}, {**record.custom, "topic_id": "x"}, {**record.custom, "partition": ""}):
        assert owner_of(replace(record, custom=custom)) is None


# --- offsets of batches ------------------------------------------------------------------------

SEGMENT = Segment(LedgerId(1), 100, 110, last_entry=EntryId(3))
ENTRIES = (snapshot(100), stored_batch(4, 100), encode_mark(), stored_batch(6, 104))


def run_over(
    entries: tuple[bytes, ...], segment: Segment = SEGMENT, *, without: int | None = None
) -> str:
    run = OffsetRun(segment)
    for entry_id, payload in enumerate(entries):
        if entry_id != without:
            run.entry(entry_id, bytes(payload[:128]))
    return run.problem()


def test_inv13_batches_that_fill_their_segment() -> None:
    assert run_over(ENTRIES) == ""
    assert run_over(ENTRIES[:2], replace(SEGMENT, end_offset=None)) == "", "an open one may grow"


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ((snapshot(100), stored_batch(4, 101)), "entry 1 begins at offset 101, not at 100"),
        ((*ENTRIES[:3], stored_batch(6, 105)), "entry 3 begins at offset 105, not at 104"),
        ((*ENTRIES[:3], stored_batch(6, 103)), "entry 3 begins at offset 103, not at 104"),
        ((*ENTRIES[:3], stored_batch(5, 104)), "its batches end at offset 109, the list says 110"),
        ((*ENTRIES[:3], stored_batch(6, 104)[:40]), "entry 3: batch of 40 bytes"),
    ],
)
def test_inv13_gaps_and_overlaps_are_told(entries: tuple[bytes, ...], problem: str) -> None:
    assert problem in run_over(entries)


def test_an_entry_that_was_not_read_hides_no_offsets_and_accuses_none() -> None:
    assert run_over(ENTRIES, without=1) == ""
    assert run_over((*ENTRIES[:3], stored_batch(6, 105)), without=3) == "", "told as damage"
    beyond = (*ENTRIES[:3], stored_batch(6, 104), stored_batch(1, 120))
    closed = replace(SEGMENT, last_entry=EntryId(4))
    assert "entry 4 begins at offset 120" in run_over(beyond, closed, without=1)


def test_k7_a_compacted_segment_may_skip_offsets_and_not_go_back() -> None:
    compacted = replace(SEGMENT, compacted=True)
    skips = (snapshot(100), stored_batch(4, 101), encode_mark(), stored_batch(2, 107))
    assert run_over(skips, compacted) == ""
    assert "not at" in run_over((*ENTRIES[:3], stored_batch(6, 103)), compacted)
    assert "end at offset 112" in run_over((*ENTRIES[:3], stored_batch(8, 104)), compacted)


def test_a_ledger_that_is_read_again_is_judged_anew() -> None:
    run = OffsetRun(SEGMENT)
    run.entry(0, snapshot(100)[:128])
    run.entry(1, bytes(stored_batch(4, 101)[:128]))
    assert run.problem()
    for entry_id, payload in enumerate(ENTRIES):
        run.entry(entry_id, bytes(payload[:128]))
    assert run.problem() == ""


# --- the sum of it -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdicts", "ended", "said"),
    [
        ((), True, "verify: OK ledgers=0"),
        ((), False, "verify: STOPPED ledgers=0"),
        ((Verdict.ORPHAN,), True, "verify: OK ledgers=0"),
        ((Verdict.UNKNOWN,), True, "verify: UNKNOWN ledgers=0"),
        ((Verdict.UNKNOWN,), False, "verify: STOPPED ledgers=0"),
        ((Verdict.UNKNOWN, Verdict.WRONG), True, "verify: WRONG ledgers=0"),
        ((Verdict.WRONG,), False, "verify: WRONG ledgers=0"),
    ],
)
def test_the_last_line_never_says_ok_of_half(
    verdicts: tuple[Verdict, ...], ended: bool, said: str
) -> None:
    totals = Totals()
    for verdict in verdicts:
        totals.add(Finding("x", verdict, ("y",)))
    totals.ended = ended
    assert totals.line().startswith(said)
    assert totals.line().endswith("stopped=1") == (not ended and Verdict.WRONG in verdicts)
