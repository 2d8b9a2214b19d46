"""Cold reads: what begins before its turn (F078)."""

from __future__ import annotations

from octavo.serving.partition.read_path import read_at, warm_at
from tests.serving_rig import Rig, make_batch, produce, until


async def test_a_warmed_read_of_a_closed_segment_waits_for_nothing_more() -> None:
    rig = Rig()
    try:
        old = await rig.broker().open()
        await produce(old, make_batch([b"kept"]))
        await old.close(5.0)
        broker = rig.broker(broker_id="broker-2")
        view = (await broker.open()).view()
        before = broker.cold.reads
        warm_at(view, 0)
        warm_at(view, 0)  # asked for twice, begun once
        await until(lambda: broker.cold.reads > before)
        found = await read_at(view, 0, 1 << 20, at_least_one=True)
        assert found.next_offset == 1
        assert broker.cold.reads == before + 1
    finally:
        await rig.close()


async def test_warming_what_is_not_there_changes_nothing() -> None:
    rig = Rig()
    try:
        broker = rig.broker()
        shell = await broker.open()
        warm_at(shell.view(), 0)  # an empty partition
        await produce(shell, make_batch([b"fresh"]))
        warm_at(shell.view(), 0)  # in the tail cache
        warm_at(shell.view(), 1)  # at the end
        found = await read_at(shell.view(), 0, 1 << 20, at_least_one=True)
        assert found.next_offset == 1
        assert broker.cold.reads == 0
    finally:
        await rig.close()
