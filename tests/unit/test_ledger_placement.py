"""Placement of ensembles (3.2, 3.7, 3.8, C-2)."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.client.ledger.placement import (
    Candidate,
    DomainRule,
    Sized,
    choose_ensemble,
    choose_replacements,
    size_for,
)
from octavo.client.ledger.tally import windows
from octavo.metadata.ledger_record import Quorum
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.errors import NotEnoughBookies
from octavo.runtime.ids import Member

Q332 = Quorum(3, 3, 2)


def bookie(number: int, domain: str = "default", life: int = 0) -> Candidate:
    return Candidate(Member(f"b{number}", uuid.UUID(int=number * 100 + life)), domain)


@pytest.mark.parametrize(
    ("live", "expected"),
    [
        (7, Sized(Quorum(5, 3, 2), False)),
        (5, Sized(Quorum(5, 3, 2), False)),
        (4, Sized(Q332, False)),
        (3, Sized(Q332, False)),
        (2, Sized(Quorum(2, 2, 2), True)),
    ],
)
def test_shrink_then_degrade(live: int, expected: Sized) -> None:
    """3.7 with the ruling of design.md §4."""
    assert size_for(Quorum(5, 3, 2), live, allow_degraded=True) == expected


def test_refusals() -> None:
    with pytest.raises(NotEnoughBookies):
        size_for(Q332, 1, allow_degraded=True)
    with pytest.raises(NotEnoughBookies):
        size_for(Q332, 2, allow_degraded=False)
    with pytest.raises(NotEnoughBookies):
        choose_ensemble([bookie(1), bookie(2)], Q332, entropy=SeededEntropy(1))


@given(st.integers(0, 1000))
def test_write_sets_span_two_domains_when_they_can(seed: int) -> None:
    """3.8: every window of an ensemble, and bookies without a domain count as one."""
    candidates = [bookie(n, "east" if n < 3 else "west") for n in range(6)]
    quorum = Quorum(4, 2, 2)
    ensemble = choose_ensemble(candidates, quorum, entropy=SeededEntropy(seed))
    assert len({c.member.bookie_id for c in ensemble}) == 4
    for window in windows(quorum):
        assert len({ensemble[slot].domain for slot in window}) == 2


def test_enforced_domains_refuse() -> None:
    rule = DomainRule(min_domains=2, enforce=True)
    same = [bookie(n) for n in range(4)]
    with pytest.raises(NotEnoughBookies):
        choose_ensemble(same, Q332, entropy=SeededEntropy(1), rule=rule)
    found = choose_replacements(
        {0: same[0].member}, same[:3], same, Q332, entropy=SeededEntropy(1), rule=rule
    )
    assert found == {}


def test_quarantined_bookies_only_when_needed() -> None:
    """C-2."""
    candidates = [bookie(n) for n in range(5)]
    for seed in range(20):
        ensemble = choose_ensemble(
            candidates, Q332, entropy=SeededEntropy(seed), quarantined={"b0", "b1"}
        )
        assert {c.member.bookie_id for c in ensemble} == {"b2", "b3", "b4"}
    ensemble = choose_ensemble(
        candidates[:3], Q332, entropy=SeededEntropy(1), quarantined={"b0", "b1"}
    )
    assert len(ensemble) == 3


def test_replacements_never_reuse_a_member_of_the_ensemble() -> None:
    ensemble = [bookie(n) for n in range(3)]
    live = [bookie(n) for n in range(4)]
    found = choose_replacements(
        {0: ensemble[0].member, 1: ensemble[1].member},
        ensemble,
        live,
        Q332,
        entropy=SeededEntropy(3),
    )
    assert list(found.values()) == [live[3]]  # partial: one spare for two slots
    assert (
        choose_replacements(
            {0: ensemble[0].member}, ensemble, live[:3], Q332, entropy=SeededEntropy(3)
        )
        == {}
    )


def test_new_incarnation_may_take_its_own_slot() -> None:
    """B-26."""
    ensemble = [bookie(n) for n in range(3)]
    reborn = bookie(1, life=1)
    live = [ensemble[0], reborn, ensemble[2]]
    found = choose_replacements(
        {1: ensemble[1].member}, ensemble, live, Q332, entropy=SeededEntropy(3)
    )
    assert found == {1: reborn}
