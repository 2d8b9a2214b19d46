"""What operators ask of a partition of groups, and heartbeats whose client is gone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from octavo.runtime.errors import InvariantViolation
from octavo.serving.groups import descriptions
from octavo.serving.groups import group_table as table_module
from octavo.serving.groups import partition_core as partition_module
from octavo.serving.groups.core import GroupCore
from octavo.serving.groups.held import HeldHeartbeats
from octavo.serving.groups.partition_core import GroupPartitionCore
from octavo.serving.groups.values import (
    JOIN_EPOCH,
    DescribeReply,
    Heartbeat,
    ListedGroup,
    ListReply,
    MemberName,
    Refusal,
    RemoveReply,
    Token,
)
from tests.group_partition_plays import READS_T, Member, at, refusal_of
from tests.group_shell import NOBODY, Shell, topics


def listed(shell: Shell) -> tuple[ListedGroup, ...]:
    reply = shell.answers[shell.list_groups()]
    assert isinstance(reply, ListReply)
    return reply.groups


def described(shell: Shell, group_id: str = "g") -> DescribeReply:
    token = shell.describe(group_id)
    shell.settle()
    reply = shell.answers[token]
    assert isinstance(reply, DescribeReply)
    return reply


def held(shell: Shell, member: Member) -> int:
    """A heartbeat of a member that knows everything."""
    member.sequence += 1
    seen = member.seen
    beat = Heartbeat(member.name, member.epoch, None, None, None, member.sequence, seen, seen)
    return shell.heartbeat("g", beat)


# --- plays -------------------------------------------------------------------------------------


def a_group_is_described_when_that_is_stored(shell: Shell) -> None:
    shell.commit("simple", NOBODY, at(4))
    member = Member(shell, "a")
    member.beat()
    early, list_early = shell.describe("g"), shell.list_groups()
    assert not shell.answers.keys() & {early, list_early}, "RB8: its epoch is not stored yet"
    shell.store()
    shell.store()
    first = shell.answers[early]
    assert isinstance(first, DescribeReply)
    assert first.group is not None
    assert (first.group.epoch, first.group.listed.state) == (1, "ASSIGNING")
    member.converge()
    found = described(shell).group
    assert found is not None
    assert found.listed == ListedGroup("g", "STABLE", "consumer", 1)
    assert (found.epoch, found.target_epoch, found.assignor) == (1, 1, "uniform")
    (one,) = found.members
    assert (one.member_id, one.state, one.epoch, one.left) == ("a", "STABLE", 1, False)
    assert one.owned == one.target
    assert [slot.partition for slot in one.owned] == [0, 1, 2]
    assert one.pending == ()
    assert listed(shell) == (
        ListedGroup("g", "STABLE", "consumer", 1),
        ListedGroup("simple", "EMPTY", "simple", 0),
    )
    assert described(shell, "nobody").refusal is Refusal.GROUP_ID_NOT_FOUND


def what_a_member_gives_up_is_shown(shell: Shell) -> None:
    first, second = Member(shell, "a"), Member(shell, "b")
    first.converge()
    second.beat()
    shell.settle()
    first.beat()
    shell.settle()
    found = described(shell).group
    assert found is not None
    by_name = {one.member_id: one for one in found.members}
    assert found.listed.state == "RECONCILING"
    assert by_name["a"].state == "REVOKING"
    assert len(by_name["a"].owned) + len(by_name["a"].pending) == 3
    assert by_name["a"].pending
    assert by_name["b"].owned == ()
    assert set(by_name["b"].target) == set(by_name["a"].pending)


def members_are_removed_by_either_name(shell: Shell) -> None:
    one, other = Member(shell, "a"), Member(shell, "b")
    one.converge()
    other.converge()
    shell.heartbeat("g", Heartbeat("s", JOIN_EPOCH, "instance", READS_T, frozenset(), 1))
    shell.settle()
    names = [MemberName("a"), MemberName("", "instance"), MemberName("stranger")]
    token = shell.remove_members("g", *names)
    assert token not in shell.answers, "RB8"
    shell.settle()
    assert shell.answers[token] == RemoveReply(None, frozenset({MemberName("stranger")}))
    found = described(shell).group
    assert found is not None
    assert [member.member_id for member in found.members] == ["b"]
    one.beat()
    shell.settle()
    one.take()
    assert one.owned == frozenset(), "it is no member any more"
    other.converge()
    assert len(other.owned) == 3
    assert refusal_of(shell, shell.remove_members("nobody", *names)) is (Refusal.GROUP_ID_NOT_FOUND)
    last = shell.remove_members("g", MemberName("b"))
    shell.settle()
    assert refusal_of(shell, last) is None
    assert listed(shell) == (ListedGroup("g", "EMPTY", "consumer", 0),)


def a_heartbeat_whose_client_is_gone_is_let_go(shell: Shell) -> None:
    member = Member(shell, "a")
    member.converge()
    token = held(shell, member)
    assert token not in shell.answers, "there is nothing to tell"
    before = described(shell).group
    shell.withdraw("g", "a", token)
    shell.asked.pop(token)
    shell.change_topics(topics(t=5))
    shell.settle()
    shell.pass_time(LATER_S)
    shell.settle()
    assert token not in shell.answers
    found = described(shell).group
    assert found is not None
    assert before is not None
    assert found.members[0].owned == before.members[0].owned, "RB3: no step without a heartbeat"
    member.converge()
    assert len(member.owned) == 5


def only_that_heartbeat_is_let_go(shell: Shell) -> None:
    member = Member(shell, "a")
    member.converge()
    token = held(shell, member)
    shell.withdraw("g", "a", token + 1_000)
    shell.withdraw("g", "b", token)
    shell.withdraw("h", "a", token)
    shell.pass_time(LATER_S)
    shell.settle()
    assert refusal_of(shell, token) is None


def nothing_is_told_of_what_was_lost(shell: Shell) -> None:
    Member(shell, "a").beat()
    waiting = [shell.describe("g"), shell.list_groups(), shell.remove_members("g", MemberName("a"))]
    shell.crash(stored=False)
    assert [refusal_of(shell, token) for token in waiting] == [Refusal.NOT_COORDINATOR] * 3
    assert listed(shell) == ()


LATER_S = 5.0
"""Longer than a heartbeat is held, shorter than a session."""

PLAYS: list[Callable[[Shell], None]] = [
    a_group_is_described_when_that_is_stored,
    what_a_member_gives_up_is_shown,
    members_are_removed_by_either_name,
    a_heartbeat_whose_client_is_gone_is_let_go,
    only_that_heartbeat_is_let_go,
    nothing_is_told_of_what_was_lost,
]


@pytest.mark.parametrize("play", PLAYS)
def test_play(play: Callable[[Shell], None]) -> None:
    play(Shell())


# --- planted faults ----------------------------------------------------------------------------


class _TellsAtOnce(table_module.GroupTable):
    """Descriptions do not wait for what they tell."""

    def respond(self, token: Token, reply: object, after: int) -> None:
        kinds = (DescribeReply, ListReply, RemoveReply)
        super().respond(token, reply, 0 if isinstance(reply, kinds) else after)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class _LetsNothingGo(HeldHeartbeats):
    def withdraw(self, member_id: str, token: Token) -> None:
        pass


class _LetsAnyGo(HeldHeartbeats):
    def withdraw(self, member_id: str, token: Token) -> None:
        self._pop(member_id)


class _RemovesNobody(GroupCore):
    def remove(self, members: object, now_s: float) -> list[object]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return []


def caught(core_type: type[GroupPartitionCore] = GroupPartitionCore) -> bool:
    try:
        for play in PLAYS:
            play(type("Planted", (Shell,), {"core_type": core_type})())
    except (AssertionError, InvariantViolation, KeyError):
        return True
    return False


PLANTED: list[tuple[object, str, object]] = [
    (partition_module, "GroupTable", _TellsAtOnce),
    (table_module, "GroupCore", _RemovesNobody),
    (descriptions, "STABLE", descriptions.RECONCILING),
    (descriptions, "ASSIGNING", descriptions.STABLE),
]


@pytest.mark.parametrize(("module", "name", "planted"), PLANTED)
def test_a_planted_fault_is_found(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, planted: object
) -> None:
    monkeypatch.setattr(module, name, planted)
    assert caught()


@pytest.mark.parametrize("planted", [_LetsNothingGo, _LetsAnyGo])
def test_a_planted_fault_of_what_is_held_is_found(
    monkeypatch: pytest.MonkeyPatch, planted: type[HeldHeartbeats]
) -> None:
    monkeypatch.setattr("octavo.serving.groups.core.HeldHeartbeats", planted)
    assert caught()


def test_nothing_planted_is_not_found() -> None:
    assert not caught()
