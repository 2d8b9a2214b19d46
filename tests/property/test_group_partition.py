"""A partition of groups: durable before told, the same after a crash at every step, fenced commits.

Directed plays say what each rule is; a sweep of seeds mixes everything, with a crash after each
step of some of them. Planted faults show that both find what they are for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

import pytest

from octavo.proto.group_records import (
    Kind,
    Record,
    Slot,
    StoredRecord,
)
from octavo.runtime.errors import InvariantViolation
from octavo.serving.groups import group_table as table_module
from octavo.serving.groups.append_queue import AppendQueue, Respond, Unstored
from octavo.serving.groups.assignors import Target
from octavo.serving.groups.core import GroupCore
from octavo.serving.groups.fencing import commit_refusal
from octavo.serving.groups.group_table import PartitionAction
from octavo.serving.groups.offsets import CommittedOffsets
from octavo.serving.groups.partition_core import GroupPartitionCore
from octavo.serving.groups.topics import TopicDirectory
from octavo.serving.groups.values import (
    Committer,
    Refusal,
    Reply,
    Token,
)
from tests.group_partition_plays import (
    DIRECTED,
    a_group_of_many_offsets_is_deleted,
    a_target_of_many_batches,
    run,
)
from tests.group_shell import LIMITS, Shell


@pytest.mark.parametrize("play", DIRECTED)
def test_directed(play: Callable[[Shell], None]) -> None:
    play(Shell())


SEEDS = 45


@pytest.mark.parametrize("block", range(3))
def test_rb8_gp7_durable_before_told_and_the_same_after_every_crash(block: int) -> None:
    for seed in range(block, SEEDS, 3):
        run(seed)


class _Divided(Shell):
    """Every event is too large for a batch, and may be cut short."""

    judges = False

    def __init__(self, directory: TopicDirectory | None = None) -> None:
        super().__init__(directory, replace(LIMITS, batch_bytes_max=1))

    def judge_log(self) -> None:
        """What was cut short is healed, so that the log says the same in the end only."""
        if self.judges:
            super().judge_log()


@pytest.mark.parametrize("most_bytes", [1, 500, 2_000])
def test_what_no_batch_can_hold_is_divided_and_may_be_cut_short(
    monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    monkeypatch.setattr("octavo.serving.groups.append_queue.EVENT_BYTES_MAX", most_bytes)
    for batches_stored in range(8):
        shell = _Divided()
        a_target_of_many_batches(shell, batches_stored)
        shell.settle()
        shell.judges = True
        shell.judge_log()
    a_group_of_many_offsets_is_deleted(_Divided())
    for seed in range(20, 30):
        run(seed, _Divided)


def test_rb2_steps_of_many_members_are_taken_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RB2: no event concerns more members than a turn of the loop can take."""
    monkeypatch.setattr("octavo.serving.groups.core.STEPS_AT_ONCE", 1)
    for seed in range(2, 20):
        run(seed)


# --- planted faults ----------------------------------------------------------------------------


class _AnswersAtOnce(AppendQueue):
    def respond(self, token: Token, reply: Reply, after: int) -> list[Respond]:
        return super().respond(token, reply, 0)


class _AnswersOneBatchTooEarly(AppendQueue):
    def respond(self, token: Token, reply: Reply, after: int) -> list[Respond]:
        return super().respond(token, reply, after - 1)


class _ForgetsWhoWaits(AppendQueue):
    def lose(self) -> list[Respond]:
        super().lose()
        return []


class _AnswersWhoWaits(AppendQueue):
    """A batch of unknown fate counts as stored."""

    def lose(self) -> list[Respond]:
        return [one for answers in self._waiting.values() for one in answers]


class _DividesEvents(AppendQueue):
    def add(self, records: Iterable[Unstored]) -> int:
        number = 0
        for record in records:
            self._last_bytes = self._batch_bytes_max
            number = super().add([record])
        return number


class _CallsEverythingProved(AppendQueue):
    def respond(self, token: Token, reply: Reply, after: int) -> list[Respond]:
        return [one._replace(proved=True) for one in super().respond(token, reply, after)]


class _ReadsNoTombstones(CommittedOffsets):
    def replay(self, record: Record) -> None:
        if record.value is not None:
            super().replay(record)


class _LeavesNoTombstones(CommittedOffsets):
    def remove(self, slots: Iterable[Slot]) -> list[Record]:
        super().remove(slots)
        return []


class _ExpiresWhatIsRead(CommittedOffsets):
    def expired(
        self, before_ms: int, empty_since_ms: int | None, spared: Collection[str]
    ) -> list[Slot]:
        return super().expired(before_ms, empty_since_ms, ())


class _ExpiresFromTheCommit(CommittedOffsets):
    """Not from when the group became empty."""

    def expired(
        self, before_ms: int, empty_since_ms: int | None, spared: Collection[str]
    ) -> list[Slot]:
        return super().expired(before_ms, None, spared)


