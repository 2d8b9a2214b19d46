"""Decisions about adds, fences and LACs without any I/O (spec/ledger.md §6.3, §6.6, §6.12)."""

from __future__ import annotations

import asyncio

import pytest

from octavo.bookie.admission import Admission, judge_admission
from octavo.bookie.config import BookieConfig
from octavo.bookie.ledgers import Fence, Ledger, LedgerTable, Verdict, judge_add, plan_adds
from octavo.bookie.space import SpaceGauge
from octavo.bookie.storage.index import LedgerState
from octavo.metadata.ledgers import LedgerMetadata, Quorum
from octavo.metadata.ledgers import LedgerState as State
from octavo.proto.bookie_wire import Status
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.errors import ConfigError
from octavo.runtime.ids import EntryId, LedgerId, Member
from tests.bookie_rig import entry

TAG = 77


def ledger(ledger_id: int = 1, *, admitted: bool = True, last: int = -1) -> Ledger:
    state = LedgerState(admitted_tag=TAG if admitted else 0, last_entry=last)
    return Ledger(ledger_id, state, TAG)


def test_new_entries_of_an_admitted_ledger_are_taken_at_once() -> None:
    known = ledger()
    plan = plan_adds({1: known}, [entry(1, 0), entry(1, 1)], recovery=False)
    assert plan.accepted == [entry(1, 0), entry(1, 1)]
    assert [head[1] for head in plan.heads] == [0, 1]
    assert not plan.refused
    assert not plan.undecided
    assert known.pending == {0: entry(1, 0), 1: entry(1, 1)}
    assert (known.last_entry, known.lac) == (1, 0)
    known.validate()


def test_b1_every_flipped_byte_is_bad_digest() -> None:
    good = entry(1, 0, b"payload")
    for offset in range(len(good)):
        bad = bytearray(good)
        bad[offset] ^= 4
        known = ledger()
        plan = plan_adds({1: known}, [bytes(bad)], recovery=False)
        assert plan.refused == [(0, Status.BAD_DIGEST)]
        assert not known.pending
    assert plan_adds({}, [b"short"], recovery=False).refused == [(0, Status.BAD_DIGEST)]


@pytest.mark.parametrize("recovery", [False, True])
def test_unknown_unadmitted_old_or_odd_entries_are_undecided(recovery: bool) -> None:
    open_ledger = ledger(2, last=5)
    open_ledger.exists = True
    table = {1: ledger(1, admitted=False), 2: open_ledger}
    entries = [entry(9, 0), entry(1, 0), entry(2, 5), entry(2, 6, lac=6), entry(2, 6)]
    plan = plan_adds(table, entries, recovery=recovery)
    assert plan.undecided == [0, 1, 2, 3]
    assert plan.accepted == [entry(2, 6)]


def test_b2_fenced_ledgers_take_recovery_adds_only() -> None:
    known = ledger()
    known.exists = True
    assert known.accept_fence()
    ordinary = plan_adds({1: known}, [entry(1, 0)], recovery=False)
    assert ordinary.undecided == [0]
    verdict = judge_add(known, 0, entry(1, 0), recovery=False, absent_in_index=True)
    assert verdict is Verdict.FENCED
    assert plan_adds({1: known}, [entry(1, 0)], recovery=True).accepted


def test_b3_duplicates_and_conflicts() -> None:
    known = ledger()
    plan_adds({1: known}, [entry(1, 4)], recovery=False)

    def verdict(entry_id: int, data: bytes, absent: bool = False) -> Verdict:
        return judge_add(known, entry_id, data, recovery=False, absent_in_index=absent)

    assert verdict(4, entry(1, 4)) is Verdict.DUPLICATE
    assert verdict(4, entry(1, 4, b"other")) is Verdict.CONFLICT
    assert verdict(2, entry(1, 2)) is Verdict.LOOK_UP
    assert verdict(2, entry(1, 2), absent=True) is Verdict.ACCEPT
    assert verdict(5, entry(1, 5)) is Verdict.ACCEPT


def test_h2_fence_state_goes_through_accepted_to_durable() -> None:
    known = ledger()
    assert known.accept_fence()
    assert not known.accept_fence()
    assert (known.fence, known.idle) == (Fence.ACCEPTED, False)
    known.settle_fence(Status.OK)
    assert (known.fence, known.idle) == (Fence.DURABLE, True)
    assert not known.accept_fence()
    assert known.idle
    known.validate()


def test_a_fence_that_could_not_be_stored_still_refuses_and_is_tried_again() -> None:
    known = ledger()
    known.accept_fence()
    known.settle_fence(Status.DISK_FULL)
    assert known.fenced
    assert not known.accepting
    assert not known.idle
    assert known.accept_fence()


