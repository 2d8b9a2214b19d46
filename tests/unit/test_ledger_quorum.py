"""QuorumCore, one rule at a time (spec/ledger.md §3)."""

from __future__ import annotations

import uuid

import pytest

from octavo.client.ledger.quorum import QuorumCore
from octavo.client.ledger.quorum_actions import (
    ChooseReplacements,
    CommitEnsemble,
    HandleState,
    QuorumLimits,
    Resend,
    RetrySlot,
    Stopped,
    StopReason,
    WriteLac,
)
from octavo.client.ledger.quorum_slots import ChangeBudget
from octavo.metadata.ledger_record import Quorum
from octavo.proto.bookie_wire import Status
from octavo.runtime.errors import InvariantViolation
from octavo.runtime.ids import EntryId, Member

Q332 = Quorum(3, 3, 2)
LIMITS = QuorumLimits(stop_grace_s=0.0)


def member(name: str) -> Member:
    return Member(name, uuid.uuid5(uuid.NAMESPACE_DNS, name))


A, B, C, D, E = (member(name) for name in "abcde")


def core_of(quorum: Quorum = Q332, limits: QuorumLimits = LIMITS) -> QuorumCore:
    members = [A, B, C, D, E][: quorum.ensemble]
    return QuorumCore(quorum, members, now=0.0, limits=limits)


def resend(core: QuorumCore, slot: int, first: int, last: int) -> Resend:
    return Resend(slot, core.slots.generation(slot), EntryId(first), EntryId(last))


def ack(core: QuorumCore, slot: int, *entries: int) -> None:
    for entry in entries:
        assert not core.acked(slot, core.slots.generation(slot), entry, entry)
        core.validate()


def test_lac_moves_at_qa_and_in_order() -> None:
    """W-3: later completed entries wait for the head."""
    core = core_of()
    assert [core.add(10, 0.0) for _ in range(3)] == [0, 1, 2]
    ack(core, 0, 2)
    ack(core, 1, 2)
    assert (core.lac, core.first_copy) == (-1, -1)
    ack(core, 2, 0)
    assert (core.lac, core.first_copy) == (-1, 0)
    ack(core, 0, 0)
    assert (core.lac, core.lac_length) == (0, 10)
    ack(core, 0, 1)
    ack(core, 2, 1)
    assert (core.lac, core.lac_length, core.pending) == (2, 30, 0)


def test_duplicates_count_once() -> None:
    """W-2."""
    core = core_of()
    core.add(1, 0.0)
    ack(core, 0, 0, 0, 0)
    assert core.lac == -1


def test_first_copy_needs_every_earlier_entry() -> None:
    """A4."""
    core = core_of(Quorum(3, 3, 3))
    for _ in range(3):
        core.add(1, 0.0)
    ack(core, 0, 1)
    assert core.first_copy == -1
    ack(core, 1, 0)
    assert core.first_copy == 1
    assert core.lac == -1


def test_only_slots_of_the_write_set_count() -> None:
    """W-2, 3.2: E > Qw."""
    core = core_of(Quorum(4, 2, 2))
    core.add(1, 0.0)  # slots 0, 1
    core.add(1, 0.0)  # slots 1, 2
    core.acked(2, 0, 0, 0)
    core.acked(3, 0, 0, 1)
    assert core.lac == -1
    ack(core, 0, 0)
    ack(core, 1, 0)
    assert core.lac == 0
    assert core.slots.of(3) == (3, 0)


@pytest.mark.parametrize("status", [Status.FENCED, Status.UNAUTHORIZED])
def test_fenced_stops_without_ensemble_change(status: Status) -> None:
    """3.4, first row; W-6."""
    core = core_of()
    core.add(1, 0.0)
    (stopped,) = core.refused(0, 0, 0, 0, status, 0.0)
    assert isinstance(stopped, Stopped)
    assert stopped.reason is StopReason.FENCED
    assert core.state is HandleState.STOPPED
    assert not core.acked(1, 0, 0, 0)
    assert not core.acked(2, 0, 0, 0)
    assert core.lac == -1  # frozen


