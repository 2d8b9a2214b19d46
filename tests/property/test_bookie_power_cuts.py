"""Kills, failed syncs and power cuts at drawn operations: nothing promised is ever lost or denied
(INV-1, INV-8, INV-9; faults §4.6)."""

from __future__ import annotations

import os
import pathlib
import tempfile
from collections.abc import Iterator

import pytest

from octavo.bookie import boot
from octavo.bookie.journal import replay
from octavo.bookie.journal.replay import Verdict
from octavo.bookie.journal.segment import Position
from tests.power_cuts import BrokenPromise, Schedule, Tally

SCHEDULES = 200
PARTS = 4
LIVES = 3


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """In memory where there is such a file system: RocksDB's syncs are not what is tested."""
    memory = pathlib.Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, ignore_cleanup_errors=True) as made:
        yield pathlib.Path(made)


@pytest.mark.parametrize("part", range(PARTS))
async def test_nothing_promised_is_lost_or_denied(folder: pathlib.Path, part: int) -> None:
    total = Tally()
    for seed in range(part, SCHEDULES, PARTS):
        total.add(await Schedule(folder / str(seed), seed).run(LIVES))
    assert total.power_cuts > SCHEDULES // PARTS
    assert total.kills > SCHEDULES // PARTS
    assert total.failed_syncs > 0
    assert total.boots_cut_short > SCHEDULES // PARTS
    assert total.promised > 2 * SCHEDULES // PARTS


@pytest.mark.parametrize("bug", ["sync .seg", "sync-dir", "sync-replaced"])
async def test_planted_bugs_are_found(folder: pathlib.Path, bug: str) -> None:
    """A sync left out: what the schedules would miss, they would not prove."""
    assert await seed_that_finds(folder, bug) is not None


async def test_believing_the_page_cache_is_found(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A boot that applies what it sees where it lies, unsynced (B-17)."""
    judge = replay.judge

    def trusting(*args: object, **kwargs: object) -> Verdict:
        found: Verdict = judge(*args, **kwargs)  # type: ignore[arg-type]  # pyright: ignore
        if not found.tail:
            return found
        last = found.tail[-1]
        end = Position(last.segment, last.batches[-1].end)
        return found._replace(spans=found.spans + found.tail, tail=[], durable=end)

    monkeypatch.setattr(boot, "judge", trusting)
    assert await seed_that_finds(folder, "") is not None


async def seed_that_finds(folder: pathlib.Path, bug: str) -> int | None:
    for seed in range(60):
        try:
            await Schedule(folder / f"{bug} {seed}", seed, bug).run(LIVES)
        except BrokenPromise:
            return seed
    return None
