"""The real bookie over an index in memory: what a crash takes of it comes back from the journal."""

from __future__ import annotations

import pathlib
import random

import pytest

from octavo.bookie.index_home import INDEX_DIR
from octavo.bookie.journal.segment import CONTROL, Position, Record, RecordType
from octavo.bookie.storage.applier import IndexApplier
from octavo.bookie.storage.index import MAX_ENTRY_ID
from octavo.bookie.storage.memory_index import MemoryEngine
from octavo.proto.bookie_wire import Status
from octavo.proto.entry import encode_header
from tests.bookie_rig import BookieRig, entry, snapshot, until


def pending(rig: BookieRig, ledger: int) -> bool:
    return bool(rig.server.store._table.by_id[ledger].pending)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("batches", [0, 1, 7, 10_000])
async def test_r5_whatever_a_crash_leaves_of_the_index_nothing_is_lost(
    tmp_path: pathlib.Path, batches: int
) -> None:
    """B-10, B-14: replay goes on from the mark that survived, and counts nothing twice."""
    engine = MemoryEngine()
    async with BookieRig(tmp_path / "data", indexes=engine, segment_bytes=4096) as rig:
        ledger = await rig.ledger()
        entries = [entry(ledger, i) for i in range(40)]
        for one in entries:
            assert await rig.add(one) == [Status.OK]
        await rig.read(ledger, 0, fence=True)
        await until(lambda: not pending(rig, ledger))
        assert not list(rig.data_dir.glob(f"{INDEX_DIR}/*")), "no file of RocksDB"
        image = tmp_path / "image"
        engine.crash(rig.data_dir / INDEX_DIR, image / INDEX_DIR, batches)
        snapshot(rig.data_dir, image)
        await rig.crash(image)
        assert await rig.read(ledger, 0, 99) == (Status.OK, entries)
        state = rig.server._boot.index.ledger(ledger)  # pyright: ignore[reportPrivateUsage]
        assert state is not None
        assert (state.fenced, state.last_entry, state.entries) == (True, 39, 40)
        assert state.nbytes == sum(map(len, entries))


async def test_r5_a_lost_index_in_memory_is_built_anew(tmp_path: pathlib.Path) -> None:
    async with BookieRig(tmp_path / "data", indexes=MemoryEngine()) as rig:
        ledger = await rig.ledger()
        await rig.add(entry(ledger, 0))
        incarnation = rig.server.incarnation
        await rig.stop()
        rig.indexes = MemoryEngine()
        await rig.start()
        assert await rig.read(ledger, 0) == (Status.OK, [entry(ledger, 0)])
        assert rig.server.incarnation == incarnation


async def test_the_last_entry_that_can_be_is_read(tmp_path: pathlib.Path) -> None:
    """No key lies behind it for a run to end at."""
    async with BookieRig(tmp_path / "data") as rig:
        ledger = await rig.ledger()
        last = encode_header(ledger, MAX_ENTRY_ID, -1, 4, b"last") + b"last"
        assert await rig.add(last) == [Status.OK]
        await until(lambda: not pending(rig, ledger))
        assert await rig.read(ledger, MAX_ENTRY_ID, 10) == (Status.OK, [last])
        assert not rig.server.failed.done()


@pytest.mark.parametrize("seed", range(20))
def test_b14_replayed_together_or_one_by_one_records_give_the_same(seed: int) -> None:
    """A fence or a deletion among entries keeps its place; nothing is counted twice."""
    rng = random.Random(seed)
    records: list[Record] = []
    for offset in range(200):
        ledger, drawn = rng.randrange(1, 5), rng.random()
        if drawn < 0.9:
            head = encode_header(ledger, rng.randrange(30), rng.randrange(30), 0, b"x")
            records.append(Record(RecordType.ENTRY, head + b"x" * rng.randrange(9), offset))
        else:
            kinds = (RecordType.FENCE, RecordType.ADMIT, RecordType.EXPLICIT_LAC, RecordType.DELETE)
            kind = rng.choice(kinds)
            value = 0 if kind in (RecordType.FENCE, RecordType.DELETE) else rng.randrange(9)
            records.append(Record(kind, CONTROL.pack(ledger, value), offset))
    found: list[list[tuple[bytes, bytes]]] = []
    for together in (False, True):
        index = MemoryEngine().open(pathlib.Path("index"), 0, lambda _damage: None)
        applier = IndexApplier(index, 0)
        for first in range(0, len(records), 40):
            part = records[first : first + 40]
            if together:
                applier.add_records(7, part)
            else:
                for record in part:
                    applier.add_record(7, record)
            applier.commit(Position(7, first + 40))
        found.append(list(index.scan(b"", b"\xff")))
    assert found[0] == found[1]
    assert any(key.startswith(b"e") for key, _ in found[0])
