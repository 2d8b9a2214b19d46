"""Copies that lie closer together than they need to are found, and moves come to an end (A-10)."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.client.autorecovery.audit_core import Fleet
from octavo.client.autorecovery.spread import better_at, crowded_slots
from octavo.client.ledger.placement import Candidate, DomainRule, choose_replacements
from octavo.metadata.bookies import BookieRegistration
from octavo.metadata.ledger_record import LedgerMetadata, LedgerState, Quorum
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.ids import EntryId, LedgerId, Member

RULE = DomainRule()


def at(number: int, host: str, domain: str = "default") -> Candidate:
    return Candidate(Member(f"b{number}", uuid.UUID(int=number)), domain, host)


def closed(*ensembles: list[Candidate], quorum: Quorum | None = None) -> LedgerMetadata:
    size = len(ensembles[0])
    return LedgerMetadata(
        LedgerId(1),
        quorum or Quorum(size, size, 2),
        LedgerState.CLOSED,
        tuple(
            (EntryId(10 * number), tuple(one.member for one in ensemble))
            for number, ensemble in enumerate(ensembles)
        ),
        last_entry=EntryId(10 * len(ensembles) - 1),
        length=100,
    )


def crowded(record: LedgerMetadata, *bookies: Candidate) -> list[tuple[int, str]]:
    places = {bookie.member: bookie for bookie in bookies}
    slots = crowded_slots(record, places, bookies, RULE)
    return [(slot.start, slot.member.bookie_id) for slot in slots]


A1, A2, B, C, D = at(1, "a"), at(2, "a"), at(3, "b"), at(4, "c"), at(5, "d")


def test_only_a_better_place_that_is_there_now_counts() -> None:
    record = closed([A1, A2, B])
    assert crowded(record, A1, A2, B, C) == [(0, "b1")]
    assert crowded(record, A1, A2, B) == [], "there is no other machine"
    assert crowded(record, A1, A2, B, at(6, "a")) == [], "nor is this one"
    assert crowded(record, A1, A2, B, at(6, "b")) == [], "it would be crowded there"
    assert crowded(closed([A1, B, C]), A1, A2, B, C, D) == []


def test_a_fragment_with_a_member_that_is_away_waits() -> None:
    assert crowded(closed([A1, A2, B]), A1, A2, C) == []
    assert crowded(closed([A1, A2, B], [A1, A2, C]), A1, A2, C, D) == [(10, "b1")]


def test_an_open_ledger_is_its_writers() -> None:
    record = replace(closed([A1, A2, B]), state=LedgerState.OPEN, last_entry=None, length=None)
    assert crowded(record, A1, A2, B, C) == []


def test_named_domains_that_a_write_set_lacks_are_sought() -> None:
    """3.8: two of them for each entry, never more than the rule asks for."""
    near = [at(1, "a", "r1"), at(2, "b", "r1"), at(3, "c", "r1")]
    far = at(4, "d", "r2")
    assert crowded(closed(near), *near, far) == [(0, "b1")]
    assert crowded(closed([*near[:2], far]), *near, far, at(5, "e", "r3")) == []


@given(st.integers(0, 10_000), st.sampled_from([Quorum(3, 3, 2), Quorum(5, 3, 2), Quorum(4, 2, 2)]))
def test_moves_end_and_each_leaves_fewer_copies_side_by_side(seed: int, quorum: Quorum) -> None:
    rng = random.Random(seed)
    bookies = [at(n, f"h{rng.randrange(6)}", rng.choice(("default", "r1", "r2"))) for n in range(9)]
    ensemble = bookies[: quorum.ensemble]
    record = closed(ensemble, quorum=quorum)
    places = {bookie.member: bookie for bookie in bookies}
    for _ in range(quorum.ensemble * quorum.ensemble):
        slots = crowded_slots(record, places, bookies, RULE)
        if not slots:
            return
        (slot,) = slots
        members = [places[member] for member in slot.ensemble]
        chosen = choose_replacements(
            {slot.number: slot.member},
            members,
            bookies,
            quorum,
            entropy=SeededEntropy(seed),
            rule=RULE,
        )
        target = chosen[slot.number]
        assert better_at(slot, target, places, quorum, RULE), "placement finds it, too"
        record = record.with_member_replaced(slot.start, slot.member, target.member)
    pytest.fail("moves never end")


def test_only_writable_bookies_that_stay_are_a_better_place() -> None:
    record = closed([A1, A2, B])
    everybody = [A1, A2, B, C]
    fleet = Fleet(
        registered={one.member: "" for one in everybody},
        incarnations={one.member.bookie_id: one.member for one in everybody},
        places={one.member: one for one in everybody},
        writable=frozenset(one.member for one in everybody),
    )
    assert fleet.is_whole
    assert [slot.member for slot in fleet.crowded(record, RULE)] == [A1.member]
    held = replace(fleet, writable=fleet.writable - {C.member})
    assert held.crowded(record, RULE) == []
    gone = replace(fleet, incarnations={**fleet.incarnations, "b9": at(9, "z").member})
    assert not gone.is_whole, "what is missing comes first"


def test_a_bookie_tells_its_host() -> None:
    for address, host in (
        ("Host-7:3181", "host-7"),
        ("[::1]:3181", "::1"),
        ("10.0.0.1:1", "10.0.0.1"),
    ):
        assert BookieRegistration("b", uuid.UUID(int=1), address).host == host
