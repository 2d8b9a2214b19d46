"""Dead but registered bookies do not make a writer change its ensemble for ever (C-2, M-6)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from octavo.client.ledger.quorum import QuorumCore
from octavo.client.ledger.quorum_actions import (
    Action,
    ChooseReplacements,
    CommitEnsemble,
    HandleState,
    QuorumLimits,
)
from octavo.client.ledger.recovery import (
    LOCAL_CHANGES_MAX,
    Aborted,
    ChooseSpares,
    CloseLedger,
    RecoveryAction,
    RecoveryCore,
    SendFence,
    SendRead,
    SendWrite,
)
from octavo.client.ledger.suspects import Suspects
from octavo.metadata.ledger_record import Quorum
from octavo.proto.bookie_wire import Status
from octavo.proto.entry import encode_header
from octavo.runtime.ids import EntryId, Member


def member(name: str) -> Member:
    return Member(name, uuid.uuid5(uuid.NAMESPACE_DNS, name))


A, B, C, D = (member(name) for name in "abcd")
Q332 = Quorum(3, 3, 2)


def test_a_suspect_rests_twice_as_long_after_each_failure() -> None:
    suspects = Suspects(initial_s=5, max_s=60)
    assert not suspects.is_suspect(A, 0.0)
    now, rests = 0.0, list[float]()
    for _ in range(6):
        suspects.failed(A, now)
        start = now
        while suspects.is_resting(A, now):
            now += 1.0
        rests.append(now - start)
        assert suspects.is_suspect(A, now), "it needs proof after its rest"
    assert rests == [5, 10, 20, 40, 60, 60]


def test_one_outage_counts_once_for_all_handles() -> None:
    suspects = Suspects(initial_s=5, max_s=60)
    for handle in range(100):
        suspects.failed(A, handle * 0.01)
    assert not suspects.is_resting(A, 5.0)


def test_suspicion_ends_by_time_and_with_a_new_registration() -> None:
    suspects = Suspects(initial_s=5, max_s=60)
    suspects.failed(A, 0.0)
    suspects.failed(B, 0.0)
    suspects.forgive(["a"])
    assert (suspects.is_suspect(A, 1.0), suspects.is_suspect(B, 1.0)) == (False, True)
    assert not suspects.is_suspect(Member("b", uuid.uuid4()), 1.0), "another incarnation"
    assert not suspects.is_suspect(B, 65.0)
    suspects.failed(C, 66.0)
    assert len(suspects) == 1, "what is over is forgotten"


class Driver:
    """A core whose every replacement fails at once."""

    def __init__(self, limits: QuorumLimits) -> None:
        self.core = QuorumCore(Q332, [A, B, C], now=0.0, limits=limits)
        self.spare = 0

    def fail(self, slot: int, now: float) -> None:
        core = self.core
        failed = core.slot_failed(slot, core.slots.generation(slot), Status.DISCONNECTED, now)
        self.perform(failed, now)

    def perform(self, actions: Sequence[Action], now: float) -> None:
        todo = list(actions)
        while todo:
            action = todo.pop(0)
            if isinstance(action, ChooseReplacements):
                self.spare += 1
                chosen = {f.slot: member(f"spare-{self.spare}-{f.slot}") for f in action.failed}
                todo += self.core.replacements(chosen, now)
            elif isinstance(action, CommitEnsemble):
                todo += self.core.change_committed(now)
            self.core.validate()


def test_changes_of_one_handle_are_spaced_after_a_burst() -> None:
    """However many spares a cluster has, or seems to have."""
    limits = QuorumLimits(change_burst=3, change_interval_s=5.0)
    driver = Driver(limits)
    core = driver.core
    core.add(1, 0.0)
    now = 0.0
    while now < 21.0:
        driver.fail(0, now)
        driver.perform(core.tick(now), now)
        now += 0.125
    assert core.changes == 3 + 4
    assert core.state is HandleState.OPEN


def test_a_change_that_waits_for_its_turn_confirms_with_the_others_and_does_not_stop() -> None:
    limits = QuorumLimits(change_burst=1, change_interval_s=5.0, stop_grace_s=0.0)
    driver = Driver(limits)
    core = driver.core
    core.add(1, 0.0)
    driver.fail(0, 0.0)
    driver.fail(0, 0.0)
    assert (core.changes, core.changing) == (1, False)
    for slot in (1, 2):
        core.acked(slot, core.slots.generation(slot), 0, 0)
    assert core.lac == 0
    core.add(1, 0.0)
    driver.fail(1, 1.0)  # Qa is out of reach: wait for the next change, bounded by the add timeout
    assert (core.changes, core.state) == (1, HandleState.OPEN)
    driver.perform(core.tick(5.0), 5.0)
    assert (core.changes, core.slots.failed) == (2, ())


def test_r18_local_changes_of_one_recovery_are_bounded() -> None:
    """Spares that fail one after the other do not grow the record without end."""
    core = RecoveryCore(Q332, [(EntryId(0), (A, B, C))], window=1)
    todo: list[RecoveryAction] = core.start()
    spares = changes = 0
    last: RecoveryAction | None = None
    while todo:
        last = action = todo.pop(0)
        if isinstance(action, SendFence):
            todo += core.fence_reply(action.slot, Status.OK, -1)
        elif isinstance(action, SendRead):
            found = action.entry < 3 * LOCAL_CHANGES_MAX
            data = entry(action.entry) if found else None
            status = Status.OK if found else Status.NO_SUCH_ENTRY
            todo += core.read_reply(action.entry, action.slot, status, data)
        elif isinstance(action, SendWrite):
            status = Status.DISCONNECTED if action.slot == 0 else Status.OK
            todo += core.write_reply(action.entry, action.slot, action.generation, status)
        elif isinstance(action, ChooseSpares):
            spares += 1
            chosen = {slot: member(f"spare-{spares}") for slot, _ in action.failed}
            todo += core.replacements(chosen)
        elif isinstance(action, CloseLedger):
            changes = len(action.fragments)
    assert not isinstance(last, Aborted)
    assert 1 < changes <= LOCAL_CHANGES_MAX + 1


def entry(number: int) -> bytes:
    return encode_header(1, number, number - 1, 2 * (number + 1), b"xy") + b"xy"