def test_conflict_stops() -> None:
    core = core_of()
    core.add(1, 0.0)
    (stopped,) = core.refused(0, 0, 0, 0, Status.CONFLICT, 0.0)
    assert isinstance(stopped, Stopped)
    assert stopped.reason is StopReason.CONFLICT


@pytest.mark.parametrize(
    ("status", "avoid"),
    [
        (Status.READONLY, False),
        (Status.DISK_FULL, False),
        (Status.WRONG_INCARNATION, False),
        (Status.INTERNAL, True),
        (Status.EIO, True),
        (Status.TIMEOUT, True),
    ],
)
def test_slot_failures_start_a_change(status: Status, avoid: bool) -> None:
    """3.4: which ones quarantine the bookie."""
    core = core_of()
    core.add(1, 0.0)
    (action,) = core.refused(1, 0, 0, 0, status, 0.0)
    assert isinstance(action, ChooseReplacements)
    assert [(f.slot, f.member, f.quarantine) for f in action.failed] == [(1, B, avoid)]
    assert core.changing
    assert core.slots.active == (0, 2)


def test_change_in_the_order_of_c6() -> None:
    """C-1 freeze, C-3 start, C-6 install, unset, re-send, sweep."""
    core = core_of()
    for _ in range(3):
        core.add(1, 0.0)
    ack(core, 0, 0)
    ack(core, 1, 0)
    assert core.lac == 0
    core.slot_failed(2, 0, Status.DISCONNECTED, 0.0)
    ack(core, 0, 1)
    ack(core, 1, 1)
    assert core.lac == 0  # C-1: frozen while changing
    assert core.add(1, 0.0) == 3  # C-1: new adds go on
    assert core.slots.of(3) == (0, 1)
    (commit,) = core.replacements({2: D}, 0.0)
    assert commit == CommitEnsemble(EntryId(1), (A, B, D))  # C-3: lac + 1
    assert core.slots.members == (A, B, C)  # C-4: memory does not run ahead of the metadata
    actions = core.change_committed(0.0)
    assert core.slots.members == (A, B, D)
    assert actions == [resend(core, 2, 1, 3)]
    assert core.lac == 1  # the sweep
    core.validate()


def test_success_of_the_replaced_slot_is_unset() -> None:
    """C-6: also for entries that had Qa already."""
    core = core_of()
    core.add(1, 0.0)
    core.add(1, 0.0)
    core.slot_failed(2, 0, Status.TIMEOUT, 0.0)
    core.acked(2, 0, 0, 1)  # a late success of the failed bookie: identity still matches
    core.acked(0, 0, 1, 1)
    core.replacements({2: D}, 0.0)
    core.change_committed(0.0)
    assert core.lac == -1
    assert not core.acked(2, 0, 0, 1)  # W-8: the old occupant's reply
    assert core.lac == -1
    ack(core, 2, 0, 1)
    ack(core, 0, 0)
    assert core.lac == 1


def test_entry_whose_write_set_is_untouched_is_popped_by_the_sweep() -> None:
    """C-7."""
    core = core_of(Quorum(5, 2, 2))
    core.add(1, 0.0)  # slots 0, 1
    core.slot_failed(4, 0, Status.TIMEOUT, 0.0)
    ack(core, 0, 0)
    ack(core, 1, 0)
    assert core.lac == -1
    core.replacements({4: member("f")}, 0.0)
    core.change_committed(0.0)
    assert core.lac == 0


