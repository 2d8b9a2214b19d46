"""The traces of the group protocol, step by step at the coordinator's core (RB1 to RB9, W1, W2).

What holds in any order of events is swept elsewhere (`test_group_core`, `test_group_partition`);
here each rule is one short story that reads like its text.
"""

from __future__ import annotations

import pytest

from octavo.proto.group_records import Slot, Subscription
from octavo.serving.groups.assignors import named
from octavo.serving.groups.values import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    Committer,
    DescribeReply,
    Heartbeat,
    HeartbeatReply,
    Refusal,
)
from tests.group_partition_plays import Member, at, committed, refusal_of
from tests.group_shell import LIMITS, NOBODY, Shell, topics

SESSION_S = LIMITS.group.session_timeout_s
REBALANCE_S = 60.0
READS_T = Subscription(frozenset({"t"}), rebalance_timeout_s=REBALANCE_S)


class Slow(Member):
    """Gives up nothing until it is told to: it says what it had, and what it carried out."""

    holds: frozenset[Slot] | None = None

    def stall(self) -> None:
        self.holds = self.owned
        self.carried_out = self.seen

    def beat(self) -> None:
        if self.holds is None:
            super().beat()
            return
        self.take()
        if self.token is None:
            self.sequence += 1
            self.token = self.shell.heartbeat(
                self.group_id,
                Heartbeat(
                    self.name,
                    self.epoch,
                    None,
                    None,
                    self.holds,
                    self.sequence,
                    self.seen,
                    self.carried_out,
                ),
            )
        self.take()


def of(shell: Shell, *names: str, partitions: int = 6) -> list[Slow]:
    """Members that share a topic of so many partitions."""
    members = [Slow(shell, name, reads=READS_T) for name in names]
    settle(*members)
    assert sum(len(one.owned) for one in members) == partitions
    return members


def settle(*members: Member) -> None:
    for _ in range(4):
        for one in members:
            one.converge()


def group_epoch(shell: Shell) -> int:
    token = shell.describe("g")
    shell.settle()
    reply = shell.answers[token]
    assert isinstance(reply, DescribeReply)
    assert reply.group is not None
    return reply.group.epoch


def test_w1_gp4_a_third_member_costs_one_epoch_and_nobody_a_partition_that_stays() -> None:
    shell = Shell(topics(t=6))
    a, b = of(shell, "a", "b")
    epoch, had = group_epoch(shell), (a.owned, b.owned)
    c = Slow(shell, "c", reads=READS_T)
    seen: list[tuple[frozenset[Slot], frozenset[Slot]]] = []
    for _ in range(6):
        for one in (c, a, b):
            one.converge()
            seen.append((a.owned, b.owned))
    assert group_epoch(shell) == epoch + 1
    assert [len(one.owned) for one in (a, b, c)] == [2, 2, 2]
    kept = (had[0] & a.owned, had[1] & b.owned)
    assert [len(one) for one in kept] == [2, 2]
    assert all(x >= kept[0] and y >= kept[1] for x, y in seen), "GP-4: delivered without a pause"
    assert {one.epoch for one in (a, b, c)} == {epoch + 1}


def test_w2_f101_a_member_that_died_costs_one_epoch_and_only_what_was_its_own_moves() -> None:
    shell = Shell(topics(t=6))
    a, b, c = of(shell, "a", "b", "c")
    epoch, before = group_epoch(shell), (b.owned, c.owned)
    for _ in range(int(SESSION_S / 5) + 1):
        shell.pass_time(5.0)
        settle(b, c)
    assert group_epoch(shell) == epoch + 1
    assert b.owned > before[0]
    assert c.owned > before[1]
    assert b.owned | c.owned == before[0] | before[1] | a.owned
    assert len(b.owned) == len(c.owned) == 3