class _FencesNobody(GroupCore):
    def commit(self, who: Committer, slots: Iterable[Slot], now_s: float) -> Refusal | None:
        return None if who.member_id in self.state.members else Refusal.UNKNOWN_MEMBER_ID


class _CommitsAreNoLife(GroupCore):
    def commit(self, who: Committer, slots: Iterable[Slot], now_s: float) -> Refusal | None:
        return commit_refusal(self.state, who, slots)


class _KeepsHeldHeartbeats(GroupCore):
    def drop(self) -> list[Token]:
        return []


def _no_stamp(group: object, record: Record) -> Record:
    """When a group became empty is not stored."""
    return record


PARTS: list[tuple[str, object]] = [
    ("AppendQueue", _AnswersAtOnce),
    ("AppendQueue", _AnswersOneBatchTooEarly),
    ("AppendQueue", _ForgetsWhoWaits),
    ("AppendQueue", _AnswersWhoWaits),
    ("AppendQueue", _DividesEvents),
    ("AppendQueue", _CallsEverythingProved),
    ("CommittedOffsets", _ReadsNoTombstones),
    ("CommittedOffsets", _LeavesNoTombstones),
    ("CommittedOffsets", _ExpiresWhatIsRead),
    ("CommittedOffsets", _ExpiresFromTheCommit),
    ("GroupCore", _FencesNobody),
    ("GroupCore", _CommitsAreNoLife),
    ("GroupCore", _KeepsHeldHeartbeats),
    ("stamped", _no_stamp),
]


class _LeavesOutTargets(GroupPartitionCore):
    def snapshot(self) -> tuple[StoredRecord, ...]:
        return tuple(one for one in super().snapshot() if one.key[1] != Kind.TARGET)


class _LeavesOutOffsets(GroupPartitionCore):
    def snapshot(self) -> tuple[StoredRecord, ...]:
        return tuple(one for one in super().snapshot() if one.key[1] != Kind.OFFSET)


class _TakesAnyTarget(GroupPartitionCore):
    """A target goes to whatever group has the name."""

    def computed(
        self, number: int, target: Target, now_ms: int, now_s: float
    ) -> list[PartitionAction]:
        group_id, _, epoch = self._table.computing[number]
        if group_id in self._table.groups:
            self._table.computing[number] = (group_id, self._table.groups[group_id].core, epoch)
        return super().computed(number, target, now_ms, now_s)


class _ForgetsThatItForgot(GroupPartitionCore):
    """What is gone is told before that is durable."""

    def delete_group(self, token: Token, group_id: str) -> list[PartitionAction]:
        actions = super().delete_group(token, group_id)
        self._table.forgotten = 0
        return actions


class _ServesWhatItLost(GroupPartitionCore):
    def lost(self) -> list[PartitionAction]:
        actions = super().lost()
        self._table.refuses = None
        return actions


class _ServesBeforeItRead(GroupPartitionCore):
    def replay(self, stored: StoredRecord) -> None:
        super().replay(stored)
        self._table.refuses = None


class _TakesADirectoryForProof(GroupPartitionCore):
    """A topic that is not in the directory counts as deleted."""

    def topics_changed(
        self, directory: TopicDirectory, now_ms: int, now_s: float
    ) -> list[PartitionAction]:
        known_ids = {topic_id for topic_id, _ in directory.topics.values()}
        actions = super().topics_changed(directory, now_ms, now_s)
        for group in list(self._table.groups.values()):
            for slot in list(group.offsets):
                if slot.topic_id not in known_ids:
                    actions += self.topic_deleted(slot.topic_id)
        return actions


CORES: list[type[GroupPartitionCore]] = [
    _LeavesOutTargets,
    _LeavesOutOffsets,
    _TakesAnyTarget,
    _ForgetsThatItForgot,
    _ServesWhatItLost,
    _ServesBeforeItRead,
    _TakesADirectoryForProof,
]


def caught(shell_type: type[Shell] = Shell) -> bool:
    try:
        for play in DIRECTED:
            play(shell_type())
        for seed in range(1, SEEDS):
            run(seed, shell_type)
    except (AssertionError, InvariantViolation, KeyError):
        return True
    return False


@pytest.mark.parametrize(("where", "planted"), PARTS)
def test_a_planted_fault_of_a_part_is_found(
    monkeypatch: pytest.MonkeyPatch, where: str, planted: object
) -> None:
    monkeypatch.setattr(table_module, where, planted)
    assert caught()


@pytest.mark.parametrize("planted", CORES)
def test_a_planted_fault_of_the_partition_is_found(planted: type[GroupPartitionCore]) -> None:
    assert caught(type("Planted", (Shell,), {"core_type": planted}))
