"""Who suspects whom (HB-1 to HB-6): random lives and deaths, and cores with a fault each."""

from __future__ import annotations

import pytest

from octavo.runtime.errors import InvariantViolation
from octavo.serving.liveness import suspicion
from octavo.serving.liveness.suspicion import Peer, Replace, Suspicion
from tests.suspicion_world import SILENCE_S, World

A, B, C = (Peer(name, f"{name}0".encode(), f"{name}:1") for name in "abc")
WALKS = 60


def walk(seed: int, kind: type[Suspicion] = Suspicion) -> list[str]:
    """What was broken in one random story."""
    world = World(2 + seed % 4, seed, kind)
    names = list(world.processes)
    for _ in range(16):
        chosen = world.random.choice(names)
        chance = world.random.random()
        if chance < 0.15:
            world.kill(chosen)
        elif chance < 0.3:
            world.freeze(chosen, SILENCE_S - 0.05)
        elif chance < 0.5:
            world.freeze(chosen, world.random.uniform(0.2, 8.0))
        elif chance < 0.6:
            for name in names[1:]:
                world.freeze(name, 20.0)
        world.run(world.random.choice((0.4, 2.0, 4.0)))
    world.run(3.0)
    return world.broken


def test_what_is_promised_holds_in_random_stories() -> None:
    broken = {seed: found for seed in range(WALKS) if (found := walk(seed))}
    assert not broken


class ForgetsItsPauses(Suspicion):
    def stalled(self, pause_s: float, now_s: float) -> None:
        pass


class ActsOutOfTurn(Suspicion):
    def _leads(self, now_s: float) -> bool:
        return True


class ReplacesThoughItIsDeaf(Suspicion):
    def _hears_nobody(self, now_s: float) -> bool:
        return False


class ForgetsWhoCameBack(Suspicion):
    def replaced(self, peer: Peer, now_s: float) -> None:
        pass


class Impatient(Suspicion):
    def _limit_s(self, name: str, now_s: float) -> float:
        return SILENCE_S / 2


class DoesNotBelieveRefusals(Suspicion):
    def refused(self, peer: Peer) -> None:
        pass

    def _limit_s(self, name: str, now_s: float) -> float:
        return 1000.0


class NeverTriesAgain(Suspicion):
    def kept(self, peer: Peer) -> None:
        pass


PLANTED: dict[type[Suspicion], str] = {
    ForgetsItsPauses: "HB-6",
    ActsOutOfTurn: "HB-3",
    ReplacesThoughItIsDeaf: "HB-4",
    ForgetsWhoCameBack: "HB-5",
    Impatient: "HB-5",
    DoesNotBelieveRefusals: "HB-2",
    NeverTriesAgain: "HB-2",
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_fault_is_found(kind: type[Suspicion]) -> None:
    found = {line for seed in range(WALKS) for line in walk(seed, kind)}
    assert any(line.startswith(PLANTED[kind]) for line in found), found


def core(me: str = "a", *peers: Peer) -> Suspicion:
    made = Suspicion(me, silence_s=SILENCE_S)
    made.members(peers or (A, B, C), 0.0)
    return made


def ordered(core: Suspicion, now_s: float) -> list[str]:
    return [order.peer.broker_id for order in core.due(now_s)]


def test_hb1_the_first_three_watch_everybody_and_the_rest_nobody() -> None:
    peers = [Peer(name, b"0", f"{name}:1") for name in "abcde"]
    for name in "abc":
        watched = core(name, *peers).watched()
        assert [peer.broker_id for peer in watched] == [one for one in "abcde" if one != name]
    for name in "de":
        assert core(name, *peers).watched() == []
        assert core(name, *peers).next_deadline_s() is None


def test_hb2_a_refused_connection_is_enough_and_so_is_another_process() -> None:
    leader = core()
    leader.refused(B)
    assert leader.next_deadline_s() == 0.0
    assert leader.due(0.1) == [Replace(B, "its address refuses connections")]
    leader.answered(C, b"another", 0.2)
    assert leader.due(0.2) == [Replace(C, "another process answers at its address")]
    assert leader.due(0.3) == []  # once for each life


def test_hb2_silence_takes_its_time() -> None:
    leader = core()
    leader.answered(C, C.process_nonce, 1.0)
    assert leader.next_deadline_s() == SILENCE_S
    assert ordered(leader, SILENCE_S - 0.01) == []
    assert ordered(leader, SILENCE_S) == ["b"]
    assert leader.next_deadline_s() == 1.0 + SILENCE_S
    leader.kept(B)
    assert ordered(leader, SILENCE_S) == ["b"]


def test_an_answer_takes_a_refusal_back() -> None:
    leader = core()
    leader.refused(B)
    leader.answered(B, B.process_nonce, 0.1)
    assert ordered(leader, 0.2) == []


def test_hb3_a_deputy_acts_when_the_leader_is_gone() -> None:
    deputy = core("b")
    deputy.refused(C)
    assert ordered(deputy, 0.1) == []
    deputy.refused(A)
    assert ordered(deputy, 0.1) == ["a", "c"]


def test_hb3_who_is_not_registered_does_nothing() -> None:
    outside = core("a", B, C)
    outside.refused(B)
    assert ordered(outside, 100.0) == []


def test_hb4_with_one_other_broker_silence_is_believed() -> None:
    assert ordered(core("a", A, B), SILENCE_S) == ["b"]
    assert ordered(core("a", A, B, C), SILENCE_S) == []


def test_hb5_who_comes_back_has_twice_the_time_and_loses_it_again() -> None:
    leader = core("a", A, B)
    limits: list[float] = []
    now_s = 0.0
    for life in range(6):
        peer = B._replace(process_nonce=b"%d" % life)
        leader.members((A, peer), now_s)
        deadline_s = next(
            now_s + SILENCE_S * n for n in range(1, 20) if leader.due(now_s + SILENCE_S * n)
        )
        limits.append((deadline_s - now_s) / SILENCE_S)
        now_s = deadline_s
        leader.replaced(peer, now_s)
    assert limits == [1, 1, 2, 4, 8, 8]
    leader.members((A, B), now_s + 4 * suspicion.CALM_S)
    assert ordered(leader, now_s + 4 * suspicion.CALM_S + SILENCE_S) == ["b"]


def test_hb6_a_pause_of_ones_own_is_added_to_each_limit() -> None:
    leader = core("a", A, B)
    leader.stalled(5.0, 5.2)
    assert ordered(leader, 5.2 + SILENCE_S - 0.3) == []
    assert ordered(leader, 5.2 + SILENCE_S) == ["b"]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspicion, "REMEMBERED_MAX", 3)
    leader = core()
    for number in range(10):
        peer = Peer(f"b{number}", b"0", "b:1")
        leader.members((A, peer), 0.0)
        leader.replaced(peer, float(number))
        leader.validate()


def test_a_state_that_contradicts_itself_is_named() -> None:
    leader = core()
    leader._order = ["b", "c"]  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(InvariantViolation):
        leader.validate()
