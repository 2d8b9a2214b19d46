"""Flipped bits of the index's files: the right bytes, EIO or a new index; never a bare exception,
wrong bytes or a false "not there" (R2, R5). `make soak-index` is the long form."""

from __future__ import annotations

import pathlib

from octavo.bookie.storage.rocks_index import RocksIndex
from octavo.proto.bookie_wire import Status
from tests.bookie_rig import BookieRig, entry, until
from tools.index_flips import run

FLIPS = 40
AT_WORK = ("compaction-pending", "num-running-compactions", "num-running-flushes")


async def resting_tables(rig: BookieRig) -> list[pathlib.Path]:
    """The table files that a running bookie's index reads from, once RocksDB changes them no more.

    A listing of the folder also names files that a compaction emptied and is about to remove.
    """
    index = rig.server._boot.index  # pyright: ignore[reportPrivateUsage]
    assert isinstance(index, RocksIndex)
    database = index._db  # pyright: ignore[reportPrivateUsage]
    await until(lambda: not any(database.property_int_value(f"rocksdb.{at}") for at in AT_WORK))
    folder = rig.data_dir / "index"
    return [folder / live["name"].lstrip("/") for live in database.live_files()]


async def test_r5_no_flipped_bit_of_the_index_is_believed(tmp_path: pathlib.Path) -> None:
    flips = await run(FLIPS, 7, tmp_path)
    assert flips.wrong == []
    assert sum(flips.outcomes.values()) == FLIPS
    assert flips.outcomes["built anew"] > 0, "some of them were noticed"


async def test_r5_damage_met_while_reading_is_eio_and_mended_by_the_next_start(
    tmp_path: pathlib.Path,
) -> None:
    async with BookieRig(tmp_path / "data") as rig:
        ledger = await rig.ledger()
        for first in range(0, 2000, 100):
            await rig.add(*(entry(ledger, i) for i in range(first, first + 100)))
        await rig.stop()
        await rig.start()
        tables = [path for path in await resting_tables(rig) if path.stat().st_size > 16384]
        assert tables
        for table in tables:
            with table.open("r+b") as file:
                file.seek(4000)
                file.write(b"\xff" * 4096)
        met = {(await rig.read(ledger, i))[0] for i in range(0, 2000, 25)}
        assert met == {Status.OK, Status.EIO}, "damage is never absence"
        note = (rig.data_dir / "index.suspected").read_text()
        assert ".sst" in note, "the file is named"
        assert not rig.server.failed.done()
        incarnation = rig.server.incarnation
        await rig.stop()
        await rig.start()
        for i in range(0, 2000, 25):
            assert await rig.read(ledger, i) == (Status.OK, [entry(ledger, i)])
        assert rig.server.incarnation == incarnation
        assert not (rig.data_dir / "index.suspected").exists()
