"""JournalCore in a world of full and failing disks, kills and power cuts (§6.4, §6.13, B-8).

The promises are checked by `tests.journal_world`; here stand the schedules, and bugs that the world
must find: each class below breaks one rule.
"""

from __future__ import annotations

import uuid

import pytest

from octavo.bookie.journal.actions import (
    Acknowledge,
    Action,
    CreateSegment,
    DropSegment,
    NoteDurable,
    Publish,
    SyncDirectory,
    SyncSegment,
    WriteBatch,
)
from octavo.bookie.journal.core import JournalCore, Step
from octavo.bookie.journal.item import CommittedGroup, JournalItem
from octavo.bookie.journal.queue import JournalQueue
from octavo.bookie.journal.segment import BATCH_HEADER_BYTES, Position, segment_name
from octavo.proto.bookie_wire import Status
from octavo.runtime.errors import OctavoError
from tests.journal_world import FOLDER, BrokenRule, Faults, Tally, World

SCHEDULES = 150
WORLDS = {
    "honest": Faults(),
    "full": Faults(no_space=0.4),
    "failing": Faults(failure=0.02),
    "full and failing": Faults(no_space=0.3, failure=0.02),
}
HOSTILE = Faults(no_space=0.3, failure=0.03)
SEEDS_MAX = 150
"""In so many schedules a planted bug is found, or the world is too kind."""