def test_second_failure_during_the_cas_starts_the_next_change_at_once() -> None:
    """C-5: finish C-6 first; the second change may replace the key just written."""
    core = core_of()
    core.add(1, 0.0)
    core.slot_failed(0, 0, Status.TIMEOUT, 0.0)
    core.replacements({0: D}, 0.0)
    assert not core.slot_failed(1, 0, Status.TIMEOUT, 0.0)
    actions = core.change_committed(0.0)
    assert [type(a) for a in actions] == [Resend, ChooseReplacements]
    (commit,) = core.replacements({1: E}, 0.0)
    assert commit == CommitEnsemble(EntryId(0), (D, E, C))
    core.change_committed(0.0)
    assert core.last_key == 0
    core.validate()


def test_conflicting_cas_is_a_fence() -> None:
    """C-4."""
    core = core_of()
    core.add(1, 0.0)
    core.slot_failed(0, 0, Status.TIMEOUT, 0.0)
    core.replacements({0: D}, 0.0)
    (stopped,) = core.change_conflicted("IN_RECOVERY")
    assert isinstance(stopped, Stopped)
    assert stopped.reason is StopReason.FENCED
    assert core.close_point() == (-1, 0)


def test_no_spare_goes_on_degraded_and_retries() -> None:
    """3.7: Qa still reachable; again every 5 s."""
    core = core_of()
    core.add(1, 0.0)
    core.slot_failed(0, 0, Status.DISCONNECTED, 0.0)
    assert not core.replacements({}, 0.0)
    assert not core.changing
    ack(core, 1, 0)
    ack(core, 2, 0)
    assert core.lac == 0
    core.add(1, 1.0)
    assert not core.tick(4.9)
    (action,) = core.tick(5.0)
    assert isinstance(action, ChooseReplacements)


def test_no_spare_and_qa_unreachable_stops_after_the_grace() -> None:
    core = core_of(limits=QuorumLimits(stop_grace_s=1.0))
    core.add(1, 0.0)
    core.slot_failed(0, 0, Status.DISCONNECTED, 0.0)
    core.replacements({}, 0.0)
    core.slot_failed(1, 0, Status.DISCONNECTED, 0.1)
    assert not core.replacements({}, 0.1)  # connections that broke together may come back
    assert not core.tick(0.15)
    assert core.tick(0.2)
    assert not core.replacements({}, 0.2)
    core.tick(1.2)
    (stopped,) = core.replacements({}, 1.2)
    assert isinstance(stopped, Stopped)
    assert stopped.reason is StopReason.NOT_ENOUGH_BOOKIES
    assert core.close_point() == (-1, 0)  # W-9


def test_revived_bookie_gets_what_it_missed_above_the_lac() -> None:
    core = core_of()
    core.add(1, 0.0)
    core.add(1, 0.0)
    core.slot_failed(0, 0, Status.DISCONNECTED, 0.0)
    core.replacements({}, 0.0)
    ack(core, 1, 0, 1)
    ack(core, 2, 0)
    assert core.lac == 0
    core.retry_change(1.0)
    actions = core.replacements({}, 1.0, revived=[0])
    assert actions == [resend(core, 0, 1, 1)]
    assert core.slots.active == (0, 1, 2)
    assert core.changes == 0
    assert not core.acked(0, 0, 1, 1)  # W-8: an answer from before
    assert core.lac == 0
    ack(core, 0, 1)
    assert core.lac == 1


def test_partial_replacement_is_kept() -> None:
    """3.7: if some slots got a replacement keep it."""
    core = core_of(Quorum(5, 5, 3))
    core.add(1, 0.0)
    core.slot_failed(0, 0, Status.TIMEOUT, 0.0)
    core.replacements({}, 0.0)
    core.slot_failed(1, 0, Status.TIMEOUT, 0.0)
    (commit,) = core.replacements({1: member("f")}, 0.0)
    assert isinstance(commit, CommitEnsemble)
    actions = core.change_committed(0.0)
    assert isinstance(actions[-1], ChooseReplacements)
    assert [f.slot for f in actions[-1].failed] == [0]
    core.replacements({}, 0.0)
    assert core.state is HandleState.OPEN


