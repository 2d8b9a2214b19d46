"""Tiering of an open partition: copied, named, off the bookies, read the same (F088, ADR 70)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib

import pytest

from octavo.metadata.partition_record import PartitionState
from octavo.runtime.errors import InvalidRequest, OctavoError, StorageFailed
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.tiering.plan import is_rewritten
from tests.compaction_rig import (
    Strike,
    StruckBroker,
    cleaner,
    fall,
    nobody_left,
    read_all,
    write,
)
from tests.serving_rig import NAME, Rig, until
from tests.tiering_rig import TieredBroker, settle

GONE_LOCALLY = {"retention_local_bytes": "0"}


def places(state: PartitionState) -> list[str]:
    return [
        ("ledger" if one.object_version is None else "both") if one.in_ledger else "files"
        for one in state.segments
    ]


async def swept(rig: Rig, shell: PartitionShell) -> None:
    def is_swept() -> bool:
        shell.tick()
        return not shell.tiers.state().trash

    await until(is_swept, "an empty trash")


async def test_f088_what_is_off_the_bookies_is_read_the_same(tmp_path: pathlib.Path) -> None:
    rig = Rig()
    broker = TieredBroker(rig, tmp_path)
    shell = await broker.filled(4, **GONE_LOCALLY)
    before = await read_all(shell)
    await broker.rounds(shell).look_at(shell)
    # The last closed one and the open one stay: whoever opens the partition reads them (ML-4, I10).
    assert places(shell.tiers.state()) == ["files"] * 3 + ["both", "ledger"]
    await swept(rig, shell)
    assert len(rig.bookies.deleted) == 3
    assert await read_all(shell) == before
    assert len(before) == 4 * 6 + 1
    await nobody_left(rig)
    await rig.close()


async def test_a_version_whose_sync_failed_is_synced_before_the_list_believes_it(
    tmp_path: pathlib.Path,
) -> None:
    """Else a loss of power would take files whose ledgers are gone."""
    rig = Rig()
    broker = TieredBroker(rig, tmp_path)
    shell = await broker.filled(3, **GONE_LOCALLY)
    tree = await broker.fail_a_sync(shell)
    with pytest.raises(StorageFailed, match="the sync failed"):
        await broker.rounds(shell).look_at(shell)
    assert tree.unsynced  # the version is there, and may be gone tomorrow
    assert set(places(shell.tiers.state())) == {"ledger"}
    await broker.rounds(shell).look_at(shell)
    assert places(shell.tiers.state())[0] == "files"
    assert not tree.unsynced
    await nobody_left(rig)
    await rig.close()


@pytest.mark.parametrize(
    ("kills", "has_effect", "stride"),
    [(True, False, 1), (True, True, 3), (False, False, 2), (False, True, 2)],
)
async def test_8_9_each_step_of_a_copy_and_of_a_free_may_fail_or_be_the_last(
    kills: bool, has_effect: bool, stride: int, tmp_path: pathlib.Path
) -> None:
    """To die behind a step is to die before the next one: of these fewer are played."""
    at = 0
    while await _struck(Strike(at, kills, has_effect), tmp_path / str(at)):
        at += stride
    assert at > 20, "few steps were struck"


async def _look_and_sweep(rig: Rig, broker: TieredBroker, shell: PartitionShell) -> None:
    with contextlib.suppress(OctavoError):  # looked at again
        await broker.rounds(shell).look_at(shell)
    await swept(rig, shell)


async def _struck(strike: Strike, root: pathlib.Path) -> bool:
    """One life with one strike; whether the step was reached."""
    os.makedirs(root)
    rig = Rig()
    broker = TieredBroker(rig, root)
    shell = await broker.filled(2, **GONE_LOCALLY)
    before = await read_all(shell)
    await broker.strike_tree(shell)
    broker.steps.arm(strike)
    looking = asyncio.create_task(_look_and_sweep(rig, broker, shell))
    dead = asyncio.create_task(broker.steps.killed.wait())
    await asyncio.wait({looking, dead}, return_when=asyncio.FIRST_COMPLETED)
    dead.cancel()
    reached = broker.steps.count > strike.at
    if broker.steps.killed.is_set():
        looking.cancel()
        await asyncio.wait({looking})
        await fall(broker, shell)
        broker = TieredBroker(rig, root)
        shell = await broker.opened(**GONE_LOCALLY)
    else:
        await asyncio.wait({looking})
        broker.steps.arm(None)
    assert await read_all(shell) == before, f"after {strike}"
    await settle(broker.rounds(shell), shell)
    assert places(shell.tiers.state())[0] == "files"
    await swept(rig, shell)
    assert await read_all(shell) == before, f"at rest after {strike}"
    await nobody_left(rig)
    await rig.close()
    return reached


async def test_f088_a_log_with_files_refuses_to_be_compacted_and_says_why(
    tmp_path: pathlib.Path,
) -> None:
    rig = Rig()
    broker = TieredBroker(rig, tmp_path)
    shell = await broker.filled(3)
    await broker.rounds(shell).look_at(shell)
    compaction = broker.compaction(shell)
    with pytest.raises(InvalidRequest, match="is not compacted"):
        await compaction.compact(shell)
    shell.adopt(broker.settings(tiering="false", cleanup_policy="compact"))
    before = shell.tiers.state()
    with pytest.raises(InvalidRequest, match="below offset 18 are in exported files") as refused:
        await compaction.compact(shell)
    assert "topic trim orders -p 0 --before 18" in (refused.value.hint or "")
    assert await compaction.round() == 0
    assert shell.tiers.state() == before
    await shell.trim(18)
    assert (await compaction.compact(shell)).cleaned_to == shell.high_watermark
    await compaction.close()
    await rig.close()


async def test_f088_a_cleaned_log_may_have_tiering_from_then_on(tmp_path: pathlib.Path) -> None:
    rig = Rig()
    broker = TieredBroker(rig, tmp_path)
    shell = await broker.open(NAME, cleanup_policy="compact")
    await keyed(shell, 4)
    compaction = broker.compaction(shell)
    done = await compaction.compact(shell)
    assert done.records_removed > 0
    await compaction.close()
    await keyed(shell, 3)
    before = await read_all(shell)
    shell.adopt(broker.settings(tiering="true", **GONE_LOCALLY))
    await settle(broker.rounds(shell), shell)
    assert places(shell.tiers.state())[0] == "files"
    assert shell.tiers.state().segments[0].compacted
    await swept(rig, shell)
    assert await read_all(shell) == before
    await rig.close()


async def test_a_copy_waits_for_a_cleaner_that_began_before_the_topic_had_tiering(
    tmp_path: pathlib.Path,
) -> None:
    """Else files of what the cleaner replaces would keep what it writes from being copied."""
    rig = Rig()
    broker = TieredBroker(rig, tmp_path)
    shell = await broker.open(NAME, cleanup_policy="compact", segment_bytes="65536")
    await keyed(shell, 4)
    await shell.rewrites.close_open()
    broker.steps.arm(None)
    broker.steps.pause_at = 12
    cleaning = asyncio.create_task(cleaner(broker, shell).run())
    await broker.steps.paused.wait()
    assert is_rewritten(shell.tiers.state())
    shell.adopt(broker.settings(tiering="true", **GONE_LOCALLY))
    await broker.rounds(shell).look_at(shell)
    assert set(places(shell.tiers.state())) == {"ledger"}
    broker.steps.may_go_on.set()
    report = await cleaning
    assert report.is_stale or report.replaced
    await settle(broker.rounds(shell), shell)
    assert set(places(shell.tiers.state())[:-1]) <= {"both", "files"}
    await nobody_left(rig)
    await rig.close()


async def test_a_pass_ends_where_the_topic_is_not_compacted_any_more() -> None:
    rig = Rig()
    broker = StruckBroker(rig)
    shell = await broker.open(cleanup_policy="compact", segment_bytes="65536")
    await keyed(shell, 4)
    await shell.rewrites.close_open()
    before = shell.tiers.state().segments
    shell.adopt(broker.settings(cleanup_policy="delete"))
    report = await cleaner(broker, shell).run()
    assert (report.is_stale, report.replaced) == (True, 0)
    assert shell.tiers.state().segments == before
    await rig.close()


async def keyed(shell: PartitionShell, segments: int) -> None:
    """So many closed segments with the same keys, and an open one."""
    for number in range(segments):
        await write(shell, (b"a", b"%d" % number), (b"b", b"%d" % number))
        await shell.roll()
    await write(shell, (b"a", b"open"))
