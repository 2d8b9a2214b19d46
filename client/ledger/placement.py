"""Where copies go: ensembles for new ledgers and replacements in open ones (3.2, 3.7, 3.8, C-2).

Pure. Candidates are the writable bookies of the directory; quarantined ones are used only when the
others do not suffice. Bookies without a fault domain share one, so they never count as distinct.

Two copies of an entry lie as far apart as the bookies that are left allow (ADR 65): on two hosts
before on one, in two racks before in one. A fault domain may have levels, from the widest to the
narrowest (`zone-a/rack-3`); the host of a bookie is the narrowest of all, whatever was configured.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from octavo.client.ledger.tally import windows
from octavo.metadata.ledger_record import Quorum
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import NotEnoughBookies
from octavo.runtime.ids import Member

ENSEMBLE_TRIES = 8
"""Ensembles that are drawn at most where members of one write set came out on one host: in a ring
of overlapping write sets (E > Qw) the first slots may leave no good place for the last."""


class Candidate(NamedTuple):
    """A bookie that may take adds."""

    member: Member
    domain: str
    """As configured, levels separated by `/` (3.8)."""
    host: str = ""
    """Machine it runs on: bookies of one host are lost together."""

    def levels_shared(self, other: Candidate) -> int:
        """How many levels two bookies have in common, from the widest on.

        More than any domain has levels when they share the host itself: bookies that were given
        different domains are believed, whatever their addresses are.
        """
        if self.host == other.host and self.domain == other.domain:
            return SAME_HOST
        shared = 0
        for mine, theirs in zip(self.domain.split("/"), other.domain.split("/"), strict=False):
            if mine != theirs:
                break
            shared += 1
        return shared


SAME_HOST = 1 << 16


class DomainRule(NamedTuple):
    """3.8: domains every write set should (or, when enforced, must) span."""

    min_domains: int = 2
    enforce: bool = False


class Sized(NamedTuple):
    """What a new ledger gets when fewer bookies live than were asked for."""

    quorum: Quorum
    degraded: bool


def size_for(wanted: Quorum, live: int, *, allow_degraded: bool) -> Sized:
    """Shrink E to Qw, then open degraded, then refuse (3.7; ruling of design.md §4)."""
    if live >= wanted.ensemble:
        return Sized(wanted, False)
    if live >= wanted.write:
        return Sized(Quorum(wanted.write, wanted.write, wanted.ack), False)
    if allow_degraded and live >= wanted.ack:
        return Sized(Quorum(live, live, wanted.ack), True)
    needed = wanted.ack if allow_degraded else wanted.write
    raise NotEnoughBookies(f"{live} bookies are writable, a new ledger needs {needed}")


def choose_ensemble(
    candidates: Sequence[Candidate],
    quorum: Quorum,
    *,
    entropy: Entropy,
    quarantined: Collection[str] = (),
    rule: DomainRule | None = None,
) -> tuple[Candidate, ...]:
    """An ensemble of E distinct bookies in slot order; raises NotEnoughBookies."""
    rule = rule or DomainRule()
    found: list[tuple[int, tuple[Candidate, ...]]] = []
    for _ in range(ENSEMBLE_TRIES if quorum.ensemble > quorum.write else 1):
        order = _by_preference(candidates, quarantined, entropy)
        ensemble = _draw(order, quorum)
        crowded = _pairs_on_one_host(ensemble, quorum)
        found.append((crowded, ensemble))
        if not crowded:
            break
    _, ensemble = min(found, key=lambda one: one[0])
    _check(ensemble, candidates, quorum, rule)
    return ensemble


def _draw(order: Sequence[Candidate], quorum: Quorum) -> tuple[Candidate, ...]:
    chosen: dict[int, Candidate] = {}
    for slot in range(quorum.ensemble):
        pick = _best_for(slot, order, chosen, quorum)
        if pick is None:
            raise NotEnoughBookies(f"{len(order)} bookies for an ensemble of {quorum.ensemble}")
        chosen[slot] = pick
    return tuple(chosen[slot] for slot in range(quorum.ensemble))


def _pairs_on_one_host(ensemble: Sequence[Candidate], quorum: Quorum) -> int:
    """Pairs of copies of one entry that would be lost with one host."""
    return sum(
        ensemble[one].levels_shared(ensemble[other]) == SAME_HOST
        for window in windows(quorum)
        for one in window
        for other in window
        if one < other
    )


def choose_replacements(
    failed: Mapping[int, Member],
    ensemble: Sequence[Candidate],
    candidates: Sequence[Candidate],
    quorum: Quorum,
    *,
    entropy: Entropy,
    quarantined: Collection[str] = (),
    rule: DomainRule | None = None,
) -> dict[int, Candidate]:
    """C-2: members for the failed slots; fewer, or none, when there are not enough (3.7).

    A bookie of the present ensemble is never chosen, except that a slot may take the newer
    incarnation of its own bookie (B-26).
    """
    rule = rule or DomainRule()
    used = {candidate.member.bookie_id for candidate in ensemble}
    order = _by_preference(candidates, quarantined, entropy)
    placed = {s: c for s, c in enumerate(ensemble) if s not in failed}
    chosen: dict[int, Candidate] = {}
    for slot, member in sorted(failed.items()):
        own = [c for c in order if c.member.bookie_id == member.bookie_id and c.member != member]
        spare = [c for c in order if c.member.bookie_id not in used]
        pick = _best_for(slot, [*spare, *own], placed, quorum)
        if pick is None or (rule.enforce and not _spans(slot, pick, placed, quorum, rule)):
            continue
        placed[slot] = chosen[slot] = pick
        used.add(pick.member.bookie_id)
    return chosen


def _by_preference(
    candidates: Sequence[Candidate], quarantined: Collection[str], entropy: Entropy
) -> list[Candidate]:
    """Random order, quarantined bookies last."""
    shuffled = entropy.shuffled(list(candidates))
    return sorted(shuffled, key=lambda c: c.member.bookie_id in quarantined)


def _best_for(
    slot: int, order: Sequence[Candidate], placed: Mapping[int, Candidate], quorum: Quorum
) -> Candidate | None:
    """The candidate that lies farthest from the other copies of the slot's entries.

    The first such in order. What counts first is how many copies it would join on a host, then how
    near the nearest is, then how near all of them are.
    """
    taken = {candidate.member.bookie_id for candidate in placed.values()}
    near = _neighbours(slot, placed, quorum)

    def nearness(candidate: Candidate) -> tuple[int, int, int]:
        shared = [candidate.levels_shared(other) for other in near]
        return shared.count(SAME_HOST), max(shared, default=0), sum(shared)

    free = [candidate for candidate in order if candidate.member.bookie_id not in taken]
    return min(free, key=nearness, default=None)


def _neighbours(slot: int, placed: Mapping[int, Candidate], quorum: Quorum) -> list[Candidate]:
    """Bookies that share a write set with the slot."""
    others = {
        other
        for window in windows(quorum)
        if slot in window
        for other in window
        if other != slot and other in placed
    }
    return [placed[other] for other in sorted(others)]


def _spans(
    slot: int,
    pick: Candidate,
    placed: Mapping[int, Candidate],
    quorum: Quorum,
    rule: DomainRule,
) -> bool:
    after = {**placed, slot: pick}
    wanted = min(rule.min_domains, quorum.write)
    return all(
        len({after[s].domain for s in window if s in after}) >= wanted
        for window in windows(quorum)
        if slot in window
    )


def _check(
    ensemble: Sequence[Candidate],
    candidates: Sequence[Candidate],
    quorum: Quorum,
    rule: DomainRule,
) -> None:
    if not rule.enforce:
        return
    wanted = min(rule.min_domains, quorum.write)
    for window in windows(quorum):
        if len({ensemble[slot].domain for slot in window}) < wanted:
            raise NotEnoughBookies(
                f"no ensemble spans {wanted} fault domains per write set "
                f"({len({c.domain for c in candidates})} domains are live)"
            )
