"""Compaction of an open partition: worked traces, each step failing or being the last (K1-K9)."""

from __future__ import annotations

import asyncio

import pytest

from octavo.proto.batch import with_sequence
from octavo.proto.entry import payload_of
from octavo.proto.segment_entries import decode_snapshot, is_snapshot
from octavo.runtime.errors import InvalidRecord, NotLeader, OctavoError
from octavo.serving.partition.shell import PartitionShell
from tests.compaction_rig import (
    Row,
    Strike,
    StruckBroker,
    clean,
    cleaner,
    fall,
    keyed_batch,
    no_orphan,
    nobody_left,
    read_all,
    write,
)
from tests.serving_rig import Rig, produce, until

A, B, C = b"a", b"b", b"c"


def last_of_each(rows: list[Row]) -> dict[bytes | None, bytes | None]:
    return {key: value for _, key, value in rows if value is not None}


async def test_w10_passes_leave_gaps_tombstones_go_and_the_end_stays() -> None:
    rig = Rig()
    broker = StruckBroker(rig)
    shell = await broker.open(cleanup_policy="compact", delete_retention_ms="0")
    await write(shell, (A, b"1"), (B, b"1"))
    await write(shell, (A, b"2"), (B, None))
    await shell.roll()
    await write(shell, (C, b"1"))
    report = await clean(broker, shell)
    assert (report.records_seen, report.records_removed, report.cleaned_to) == (4, 2, 4)
    assert await read_all(shell) == [(2, A, b"2"), (3, B, None), (4, C, b"1")]
    assert shell.high_watermark == 5
    await write(shell, (C, b"2"))
    await shell.roll()
    await write(shell, (A, b"3"))
    await clean(broker, shell)
    # c:1 is superseded below the end of the pass, a:2 above it only.
    assert await read_all(shell) == [(2, A, b"2"), (5, C, b"2"), (6, A, b"3")]
    assert (shell.log_start, shell.high_watermark) == (0, 7)
    await no_orphan(rig, broker, shell)
    await rig.close()


async def test_a_log_emptied_to_its_tail_still_tells_its_end() -> None:
    rig = Rig()
    broker = StruckBroker(rig)
    shell = await broker.open(cleanup_policy="compact", delete_retention_ms="0")
    for value in (b"1", None):
        await write(shell, (A, value), (B, value))
        await shell.roll()
    await shell.rewrites.close_open()
    await clean(broker, shell)
    assert await read_all(shell) == [(2, A, None), (3, B, None)]
    await clean(broker, shell)
    assert await read_all(shell) == []
    assert shell.high_watermark == 4
    assert await write(shell, (A, b"again")) == 4
    again = await _reopened(rig, shell)
    assert again.high_watermark == 5
    assert await read_all(again) == [(4, A, b"again")]
    await rig.close()


async def test_the_state_of_producers_survives_the_ledgers_that_held_it() -> None:
    """I10: a retry of what was compacted away is still a duplicate."""
    rig = Rig()
    broker = StruckBroker(rig)
    shell = await broker.open(cleanup_policy="compact")
    first = bytes(with_sequence(keyed_batch([(A, b"1")]), 7, 0, 0))
    second = bytes(with_sequence(keyed_batch([(A, b"2"), (B, b"1")]), 7, 0, 1))
    await produce(shell, first)
    await produce(shell, second)
    await shell.roll()
    await write(shell, (A, b"3"))
    await shell.roll()
    await shell.rewrites.close_open()
    await clean(broker, shell)
    assert [row[0] for row in await read_all(shell)] == [2, 3]
    again = await _reopened(rig, shell)
    answer = await produce(again, second)
    assert (answer.base_offset, answer.duplicate) == (1, True)
    for segment in again._chain.state.segments:  # pyright: ignore[reportPrivateUsage]
        entries = [payload_of(entry) for entry in rig.bookies.ledgers[segment.ledger_id].entries]
        ends = [decode_snapshot(one).end_offset for one in entries if is_snapshot(one)]
        assert ends, "each ledger holds a snapshot"
    await rig.close()


async def test_a_record_without_a_key_is_refused_with_its_batch() -> None:
    """K1: and b"" is a key."""
    rig = Rig()
    broker = StruckBroker(rig)
    shell = await broker.open(cleanup_policy="compact,delete")
    with pytest.raises(InvalidRecord, match=r"record 1 of 2"):
        await write(shell, (A, b"1"), (None, b"1"))
    assert await write(shell, (b"", b"1")) == 0
    shell.adopt(broker.settings(cleanup_policy="delete"))
    assert await write(shell, (None, b"1")) == 1
    await rig.close()


