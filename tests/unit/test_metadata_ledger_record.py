"""Rules and transitions of one ledger's record (spec/ledger.md §2.1, §2.2)."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest

from octavo.metadata.ledger_record import (
    RECORD_BYTES_MAX,
    LedgerMetadata,
    LedgerState,
    Quorum,
)
from octavo.proto import records_pb2
from octavo.runtime.errors import (
    IllegalStateError,
    InvalidRequest,
    InvariantViolation,
    MetadataCorrupt,
    UnsupportedVersion,
)
from octavo.runtime.ids import EntryId, LedgerId, Member


def member(n: int) -> Member:
    return Member(f"bookie-{n}", uuid.UUID(int=n))


ENSEMBLE = (member(1), member(2), member(3))
OTHER = (member(1), member(4), member(3))
OPEN = LedgerMetadata(
    ledger_id=LedgerId(17),
    quorum=Quorum(3, 3, 2),
    state=LedgerState.OPEN,
    fragments=((EntryId(0), ENSEMBLE),),
    custom={"kind": "topic"},
    creator_token=b"t" * 16,
    ctime_ms=5,
)


def test_write_set_rotates_over_the_ensemble() -> None:
    wide = replace(
        OPEN,
        quorum=Quorum(5, 3, 2),
        fragments=((EntryId(0), tuple(member(i) for i in range(5))),),
    )
    assert wide.write_set(0) == (0, 1, 2)
    assert wide.write_set(3) == (3, 4, 0)
    assert OPEN.write_set(1) == (1, 2, 0)


def test_members_are_those_of_the_fragment_that_holds_the_entry() -> None:
    changed = OPEN.with_ensemble_change(EntryId(10), OTHER)
    assert changed.members_for(9) == ENSEMBLE
    assert changed.members_for(10) == OTHER
    assert changed.members_for(1000) == OTHER
    with pytest.raises(IllegalStateError):
        changed.members_for(-1)


def test_c3_ensemble_change_at_the_last_key_replaces_it() -> None:
    assert OPEN.with_ensemble_change(EntryId(0), OTHER).fragments == ((0, OTHER),)


def test_c3_ensemble_change_below_the_last_key_is_a_broken_promise() -> None:
    changed = OPEN.with_ensemble_change(EntryId(10), OTHER)
    with pytest.raises(InvariantViolation):
        changed.with_ensemble_change(EntryId(9), ENSEMBLE)


@pytest.mark.parametrize(
    "members",
    [ENSEMBLE[:2], (*ENSEMBLE, member(9)), (member(1), member(1), member(2))],
    ids=["too few", "too many", "repeated"],
)
def test_ensemble_has_exactly_e_distinct_bookies(members: tuple[Member, ...]) -> None:
    with pytest.raises(MetadataCorrupt):
        OPEN.with_ensemble_change(EntryId(3), members)


def test_two_incarnations_of_one_bookie_are_not_distinct() -> None:
    twin = Member("bookie-1", uuid.UUID(int=99))
    with pytest.raises(MetadataCorrupt):
        OPEN.with_ensemble_change(EntryId(3), (member(1), twin, member(3)))


def test_states_never_move_backwards() -> None:
    recovering = OPEN.in_recovery()
    closed = recovering.closed(EntryId(4), 99)
    assert recovering.state is LedgerState.IN_RECOVERY
    assert closed.closed_for_good
    forbidden: list[Callable[[], object]] = [
        recovering.in_recovery,
        closed.in_recovery,
        lambda: closed.closed(EntryId(4), 99),
        lambda: recovering.with_ensemble_change(EntryId(5), OTHER),
        lambda: closed.with_ensemble_change(EntryId(5), OTHER),
    ]
    for step in forbidden:
        with pytest.raises(IllegalStateError):
            step()


def test_m5_closing_drops_empty_trailing_fragments_but_never_the_first() -> None:
    changed = OPEN.with_ensemble_change(EntryId(10), OTHER)
    assert changed.closed(EntryId(9), 1).fragments == ((0, ENSEMBLE),)
    assert changed.closed(EntryId(10), 1).fragments == ((0, ENSEMBLE), (10, OTHER))
    assert OPEN.closed(EntryId(-1), 0).fragments == ((0, ENSEMBLE),)


def test_m5_record_with_empty_last_fragment_is_legal() -> None:
    changed = OPEN.with_ensemble_change(EntryId(10), OTHER)
    legal = replace(changed, state=LedgerState.CLOSED, last_entry=EntryId(9), length=1)
    assert LedgerMetadata.from_bytes(legal.to_bytes()) == legal


def test_r7_closing_takes_the_recovered_fragments() -> None:
    local = ((EntryId(0), ENSEMBLE), (EntryId(3), OTHER))
    assert OPEN.in_recovery().closed(EntryId(5), 7, local).fragments == local


def test_m2_same_end_is_recognised() -> None:
    closed = OPEN.closed(EntryId(4), 99)
    assert closed.is_closed_at(4, 99)
    assert not closed.is_closed_at(4, 98)
    assert not closed.is_closed_at(3, 99)
    assert not OPEN.is_closed_at(-1, 0)


def test_replicator_replaces_a_member_only_in_a_settled_fragment() -> None:
    changed = OPEN.with_ensemble_change(EntryId(10), OTHER)
    repaired = changed.with_member_replaced(EntryId(0), member(2), member(7))
    assert repaired.members_for(0) == (member(1), member(7), member(3))
    assert repaired.members_for(10) == OTHER
    with pytest.raises(IllegalStateError):
        changed.with_member_replaced(EntryId(10), member(4), member(7))
    with pytest.raises(IllegalStateError):
        changed.with_member_replaced(EntryId(0), member(9), member(7))
    closed = changed.closed(EntryId(12), 5)
    assert closed.with_member_replaced(EntryId(10), member(4), member(7)).members_for(12)[1] == (
        member(7)
    )


# --- bytes -----------------------------------------------------------------------------------


def test_a_degraded_ledger_grows_once_it_is_closed_up_to_the_copies_it_was_meant_to_have() -> None:
    few = replace(
        OPEN,
        quorum=Quorum(2, 2, 2),
        fragments=((EntryId(0), ENSEMBLE[:2]), (EntryId(5), ENSEMBLE[1:])),
        degraded=True,
        wanted_copies=4,
    )
    assert not few.may_grow, "its writer decides"
    closed = few.closed(EntryId(9), 90)
    once = closed.grown({EntryId(0): member(3), EntryId(5): member(4)})
    assert (tuple(once.quorum), once.degraded) == ((3, 3, 2), True)
    assert once.fragments[1] == (5, (member(2), member(3), member(4)))
    assert once.is_closed_at(9, 90), "INV-7: its entries are what they were"
    twice = once.grown({EntryId(0): member(5), EntryId(5): member(5)})
    assert (tuple(twice.quorum), twice.degraded) == ((4, 4, 2), False)
    assert LedgerMetadata.from_bytes(twice.to_bytes()) == twice
    with pytest.raises(IllegalStateError):
        twice.grown({EntryId(0): member(6), EntryId(5): member(6)})
    with pytest.raises(MetadataCorrupt):
        closed.grown({EntryId(0): member(2), EntryId(5): member(4)})


def test_only_where_every_member_holds_every_entry_and_the_wanted_copies_are_known() -> None:
    closed = OPEN.closed(EntryId(9), 90)
    assert not closed.may_grow
    assert not replace(closed, degraded=True).may_grow, "of an older release: nobody knows"
    assert replace(closed, degraded=True, wanted_copies=4).may_grow
    striped = replace(closed, degraded=True, wanted_copies=4, quorum=Quorum(3, 2, 2))
    assert not striped.may_grow


def damaged(change: Callable[[records_pb2.LedgerRecord], object]) -> bytes:
    record = records_pb2.LedgerRecord()
    record.ParseFromString(OPEN.to_bytes())
    change(record)
    return record.SerializeToString()


def _unset_digest(record: records_pb2.LedgerRecord) -> None:
    record.digest_type = "MD5"


def _set(field: str, value: object) -> Callable[[records_pb2.LedgerRecord], object]:
    return lambda record: setattr(record, field, value)


BROKEN: dict[str, Callable[[records_pb2.LedgerRecord], object]] = {
    "no format version": _set("format_version", 0),
    "negative id": _set("ledger_id", -1),
    "E below Qw": _set("ensemble_size", 2),
    "Qw below Qa": _set("write_quorum", 1),
    "Qa of zero": _set("ack_quorum", 0),
    "unknown state": _set("state", 0),
    "last entry though open": _set("last_entry", -1),
    "length though open": _set("length", 0),
    "closed without end": _set("state", records_pb2.CLOSED),
    "no fragment": lambda record: record.ClearField("fragments"),
    "first fragment not at 0": lambda record: setattr(record.fragments[0], "first_entry", 1),
    "fragments not increasing": lambda record: record.fragments.add().CopyFrom(record.fragments[0]),
    "member without incarnation": lambda record: record.fragments[0].members.__setitem__(0, "b1"),
    "member missing": lambda record: record.fragments[0].members.pop(),
}


@pytest.mark.parametrize("name", BROKEN)
def test_m7_record_that_breaks_a_rule_is_corrupt(name: str) -> None:
    with pytest.raises(MetadataCorrupt):
        LedgerMetadata.from_bytes(damaged(BROKEN[name]))


@pytest.mark.parametrize("end", [(-2, 0), (-1, 5), (3, -1)])
def test_m7_impossible_end_is_corrupt(end: tuple[int, int]) -> None:
    def close(record: records_pb2.LedgerRecord) -> None:
        record.state = records_pb2.CLOSED
        record.last_entry, record.length = end

    with pytest.raises(MetadataCorrupt):
        LedgerMetadata.from_bytes(damaged(close))


def test_m7_garbage_is_corrupt() -> None:
    for data in (b"", b"\xff" * 10, b"not a record"):
        with pytest.raises(MetadataCorrupt):
            LedgerMetadata.from_bytes(data)


def test_misplaced_record_is_corrupt() -> None:
    with pytest.raises(MetadataCorrupt):
        LedgerMetadata.from_bytes(OPEN.to_bytes(), LedgerId(18))


@pytest.mark.parametrize("change", [_set("format_version", 2), _unset_digest])
def test_newer_format_or_digest_is_refused_with_its_own_error(
    change: Callable[[records_pb2.LedgerRecord], object],
) -> None:
    with pytest.raises(UnsupportedVersion):
        LedgerMetadata.from_bytes(damaged(change))


def test_m6_record_above_the_limit_is_refused_before_it_is_sent() -> None:
    fragments = tuple((EntryId(i), ENSEMBLE) for i in range(2000))
    with pytest.raises(InvalidRequest):
        replace(OPEN, fragments=fragments).to_bytes()


def test_m6_limit_leaves_room_for_100_ensemble_changes() -> None:
    fragments = tuple((EntryId(i), ENSEMBLE) for i in range(101))
    assert len(replace(OPEN, fragments=fragments).to_bytes()) < RECORD_BYTES_MAX / 4


@pytest.mark.parametrize("sizes", [(1, 2, 1), (3, 1, 2), (3, 3, 0)])
def test_illegal_quorum_is_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidRequest):
        Quorum(*sizes).check()
