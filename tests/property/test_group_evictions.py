"""Groups that are moved on because they are too far behind (F162): plays over one partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import pytest

from octavo.proto.group_records import OffsetKey, OffsetRecord, Record, Slot
from octavo.runtime.errors import InvariantViolation
from octavo.serving.groups import group_table as table_module
from octavo.serving.groups.core import GroupCore
from octavo.serving.groups.offsets import EVICTED, CommittedOffsets
from octavo.serving.groups.values import Committer, EvictReply, FetchReply, Refusal
from tests.group_partition_plays import Member, at, committed, refusal_of
from tests.group_shell import NOBODY, Shell


def evicted(shell: Shell, lowest: dict[int, int], topic_id: str = "id-t") -> EvictReply:
    token = shell.evict(lowest, topic_id)
    shell.settle()
    reply = shell.answers[token]
    assert isinstance(reply, EvictReply)
    return reply


def value(shell: Shell, group_id: str, partition: int = 0) -> OffsetRecord:
    token = shell.fetch(group_id, NOBODY, Slot("id-t", partition))
    shell.settle()
    reply = shell.answers[token]
    assert isinstance(reply, FetchReply)
    found = reply.offsets[Slot("id-t", partition)]
    assert found is not None
    return found


# --- plays -------------------------------------------------------------------------------------


def only_groups_below_are_moved_and_only_forward(shell: Shell) -> None:
    shell.commit("slow", NOBODY, at(3), at(8, 1), at(1, 2))
    shell.commit("fast", NOBODY, at(50), at(9, 1))
    shell.commit("there", NOBODY, at(10))
    shell.settle()
    assert evicted(shell, {0: 10, 1: 9}) == EvictReply(None, 1, 7 + 1)
    assert committed(shell, "slow") == {0: 10, 1: 9, 2: 1}
    assert committed(shell, "fast") == {0: 50, 1: 9}
    assert committed(shell, "there") == {0: 10}
    assert evicted(shell, {0: 10, 1: 9}) == EvictReply(None), "again it moves nobody"
    assert evicted(shell, {0: 4}) == EvictReply(None), "a lower one moves nobody back"


def another_topic_and_a_group_without_an_offset_are_left_alone(shell: Shell) -> None:
    member = Member(shell, "a")
    member.converge()
    shell.commit("h", NOBODY, at(1, 0, "u"))
    shell.settle()
    assert evicted(shell, {0: 10}) == EvictReply(None)
    assert committed(shell) == {}
    member.beat()
    shell.settle()
    member.take()
    assert len(member.owned) == 3, "nobody lost anything"


def a_moved_offset_says_so_and_is_as_old_as_its_commit(shell: Shell) -> None:
    shell.commit("g", NOBODY, at(3))
    shell.settle()
    before = value(shell, "g")
    shell.pass_time(7.0)
    evicted(shell, {0: 10})
    assert value(shell, "g") == OffsetRecord(10, None, f"{EVICTED}3", before.committed_ms)
    shell.commit("g", NOBODY, at(5))  # an operator's reset goes back behind it (O2, O3)
    shell.settle()
    assert committed(shell) == {0: 5}


def who_held_the_partition_begins_anew_and_nobody_else(shell: Shell) -> None:
    one, other = Member(shell, "a"), Member(shell, "b")
    for _ in range(3):
        one.converge()
        other.converge()
    mine, theirs = min(one.owned), min(other.owned)
    shell.commit("g", one.committer, at(1, mine.partition))
    shell.commit("g", other.committer, at(1, theirs.partition))
    shell.settle()
    was, epoch = one.committer, other.epoch
    assert evicted(shell, {mine.partition: 10}) == EvictReply(None, 1, 9)
    late = shell.commit("g", was, at(2, mine.partition))
    assert refusal_of(shell, late) is Refusal.UNKNOWN_MEMBER_ID, "what it commits late is refused"
    assert committed(shell)[mine.partition] == 10
    one.beat()
    shell.settle()
    one.take()
    assert one.owned == frozenset(), "it is told that the partition is lost"
    alive = shell.commit("g", Committer("b", epoch), at(2, theirs.partition))
    shell.settle()
    assert refusal_of(shell, alive) is None, "the other one is a member as before"
    for _ in range(3):
        one.converge()
        other.converge()
    assert len(one.owned | other.owned) == 3
    assert one.owned


def it_is_told_when_it_is_stored(shell: Shell) -> None:
    shell.commit("g", NOBODY, at(3))
    shell.settle()
    token = shell.evict({0: 10})
    assert token not in shell.answers, "RB8"
    shell.crash(stored=False)
    assert refusal_of(shell, token) is Refusal.NOT_COORDINATOR
    assert committed(shell) == {0: 3}
    token = shell.evict({0: 10})
    shell.crash(stored=True)
    assert committed(shell) == {0: 10}, "its fate was its own"


PLAYS: list[Callable[[Shell], None]] = [
    only_groups_below_are_moved_and_only_forward,
    another_topic_and_a_group_without_an_offset_are_left_alone,
    a_moved_offset_says_so_and_is_as_old_as_its_commit,
    who_held_the_partition_begins_anew_and_nobody_else,
    it_is_told_when_it_is_stored,
]


@pytest.mark.parametrize("play", PLAYS)
def test_f162_play(play: Callable[[Shell], None]) -> None:
    play(Shell())


# --- planted faults ----------------------------------------------------------------------------


class _MovesBack(CommittedOffsets):
    def evict(
        self, topic_id: str, lowest: Mapping[int, int]
    ) -> dict[OffsetKey, tuple[int, Record]]:
        moved: dict[OffsetKey, tuple[int, Record]] = {}
        for partition, offset in lowest.items():
            old = self.get(Slot(topic_id, partition))
            if old is not None:
                key = OffsetKey(topic_id, "t", partition)
                moved[key] = offset - old.offset, self.put(key, old._replace(offset=offset))
        return moved


class _RemovesNobody(GroupCore):
    def remove(self, members: object, now_s: float) -> list[object]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return []


class _RemovesAll(GroupCore):
    def remove(self, members: Iterable[object], now_s: float) -> list[object]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return [*super().remove(list(self.state.members.values()), now_s)]


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("CommittedOffsets", _MovesBack),
        ("GroupCore", _RemovesNobody),
        ("GroupCore", _RemovesAll),
    ],
)
def test_a_planted_fault_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, planted: object
) -> None:
    monkeypatch.setattr(table_module, name, planted)
    found = False
    for play in PLAYS:
        try:
            play(Shell())
        except (AssertionError, InvariantViolation, KeyError):
            found = True
    assert found
