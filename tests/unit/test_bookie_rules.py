"""Rules of spec/ledger.md at one bookie on a real disk, named by rule."""

from __future__ import annotations

import logging
import pathlib
from typing import Any

import pytest

from octavo.bookie.journal.segment import Position
from octavo.bookie.storage.applier import IndexApplier
from octavo.bookie.storage.index import Index
from octavo.proto import bookie_pb2
from octavo.proto.bookie_wire import FrameType, ReadRequest, Status, decode_read_reply, encode_read
from octavo.runtime.errors import InvariantViolation
from tests.bookie_rig import MAX_ENTRY, BookieRig, entry, until


async def test_b7_a_segment_is_allocated_before_it_is_written(tmp_path: pathlib.Path) -> None:
    """So that a sync does not have to extend the file."""
    async with BookieRig(tmp_path / "data", segment_bytes=4 << 20) as rig:
        ledger = await rig.ledger()
        await rig.add(entry(ledger, 0))
        status = rig.segments()[-1].stat()
        assert status.st_size == 4 << 20
        assert status.st_blocks * 512 >= 4 << 20


async def test_b10_the_mark_travels_with_what_it_covers(tmp_path: pathlib.Path) -> None:
    """Kill at any moment: each entry above the index's mark is replayed, none below is missing."""
    async with BookieRig(tmp_path / "data", memtable_flush_s=600) as rig:
        ledger = await rig.ledger()
        for i in range(20):
            await rig.add(entry(ledger, i))
            if i % 7 == 3:
                await rig.crash()
                assert (await rig.read(ledger, 0, 50))[1] == [
                    entry(ledger, k) for k in range(i + 1)
                ]


async def test_b11_a_mark_never_goes_back(tmp_path: pathlib.Path) -> None:
    async with BookieRig(tmp_path / "data", memtable_flush_s=0.02) as rig:
        ledger = await rig.ledger()
        await rig.add(entry(ledger, 0))
        boot = rig.server._boot  # pyright: ignore[reportPrivateUsage]
        index: Index = boot.index
        seen = [index.mark(0)]
        for i in range(1, 30):
            await rig.add(entry(ledger, i))
            seen.append(index.mark(0))
        assert seen == sorted(seen, key=lambda mark: mark or Position(0, 0))
        # Not `durable` of each moment: the journal, left alone, notes its end in one more batch.
        added = boot.journal.durable
        await until(lambda: (index.mark(0) or Position(0, 0)) >= added)
        with pytest.raises(InvariantViolation, match="go back"):
            IndexApplier(index, 0).commit(Position(0, 0))


async def test_b11_what_a_start_replays_is_bounded_by_bytes_too(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of large entries a disk takes much in the time between two flushes."""
    settings: dict[str, Any] = {"segment_bytes": 1 << 20, "memtable_flush_bytes": 2 << 20}
    async with BookieRig(tmp_path / "data", memtable_flush_s=600, **settings) as rig:
        ledger = await rig.ledger()
        for i in range(12):
            await rig.add(entry(ledger, i, bytes(700_000)))
        boot = rig.server._boot  # pyright: ignore[reportPrivateUsage]
        added = boot.journal.durable
        await until(lambda: (boot.index.mark(0) or Position(0, 0)) >= added)
        caplog.set_level(logging.INFO, "octavo.bookie")
        await rig.crash()
        said = [one for one in caplog.messages if "replayed" in one][-1]
        assert 1 <= int(said.partition("segments=")[2].split()[0]) <= 4, said


async def test_r12_b26_an_older_incarnation_is_fenced_and_knows_nothing(
    tmp_path: pathlib.Path,
) -> None:
    """Fences for it are OK; absence is UNKNOWN, presence an answer; adds are refused."""
    async with BookieRig(tmp_path / "data") as rig:
        ledger = await rig.ledger()
        await rig.add(entry(ledger, 0))
        old = rig.server.incarnation
        await until(lambda: not rig.server.store._table.by_id[ledger].pending)  # pyright: ignore[reportPrivateUsage]
        await rig.stop()
        for segment in rig.segments()[:-1] or rig.segments():
            segment.unlink()
        await rig.start(accept_data_loss=True)
        assert rig.server.incarnation != old
        client = await rig.client()
        fence = bookie_pb2.FenceRequest(ledger_id=ledger, incarnation=str(old))
        reply = bookie_pb2.FenceReply.FromString(
            bytes((await client.call(FrameType.FENCE, fence)).body)
        )
        assert reply.status == Status.OK
        client.send(encode_read(9, ReadRequest(old.bytes, ledger, 5, 1, 1 << 20)))
        absent = decode_read_reply((await client.receive()).body, MAX_ENTRY)
        assert absent.status == Status.UNKNOWN
        client.incarnation = old.bytes
        assert await client.add(entry(ledger, 1)) == [Status.WRONG_INCARNATION]
        assert rig.server.salvage == {old.bytes}


async def test_b33_a_bookie_without_its_fence_still_refuses_after_recovery_began(
    tmp_path: pathlib.Path,
) -> None:
    """Recovery commits IN_RECOVERY before it fences; admission reads that, once per ledger."""
    async with BookieRig(tmp_path / "data") as rig:
        ledger = await rig.ledger()
        await rig.catalog.update(ledger, lambda metadata: metadata.in_recovery())
        desk = rig.server.store._desk  # pyright: ignore[reportPrivateUsage]
        assert await rig.add(entry(ledger, 0)) == [Status.FENCED]
        reads = desk.reads
        assert await rig.add(entry(ledger, 0)) == [Status.FENCED]
        assert desk.reads == reads, "refusals are remembered"
        fresh = await rig.ledger()
        await rig.add(entry(fresh, 0), entry(fresh, 1))
        await rig.add(entry(fresh, 2))
        assert desk.reads == reads + 1, "one read per ledger"
