"""Bits flip in closed segments while readers read: all are found and repaired, none is believed
(6.15, faults §4.6). The short form of `make soak-scrub`."""

from __future__ import annotations

import pathlib

import pytest

from octavo.bookie.storage.index import Index
from octavo.bookie.storage.suspects import Run
from tools.scrub_flips import World, until

FLIPS = 24


async def test_615_flipped_bits_are_found_repaired_and_never_served(tmp_path: pathlib.Path) -> None:
    async with World(tmp_path, 7) as world:
        await world.fill(3, 80)
        world.start()
        await world.run(FLIPS, spread=True)
        assert await world.lost() == 0
        damaged, repaired = world.totals()
        assert damaged == repaired
    assert not world.wrong, world.wrong[:5]
    assert len(world.found) + len(world.unowned) == FLIPS
    assert damaged > FLIPS / 4  # not each flip's entry: some were copied elsewhere before
    assert world.reads > FLIPS


def all_runs(index: Index, ledger_id: int, runs: list[Run], suspected: object) -> list[Run]:
    """A listing that tells of everything."""
    del index, ledger_id, suspected
    return runs


async def test_a_suspect_that_is_listed_is_not_repaired(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the flips prove: without the listing's part in it nothing is repaired."""
    monkeypatch.setattr("octavo.bookie.store.without_suspects", all_runs)
    async with World(tmp_path, 7) as world:
        await world.fill(2, 100)
        name = next(iter(world.holders(next(iter(world.records)))))
        await until(lambda: world.flip_one([name]) and world.flips[-1].entry is not None, "a flip")
        await until(lambda: not world.waiting(), "the flips to be found")
        desk = world.bookies[name].server.desk
        await until(lambda: desk.info().scrub_entries_damaged > 0, "a suspect")
        await until(lambda: _marks_were_worked_on(world), "a worker to look at it")
        assert await world.lost() > 0


def _marks_were_worked_on(world: World) -> bool:
    return any(b.healing.stats.ledgers_repaired for b in world.bookies.values())
