"""Collection and compaction, ended at each operation of the disk: nothing lost, nothing resurrected
(B-12, B-19..B-21, G-2)."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import pytest

from octavo.bookie.deletions import LedgerDeletions
from octavo.bookie.journal.segment import SegmentHeader
from octavo.bookie.ledgers import Ledger
from octavo.bookie.reclaim.compaction_core import CompactionCore
from octavo.bookie.reclaim.sorted_copy import Copy, LiveRows, SortedCopier
from octavo.bookie.storage.index import Index
from octavo.bookie.storage.index_jobs import Erase, Repoint, finish
from octavo.proto.bookie_wire import Status
from tests.reclaim_cuts import BrokenPromise, ReclaimStory

ENDS = [("kill", 0), ("power", 0), ("power", 1000), ("sync", 0)]
"""How it ends, and how many batches of the index behind its last flush survive."""
STEPS_MIN = 30
SYNCS_MIN = 5


async def told(
    folder: pathlib.Path,
    step: int | None,
    *,
    how: str = "kill",
    index_batches: int = 0,
    bug: str = "",
) -> ReclaimStory:
    """The story, ended at an operation of the disk."""
    story = ReclaimStory(
        folder,
        stop_after=step,
        how=how,
        index_batches=index_batches,
        seed=step or 0,
        bug=bug,
    )
    return await story.run()


async def ends(folder: pathlib.Path, *, how: str, index_batches: int, bug: str = "") -> int:
    """Tell it once for each operation; how many there are."""
    for step in range(1000):
        story = await told(folder / f"{step}", step, how=how, index_batches=index_batches, bug=bug)
        if not story.stopped:
            return step
    raise AssertionError("it does not end")


async def test_the_story_without_an_end(tmp_path: pathlib.Path) -> None:
    story = await told(tmp_path, None)
    assert not story.stopped
    assert story.compactions > 1
    assert story.reclaimed_bytes > 0


@pytest.mark.parametrize(("how", "index_batches"), ENDS)
async def test_an_end_at_each_step(tmp_path: pathlib.Path, how: str, index_batches: int) -> None:
    ended = await ends(tmp_path, how=how, index_batches=index_batches)
    assert ended >= (SYNCS_MIN if how == "sync" else STEPS_MIN)


# --- planted bugs: what the stories would miss, they would not prove ----------------------------


async def finds(folder: pathlib.Path, bug: str = "", how: str = "kill") -> bool:
    try:
        await ends(folder, how=how, index_batches=0, bug=bug)
    except BrokenPromise:
        return True
    return False


@pytest.mark.parametrize("bug", ["sync .sorted", "sync-dir"])
async def test_b19_a_sync_left_out_is_found(tmp_path: pathlib.Path, bug: str) -> None:
    assert await finds(tmp_path, bug, "power")


async def test_b20_a_flush_left_out_behind_repoints_is_found(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = CompactionCore.repointed

    def hasty(self: CompactionCore, now_s: float) -> list[object]:
        real(self, now_s)
        return list(self.flushed(self._mark_segment, now_s))  # pyright: ignore[reportPrivateUsage]

    monkeypatch.setattr(CompactionCore, "repointed", hasty)
    assert await finds(tmp_path)


async def test_b20_a_removal_without_a_look_is_found(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was copied from is removed, whether its entries moved or not."""

    def unseen(self: SortedCopier, number: int) -> LiveRows:
        del self, number
        return LiveRows([], True)

    real = SortedCopier.copy

    def half(self: SortedCopier, sources: Sequence[int], header: SegmentHeader) -> Copy:
        with monkeypatch.context() as seeing:
            seeing.setattr(SortedCopier, "live_rows", live_rows)
            copy = real(self, sources, header)
        return copy._replace(moves=copy.moves[::2])

    live_rows = SortedCopier.live_rows
    monkeypatch.setattr(SortedCopier, "live_rows", unseen)
    monkeypatch.setattr(SortedCopier, "copy", half)
    assert await finds(tmp_path)


async def test_b18_the_look_keeps_what_was_not_moved(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same half copies are harmless where each removal looks first."""
    real = SortedCopier.copy

    def half(self: SortedCopier, sources: Sequence[int], header: SegmentHeader) -> Copy:
        copy = real(self, sources, header)
        return copy._replace(moves=copy.moves[::2])

    monkeypatch.setattr(SortedCopier, "copy", half)
    story = ReclaimStory(tmp_path, stop_after=None, how="kill", index_batches=0)
    await story.run()
    assert story.compactions


async def test_b19_an_unconditional_repoint_is_found(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries that are deleted between the copy and its repoints come back."""
    real = Repoint.step
    erased: set[int] = set()

    def late(self: Repoint, index: Index) -> bool:
        for ledger_id in {move.ledger_id for move in self._moves} - erased:  # pyright: ignore[reportPrivateUsage]
            erased.add(ledger_id)
            finish(Erase(ledger_id), index)
        return real(self, index)

    monkeypatch.setattr(Repoint, "step", late)
    with pytest.raises(BrokenPromise, match="entry 1/0 is NO_SUCH"):
        await told(tmp_path, None)


async def test_g5_a_deletion_that_is_not_in_the_stream_is_found(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a replay does not delete again is there until the next pass of the collection."""

    async def silent(self: LedgerDeletions, ledgers: list[Ledger]) -> Status:
        del self
        for ledger in ledgers:
            ledger.doom()
        return Status.OK

    async def nothing(self: ReclaimStory) -> None:
        del self

    monkeypatch.setattr(LedgerDeletions, "_write", silent)
    monkeypatch.setattr(ReclaimStory, "_reclaim_again", nothing)
    assert await finds(tmp_path)
