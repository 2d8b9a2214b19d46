"""Who may own bundles, and when they are given away (O-3, F145)."""

from __future__ import annotations

from octavo.metadata.brokers import BrokerInfo
from octavo.runtime.clock import SystemClock
from octavo.serving.balance import Balance, Held
from octavo.serving.fleet import Fleet
from octavo.serving.placement import eligible, preferred_owners
from tests.serving_rig import make_config

BUNDLES = 12


class Brokers:
    """The directory of brokers, as it is told."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)

    def live(self) -> list[BrokerInfo]:
        return [BrokerInfo(name, f"{name}:1", name.encode()) for name in self.names]


class Marks:
    """The marks of drained and leaving brokers."""

    def __init__(self) -> None:
        self.is_drained: set[str] = set()
        self.is_leaving: set[str] = set()

    def drained(self) -> frozenset[str]:
        return frozenset(self.is_drained)

    def leaving(self) -> frozenset[str]:
        return frozenset(self.is_leaving)


class Moved:
    """Bundles that were moved by decision."""

    def __init__(self) -> None:
        self.placed: dict[int, str] = {}

    def brokers(self) -> dict[int, str]:
        return self.placed


class Rig:
    """The balance of broker `a` that holds everything."""

    def __init__(self, *names: str, settle_s: float = 5.0) -> None:
        self.brokers, self.marks, self.moved = Brokers(*names), Marks(), Moved()
        self.fleet = Fleet(self.brokers, self.marks, self.moved, BUNDLES)  # type: ignore[arg-type]  # pyright: ignore
        self.certain = self.may_give = True
        config = make_config(
            bundles=BUNDLES, ownership_settle_s=settle_s, ownership_moves_per_step=2
        )
        self.given: list[int] = []

        async def give(bundle: int) -> None:
            self.given.append(bundle)

        held = Held(lambda: range(BUNDLES), lambda: self.certain, lambda: self.may_give, give)
        self.balance = Balance("a", self.fleet, config, SystemClock(), held)


def test_everybody_computes_the_same_owners_without_those_that_are_marked() -> None:
    rig = Rig("c", "a", "b")
    assert rig.fleet.eligible() == ["a", "b", "c"]
    rig.marks.is_drained.add("b")
    assert rig.fleet.eligible() == ["a", "c"]
    owners = rig.fleet.wanted_owners()
    assert [owners[n].broker_id for n in range(BUNDLES)] == list(
        preferred_owners(BUNDLES, ["a", "c"])
    )
    assert rig.fleet.is_marked("b")
    assert not rig.fleet.is_marked("a")


def test_when_all_are_drained_those_that_stay_serve_and_the_last_one_always() -> None:
    rig = Rig("a", "b", "c")
    rig.marks.is_drained.update("abc")
    assert rig.fleet.eligible() == ["a", "b", "c"]
    rig.marks.is_leaving.add("c")
    assert rig.fleet.eligible() == ["a", "b"]
    rig.marks.is_leaving.update("ab")
    assert rig.fleet.eligible() == ["a", "b", "c"]
    assert Rig().fleet.preferred(0) is None
    assert eligible([], {"a"}) == []


def test_a_set_of_brokers_must_be_stable_before_bundles_move_and_few_move_at_a_time() -> None:
    rig = Rig("a")
    assert rig.balance.step(0.0) == []
    rig.brokers.names = ["a", "b"]
    assert rig.balance.step(1.0) == []
    assert rig.balance.step(5.9) == []
    owners = preferred_owners(BUNDLES, ["a", "b"])
    wanted = [bundle for bundle in range(BUNDLES) if owners[bundle] == "b"]
    assert rig.balance.step(6.0) == wanted[:2]
    rig.brokers.names = ["a", "b", "c"]  # hysteresis: it begins anew
    assert rig.balance.step(6.5) == []


def test_who_is_not_certain_gives_nothing_away_and_waits_again() -> None:
    rig = Rig("a", "b")
    rig.balance.step(0.0)
    rig.certain = False
    assert rig.balance.step(10.0) == []
    rig.certain = True
    assert rig.balance.step(11.0) == []
    assert rig.balance.step(15.0)


def test_a_drained_broker_gives_everything_away_at_once() -> None:
    rig = Rig("a", "b")
    rig.marks.is_drained.add("a")
    assert rig.balance.step(0.0) == list(range(BUNDLES))
    rig.may_give = False  # it stops: that hands over by itself
    assert rig.balance.step(0.1) == []


def test_who_is_not_registered_at_the_moment_gives_nothing_away() -> None:
    rig = Rig("b", "c")
    assert rig.balance.step(0.0) == []
    assert rig.balance.step(100.0) == []


def test_what_was_moved_by_decision_is_given_away_and_nothing_else() -> None:
    rig = Rig("a", "b")
    rig.moved.placed = dict.fromkeys(range(BUNDLES), "a")
    rig.balance.step(0.0)
    assert rig.balance.step(10.0) == []  # everything was moved here
    rig.moved.placed[5] = "b"
    assert rig.balance.step(10.1) == [5]  # without waiting: nobody came or went
    rig.marks.is_drained.add("b")
    rig.balance.step(10.2)
    assert rig.balance.step(20.0) == []  # who may own nothing gets nothing


def test_what_is_in_excess_is_told_of_what_is_held() -> None:
    rig = Rig("a", "b")
    owners = preferred_owners(BUNDLES, ["a", "b"])
    theirs = [bundle for bundle in range(BUNDLES) if owners[bundle] == "b"]
    assert rig.fleet.excess(range(BUNDLES), "a") == theirs
    assert rig.fleet.excess(theirs[:1], "a") == theirs[:1]
    assert rig.fleet.excess(theirs, "b") == []
    assert Rig("a").fleet.excess(range(BUNDLES), "a") == []
    assert Rig("b").fleet.excess(range(BUNDLES), "a") == list(range(BUNDLES))
    assert Rig().fleet.excess(range(BUNDLES), "a") == []  # there is nobody to give them to
