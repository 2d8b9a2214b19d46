"""A trim whose every step fails or is the broker's last: either list is valid (R4, ML-8, ML-9)."""

from __future__ import annotations

import asyncio

import pytest

from octavo.runtime.errors import OctavoError
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.partition.trims import TO_THE_END
from tests.compaction_rig import (
    Row,
    Strike,
    StruckBroker,
    fall,
    no_orphan,
    nobody_left,
    read_all,
    write,
)
from tests.serving_rig import Rig, until

SEGMENTS = 5
ROWS: list[Row] = [(n, b"k%d" % n, b"%d" % n) for n in range(2 * SEGMENTS)]


async def _written(broker: StruckBroker) -> PartitionShell:
    """Segments of two records; the last one is open."""
    shell = await broker.open()
    for i in range(SEGMENTS):
        await write(shell, *[(key, value) for _, key, value in ROWS[2 * i : 2 * i + 2]])
        if i + 1 < SEGMENTS:
            await shell.roll()
    return shell


async def _trim(rig: Rig, broker: StruckBroker, shell: PartitionShell, before: int) -> int:
    """The whole of it, the sweep of the trash included."""
    start = await shell.trim(before)
    await no_orphan(rig, broker, shell)
    return start


async def _steps_of(before: int) -> list[str]:
    rig = Rig()
    broker = StruckBroker(rig)
    shell = await _written(broker)
    broker.steps.arm(None)
    await _trim(rig, broker, shell, before)
    names = list(broker.steps.names)
    await rig.close()
    return names


@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("has_effect", [False, True])
@pytest.mark.parametrize("before", [5, TO_THE_END])
async def test_r4_every_step_of_a_trim_may_fail_or_be_the_last(
    before: int, has_effect: bool, kills: bool
) -> None:
    """The start is the old or the new one, what is retained is whole, no ledger is left over."""
    names = await _steps_of(before)
    assert names.count("list") == 2, "the list without them, and without their trash"
    assert names.count("delete") >= 2
    wanted = 2 * SEGMENTS if before == TO_THE_END else before
    for at in range(len(names)):
        where = f"step {at}: {names[at]}"
        rig = Rig()
        broker = StruckBroker(rig)
        shell = await _written(broker)
        broker.steps.arm(Strike(at, kills, has_effect))
        running = asyncio.ensure_future(_trim(rig, broker, shell, before))
        dying = asyncio.ensure_future(broker.steps.killed.wait())
        await asyncio.wait({running, dying}, return_when=asyncio.FIRST_COMPLETED)
        if kills:
            assert broker.steps.killed.is_set(), where
            running.cancel()
            await fall(broker, shell)
            await nobody_left(rig)
            broker = StruckBroker(rig)
            shell = await broker.open()
        elif not running.cancelled() and (error := running.exception()) is not None:
            assert isinstance(error, OctavoError), where
        dying.cancel()
        await asyncio.gather(running, dying, return_exceptions=True)
        assert shell.log_start in (0, wanted), where
        assert shell.high_watermark == 2 * SEGMENTS, where
        start = shell.log_start
        assert await read_all(shell, start) == ROWS[start:], where
        broker.steps.arm(None)
        assert await shell.trim(before) == wanted, where
        await until(lambda shell=shell: shell.log_start == wanted)
        assert await read_all(shell, wanted) == ROWS[wanted:], where
        await no_orphan(rig, broker, shell)
        await rig.close()
