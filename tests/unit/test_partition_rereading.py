"""Reads during which the list changes and ledgers go (R4, K7): the view of now is read instead."""

from __future__ import annotations

import pytest

from octavo.runtime.errors import NoSuchLedger, NotLeader, OctavoError, OffsetOutOfRange
from octavo.serving.cold import ColdRead
from octavo.serving.partition.read_path import (
    Found,
    ReadView,
    batch_at,
    check_start,
    offset_for_time,
    read_at,
)
from octavo.serving.partition.rereading import RELISTED_MAX, reread
from octavo.serving.partition.shell import PartitionShell
from tests.compaction_rig import StruckBroker, clean, write
from tests.serving_rig import NOW_MS, Rig, until

KEY = b"key"


class Story:
    """A compacted partition, none of whose closed segments is in the tail cache, and reads whose
    first tries begin only once the list is another one."""

    def __init__(self) -> None:
        self.rig = Rig()
        self.broker = StruckBroker(self.rig)
        self.shell: PartitionShell
        self.tries: list[ReadView] = []
        self.met: list[OctavoError] = []

    async def begin(self) -> Story:
        first = StruckBroker(self.rig)
        shell = await first.open(cleanup_policy="compact,delete")
        for number in range(4):
            await write(shell, (KEY, b"%d" % number))
            await shell.roll()
        self.shell = await self.broker.open(cleanup_policy="compact,delete")
        await write(self.shell, (b"other", b"value"))
        await self.shell.roll()
        return self

    async def swept(self) -> None:
        """Until the trash is empty: the ledgers are deleted."""

        def is_empty() -> bool:
            self.shell.tick()
            return not self.shell._chain.state.trash  # pyright: ignore[reportPrivateUsage]

        await until(is_empty, "empty trash")

    async def read(self, view: ReadView) -> ColdRead:
        """From the log's start."""
        self.tries.append(view)
        if len(self.tries) == 1:
            assert await clean(self.broker, self.shell)
            await self.swept()
        try:
            return await read_at(view, view.log_start, 1 << 20, at_least_one=True)
        except OctavoError as error:
            self.met.append(error)
            raise


async def test_k7_a_read_of_ledgers_that_a_cleaner_replaced_is_begun_again() -> None:
    story = await Story().begin()
    found = await reread(story.shell.view, story.read)
    assert found.next_offset == 4, "the copy of the last value"
    assert len(story.tries) == 2
    assert [type(error) for error in story.met] == [NoSuchLedger], "the old view cannot be read"
    await story.rig.close()


async def test_k7_a_search_by_time_and_for_a_header_is_begun_again() -> None:
    story = await Story().begin()

    async def by_time(view: ReadView) -> Found | None:
        story.tries.append(view)
        if len(story.tries) == 1:
            await clean(story.broker, story.shell)
            await story.swept()
        return await offset_for_time(view, NOW_MS - 1)

    found = await reread(story.shell.view, by_time)
    assert found is not None
    assert (found.offset, len(story.tries)) == (3, 2)
    header = await reread(story.shell.view, lambda view: batch_at(view, 0))
    assert header is not None
    assert header.next_offset == 4
    await story.rig.close()


async def test_r4_a_read_of_what_is_trimmed_meanwhile_is_out_of_range() -> None:
    story = await Story().begin()

    async def read(view: ReadView) -> ColdRead:
        story.tries.append(view)
        check_start(view, 0)
        await story.shell.trim(3)
        await story.swept()
        return await read_at(view, 0, 1 << 20, at_least_one=True)

    with pytest.raises(OffsetOutOfRange):
        await reread(story.shell.view, read)
    assert len(story.tries) == 2
    await story.rig.close()


async def test_ml4_a_listed_ledger_that_is_not_there_is_told_at_once() -> None:
    """Reading it again would not find it either, and nothing is skipped silently."""
    story = await Story().begin()
    listed = story.shell.view().segments[0].ledger_id
    await story.broker.deps.backend.delete_ledger(listed)
    story.tries.append(story.shell.view())  # nothing is cleaned
    with pytest.raises(NoSuchLedger, match=str(listed)):
        await reread(story.shell.view, story.read)
    assert len(story.tries) == 2
    await story.rig.close()


async def test_a_read_is_not_begun_again_for_ever() -> None:
    story = await Story().begin()

    async def read(view: ReadView) -> ColdRead:
        story.tries.append(view)
        await story.shell.trim(story.shell.log_start + 1)
        raise NoSuchLedger("it went")

    with pytest.raises(NoSuchLedger):
        await reread(story.shell.view, read)
    assert len(story.tries) == RELISTED_MAX + 1
    await story.rig.close()


async def test_a_partition_that_moves_meanwhile_says_so() -> None:
    story = await Story().begin()

    async def read(view: ReadView) -> ColdRead:
        story.tries.append(view)
        await story.shell.abandon(NotLeader("it moved"))
        raise NoSuchLedger("it went")

    with pytest.raises(NotLeader):
        await reread(story.shell.view, read)
    assert len(story.tries) == 1
    await story.rig.close()