def test_b34_admission_of_an_older_incarnation_does_not_count() -> None:
    state = LedgerState(admitted_tag=TAG, last_entry=3, header_lac=2)
    assert Ledger(1, state, TAG).accepting
    assert not Ledger(1, state, TAG + 2).accepting
    assert Ledger(1, state._replace(fenced=True), TAG).fence is Fence.DURABLE
    assert not Ledger(1, state._replace(fenced=True), TAG).accepting


async def test_rd7_pollers_wake_when_their_condition_holds() -> None:
    known = ledger()
    loop = asyncio.get_running_loop()
    low: asyncio.Future[None] = loop.create_future()
    high: asyncio.Future[None] = loop.create_future()
    known.pollers = [(0, low), (5, high)]
    known.raise_lac(3)
    assert low.done()
    assert not high.done()
    known.raise_lac(2)
    assert known.lac == 3, "RD-5: it never goes down"
    known.accept_fence()
    assert high.done()


def test_b1_objects_in_use_are_not_evicted() -> None:
    table = LedgerTable(10, TAG)
    for ledger_id in range(10):
        table.install(ledger_id, None)
    busy = table.by_id[0]
    busy.pins = 1
    for ledger_id in range(10, 30):
        table.install(ledger_id, None)
    assert table.by_id[0] is busy
    assert len(table.by_id) <= 11
    assert table.install(0, None) is busy, "H11: never two objects for one ledger"


ME = Member("b1", SeededEntropy(1).uuid())
OTHER = Member("b2", SeededEntropy(2).uuid())
REBORN = Member("b1", SeededEntropy(3).uuid())


def record(*members: Member) -> LedgerMetadata:
    return LedgerMetadata(
        LedgerId(1), Quorum(len(members), len(members), 1), State.OPEN, ((EntryId(0), members),)
    )


def test_b31_admission_of_ordinary_adds() -> None:
    def judge(metadata: LedgerMetadata | None, me: Member = ME) -> Admission:
        return judge_admission(metadata, me, recovery=False)

    assert judge(record(ME, OTHER)) is Admission.ADMITTED
    assert judge(record(OTHER)) is Admission.REFUSED
    assert judge(record(ME), REBORN) is Admission.REFUSED, "another incarnation is another member"
    assert judge(record(ME).in_recovery()) is Admission.OVER
    assert judge(record(ME).closed(EntryId(-1), 0)) is Admission.OVER
    assert judge(None) is Admission.OVER
    moved = record(ME).with_ensemble_change(EntryId(3), (OTHER,))
    assert judge(moved) is Admission.REFUSED, "only the last ensemble counts"


def test_b32_recovery_adds_need_only_existence() -> None:
    for metadata in (record(OTHER), record(ME).in_recovery(), record(ME).closed(EntryId(-1), 0)):
        assert judge_admission(metadata, ME, recovery=True) is Admission.ADMITTED
    assert judge_admission(None, ME, recovery=True) is Admission.OVER


def config(**settings: object) -> BookieConfig:
    return BookieConfig.load(bookie_id="b1", data_dir="d", **settings)


def test_read_only_with_hysteresis() -> None:
    """6.13: read-only at 95 %, writable again only below 93 %."""
    gauge = SpaceGauge(config(segment_bytes=4096))
    for used, writable in ((0.5, True), (0.949, True), (0.95, False), (0.94, False), (0.92, True)):
        gauge.data.observe(int(1_000_000_000 * (1 - used)), 1_000_000_000)
        assert gauge.writable is writable, used


def test_reserve_in_segments() -> None:
    gauge = SpaceGauge(config(segment_bytes=1 << 20))
    total = 100 << 20
    gauge.data.observe(50 << 20, total)
    assert gauge.writable
    small = SpaceGauge(config(segment_bytes=32 << 20))
    small.data.observe(50 << 20, total)
    assert not small.writable
    assert small.recovery_allowed
    small.data.observe(33 << 20, total)
    assert not small.recovery_allowed


def test_enospc_is_believed_until_measured_otherwise() -> None:
    gauge = SpaceGauge(config(segment_bytes=4096))
    gauge.allocation_failed()
    assert not gauge.writable
    gauge.data.observe(90, 100)
    assert not gauge.writable, "below the reserve"
    gauge.data.observe(900_000, 1_000_000)
    assert gauge.writable


def test_b9_a_sync_that_hangs_makes_read_only() -> None:
    gauge = SpaceGauge(config())
    gauge.observe_sync(29.0)
    assert gauge.writable
    gauge.observe_sync(30.0)
    assert not gauge.writable
    gauge.observe_sync(None)
    assert gauge.writable


def test_config_is_checked() -> None:
    with pytest.raises(ConfigError, match="bookie_id"):
        BookieConfig.load(bookie_id="a/b", data_dir="d")
    with pytest.raises(ConfigError, match="disk_writable_ratio"):
        config(disk_writable_ratio=0.94)
    with pytest.raises(ConfigError, match="unknown setting 'segment_byte'"):
        config(segment_byte=1)
