"""Trims of a partition over in-memory ledgers and a real metadata catalog (R4, ML-8, I10)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from octavo.metadata.ledgers import LedgerCatalog
from octavo.proto import batch as batches
from octavo.runtime.errors import MetadataUnavailable, OctavoError, OffsetOutOfRange, UnknownOutcome
from octavo.serving.partition.read_path import check_start, offset_for_time, read_at
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.partition.trims import TO_THE_END
from tests.serving_rig import NAME, NOW_MS, Broker, Rig, make_batch, produce, until

PID = 5
SEGMENTS = 4


async def filled(broker: Broker, segments: int = SEGMENTS) -> PartitionShell:
    """A partition of so many segments of two records; the last one is open."""
    shell = await broker.open()
    for i in range(segments):
        values = [b"%d" % (2 * i), b"%d" % (2 * i + 1)]
        await produce(shell, make_batch(values, pid=PID, epoch=0, sequence=2 * i))
        if i + 1 < segments:
            await shell.roll()
    return shell


async def records(shell: PartitionShell, offset: int) -> list[tuple[int, bytes | None]]:
    """What a reader at `offset` gets up to the end."""
    out: list[tuple[int, bytes | None]] = []
    while offset < shell.high_watermark:
        view = shell.view()
        check_start(view, offset)
        found = await read_at(view, offset, 1 << 20, at_least_one=True)
        for payload in found.batches:
            rows = batches.decode_rows(payload)
            out += [(o, v) for o, v in zip(rows.offsets, rows.values, strict=True) if o >= offset]
        offset = found.next_offset
    return out


def kept(start: int, end: int = 2 * SEGMENTS) -> list[tuple[int, bytes]]:
    return [(offset, b"%d" % offset) for offset in range(start, end)]


async def swept(shell: PartitionShell) -> None:
    """Until the trash is empty."""

    def is_empty() -> bool:
        shell.tick()
        return not shell._chain.state.trash  # pyright: ignore[reportPrivateUsage]

    await until(is_empty, "empty trash")


async def stored_ledgers(broker: Broker) -> list[int]:
    rig = broker.rig
    catalog = LedgerCatalog(broker.store, rig.paths, clock=rig.clock, entropy=rig.entropy)
    return [ledger_id async for ledger_id in catalog.walk()]


async def listed_ledgers(broker: Broker) -> list[int]:
    found = await broker.catalog.read(NAME.topic_id, NAME.partition)
    assert found is not None
    return [one.ledger_id for one in found.state.segments]


async def test_r4_a_trim_drops_whole_segments_and_moves_the_start(rig: Rig) -> None:
    broker = rig.broker()
    shell = await filled(broker)
    assert await shell.trim(5) == 5
    assert (shell.log_start, shell.high_watermark) == (5, 8)
    assert [one.base_offset for one in shell.described()] == [4, 6]
    assert await records(shell, 5) == kept(5)
    for gone in (0, 4):
        with pytest.raises(OffsetOutOfRange) as caught:
            await records(shell, gone)
        assert caught.value.details["log_start"] == 5
    await swept(shell)
    assert await stored_ledgers(broker) == await listed_ledgers(broker)
    assert len(rig.bookies.deleted) == 2


async def test_a_trim_below_the_start_changes_nothing(rig: Rig) -> None:
    shell = await filled(rig.broker())
    await shell.trim(4)
    await swept(shell)
    before = shell._chain.state  # pyright: ignore[reportPrivateUsage]
    assert await shell.trim(1) == 4
    assert shell._chain.state is before  # pyright: ignore[reportPrivateUsage]


async def test_a_trim_above_the_end_is_turned_away(rig: Rig) -> None:
    shell = await filled(rig.broker())
    for before in (9, -2):
        with pytest.raises(OffsetOutOfRange):
            await shell.trim(before)
    assert await records(shell, 0) == kept(0)


async def test_everything_can_go_and_the_end_stays(rig: Rig) -> None:
    broker = rig.broker()
    shell = await filled(broker)
    assert await shell.trim(TO_THE_END) == 8
    assert (shell.log_start, shell.high_watermark) == (8, 8)
    assert [one.base_offset for one in shell.described()] == [6]  # the snapshot lives there
    assert (await produce(shell, make_batch([b"8"]))).base_offset == 8
    assert await records(shell, 8) == [(8, b"8")]
    successor = await rig.broker().open()
    assert (successor.log_start, successor.high_watermark) == (8, 9)


async def test_i10_producers_are_known_after_their_data_are_gone(rig: Rig) -> None:
    shell = await filled(rig.broker())
    await shell.trim(TO_THE_END)
    await swept(shell)
    successor = await rig.broker().open()
    again = await produce(successor, make_batch([b"0", b"1"], pid=PID, epoch=0, sequence=0))
    assert again.duplicate
    assert successor.high_watermark == 8


async def test_i10_a_segment_goes_only_when_the_snapshot_behind_it_is_durable(rig: Rig) -> None:
    broker = rig.broker()
    shell = await filled(broker, 2)
    await shell.roll()
    rig.bookies.hold = True
    shell.append(make_batch([b"late"]), -1, lambda _answer: None)
    await until(lambda: len(shell.described()) == 3)
    await shell.trim(TO_THE_END)
    assert [one.base_offset for one in shell.described()] == [2, 4]
    rig.bookies.release()
    await until(lambda: shell.high_watermark == 5)
    await shell.trim(TO_THE_END)
    assert [one.base_offset for one in shell.described()] == [4]


async def test_a_search_by_time_begins_at_the_start(rig: Rig) -> None:
    shell = await filled(rig.broker())
    await shell.trim(3)
    found = await offset_for_time(shell.view(), NOW_MS)
    assert found is not None
    assert found.offset == 3


async def test_readers_below_the_start_are_woken(rig: Rig) -> None:
    shell = await filled(rig.broker())
    woken: list[int] = []
    shell.watchers.add(lambda: woken.append(shell.log_start))
    await shell.trim(4)
    assert woken == [4]


async def test_trims_at_the_same_time_are_all_kept(rig: Rig) -> None:
    shell = await filled(rig.broker())
    starts = await asyncio.gather(*(shell.trim(before) for before in (2, 6, 4)))
    assert starts == [6, 6, 6]


async def test_a_trim_goes_on_while_no_bookie_answers(rig: Rig) -> None:
    shell = await filled(rig.broker())
    rig.bookies.live = 0
    assert await shell.trim(4) == 4


async def test_who_waits_for_a_trim_is_told_when_the_partition_leaves(rig: Rig) -> None:
    broker = rig.broker()
    shell = await filled(broker)
    broker.store.suspend()
    waiting = asyncio.ensure_future(shell.trim(4))
    await asyncio.sleep(0)
    await shell.abandon(MetadataUnavailable("it leaves"))
    with pytest.raises(OctavoError):
        await waiting
    broker.store.resume()


# --- killed at each step, and each answer lost ---------------------------------------------------


class Faulty:
    """Something that happens at the `at`-th call of a store: `kill` or `lose`, before or after."""

    def __init__(self, broker: Broker, at: int, *, executed: bool, kills: bool) -> None:
        self.calls = 0
        self.dead = asyncio.Event()
        self._at, self._executed, self._kills = at, executed, kills
        self._real: Callable[..., Awaitable[Any]] = broker.store._call  # pyright: ignore[reportPrivateUsage]
        broker.store._call = self._call  # type: ignore[method-assign]  # pyright: ignore[reportPrivateUsage]

    async def _call(self, operation: str, run: Any, lost: type[OctavoError]) -> Any:
        self.calls += 1
        if self.dead.is_set():
            await asyncio.Event().wait()
        if self.calls != self._at:
            return await self._real(operation, run, lost)
        if self._executed:
            await self._real(operation, run, lost)
        if self._kills:
            self.dead.set()
            await asyncio.Event().wait()
        raise (UnknownOutcome if lost is UnknownOutcome else MetadataUnavailable)("lost")


async def trim_and_sweep(shell: PartitionShell) -> int:
    start = await shell.trim(6)
    await swept(shell)
    return start


async def calls_of_a_trim() -> int:
    rig = Rig()
    broker = rig.broker()
    shell = await filled(broker)
    faulty = Faulty(broker, -1, executed=False, kills=False)
    await trim_and_sweep(shell)
    await rig.close()
    return faulty.calls


@pytest.mark.parametrize("kills", [True, False])
async def test_either_list_is_valid_and_no_ledger_is_left_whatever_step_fails(kills: bool) -> None:
    """R4, ML-7, ML-9: swept over every call of the metadata store, executed or not."""
    steps = await calls_of_a_trim()
    assert steps > 8
    starts: set[int] = set()
    for at in range(1, steps + 1):
        for executed in (False, True):
            starts.add(await one_fault(at, executed=executed, kills=kills))
    assert starts == ({0, 6} if kills else {6})


async def one_fault(at: int, *, executed: bool, kills: bool) -> int:
    """What the next owner finds where the log begins."""
    rig = Rig()
    broker = rig.broker()
    shell = await filled(broker)
    faulty = Faulty(broker, at, executed=executed, kills=kills)
    trim = asyncio.ensure_future(trim_and_sweep(shell))
    killed = asyncio.ensure_future(faulty.dead.wait())
    await asyncio.wait({trim, killed}, return_when=asyncio.FIRST_COMPLETED)
    was_told = trim.done() and not trim.exception()
    killed.cancel()
    trim.cancel()
    await asyncio.gather(trim, killed, return_exceptions=True)
    if not was_told:
        await shell.abandon(UnknownOutcome("killed"))
    other = rig.broker()
    successor = await other.open()
    start = successor.log_start
    assert not was_told or start == 6
    assert successor.high_watermark == 8
    assert await records(successor, start) == kept(start)
    again = await produce(successor, make_batch([b"6", b"7"], pid=PID, epoch=0, sequence=6))
    assert again.duplicate
    await swept(successor)
    assert await stored_ledgers(other) == await listed_ledgers(other)
    rig.shells.remove(shell)
    await rig.close()
    return start
