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


def bookie(number: int, domain: str = "default", life: int = 0, *, host: str = "") -> Candidate:
    return Candidate(Member(f"b{number}", uuid.UUID(int=number * 100 + life)), domain, host)


def disks(hosts: dict[str, int], domain: str = "default", first: int = 0) -> list[Candidate]:
    """Machines with so many disks each, a bookie for every one."""
    names = [name for name, count in hosts.items() for _ in range(count)]
    return [bookie(first + n, domain, host=name) for n, name in enumerate(names)]


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


@given(st.integers(0, 1000), st.lists(st.integers(1, 6), min_size=3, max_size=6))
def test_copies_lie_on_different_machines_while_there_are_such(seed: int, sizes: list[int]) -> None:
    """3.8: several disks of one host are one fault domain, whatever was configured."""
    candidates = disks({f"h{n}": size for n, size in enumerate(sizes)})
    ensemble = choose_ensemble(candidates, Q332, entropy=SeededEntropy(seed))
    assert len({c.host for c in ensemble}) == 3
    spares = [c for c in candidates if c not in ensemble]
    failed = {seed % 3: ensemble[seed % 3].member}
    found = choose_replacements(failed, ensemble, spares, Q332, entropy=SeededEntropy(seed))
    kept = {c.host for slot, c in enumerate(ensemble) if slot not in failed}
    free = {c.host for c in spares} - kept
    assert all(c.host in free for c in found.values()) or not free
    assert len(found) == (1 if spares else 0), "one host for two copies is better than no copy"


@given(st.integers(0, 1000))
def test_machines_count_before_racks_and_racks_before_zones(seed: int) -> None:
    """Two racks and three copies: the two in one rack are on two machines all the same."""
    candidates = [
        *disks({"h1": 4, "h2": 1}, "z1/r1"),
        *disks({"h3": 4}, "z1/r2", first=5),
        *disks({"h4": 4}, "z2/r3", first=9),
    ]
    ensemble = choose_ensemble(candidates, Q332, entropy=SeededEntropy(seed))
    assert len({c.host for c in ensemble}) == 3
    assert len({c.domain for c in ensemble}) == 3
    assert len({c.domain.split("/")[0] for c in ensemble}) == 2
    two_racks = choose_ensemble(candidates[:9], Q332, entropy=SeededEntropy(seed))
    assert {c.host for c in two_racks} == {"h1", "h2", "h3"}


@given(st.integers(0, 300))
def test_overlapping_write_sets_lie_on_different_machines(seed: int) -> None:
    """E > Qw: the last slot shares write sets with the first ones."""
    quorum = Quorum(5, 2, 2)
    ensemble = choose_ensemble(
        disks({"h1": 2, "h2": 2, "h3": 1}), quorum, entropy=SeededEntropy(seed)
    )
    for window in windows(quorum):
        assert len({ensemble[slot].host for slot in window}) == 2


def test_named_domains_are_believed_on_one_address() -> None:
    """Bookies behind one forwarded address, whose racks an operator named."""
    candidates = [*disks({"h": 3}, "r1"), bookie(7, "r2", host="h"), bookie(8, "r3", host="h")]
    ensemble = choose_ensemble(candidates, Q332, entropy=SeededEntropy(1))
    assert {c.domain for c in ensemble} == {"r1", "r2", "r3"}


@pytest.mark.parametrize("machines", [False, True])
def test_a_new_bookie_gets_its_share_at_once_and_no_more(machines: bool) -> None:
    """Beside seven others three of eight new ledgers go to it, by chance, the first ones too."""
    candidates = [bookie(n, host=f"h{n % 4}" if machines else "") for n in range(8)]
    entropy = SeededEntropy(5)
    drawn = [choose_ensemble(candidates, Q332, entropy=entropy) for _ in range(4000)]
    taken = [sum(candidates[7] in ensemble for ensemble in part) for part in (drawn[:40], drawn)]
    assert 5 <= taken[0] <= 25
    assert 4000 * 3 / 8 * 0.9 < taken[1] < 4000 * 3 / 8 * 1.1


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