@pytest.mark.parametrize("speaks", [False, True])
def test_rb3_rb5_who_does_not_give_up_holds_up_that_partition_alone_and_not_for_ever(
    speaks: bool,
) -> None:
    """Frozen, until its session is over; or it heartbeats on, until its rebalance timeout is."""
    shell = Shell(topics(t=6))
    a, b = of(shell, "a", "b")
    b.stall()
    c = Slow(shell, "c", reads=READS_T)
    settle(c, a)
    if speaks:
        b.converge()
    settle(c, a)
    assert len(c.owned) == 1, "what A gave up; it waits for the other"
    limit_s = REBALANCE_S if speaks else SESSION_S
    for _ in range(int(limit_s / 3) - 1):
        shell.pass_time(3.0)
        settle(a, c)
        if speaks:
            b.converge()
    assert len(c.owned) == 1
    assert b.epoch > JOIN_EPOCH
    shell.pass_time(6.0)
    assert group_epoch(shell) > c.epoch, "RB5: its end is an event"
    settle(a, c)
    assert len(a.owned) == len(c.owned) == 3
    b.token = None
    late = shell.commit("g", b.committer, at(9))
    assert refusal_of(shell, late) is Refusal.UNKNOWN_MEMBER_ID


def test_rb1_each_change_is_one_epoch_and_what_changes_nothing_is_none() -> None:
    shell = Shell(topics(t=2, u=1))
    a = Member(shell, "a")
    a.converge()
    at_first = group_epoch(shell)
    settle(a)
    shell.pass_time(3.0)
    settle(a)
    shell.change_topics(topics(t=2, u=3))  # nobody reads it
    settle(a)
    assert group_epoch(shell) == at_first
    changes = 0
    b = Member(shell, "b")
    b.converge()
    changes += 1
    assert group_epoch(shell) == at_first + changes
    shell.change_topics(topics(t=4, u=3))
    settle(a, b)
    changes += 1
    assert group_epoch(shell) == at_first + changes
    changed = Heartbeat("b", b.epoch, None, Subscription(frozenset({"u"})), b.owned, b.sequence + 1,
                        b.seen, b.seen)  # fmt: skip
    b.sequence += 1
    b.token = None
    shell.heartbeat("g", changed)
    shell.settle()
    changes += 1
    assert group_epoch(shell) == at_first + changes
    b.leave()
    shell.settle()
    changes += 1
    assert group_epoch(shell) == at_first + changes


def test_rb2_heartbeats_go_on_with_the_old_target_while_one_is_computed() -> None:
    shell = Shell(topics(t=6))
    (a,) = of(shell, "a")
    epoch = a.epoch
    joining = [Member(shell, f"b{number}") for number in range(3)]
    for one in joining:
        one.beat()
    while shell.under_way is not None:
        shell.store()
    for _ in range(5):
        shell.pass_time(SESSION_S * 0.6)
        for one in (a, *joining):
            one.beat()
        while shell.under_way is not None:
            shell.store()
        a.take()
        assert (a.epoch, len(a.owned)) == (epoch, 6)
    assert len(shell.orders) == 1, "many changes, one computation"
    settle(a, *joining)
    assert sum(len(one.owned) for one in (a, *joining)) == 6


def test_rb4_rb7_what_comes_back_before_it_was_given_up_keeps_its_epoch() -> None:
    shell = Shell(topics(t=4))
    (a,) = of(shell, "a", partitions=4)
    before, had = a.committer, a.owned
    a.stall()
    b = Slow(shell, "b", reads=READS_T)
    settle(b, a)
    assert not b.owned, "GP-1"
    assert len(a.owned) == 2
    b.leave()
    shell.settle()
    settle(a)
    assert a.owned == had
    token = shell.commit("g", before, *(at(5, slot.partition) for slot in had))
    shell.settle()
    assert refusal_of(shell, token) is None
    assert set(committed(shell).values()) == {5}


def answer(shell: Shell, beat: Heartbeat) -> HeartbeatReply:
    token = shell.heartbeat("g", beat)
    shell.settle()
    reply = shell.answers[token]
    assert isinstance(reply, HeartbeatReply)
    return reply