@pytest.mark.parametrize("world", WORLDS)
def test_no_schedule_breaks_a_promise(world: str) -> None:
    total = Tally()
    for seed in range(SCHEDULES):
        total.add(World(seed, faults=WORLDS[world]).run(3))
    assert total.acknowledged > 10 * SCHEDULES
    assert total.rolls > SCHEDULES // 2
    assert min(total.cuts, total.kills, total.marks, total.carried) > SCHEDULES // 2
    assert total.ended > (SCHEDULES // 15 if world in ("honest", "full") else 2)
    assert (total.refused > SCHEDULES // 10) == ("full" in world)
    assert (total.failures > SCHEDULES // 10) == (world != "honest")


def found_by(
    core: type[JournalCore], queue: type[JournalQueue], seeds: int, faults: Faults
) -> str | None:
    """What the first schedule that finds something says."""
    for seed in range(seeds):
        try:
            World(seed, core, queue, faults).run(3)
        except (BrokenRule, OctavoError) as error:
            return f"seed {seed}: {error}"
    return None


# --- planted bugs ------------------------------------------------------------------------------


class TellsBeforeTheSync(JournalCore):
    """B-4."""

    def written(self, end: int) -> list[Action]:
        writing, items = self.step is Step.WRITE, self._items
        actions = super().written(end)
        return [Acknowledge(items, Status.OK), *actions] if writing and items else actions

    def _committed(self) -> list[Action]:
        return [a for a in super()._committed() if not isinstance(a, Acknowledge)]


class TellsAfterAFailedSync(JournalCore):
    """B-8."""

    def failed(self, error: Exception) -> list[Action]:
        if self.step is Step.SYNC and self._items:
            return [Acknowledge(self._items, Status.OK), *super().failed(error)]
        return super().failed(error)


class RepeatsASync(JournalCore):
    """B-8: the second one says OK, of pages that the first one lost."""

    def failed(self, error: Exception) -> list[Action]:
        return [SyncSegment()] if self.step is Step.SYNC else super().failed(error)


class GoesOnAfterAFailedWrite(JournalCore):
    """A full disk under an allocated write is taken for a refusal."""

    def failed(self, error: Exception) -> list[Action]:
        if self.step is Step.WRITE and isinstance(error, OSError) and self._items:
            items, self._items = self._items, []
            self.step, self.sync_started_s = Step.READY, None
            return [Acknowledge(items, Status.DISK_FULL)]
        return super().failed(error)


class BelievesAShortWrite(JournalCore):
    def written(self, end: int) -> list[Action]:
        return super().written(self._write_end)


class ShowsTheIndexTooEarly(JournalCore):
    """B-5."""

    def written(self, end: int) -> list[Action]:
        writing, items = self.step is Step.WRITE, self._items
        actions = super().written(end)
        if not writing or not items or self.step is Step.FAILED:
            return actions
        mark = Position(self.header.number, end)
        return [Publish(CommittedGroup(mark.segment, items, mark)), *actions]

    def _committed(self) -> list[Action]:
        return [a for a in super()._committed() if not isinstance(a, Publish)]


class MarksAhead(JournalCore):
    """B-10: the mark covers what the group does not."""

    def _committed(self) -> list[Action]:
        return [
            Publish(a.group._replace(mark=Position(a.group.segment, self._allocated)))
            if isinstance(a, Publish)
            else a
            for a in super()._committed()
        ]


class NotesAfterTelling(JournalCore):
    """ADR 14: a segment that is lost now takes an acknowledged batch along, unnoticed."""

    def _committed(self) -> list[Action]:
        actions = super()._committed()
        notes = [a for a in actions if isinstance(a, NoteDurable)]
        return [a for a in actions if not isinstance(a, NoteDurable)] + notes


class LeavesTheNameUnsynced(JournalCore):
    """§6.2: a segment whose name a power cut takes."""

    def synced(self) -> list[Action]:
        actions = super().synced()
        if actions and isinstance(actions[0], SyncDirectory):
            return self.directory_synced(self.wakes_s)
        return actions

    wakes_s = 0.0

    def wake(self, now_s: float) -> list[Action]:
        self.wakes_s = now_s
        return super().wake(now_s)


class LeavesTheHeaderUnsynced(JournalCore):
    """§6.2."""

    def written(self, end: int) -> list[Action]:
        heading = self.step is Step.HEAD
        actions = super().written(end)
        return self.synced() if heading and self.step is Step.HEAD_SYNC else actions


class LeavesCarriedBatchesUnsynced(JournalCore):
    """B-17: what the boot only saw is served before this boot made it durable."""

    def written(self, end: int) -> list[Action]:
        carrying = self.step is Step.CARRY
        actions = super().written(end)
        return self.synced() if carrying and self.step is Step.CARRY_SYNC else actions


class TellsInAnotherOrder(JournalCore):
    def _committed(self) -> list[Action]:
        return [
            Acknowledge(a.items[::-1], a.status) if isinstance(a, Acknowledge) else a
            for a in super()._committed()
        ]


class ForgetsTheMarksPlace(JournalCore):
    """6.13: the mark behind the last batch meets a full disk."""

    def _fits(self) -> bool:
        size = BATCH_HEADER_BYTES + 4 * self._records + self._nbytes
        return self._end + size <= self._allocated


class NeverProves(JournalCore):
    """B-15: the last batch stays what a torn tail looks like."""

    def wake(self, now_s: float) -> list[Action]:
        if not self.queue.closed and not len(self.queue):
            return []
        return super().wake(now_s)


class SleepsOverLazyItems(JournalCore):
    """RD-6: an explicit LAC that nobody's add takes along."""

    def wake(self, now_s: float) -> list[Action]:
        actions = super().wake(now_s)
        if not self.unproven:
            self._deadline_s = None
        return actions


class UsesANumberAgain(JournalCore):
    def file_created(self, segment_uuid: uuid.UUID, created_ms: int) -> list[Action]:
        actions = super().file_created(segment_uuid, created_ms)
        if self.header.number:
            self._next_number = self._target.number
        return actions


class RefusesTheReserve(JournalCore):
    """6.13: fences and recovery go on where adds do not."""

    def segment_dropped(self, now_s: float) -> list[Action]:
        actions = super().segment_dropped(now_s)
        if actions and isinstance(actions[-1], CreateSegment):
            kept, self._creation = self._items, None
            self._keep([])
            self.step = Step.READY
            return [*actions[:-1], Acknowledge(kept, Status.DISK_FULL)]
        return actions


class LeavesASegmentWithoutSpace(JournalCore):
    """6.13: whatever its header says of the log's end comes true at the next boot."""

    def failed(self, error: Exception) -> list[Action]:
        actions = super().failed(error)
        return self.segment_dropped(0.0) if self.step is Step.DROP else actions


class WritesWhatItRefused(JournalCore):
    def _keep(self, items: list[JournalItem]) -> None:
        if items:
            super()._keep(self._items)
        else:
            super()._keep(items)


class LosesAnItemAtARoll(JournalCore):
    """INV-1 upside down: what waited for the new segment is neither written nor refused."""

    def directory_synced(self, now_s: float) -> list[Action]:
        self._keep(self._items[1:])
        return super().directory_synced(now_s)


class ForgetsARefusedItem(JournalCore):
    """6.13: who is refused is told so."""

    def segment_dropped(self, now_s: float) -> list[Action]:
        actions = super().segment_dropped(now_s)
        return [a for a in actions if not isinstance(a, Acknowledge)]


class StandsOnItsOwnBatch(JournalCore):
    """B-15: a batch that calls itself durable makes damage of every torn tail."""

    def _write(self, now_s: float) -> list[Action]:
        return [
            a._replace(durable_up_to=Position(a.segment, self._write_end))
            if isinstance(a, WriteBatch)
            else a
            for a in super()._write(now_s)
        ]


class CountsNoBatches(JournalCore):
    """A sequence that stands still: replay ends at the second batch."""

    def _committed(self) -> list[Action]:
        actions = super()._committed()
        self._sequence = 0
        return actions


class ForgetsAFailure(JournalCore):
    """B-8: the stream fails, and works on."""

    def _fail(self, error: Exception) -> list[Action]:
        actions = super()._fail(error)
        return [*actions, *self._write(0.0)] if self._items and self._end else actions


class TakesAll(JournalQueue):
    """B-6: one group of whatever waits."""

    def take(
        self, room_bytes: int, *, when_due: bool = False
    ) -> tuple[list[JournalItem], int, int]:
        return super().take(1 << 40, when_due=when_due)


class TakesTheNewestFirst(JournalQueue):
    def take(
        self, room_bytes: int, *, when_due: bool = False
    ) -> tuple[list[JournalItem], int, int]:
        self._items.reverse()
        return super().take(room_bytes, when_due=when_due)


class HasAlwaysRoom(JournalQueue):
    """B-9."""

    def has_room(
        self, records: int, nbytes: int, *, reserve: bool = False, lazy: bool = False
    ) -> bool:
        return True


class CountsNoBytes(JournalQueue):
    """B-9: records alone bound the queue."""

    def has_room(
        self, records: int, nbytes: int, *, reserve: bool = False, lazy: bool = False
    ) -> bool:
        return super().has_room(records, 0, reserve=reserve, lazy=lazy)


class RingsForEverySecond(JournalQueue):
    """A wake-up that is lost: the item waits until somebody else comes."""

    rings = 0

    def submit(self, item: JournalItem) -> bool:
        ring = super().submit(item)
        self.rings += ring
        return ring and self.rings % 2 == 1


class GivesNothingBack(JournalQueue):
    def settle(self, items: object) -> None:
        """Answered items take room for ever."""


BUGS: list[type[JournalCore]] = [
    TellsBeforeTheSync,
    TellsAfterAFailedSync,
    RepeatsASync,
    GoesOnAfterAFailedWrite,
    BelievesAShortWrite,
    ShowsTheIndexTooEarly,
    MarksAhead,
    NotesAfterTelling,
    LeavesTheNameUnsynced,
    LeavesTheHeaderUnsynced,
    LeavesCarriedBatchesUnsynced,
    TellsInAnotherOrder,
    ForgetsTheMarksPlace,
    NeverProves,
    SleepsOverLazyItems,
    UsesANumberAgain,
    RefusesTheReserve,
    LeavesASegmentWithoutSpace,
    WritesWhatItRefused,
    LosesAnItemAtARoll,
    ForgetsARefusedItem,
    StandsOnItsOwnBatch,
    CountsNoBatches,
    ForgetsAFailure,
]
QUEUE_BUGS: list[type[JournalQueue]] = [
    TakesAll,
    TakesTheNewestFirst,
    HasAlwaysRoom,
    CountsNoBytes,
    RingsForEverySecond,
    GivesNothingBack,
]


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_of_the_core_is_found(bug: type[JournalCore]) -> None:
    assert found_by(bug, JournalQueue, SEEDS_MAX, HOSTILE) is not None


@pytest.mark.parametrize("bug", QUEUE_BUGS)
def test_a_planted_bug_of_the_queue_is_found(bug: type[JournalQueue]) -> None:
    assert found_by(JournalCore, bug, SEEDS_MAX, HOSTILE) is not None


class DropsWithoutSyncing(World):
    """A shell that removes a segment's name and goes on: a power cut brings it back."""

    def _do_drop_segment(self, action: DropSegment) -> list[Action]:
        self.making = None
        self.disk.names.pop(FOLDER / segment_name(action.number), None)
        return self.core.segment_dropped(self.now_s)


def test_a_planted_bug_of_the_shell_is_found() -> None:
    """What was acknowledged behind the place that the returned header names was lost (INV-1)."""
    found = ""
    for seed in range(4 * SEEDS_MAX):
        try:
            DropsWithoutSyncing(seed, faults=WORLDS["full"]).run(3)
        except BrokenRule as error:
            found = str(error)
            break
    assert "is lost" in found or "the index is ahead" in found
