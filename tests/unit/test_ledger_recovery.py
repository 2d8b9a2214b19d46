"""RecoveryCore, one rule at a time (spec/ledger.md §4)."""

from __future__ import annotations

import uuid

import pytest

from octavo.client.ledger.recovery import (
    Aborted,
    ChooseSpares,
    CloseLedger,
    RecoveryAction,
    RecoveryCore,
    SendFence,
    SendRead,
    SendWrite,
)
from octavo.metadata.ledger_record import Quorum
from octavo.proto.bookie_wire import Status
from octavo.proto.entry import encode_header
from octavo.runtime.ids import EntryId, Member


def member(name: str) -> Member:
    return Member(name, uuid.uuid5(uuid.NAMESPACE_DNS, name))


A, B, C, D = (member(name) for name in "abcd")
Q332 = Quorum(3, 3, 2)


def entry(number: int, payload: bytes = b"xy") -> bytes:
    return encode_header(1, number, number - 1, 2 * (number + 1), payload) + payload


def fenced(core: RecoveryCore, *lacs: int) -> list[RecoveryAction]:
    assert [type(a) for a in core.start()] == [SendFence] * core.quorum.ensemble
    actions: list[RecoveryAction] = []
    for slot, lac in enumerate(lacs):
        actions += core.fence_reply(slot, Status.OK, lac)
    return actions


def reads(actions: list[RecoveryAction]) -> list[tuple[int, int]]:
    return sorted((a.entry, a.slot) for a in actions if isinstance(a, SendRead))


def writes(actions: list[RecoveryAction]) -> list[tuple[int, int]]:
    return sorted((a.entry, a.slot) for a in actions if isinstance(a, SendWrite))


def closing(actions: list[RecoveryAction]) -> CloseLedger:
    (close,) = [a for a in actions if isinstance(a, CloseLedger)]
    return close


def three(window: int = 1) -> RecoveryCore:
    return RecoveryCore(Q332, [(EntryId(0), (A, B, C))], window=window)


def test_empty_ledger_closes_at_minus_one() -> None:
    core = three()
    actions = fenced(core, -1, -1)
    assert reads(actions) == [(0, 0), (0, 1), (0, 2)]
    assert all(a.fence for a in actions if isinstance(a, SendRead))
    assert core.read_reply(0, 0, Status.NO_SUCH_ENTRY, None) == []
    close = closing(core.read_reply(0, 2, Status.NO_SUCH_LEDGER, None))
    assert close == CloseLedger(EntryId(-1), 0, ((EntryId(0), (A, B, C)),))


def test_reading_starts_after_the_highest_lac_and_never_closes_there() -> None:
    """R-3: the LAC of the bookies trails the writer's."""
    core = three()
    actions = fenced(core, 1, 4)
    assert core.start_entry == 5
    assert (4, 0) in reads(actions)  # the anchor, for its length only
    actions = core.read_reply(5, 1, Status.OK, entry(5))
    assert writes(actions) == [(5, 0), (5, 1), (5, 2)]
    generation = 0
    assert core.write_reply(5, 0, generation, Status.OK) == []
    actions = core.write_reply(5, 1, generation, Status.OK)
    assert reads(actions) == [(6, 0), (6, 1), (6, 2)]
    core.read_reply(6, 0, Status.NO_SUCH_ENTRY, None)
    close = closing(core.read_reply(6, 1, Status.NO_SUCH_ENTRY, None))
    assert (close.last_entry, close.length) == (5, 12)


def test_last_key_bounds_the_start() -> None:
    """R-3, H10: never start below the last fragment."""
    fragments = [(EntryId(0), (A, B, C)), (EntryId(7), (A, B, D))]
    core = RecoveryCore(Q332, fragments, window=1)
    actions = fenced(core, 2, 2)
    assert core.start_entry == 7
    anchor = [a for a in actions if isinstance(a, SendRead) and a.entry == 6]
    assert [a.member for a in anchor] == [A, B, C]  # it lies in the fragment before
    core.read_reply(7, 0, Status.NO_SUCH_ENTRY, None)
    assert core.read_reply(7, 1, Status.NO_SUCH_ENTRY, None) == []
    close = closing(core.read_reply(6, 2, Status.OK, entry(6)))
    assert (close.last_entry, close.length) == (6, 14)


def test_coverage_counts_negatives_and_nothing_else() -> None:
    """R-10."""
    core = three()
    core.start()
    assert core.fence_reply(0, Status.NO_SUCH_LEDGER, -1) == []
    assert core.fence_reply(1, Status.TIMEOUT, -1) == []
    (aborted,) = core.fence_reply(2, Status.UNAUTHORIZED, 9)
    assert isinstance(aborted, Aborted)
    assert core.fence_reply(1, Status.OK, 3) == []


@pytest.mark.parametrize(
    "status",
    [
        Status.EIO,
        Status.UNKNOWN,
        Status.NOT_READY,
        Status.TIMEOUT,
        Status.OVERLOADED,
        Status.FENCED,
    ],
)
def test_unknown_is_never_negative(status: Status) -> None:
    """R-15, R-8."""
    core = three()
    fenced(core, -1, -1)
    core.read_reply(0, 0, Status.NO_SUCH_ENTRY, None)
    assert core.read_reply(0, 1, status, None) == []
    (aborted,) = core.read_reply(0, 2, status, None)
    assert isinstance(aborted, Aborted)
    assert not aborted.conflict