def test_unreachable_store_defers_the_change_and_unfreezes() -> None:
    core = core_of()
    core.add(1, 0.0)
    core.slot_failed(0, 0, Status.TIMEOUT, 0.0)
    core.replacements({0: D}, 0.0)
    ack(core, 1, 0)
    ack(core, 2, 0)
    assert core.lac == -1
    core.change_deferred(0.0)
    assert core.lac == 0
    assert core.slots.members == (A, B, C)


def test_late_failure_is_handled_by_the_timer() -> None:
    """W-7: the entry reached Qa; the missing copy still leads to a change."""
    core = core_of()
    core.add(1, 0.0)
    ack(core, 0, 0)
    ack(core, 1, 0)
    assert not core.slot_failed(2, 0, Status.TIMEOUT, 5.0)
    assert not core.tick(5.05)
    (action,) = core.tick(5.1)
    assert isinstance(action, ChooseReplacements)


def test_not_admitted_is_retried_on_the_same_slot_until_the_add_timeout() -> None:
    """3.4."""
    core = core_of()
    core.add(1, 0.0)
    now = 0.0
    while now < 5.0:
        assert not core.refused(0, 0, 0, 0, Status.NOT_ADMITTED_RETRY, now)
        assert core.slots.takes(0, 0)
        assert not core.tick(now + 0.05)
        now += 0.1
        assert core.tick(now) == [RetrySlot(0, 0, new_connection=False)]
    (action,) = core.refused(0, 0, 0, 0, Status.NOT_ADMITTED_RETRY, 5.1)
    assert isinstance(action, ChooseReplacements)
    assert not core.slots.takes(0, 0)


def test_bad_digest_once_again_then_stop() -> None:
    """3.4, last row."""
    core = core_of()
    core.add(1, 0.0)
    assert core.refused(0, 0, 0, 0, Status.BAD_DIGEST, 0.0) == [RetrySlot(0, 0, True)]
    (stopped,) = core.refused(0, 0, 0, 0, Status.BAD_DIGEST, 0.1)
    assert isinstance(stopped, Stopped)
    assert stopped.reason is StopReason.REJECTED


def test_add_quorum_timeout_is_about_the_head() -> None:
    """3.9."""
    core = core_of()
    core.add(1, 0.0)
    core.add(1, 50.0)
    ack(core, 0, 0)
    ack(core, 1, 0)
    assert not core.tick(100.0)
    (stopped,) = core.tick(110.1)
    assert isinstance(stopped, Stopped)
    assert stopped.reason is StopReason.ADD_QUORUM_TIMEOUT
    assert core.close_point() == (0, 1)


def test_explicit_lac_after_idling() -> None:
    """RD-6: only when members do not know it from a later entry."""
    core = core_of()
    core.add(1, 0.0)
    ack(core, 0, 0)
    ack(core, 1, 0)
    assert not core.tick(0.1)
    assert core.tick(0.2) == [WriteLac(EntryId(0))]
    assert not core.busy
    assert not core.tick(0.3)
    core.add(1, 0.3)
    assert core.sent_lac == 0


def test_too_many_changes_ask_for_a_roll() -> None:
    """M-6, 3.7."""
    core = core_of(limits=QuorumLimits(max_ensemble_changes=1, stop_grace_s=0.0))
    core.add(1, 0.0)
    core.slot_failed(0, 0, Status.TIMEOUT, 0.0)
    core.replacements({0: D}, 0.0)
    core.change_committed(0.0)
    assert core.too_many_changes
    assert not core.slot_failed(1, 0, Status.TIMEOUT, 1.0)
    assert core.state is HandleState.OPEN  # degraded: Qa is still reachable
    (stopped,) = core.slot_failed(2, 0, Status.TIMEOUT, 2.0)
    assert isinstance(stopped, Stopped)


