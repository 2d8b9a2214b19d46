"""Where all groups of a partition go on, as their coordinator tells it (M4)."""

from __future__ import annotations

from octavo.proto.group_records import Slot
from octavo.serving.groups.assignors import SubscribedTopic
from octavo.serving.groups.topics import TopicDirectory
from octavo.serving.groups.values import (
    GroupPositions,
    LeftOut,
    OffsetToCommit,
    PositionsReply,
    Refusal,
    TopicPositions,
)
from tests.group_partition_plays import Member
from tests.group_shell import NOBODY, Shell, key, topics


def at(partition: int, offset: int, topic: str = "t") -> OffsetToCommit:
    return OffsetToCommit(key(partition, topic), offset)


def ask(shell: Shell, partitions_max: int = 100) -> int:
    token = shell.token("")
    shell.do(shell.core.progress.positions(token, partitions_max))
    return token


def told(shell: Shell, partitions_max: int = 100) -> PositionsReply:
    token = ask(shell, partitions_max)
    shell.settle()
    reply = shell.answers[token]
    assert isinstance(reply, PositionsReply)
    return reply


def test_m4_committed_and_assigned_partitions_are_told_of_groups_with_members_and_without() -> None:
    shell = Shell(topics(t=3, u=2))
    member = Member(shell, "m")
    member.converge()
    shell.commit("left", NOBODY, at(1, 7), at(0, 4, "u"), at(0, 5))
    assert told(shell) == PositionsReply(
        None,
        (
            GroupPositions("g", 1, (TopicPositions("t", "id-t", dict.fromkeys(range(3))),)),
            GroupPositions(
                "left",
                0,
                (
                    TopicPositions("t", "id-t", {0: 5, 1: 7}),
                    TopicPositions("u", "id-u", {0: 4}),
                ),
            ),
        ),
    )


def test_rb8_what_is_told_is_durable() -> None:
    shell = Shell(topics(t=3))
    shell.commit("g", NOBODY, at(0, 5))
    token = ask(shell)
    assert token not in shell.answers, "the commit is not stored yet"
    shell.settle()
    assert token in shell.answers


def test_o1_what_was_committed_in_an_earlier_life_or_of_what_is_gone_is_no_position() -> None:
    shell = Shell(topics(t=3, u=1))
    shell.commit("g", NOBODY, at(0, 5), at(2, 6), at(0, 1, "u"))
    shell.settle()
    now = TopicDirectory({"t": ("id-t", SubscribedTopic("t", 3, removed=frozenset({2})))})
    shell.change_topics(now)
    (group,) = told(shell).groups
    assert group.topics == (TopicPositions("t", "id-t", {0: 5}),)
    another = TopicDirectory({"t": ("id-of-another-life", SubscribedTopic("t", 3))})
    shell.change_topics(another)
    (group,) = told(shell).groups
    assert group.topics == ()


def test_what_is_beyond_the_bound_is_left_out_whole_and_counted() -> None:
    shell = Shell(topics(t=3, u=2))
    shell.commit("a", NOBODY, at(0, 1), at(1, 1), at(2, 1), at(0, 1, "u"))
    shell.commit("b", NOBODY, at(0, 1, "u"))
    found = told(shell, 2)
    assert [[topic.topic for topic in group.topics] for group in found.groups] == [["u"], ["u"]]
    assert found.left_out == LeftOut(1, 3)
    assert told(shell, 0).left_out == LeftOut(3, 5)
    assert told(shell, 5).left_out == LeftOut()


def test_who_does_not_coordinate_tells_nothing() -> None:
    shell = Shell()
    shell.do(shell.core.lost())
    token = ask(shell)
    assert shell.answers[token] == PositionsReply(Refusal.NOT_COORDINATOR)
    assert Slot("id-t", 0) == key(0).slot
