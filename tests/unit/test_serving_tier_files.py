"""Files of the tier that are damaged, away or not needed any more: no answer is wrong (F088)."""

from __future__ import annotations

import os
import pathlib

import pytest

from octavo.client.exports.tree import ABANDONED_AFTER_S
from octavo.metadata.topics import Topic
from octavo.runtime.errors import OctavoError, ReadUnknown, UnknownOutcome
from octavo.serving.partition.read_path import batch_at, first_appended_since, offset_for_time
from octavo.serving.partition.shell import PartitionShell
from tests.compaction_rig import StruckBroker, read_all
from tests.serving_rig import NAME, NOW_MS, Rig, until
from tests.tiering_rig import TieredBroker, fill, settle

GONE_LOCALLY = {"retention_local_bytes": "0"}


def data_files(root: pathlib.Path) -> list[pathlib.Path]:
    return sorted(root.glob("*/orders/*.arrow"))


def trees(root: pathlib.Path) -> list[pathlib.Path]:
    return [one for one in root.iterdir() if one.is_dir()]


def move(source: pathlib.Path, target: pathlib.Path) -> None:
    source.rename(target)


def make_old(root: pathlib.Path) -> None:
    """As if everything below had been written longer ago than the grace time."""
    for path in root.rglob("*"):
        long_ago = path.stat().st_mtime - 2 * ABANDONED_AFTER_S
        os.utime(path, (long_ago, long_ago))


def in_files(shell: PartitionShell) -> int:
    return sum(not one.in_ledger for one in shell.tiers.state().segments)


async def tiered(
    rig: Rig, root: pathlib.Path, **config: str
) -> tuple[TieredBroker, PartitionShell]:
    broker = TieredBroker(rig, root)
    shell = await broker.filled(4, **GONE_LOCALLY, **config)
    await settle(broker.rounds(shell), shell)
    assert in_files(shell) == 3
    return broker, shell


def flip(path: pathlib.Path) -> bytes:
    """One bit of it; the bytes as they were."""
    before = path.read_bytes()
    at = len(before) // 2
    path.write_bytes(before[:at] + bytes((before[at] ^ 1,)) + before[at + 1 :])
    return before


async def test_unknown_is_not_no_what_cannot_be_read_is_retriable(tmp_path: pathlib.Path) -> None:
    rig = Rig()
    _, shell = await tiered(rig, tmp_path)
    before = await read_all(shell)
    (path,) = data_files(tmp_path)
    kept = flip(path)
    broker = TieredBroker(rig, tmp_path)
    again = await broker.opened(**GONE_LOCALLY)
    with pytest.raises(ReadUnknown, match="cannot be read"):
        await read_all(again)
    path.write_bytes(kept)
    assert await read_all(again) == before
    move(path, tmp_path / "hidden")
    fresh = TieredBroker(rig, tmp_path)
    once_more = await fresh.opened(**GONE_LOCALLY)
    with pytest.raises(ReadUnknown, match="is gone"):
        await read_all(once_more)
    assert fresh.tiered.failures > 0
    move(tmp_path / "hidden", path)
    assert await read_all(once_more) == before
    untold = StruckBroker(rig, tail_cache_bytes=0)
    blind = await untold.open()
    with pytest.raises(ReadUnknown, match="no tier_root"):
        await read_all(blind)
    await rig.close()


async def test_a_damaged_file_keeps_its_ledgers_and_is_written_anew(tmp_path: pathlib.Path) -> None:
    rig = Rig()
    broker = TieredBroker(rig, tmp_path)
    shell = await broker.filled(4)
    rounds = broker.rounds(shell)
    await rounds.look_at(shell)
    assert in_files(shell) == 0  # the topic keeps everything on bookies
    (path,) = data_files(tmp_path)
    sound = flip(path)
    shell.adopt(broker.settings(tiering="true", **GONE_LOCALLY))
    await rounds.look_at(shell)
    assert in_files(shell) == 0
    assert path.read_bytes() == sound, "it was written again from its ledgers"
    await rounds.look_at(shell)
    assert in_files(shell) == 3
    await rig.close()


async def test_files_serve_when_no_bookie_answers(tmp_path: pathlib.Path) -> None:
    rig = Rig()
    broker = TieredBroker(rig, tmp_path)
    shell = await broker.filled(3)
    before = await read_all(shell)
    await broker.rounds(shell).look_at(shell)
    (closed, *_) = shell.tiers.state().segments
    assert closed.in_ledger
    rig.bookies.ledgers[closed.ledger_id].entries.clear()
    fresh = TieredBroker(rig, tmp_path)
    again = await fresh.opened()
    assert await read_all(again) == before
    await rig.close()