def test_disabled_changes_resend_to_the_same_bookie() -> None:
    """3.7: the global switch."""
    core = core_of(limits=QuorumLimits(ensemble_changes_enabled=False))
    core.add(1, 0.0)
    assert not core.slot_failed(0, 0, Status.DISCONNECTED, 0.0), "at a pace: not in a busy loop"
    assert core.tick(0.2) == [resend(core, 0, 0, 0)]
    assert core.slots.members == (A, B, C)


def test_w7_delayed_changes_tolerate_while_qa_is_reachable() -> None:
    limits = QuorumLimits(delay_ensemble_change=True)
    core = core_of(limits=limits)
    core.add(1, 0.0)
    assert not core.slot_failed(0, 0, Status.TIMEOUT, 0.0)
    assert core.tick(0.2) == [resend(core, 0, 0, 0)], "the same member again"
    core.slot_failed(0, core.slots.generation(0), Status.TIMEOUT, 0.3)
    (choose,) = core.slot_failed(1, 0, Status.TIMEOUT, 0.3)
    assert isinstance(choose, ChooseReplacements), "Qa is out of reach"
    read_only = core_of(limits=limits)
    read_only.add(1, 0.0)
    (choose,) = read_only.slot_failed(0, 0, Status.READONLY, 0.0)
    assert isinstance(choose, ChooseReplacements), "read-only members are exempt"


def test_min_domains_for_ack() -> None:
    """3.8 `enforce_for_ack`."""
    core = QuorumCore(
        Q332,
        [A, B, C],
        now=0.0,
        limits=QuorumLimits(min_domains_for_ack=2),
        domains=["r1", "r1", "r2"],
    )
    core.add(1, 0.0)
    ack(core, 0, 0)
    ack(core, 1, 0)
    assert core.lac == -1
    ack(core, 2, 0)
    assert core.lac == 0


def test_close_waits_for_pending_and_changes() -> None:
    """W-9."""
    core = core_of()
    core.add(7, 0.0)
    core.begin_close()
    with pytest.raises(InvariantViolation):
        core.close_point()
    ack(core, 0, 0)
    ack(core, 1, 0)
    assert core.close_point() == (0, 7)
    core.end()
    assert core.close_point() == (0, 7)
    assert not core.tick(99.0)


def test_confirming_what_was_never_sent_stops_the_handle() -> None:
    core = core_of()
    core.add(1, 0.0)
    (stopped,) = core.acked(0, 0, 0, 1)
    assert isinstance(stopped, Stopped)
    assert stopped.reason is StopReason.REJECTED


def test_refused_copies_below_the_lac_do_not_hold_the_marks_back() -> None:
    core = core_of()
    for _ in range(3):
        core.add(1, 0.0)
    core.refused(2, 0, 0, 0, Status.OVERLOADED, 0.0)
    core.acked(2, 0, 1, 2)
    ack(core, 0, 0, 1)
    ack(core, 1, 0, 1)
    assert core.lac == 1
    core.acked(0, 0, 2, 2)
    assert core.lac == 2
    assert core.tick(0.1) == [RetrySlot(2, 0, new_connection=False)]  # still owed a copy


def test_an_ensemble_never_holds_a_bookie_twice() -> None:
    core = core_of()
    core.add(1, 0.0)
    core.slot_failed(0, 0, Status.TIMEOUT, 0.0)
    with pytest.raises(InvariantViolation):
        core.replacements({0: B}, 0.0)


def test_the_budget_of_changes_is_a_burst_and_then_one_per_interval() -> None:
    limits = QuorumLimits(change_burst=3, change_interval_s=5.0)
    budget = ChangeBudget(100.0)
    assert [budget.take(limits, 100.0) for _ in range(4)] == [None, None, None, 105.0]
    assert budget.take(limits, 104.9) == 105.0
    assert [budget.take(limits, 105.0), budget.take(limits, 105.0)] == [None, 110.0]
    assert [budget.take(limits, 1000.0) for _ in range(4)] == [None, None, None, 1005.0]
