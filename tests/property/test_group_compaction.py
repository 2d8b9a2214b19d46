"""The beginning of a partition of groups can go once its state was written anew behind it.

The sweep of `group_partition_plays` compacts whenever something was stored, in pieces of a few
records, cuts the log, and reads it again after crashes. Planted faults show that it would notice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from octavo.proto.group_records import Kind, Record, Slot
from octavo.runtime.errors import InvariantViolation
from octavo.serving.groups import compaction as compaction_module
from octavo.serving.groups import group_table as table_module
from octavo.serving.groups import partition_core as partition_module
from octavo.serving.groups.compaction import Compaction
from octavo.serving.groups.offsets import CommittedOffsets
from octavo.serving.groups.state import GroupState
from tests.group_partition_plays import Member, at, committed, run
from tests.group_shell import NOBODY, Shell


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_module, "PIECE_RECORDS", 3)


class _Compacting(Shell):
    all_cuts = 0

    def store(self) -> None:
        super().store()
        before = self.cuts
        if self.tokens % 3:
            self.compact()
        type(self).all_cuts += self.cuts - before

    def settle(self) -> None:
        """Without a further compaction, which would never rest."""
        while self.under_way is not None or self.orders:
            super().store()
            self.compute()


def test_the_log_says_the_same_after_every_cut() -> None:
    for seed in range(40):
        run(seed, _Compacting)
    assert _Compacting.all_cuts > 40, "hardly anything was cut"


def whole(shell: Shell) -> None:
    """One compaction from its beginning to the cut."""
    before = shell.cuts
    for _ in range(100):
        shell.compact()
        shell.settle()
        if shell.cuts > before:
            return
    raise AssertionError("it does not end")


def test_a_log_of_many_commits_is_as_long_as_its_state() -> None:
    shell = Shell()
    member = Member(shell, "a")
    member.converge()
    for number in range(200):
        shell.commit("g", member.committer, at(number, number % 3))
        shell.settle()
    assert len(shell.log) > 200
    whole(shell)
    assert len(shell.log) == 7, "group, member, assignment, target, three offsets"
    shell.crash(stored=False)
    assert committed(shell) == {0: 198, 1: 199, 2: 197}
    member.converge()
    assert member.epoch == 1, "RB8"
    assert len(member.owned) == 3


def test_a_log_without_groups_is_cut_too() -> None:
    shell = Shell()
    for _ in range(5):
        shell.commit("g", NOBODY, at(1))
        shell.settle()
        shell.delete_group("g")
        shell.settle()
    whole(shell)
    assert len(shell.log) == 1
    shell.crash(stored=False)
    assert committed(shell) == {}
    whole(shell)
    assert len(shell.log) == 1


def test_nothing_is_compacted_before_the_log_was_read_or_after_it_was_lost() -> None:
    shell = Shell()
    shell.commit("g", NOBODY, at(1))
    shell.settle()
    shell.do(shell.core.lost())
    (refused,) = shell.core.compact(1)
    assert refused.reply.refusal is not None  # type: ignore[union-attr]  # pyright: ignore
    fresh = shell.core_type(shell.limits, shell.directory)
    (refused,) = fresh.compact(1)
    assert refused.reply.refusal is not None  # type: ignore[union-attr]  # pyright: ignore


# --- planted faults ----------------------------------------------------------------------------


class _ForgetsOffsets(CommittedOffsets):
    def snapshot_of(self, slots: Iterable[Slot]) -> Iterator[Record]:
        return iter([] if isinstance(slots, tuple) else super().snapshot_of(slots))


class _ForgetsTargets(GroupState):
    def snapshot_of(self, member_ids: Iterable[str]) -> Iterable[Record]:
        found = super().snapshot_of(member_ids)
        if isinstance(member_ids, tuple):
            return [record for record in found if record.kind is not Kind.TARGET]
        return found


class _ForgetsGroups(Compaction):
    def write(self) -> bool:
        self._pieces = type(self._pieces)(one for one in self._pieces if one.members or one.slots)
        return super().write()


class _EndsTooEarly(Compaction):
    def write(self) -> bool:
        super().write()
        return True


class _LeavesOutWhoCameFirst(Compaction):
    def __init__(self, table: table_module.GroupTable) -> None:
        super().__init__(table)
        if self._pieces:
            self._pieces.popleft()


PLANTED: list[tuple[object, str, object]] = [
    (table_module, "CommittedOffsets", _ForgetsOffsets),
    ("octavo.serving.groups.core", "GroupState", _ForgetsTargets),
    (partition_module, "Compaction", _ForgetsGroups),
    (partition_module, "Compaction", _EndsTooEarly),
    (partition_module, "Compaction", _LeavesOutWhoCameFirst),
]


class _CutsTooLate(_Compacting):
    """Where the compaction ended, not where it began."""

    def compact(self) -> None:
        if self.compacting is not None and self.places:
            self.cut_at = max(self.places)
        super().compact()


def caught(shell_type: type[Shell] = _Compacting) -> bool:
    try:
        for seed in range(1, 40):
            run(seed, shell_type)
    except (AssertionError, InvariantViolation, KeyError):
        return True
    return False


@pytest.mark.parametrize(("module", "name", "planted"), PLANTED)
def test_a_planted_fault_is_found(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, planted: object
) -> None:
    if isinstance(module, str):
        monkeypatch.setattr(f"{module}.{name}", planted)
    else:
        monkeypatch.setattr(module, name, planted)
    assert caught()


def test_a_cut_at_the_wrong_place_is_found() -> None:
    assert caught(_CutsTooLate)