async def test_small_memory_takes_several_passes_and_leaves_the_same() -> None:
    rig = Rig()
    broker = StruckBroker(rig)
    shell = await broker.open(cleanup_policy="compact", segment_bytes="65536")
    for turn in range(6):
        await write(shell, *[(b"%05d" % key, b"%d" % turn) for key in range(300)])
        await shell.roll()
    await shell.rewrites.close_open()
    passes = 0
    while True:
        report = await cleaner(broker, shell, memory_bytes=1).run()
        passes += 1
        if not report.is_short:
            break
    rows = await read_all(shell)
    assert [row[0] for row in rows] == list(range(1500, 1800))
    assert passes > 3
    await rig.close()


async def test_a_log_that_is_trimmed_while_it_is_cleaned_is_cleaned_again() -> None:
    rig = Rig()
    broker = StruckBroker(rig)
    shell = await _written(broker)
    work = cleaner(broker, shell)
    broker.steps.arm(None)
    running = asyncio.ensure_future(work.run())
    await until(lambda: "list and create" in broker.steps.names)
    await shell.trim(4)
    assert (await running).is_stale
    assert not (await clean(broker, shell)).is_stale
    assert last_of_each(await read_all(shell, 4)) == {A: b"3", B: b"3", C: b"9"}
    await no_orphan(rig, broker, shell)
    await rig.close()


async def _written(broker: StruckBroker) -> PartitionShell:
    """Three closed segments, the first two of which lose records, and an open one."""
    shell = await broker.open(cleanup_policy="compact", delete_retention_ms="0")
    await write(shell, (A, b"1"), (B, b"1"))
    await write(shell, (A, b"2"), (b"d", None))
    await shell.roll()
    await write(shell, (B, b"2"))
    await write(shell, (A, b"3"))
    await shell.roll()
    await write(shell, (B, b"3"))
    await shell.roll()
    await write(shell, (C, b"9"))
    return shell


WANTED = [(3, b"d", None), (5, A, b"3"), (6, B, b"3"), (7, C, b"9")]


async def _steps_of_a_pass() -> list[str]:
    rig = Rig()
    broker = StruckBroker(rig)
    shell = await _written(broker)
    broker.steps.arm(None)
    await clean(broker, shell)
    names = list(broker.steps.names)
    assert await read_all(shell) == WANTED
    await no_orphan(rig, broker, shell)
    await rig.close()
    return names


@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("has_effect", [False, True])
async def test_every_step_may_fail_or_be_the_last(kills: bool, has_effect: bool) -> None:
    """K7: either list is valid, nothing is lost, and no ledger is left that nobody lists."""
    names = await _steps_of_a_pass()
    wanted = {"draft", "list and create", "list", "add", "append", "close", "read", "open"}
    assert wanted <= set(names)
    for at in range(len(names)):
        rig = Rig()
        broker = StruckBroker(rig)
        shell = await _written(broker)
        broker.steps.arm(Strike(at, kills, has_effect))
        running = asyncio.ensure_future(clean(broker, shell))
        dying = asyncio.ensure_future(broker.steps.killed.wait())
        await asyncio.wait({running, dying}, return_when=asyncio.FIRST_COMPLETED)
        where = f"step {at}: {names[at]}"
        if kills:
            assert broker.steps.killed.is_set(), where
            running.cancel()
            await fall(broker, shell)
            await nobody_left(rig)
            broker, shell = await _next_owner(rig)
        else:
            error = running.exception() if running.done() and not running.cancelled() else None
            assert error is None or isinstance(error, OctavoError), where
            broker.steps.arm(None)
        dying.cancel()
        await asyncio.gather(running, dying, return_exceptions=True)
        rows = await read_all(shell)
        assert last_of_each(rows) == {A: b"3", B: b"3", C: b"9"}, where
        assert set(WANTED) <= set(rows), where
        await shell.rewrites.close_open()
        await clean(broker, shell)
        left = [row for row in await read_all(shell) if row[1] != b"d"]
        assert left == [row for row in WANTED if row[1] != b"d"], where
        await no_orphan(rig, broker, shell)
        await rig.close()


async def _next_owner(rig: Rig) -> tuple[StruckBroker, PartitionShell]:
    broker = StruckBroker(rig)
    return broker, await broker.open(cleanup_policy="compact", delete_retention_ms="0")


async def _reopened(rig: Rig, shell: PartitionShell) -> PartitionShell:
    await shell.close(5.0)
    rig.shells.remove(shell)
    return (await _next_owner(rig))[1]


async def test_a_pass_whose_partition_was_taken_changes_nothing() -> None:
    """G3: the list carries another epoch, so nothing of it is published."""
    rig = Rig()
    broker = StruckBroker(rig)
    shell = await _written(broker)
    names = await _steps_of_a_pass()
    broker.steps.arm(None)
    running = asyncio.ensure_future(clean(broker, shell))
    broker.steps.pause_at = len(names) // 2
    await until(lambda: not broker.steps.may_go_on.is_set())
    other, theirs = await _next_owner(rig)
    broker.steps.may_go_on.set()
    with pytest.raises(NotLeader):
        await running
    assert set(WANTED) <= set(await read_all(theirs))
    await clean(other, theirs)
    await no_orphan(rig, other, theirs)
    await rig.close()
