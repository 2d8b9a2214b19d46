"""What may pile up in a bookie has bounds: lazy records, memory behind replies (RD-6, BP-2)."""

from __future__ import annotations

import asyncio
import pathlib

from octavo.bookie.connection_memory import (
    ANNOUNCED_BYTES_MAX,
    EAGER_BYTES_MIN,
    eager_bytes,
)
from octavo.bookie.journal.options import LAZY_ITEMS_MAX
from octavo.bookie.ledgers import Ledger
from octavo.proto.bookie_wire import EAGER_BYTES, Flags, ReadRequest, Status, encode_read
from octavo.runtime.checksum import Buffer
from tests.bookie_rig import BookieRig, entry, until


def object_of(rig: BookieRig, ledger_id: int) -> Ledger:
    return rig.server.store._table.by_id[ledger_id]  # pyright: ignore[reportPrivateUsage]


async def idle_stream(rig: BookieRig, ledger_id: int) -> None:
    """Wait until everything is written, the idle mark included: the commit thread sleeps."""
    journal = rig.server._boot.journal  # pyright: ignore[reportPrivateUsage]
    found = object_of(rig, ledger_id)
    await until(lambda: not found.pending and not found.pins)
    await until(lambda: not journal.unproven)


async def test_rd6_one_explicit_lac_on_an_idle_stream_is_written(tmp_path: pathlib.Path) -> None:
    async with BookieRig(tmp_path / "data") as rig:
        ledger = await rig.ledger()
        await rig.add(entry(ledger, 0), entry(ledger, 1))
        await idle_stream(rig, ledger)
        journal = rig.server._boot.journal  # pyright: ignore[reportPrivateUsage]
        assert await rig.server.store.write_lac(ledger, 1) is Status.OK
        await until(lambda: journal.queued_records == 0)
        await rig.crash()
        assert (await rig.server.store.read_lac(ledger, -1, 0)).lac == 1


async def test_rd6_b9_explicit_lacs_never_cost_an_add_its_place(tmp_path: pathlib.Path) -> None:
    """More of them than the queue holds, and no timer that would write them soon."""
    bound = 2 * LAZY_ITEMS_MAX
    async with BookieRig(tmp_path / "data", queue_max_records=bound, idle_mark_s=600) as rig:
        ledger, other = await rig.ledger(), await rig.ledger()
        await rig.add(entry(ledger, 0), entry(other, 0))
        journal = rig.server._boot.journal  # pyright: ignore[reportPrivateUsage]
        rig.disk.gate.clear()
        for lac in range(1, bound + 50):
            await rig.server.store.write_lac(ledger, lac)
        assert journal.queued_records <= bound // 2
        adding = asyncio.create_task(rig.add(entry(other, 1)))
        await until(lambda: 1 in object_of(rig, other).pending)
        rig.disk.gate.set()
        assert await adding == [Status.OK]
        await until(lambda: journal.queued_records == 0)


async def test_rd6_many_explicit_lacs_make_a_group_by_themselves(tmp_path: pathlib.Path) -> None:
    async with BookieRig(tmp_path / "data", idle_mark_s=600) as rig:
        ledger = await rig.ledger()
        await rig.add(entry(ledger, 0))
        journal = rig.server._boot.journal  # pyright: ignore[reportPrivateUsage]
        for lac in range(1, LAZY_ITEMS_MAX + 1):
            assert await rig.server.store.write_lac(ledger, lac) is Status.OK
        await until(lambda: journal.queued_records == 0)


def held_bytes(entries: list[Buffer]) -> int:
    """What these entries keep alive."""
    owners = [e.obj if isinstance(e, memoryview) else e for e in entries]
    return sum({id(o): memoryview(o).nbytes for o in owners}.values())


async def test_bp2_a_read_does_not_keep_the_gaps_between_its_entries(
    tmp_path: pathlib.Path,
) -> None:
    async with BookieRig(tmp_path / "data") as rig:
        small, big = await rig.ledger(), await rig.ledger()
        for i in range(20):
            await rig.add(entry(small, i, b"s" * 20), entry(big, i, b"B" * 15_000))
        await idle_stream(rig, small)
        answer = await rig.server.store.read(small, 0, 20, 1 << 20, fence=False, salvage=False)
        assert list(answer.entries) == [entry(small, i, b"s" * 20) for i in range(20)]
        assert held_bytes(answer.entries) <= 2 * sum(map(len, answer.entries))
        dense = await rig.server.store.read(big, 0, 20, 1 << 20, fence=False, salvage=False)
        assert all(isinstance(e, memoryview) for e in dense.entries), "views where that is cheap"
        assert held_bytes(dense.entries) <= 2 * sum(map(len, dense.entries))


async def test_bp2_a_pending_entry_does_not_keep_its_writers_frame(tmp_path: pathlib.Path) -> None:
    async with BookieRig(tmp_path / "data") as rig:
        ledger, other = await rig.ledger(), await rig.ledger()
        await rig.add(entry(ledger, 0), entry(other, 0))
        await idle_stream(rig, ledger)
        rig.disk.gate.clear()
        client = await rig.client()
        client.send_add(1, entry(ledger, 1, b"tiny"), entry(other, 1, b"B" * 200_000))
        await until(lambda: 1 in object_of(rig, ledger).pending)
        answer = await rig.server.store.read(ledger, 1, 1, 1 << 20, fence=False, salvage=False)
        assert list(answer.entries) == [entry(ledger, 1, b"tiny")]
        assert held_bytes(answer.entries) <= 2 * len(answer.entries[0])
        rig.disk.gate.set()
        await client.receive()


async def test_bp2_replies_that_nobody_takes_are_bounded_for_all_connections(
    tmp_path: pathlib.Path,
) -> None:
    """Ordinary reads are refused then; recovery goes on."""
    async with BookieRig(tmp_path / "data", unsent_replies_max_bytes=1 << 20) as rig:
        ledger = await rig.ledger()
        for first in range(0, 32, 8):
            await rig.add(*(entry(ledger, first + i, b"x" * 120_000) for i in range(8)))
        stalled = await rig.client()
        ask = encode_read(1, ReadRequest(stalled.incarnation, ledger, 0, 8, 1 << 20))
        for _ in range(30):
            stalled.send(ask)
        await until(lambda: rig.server.unsent.full)
        other = await rig.client()
        assert (await other.read(ledger, 0)).status == Status.OVERLOADED
        assert (await other.read(ledger, 0, flags=Flags.RECOVERY | Flags.FENCE)).status == Status.OK
        await stalled.close()
        await until(lambda: not rig.server.unsent.full)
        assert (await other.read(ledger, 0)).status == Status.OK


def test_memory_for_announced_frames_is_shared() -> None:
    assert eager_bytes(range(10)) == EAGER_BYTES
    for count in (1, 100, 1000, 4096):
        assert count * eager_bytes(range(count)) <= ANNOUNCED_BYTES_MAX or count == 4096
    assert eager_bytes(range(100_000)) == EAGER_BYTES_MIN