async def test_times_and_headers_are_found_in_files_as_in_ledgers(tmp_path: pathlib.Path) -> None:
    rig = Rig()
    broker = TieredBroker(rig, tmp_path)
    shell = await broker.filled(4)
    ends = range(shell.high_watermark)

    async def answers() -> list[object]:
        view = shell.view()
        found = [await batch_at(view, offset) for offset in ends]
        headers = [None if one is None else (one.base_offset, one.append_time_ms) for one in found]
        appended = found[0].append_time_ms if found[0] is not None else 0
        times = [await offset_for_time(view, NOW_MS + late) for late in (-1, 0, 1)]
        return [headers, times, await first_appended_since(view, 0, appended + 1)]

    before = await answers()
    shell.adopt(broker.settings(tiering="true", **GONE_LOCALLY))
    await settle(broker.rounds(shell), shell)
    assert in_files(shell) == 3
    assert await answers() == before
    await rig.close()


async def test_r4_a_trim_takes_files_off_the_manifest_and_a_sweep_off_the_disk(
    tmp_path: pathlib.Path,
) -> None:
    rig = Rig()
    broker, shell = await tiered(rig, tmp_path)
    await fill(shell, 2)  # another file, of segments that were closed later
    rounds = broker.rounds(shell)
    await settle(rounds, shell)
    first, second = data_files(tmp_path)
    cut = shell.tiers.state().segments[4].base_offset
    await shell.trim(cut)
    assert any(one.has_objects for one in shell.tiers.state().trash)
    await rounds.look_at(shell)
    assert rounds.removed_files == 1

    def is_swept() -> bool:
        shell.tick()
        return not shell.tiers.state().trash

    await until(is_swept, "an empty trash")
    tree = (await broker.tiered.files()).tree(NAME)
    tree.sweep()
    assert first.exists()  # for readers that planned before
    make_old(tmp_path)
    tree.sweep()
    assert data_files(tmp_path) == [second]
    assert (await read_all(shell, cut))[0][0] == cut
    await rig.close()


async def test_a_topic_that_is_deleted_takes_its_tree_along(tmp_path: pathlib.Path) -> None:
    rig = Rig()
    broker, shell = await tiered(rig, tmp_path)
    rounds = broker.rounds(shell)
    topic = Topic(NAME.topic, NAME.topic_id, 1, config={"tiering": "true"})
    (tree,) = trees(tmp_path)
    move(tmp_path, tmp_path.with_name("away"))
    with pytest.raises(UnknownOutcome, match="cannot be deleted now"):
        await rounds.delete_tree(topic)
    move(tmp_path.with_name("away"), tmp_path)
    assert tree.is_dir()
    await rounds.delete_tree(topic)
    await rounds.delete_tree(topic)  # again, after a crash
    assert not tree.exists()
    await rig.close()


async def test_a_root_that_is_not_mounted_is_not_filled_anew(tmp_path: pathlib.Path) -> None:
    """An empty folder in the place of what was listed: nothing is copied, nothing goes."""
    rig = Rig()
    broker, shell = await tiered(rig, tmp_path)
    (tree,) = trees(tmp_path)
    move(tree, tmp_path.with_name("unmounted"))
    await fill(shell, 2)
    before = shell.tiers.state()
    with pytest.raises(OctavoError, match="was at version 1 and is at 0"):
        await broker.rounds(shell).look_at(shell)
    assert shell.tiers.state() == before
    assert trees(tmp_path) == []
    move(tmp_path.with_name("unmounted"), tree)
    await settle(broker.rounds(shell), shell)
    assert in_files(shell) == 5
    await rig.close()


async def test_files_that_cannot_be_written_anew_hold_nothing_else_up_and_are_not_read_for_ever(
    tmp_path: pathlib.Path,
) -> None:
    """Their ledger is the only copy, and is damaged too, say: it stays, and what is sound goes."""
    rig = Rig()
    broker = TieredBroker(rig, tmp_path)
    shell = await broker.filled(2)
    rounds = broker.rounds(shell)
    await rounds.look_at(shell)
    await fill(shell, 3)
    await rounds.look_at(shell)
    damaged, _ = data_files(tmp_path)
    shell.adopt(broker.settings(tiering="true", **GONE_LOCALLY))
    ledger = rig.bookies.ledgers[shell.tiers.state().segments[0].ledger_id]
    kept, ledger.entries[1] = ledger.entries[1], ledger.entries[1][:-1]
    flip(damaged)
    for _ in range(2):
        with pytest.raises(OctavoError):
            await rounds.look_at(shell)  # it cannot be written anew
        assert in_files(shell) == 2
    await rounds.look_at(shell)  # it is not read again so soon
    ledger.entries[1] = kept
    again = broker.rounds(shell)  # as another broker
    await again.look_at(shell)
    await again.look_at(shell)
    assert in_files(shell) == 4
    await rig.close()