def test_one_positive_beats_negatives_that_do_not_suffice() -> None:
    """R-14."""
    core = three()
    fenced(core, -1, -1)
    core.read_reply(0, 0, Status.NO_SUCH_ENTRY, None)
    assert writes(core.read_reply(0, 1, Status.OK, entry(0))) == [(0, 0), (0, 1), (0, 2)]


def test_positives_above_the_first_negative_do_not_matter() -> None:
    """R-6."""
    core = three(window=3)
    fenced(core, -1, -1)
    assert core.read_reply(1, 0, Status.OK, entry(1)) == []  # not before entry 0 is decided
    core.read_reply(0, 0, Status.NO_SUCH_ENTRY, None)
    close = closing(core.read_reply(0, 1, Status.NO_SUCH_ENTRY, None))
    assert (close.last_entry, close.length) == (-1, 0)


def test_failed_write_back_changes_the_ensemble_locally() -> None:
    """R-18: key = the entry being written; committed by the close only."""
    core = three(window=2)
    fenced(core, 1, 1)
    core.read_reply(1, 0, Status.OK, entry(1))
    core.read_reply(2, 0, Status.OK, entry(2))
    (choose,) = core.write_reply(2, 2, 0, Status.TIMEOUT)
    assert choose == ChooseSpares(((2, C),), (A, B, C))
    actions = core.replacements({2: D})
    assert [(w.entry, w.member) for w in actions if isinstance(w, SendWrite)] == [(2, D)]
    assert core.write_reply(2, 2, 0, Status.OK) == []  # W-8: the replaced member's reply
    core.write_reply(2, 0, 0, Status.OK)
    actions = core.write_reply(2, 2, 1, Status.OK)
    asked = {a.member for a in actions if isinstance(a, SendRead) and a.entry == 4}
    assert asked == {A, B, C}  # the ensemble of `base`
    core.read_reply(3, 0, Status.NO_SUCH_ENTRY, None)
    close = closing(core.read_reply(3, 1, Status.NO_SUCH_ENTRY, None))
    assert close.fragments == ((0, (A, B, C)), (2, (A, B, D)))
    assert (close.last_entry, close.length) == (2, 6)


def test_local_change_at_the_last_key_replaces_it() -> None:
    core = three()
    fenced(core, -1, -1)
    core.read_reply(0, 0, Status.OK, entry(0))
    core.write_reply(0, 1, 0, Status.DISCONNECTED)
    core.replacements({1: D})
    core.write_reply(0, 0, 0, Status.OK)
    core.write_reply(0, 1, 1, Status.OK)
    core.read_reply(1, 0, Status.NO_SUCH_ENTRY, None)
    close = closing(core.read_reply(1, 1, Status.NO_SUCH_ENTRY, None))
    assert close.fragments == ((0, (A, D, C)),)


def test_write_back_without_spare_needs_qa_of_the_rest() -> None:
    """INV-6: never close with fewer than Qa copies."""
    core = three()
    fenced(core, -1, -1)
    core.read_reply(0, 0, Status.OK, entry(0))
    core.write_reply(0, 1, 0, Status.DISCONNECTED)
    assert core.replacements({}) == []
    core.write_reply(0, 2, 0, Status.READONLY)
    (aborted,) = core.replacements({})
    assert isinstance(aborted, Aborted)


def test_two_byte_strings_are_a_conflict() -> None:
    """INV-5: an alarm, never a merge."""
    core = three(window=2)
    fenced(core, -1, -1)
    core.read_reply(1, 0, Status.OK, entry(1))
    (aborted,) = core.read_reply(1, 1, Status.OK, entry(1, b"zz"))
    assert isinstance(aborted, Aborted)
    assert aborted.conflict


def test_unreadable_anchor_aborts_only_when_it_is_needed() -> None:
    core = three()
    fenced(core, 0, 0)
    for slot in range(3):
        assert core.read_reply(0, slot, Status.EIO, None) == []
    core.read_reply(1, 0, Status.NO_SUCH_ENTRY, None)
    (aborted,) = core.read_reply(1, 1, Status.NO_SUCH_ENTRY, None)
    assert isinstance(aborted, Aborted)


def test_read_ahead_grows_with_what_is_found() -> None:
    """R-4: of most ledgers one entry is above the LAC, and each read is a request to three."""
    core = three(window=8)
    assert {e for e, _ in reads(fenced(core, -1, -1))} == {0, 1}
    assert reads(core.read_reply(0, 0, Status.OK, entry(0))) == []
    assert {e for e, _ in reads(core.read_reply(1, 0, Status.OK, entry(1)))} == {2, 3}
    assert reads(core.read_reply(2, 0, Status.OK, entry(2))) == []
    actions = core.read_reply(3, 0, Status.OK, entry(3))
    assert {e for e, _ in reads(actions)} == {4, 5, 6, 7}


def test_read_ahead_is_bounded_by_write_back() -> None:
    """R-4: window."""
    core = three(window=4)
    fenced(core, -1, -1)
    assert reads(core.read_reply(0, 0, Status.OK, entry(0))) == []
    actions = core.read_reply(1, 0, Status.OK, entry(1))
    assert {e for e, _ in reads(actions)} == {2, 3}
    assert reads(core.read_reply(2, 0, Status.OK, entry(2))) == []
    core.write_reply(0, 0, 0, Status.OK)
    actions = core.write_reply(0, 1, 0, Status.OK)
    assert {e for e, _ in reads(actions)} == {4}
