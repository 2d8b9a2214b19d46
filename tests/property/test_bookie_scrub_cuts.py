"""A scrub and its repairs, ended at each operation of disk, index and marks: damage is never
forgotten, never believed and never absence (6.15, INV-9, B-20)."""

from __future__ import annotations

import os
import pathlib

import pytest

from octavo.bookie.scrub.quarantine_core import QuarantineCore
from octavo.bookie.scrub.scrub_actions import QuarantineAction, Remember
from octavo.bookie.scrub.scrubber import Scrubber
from octavo.bookie.storage.index import Suspect
from tests.reclaim_cuts import BrokenPromise
from tests.scrub_cuts import ScrubStory

ENDS = [("kill", 0), ("power", 0), ("power", 1000), ("sync", 0)]
"""How it ends, and how many batches of the index behind its last flush survive."""
STRIDE = int(os.environ.get("OCTAVO_TEST_STRIDE", "4"))
"""`make soak-scrub` ends it at each step; here one kind of end takes those that others leave."""
STEPS_MIN = 30
SYNCS_MIN = 3


async def told(
    folder: pathlib.Path, step: int | None, *, how: str = "kill", index_batches: int = 0
) -> ScrubStory:
    """The story, ended at an operation."""
    story = ScrubStory(
        folder, stop_after=step, how=how, index_batches=index_batches, seed=step or 0
    )
    await story.run()
    return story


async def ends(
    folder: pathlib.Path, *, how: str = "kill", index_batches: int = 0, steps: range
) -> int:
    """Tell it once for each of these operations, as far as there are so many; how many."""
    for step in steps:
        story = await told(folder / f"{step}", step, how=how, index_batches=index_batches)
        if not story.stopped:
            return step
    raise AssertionError("it does not end")


async def test_the_story_without_an_end(tmp_path: pathlib.Path) -> None:
    story = await told(tmp_path, None)
    assert not story.stopped
    assert story.repaired == 1


@pytest.mark.parametrize(("how", "index_batches"), ENDS)
async def test_615_an_end_at_each_step(
    tmp_path: pathlib.Path, how: str, index_batches: int
) -> None:
    stride = 1 if how == "sync" else STRIDE
    steps = range(ENDS.index((how, index_batches)) % stride, 1000, stride)
    ended = await ends(tmp_path, how=how, index_batches=index_batches, steps=steps)
    assert ended >= (SYNCS_MIN if how == "sync" else STEPS_MIN)


# --- planted bugs: what the stories would miss, they would not prove ----------------------------


async def test_615_a_mark_before_the_suspicion_is_durable_is_found(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start does not know why the ledger was marked, and the worker finds nothing missing."""
    real = Scrubber._quarantine  # pyright: ignore[reportPrivateUsage]

    async def hasty(self: Scrubber, action: QuarantineAction) -> list[QuarantineAction]:
        if isinstance(action, Remember):
            await self._save(action.suspects)  # pyright: ignore[reportPrivateUsage]
            self._repair_asked.set()  # pyright: ignore[reportPrivateUsage]
            return self.quarantine.remembered(action.number, 0.0)
        return await real(self, action)

    monkeypatch.setattr(Scrubber, "_quarantine", hasty)
    with pytest.raises(BrokenPromise, match=r"nobody knows|is suspected still"):
        await ends(tmp_path, steps=range(5, 1000))


async def test_615_suspects_that_a_start_forgets_are_found(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgetful(
        self: QuarantineCore, segments: list[int], suspects: list[Suspect], now_s: float
    ) -> list[QuarantineAction]:
        del self, segments, suspects, now_s
        return []

    monkeypatch.setattr(QuarantineCore, "restored", forgetful)
    with pytest.raises(BrokenPromise, match=r"nobody knows|is suspected still"):
        await ends(tmp_path, steps=range(5, 1000))