def test_rb6_who_is_not_where_the_coordinator_saw_it_is_fenced_and_a_join_never_is() -> None:
    shell = Shell(topics(t=2))
    a = Member(shell, "a")
    a.converge()
    a.token = None
    ahead = Heartbeat("a", a.epoch + 1, None, None, a.owned, a.sequence + 1, a.seen, a.seen)
    assert answer(shell, ahead).refusal is Refusal.FENCED_MEMBER_EPOCH
    nobody = Heartbeat("x", 1, None, None, frozenset(), 1)
    assert answer(shell, nobody).refusal is Refusal.UNKNOWN_MEMBER_ID
    anew = Heartbeat("a", JOIN_EPOCH, None, READS_T, frozenset(), a.sequence + 2, a.seen, a.seen)
    joined = answer(shell, anew)
    assert joined.refusal is None
    old = shell.commit("g", a.committer, at(1))
    shell.settle()
    assert refusal_of(shell, old) is not None, "a commit of its life before"


def test_rb6_x01_an_instance_has_one_holder_and_finds_its_partitions_without_an_epoch() -> None:
    shell = Shell(topics(t=4))

    def joins(name: str) -> HeartbeatReply:
        return answer(shell, Heartbeat(name, JOIN_EPOCH, "i", READS_T, frozenset(), 1))

    first = joins("one")
    assert first.refusal is None
    epoch = group_epoch(shell)
    gone = answer(shell, Heartbeat("one", STATIC_LEAVE_EPOCH, "i", sequence=50))
    assert gone.refusal is None
    second = joins("two")
    assert second.refusal is None
    assert group_epoch(shell) == epoch, "subscription and assignor are as they were"
    joins("three")  # while the second lives
    late = answer(shell, Heartbeat("two", second.epoch, "i", None, frozenset(), 90))
    assert late.refusal is Refusal.FENCED_INSTANCE_ID


def test_rb8_f103_a_coordinator_that_moves_changes_nothing() -> None:
    shell = Shell(topics(t=6))
    a, b = of(shell, "a", "b")
    epoch, owned = group_epoch(shell), (a.owned, b.owned)
    for clean in (False, True):
        shell.pass_time(SESSION_S * 0.7)
        shell.crash(stored=True, clean=clean)
        shell.pass_time(SESSION_S * 0.7)  # a full session from its beginning on
        settle(a, b)
        assert (group_epoch(shell), (a.owned, b.owned)) == (epoch, owned)


def test_rb9_o6_a_group_without_members_is_empty_and_types_do_not_mix() -> None:
    shell = Shell(topics(t=2))
    simple = shell.commit("g", NOBODY, at(3))
    shell.settle()
    assert refusal_of(shell, simple) is None
    a = Member(shell, "a")
    a.converge()
    beside = shell.commit("g", NOBODY, at(4))
    shell.settle()
    assert refusal_of(shell, beside) is Refusal.UNKNOWN_MEMBER_ID
    a.leave()
    shell.settle()
    assert group_epoch(shell) > 0
    again = shell.commit("g", NOBODY, at(5))
    shell.settle()
    assert refusal_of(shell, again) is None
    assert committed(shell) == {0: 5}
    stray = shell.commit("g", Committer("a", 1), at(6))
    assert refusal_of(shell, stray) is Refusal.UNKNOWN_MEMBER_ID


def test_s1_names_that_are_accepted_and_no_eager_one() -> None:
    assert named("uniform") is named("sticky") is named("cooperative-sticky")
    assert named("range") is not named("roundrobin")
    shell = Shell(topics(t=4))
    one = Member(shell, "a", reads=READS_T._replace(assignor="cooperative-sticky"))
    two = Member(shell, "b", reads=READS_T._replace(assignor="sticky"))
    settle(one, two)
    assert len(one.owned) == len(two.owned) == 2
    eager = Member(shell, "c", reads=READS_T._replace(assignor="eager"))
    eager.beat()
    shell.settle()
    eager.take()
    assert (eager.epoch, eager.owned) == (JOIN_EPOCH, frozenset())
