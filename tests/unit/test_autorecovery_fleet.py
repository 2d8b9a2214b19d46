"""What bookies are lost together with, as an auditor sees the fleet (A-1, 3.8)."""

from __future__ import annotations

import uuid

import pytest

from octavo.client.autorecovery.audit_core import Alarm, AuditCore, AuditLimits, BeginPass, Fleet
from octavo.client.autorecovery.fleet_reader import lost_with
from octavo.metadata.bookies import BookieRegistration
from octavo.runtime.ids import Member


def registered(number: int, address: str, domain: str) -> BookieRegistration:
    return BookieRegistration(f"b{number}", uuid.UUID(int=number), address, fault_domain=domain)


@pytest.mark.parametrize(
    ("gone", "is_lost"),
    [
        ([("h1:1", ""), ("h1:2", "")], True),
        ([("H1:1", ""), ("h1:2", "")], True),
        ([("[::1]:1", ""), ("[::1]:2", "")], True),
        ([("h1:1", "r1"), ("h2:1", "r1")], True),
        ([("h1:1", ""), ("h2:1", "")], False),
        ([("h1:1", "r1"), ("h1:2", "r2")], False),
        ([("h1:1", "r1"), ("h1:2", "")], False),
    ],
)
def test_bookies_are_given_up_together_only_when_they_are_known_to_be_neighbours(
    gone: list[tuple[str, str]], is_lost: bool
) -> None:
    """A-1: one machine, or one named domain; that nobody named a domain proves nothing."""
    bookies = [registered(n, *place) for n, place in enumerate([*gone, ("h9:1", ""), ("h8:1", "")])]
    there = {b.member: lost_with(b) for b in bookies}
    incarnations = {b.bookie_id: Member(b.bookie_id, b.incarnation) for b in bookies}
    core = AuditCore(AuditLimits(lost_delay_s=10))
    core.fleet_seen(Fleet(registered=there, incarnations=incarnations), 0)
    core.pass_ended(1, whole=False, named=frozenset(), healthy=True)
    away = bookies[: len(gone)]
    fleet = Fleet(
        registered={b.member: lost_with(b) for b in bookies[len(gone) :]},
        incarnations=incarnations,
        away_since_s={b.bookie_id: 0.0 for b in away},
        domains={b.bookie_id: there[b.member] for b in away},
    )
    actions = core.fleet_seen(fleet, 1000)
    begun = [action for action in actions if isinstance(action, BeginPass)]
    assert [bool(one.fleet.lost) for one in begun] == [is_lost]
    assert any(isinstance(action, Alarm) for action in actions) == (not is_lost)
