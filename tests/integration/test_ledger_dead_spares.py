"""Two of four bookies do not take adds, but are registered: a handful of changes (C-2, 3.7)."""

from __future__ import annotations

import asyncio

import pytest

from octavo.client.ledger import LedgerWriter, Quorum
from octavo.proto.bookie_wire import FrameType, Status
from tests.fake_bookie import FakeBookie
from tests.fix_ledger import FakeCluster, until

Q332 = Quorum(3, 3, 2)


async def start(ledgers: FakeCluster) -> tuple[LedgerWriter, FakeBookie, FakeBookie]:
    """A writer over three of four bookies; the first of them, and the spare."""
    spare = await ledgers.add_bookie()
    client = await ledgers.client()
    await until(lambda: len(client.directory.live()) == 4)
    client.pool.quarantine([spare.bookie_id])
    writer = await client.create_ledger(Q332, {})
    client.pool.lift_quarantine([spare.bookie_id])
    first = ledgers.bookie(writer.metadata.last_fragment[1][0].bookie_id)
    await asyncio.wait_for(writer.append(b"0"), 30)
    return writer, first, spare


async def append(writer: LedgerWriter, count: int) -> None:
    """Add entries one by one, some milliseconds apart; each must be confirmed."""
    for _ in range(count):
        await asyncio.wait_for(writer.append(b"x"), 30)
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("how", ["dead", "read-only", "overfull"])
async def test_c2_two_useless_bookies_of_four_cost_few_changes(
    ledgers: FakeCluster, how: str
) -> None:
    writer, first, spare = await start(ledgers)
    if how == "dead":
        await spare.stop()
        await first.stop()
    else:
        status = Status.READONLY if how == "read-only" else Status.DISK_FULL
        spare.statuses[FrameType.ADD] = [status] * 1000
        first.statuses[FrameType.ADD] = [status] * 1000
    await append(writer, 150)
    assert 1 <= len(writer.metadata.fragments) - 1 <= 2
    assert (await writer.close()).last_entry == 150


async def test_c2_a_suspect_that_answers_again_is_used(ledgers: FakeCluster) -> None:
    """After its rest, and only once it is connected: by then without a change on suspicion."""
    writer, first, spare = await start(ledgers)
    await spare.stop()
    await first.stop()
    await append(writer, 20)
    changes = len(writer.metadata.fragments)
    assert writer.degraded
    await spare.start()
    await first.start()
    await until(lambda: not writer.degraded)
    assert len(writer.metadata.fragments) - changes <= 1
    await append(writer, 1)
    copies = [b for b in ledgers.bookies if 21 in b.ledger(writer.ledger_id).entries]
    await until(lambda: len(copies) >= 2)
    await writer.close()
