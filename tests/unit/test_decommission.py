"""A partition that takes no new records: at its owner, at its successor, and in a record (F027)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.metadata.partition_record import PartitionState
from octavo.proto import records_pb2
from octavo.runtime.errors import InvariantViolation, OutOfOrderSequence, PartitionDecommissioned
from octavo.serving import segments as lists
from octavo.serving.partition.shell import PartitionShell
from tests.serving_rig import TOPIC_ID, Answers, Rig, make_batch, produce, until


async def stored(shell: PartitionShell, sequence: int, *, pid: int = 7) -> tuple[int, bool]:
    appended = await produce(shell, make_batch([b"v"], pid=pid, epoch=0, sequence=sequence))
    return appended.base_offset, appended.duplicate


async def test_f027_what_was_stored_stays_known_and_nothing_new_is_taken(rig: Rig) -> None:
    shell = await rig.broker().open()
    assert await stored(shell, 0) == (0, False)
    await shell.emptying.decommission()
    for batch in (
        make_batch([b"v"], pid=7, epoch=0, sequence=1),
        make_batch([b"v"], pid=8, epoch=0, sequence=0),
        make_batch([b"v"], pid=7, epoch=0, sequence=9),  # behind others that were refused
        make_batch([b"v"]),
    ):
        with pytest.raises(PartitionDecommissioned):
            await produce(shell, batch)
    assert await stored(shell, 0) == (0, True), "a repetition learns where it was stored"
    assert (shell.high_watermark, shell.emptying.is_drained) == (1, False)


async def test_f027_batches_on_their_way_are_stored_and_told(rig: Rig) -> None:
    """Taken before the list says so: never lost, and none is refused."""
    shell = await rig.broker().open()
    await stored(shell, 0)
    rig.bookies.hold = True
    answers = Answers()
    for sequence in (1, 2, 3):
        shell.append(make_batch([b"v"], pid=7, epoch=0, sequence=sequence), -1, answers.reply)
    await shell.emptying.decommission()
    assert not shell.emptying.is_drained
    with pytest.raises(PartitionDecommissioned):
        await produce(shell, make_batch([b"v"], pid=7, epoch=0, sequence=4))
    rig.bookies.release()
    await answers.wait(3)
    assert [getattr(answer, "base_offset", answer) for answer in answers.all] == [1, 2, 3]


async def test_f027_no_later_owner_takes_anything(rig: Rig) -> None:
    """Nor does one that has not heard of it: the list says so."""
    first = await rig.broker().open()
    await stored(first, 0)
    await first.emptying.decommission()
    second = await rig.broker().open()
    with pytest.raises(PartitionDecommissioned):
        await produce(second, make_batch([b"v"], pid=7, epoch=0, sequence=1))
    assert await stored(second, 0) == (0, True)
    assert second.emptying.is_decommissioned


async def test_f027_a_gap_is_told_as_one_before(rig: Rig) -> None:
    """The control of the first test: only a decommissioned partition answers a gap so."""
    shell = await rig.broker().open()
    await stored(shell, 0)
    with pytest.raises(OutOfOrderSequence):
        await produce(shell, make_batch([b"v"], pid=7, epoch=0, sequence=9))


async def test_f027_it_is_drained_when_retention_left_nothing(rig: Rig) -> None:
    shell = await rig.broker(retention_check_interval_ms=100).open(retention_ms="1")
    assert not shell.emptying.is_drained, "it takes records"
    await stored(shell, 0)
    await shell.emptying.decommission()
    assert not shell.emptying.is_drained

    def look() -> bool:
        shell.tick()
        return shell.emptying.is_drained

    await until(look, "retention to empty it")
    assert shell.log_start == shell.high_watermark == 1
    again = await rig.broker().open()
    assert again.emptying.is_drained, "its next owner knows it, too"


async def test_f027_an_unwritten_partition_is_drained_at_once(rig: Rig) -> None:
    shell = await rig.broker().open()
    await shell.emptying.decommission()
    assert shell.emptying.is_drained


def test_f027_a_list_that_says_so_never_takes_it_back() -> None:
    plain = PartitionState(TOPIC_ID, 3)
    once = lists.decommissioned(plain)
    plain.check_successor(once)
    with pytest.raises(InvariantViolation, match="came back"):
        once.check_successor(plain)
    for state, version in ((plain, 1), (replace(plain, cleaned_to=4), 2), (once, 3)):
        stored = state.to_bytes()
        assert records_pb2.PartitionRecord.FromString(stored).format_version == version
        assert PartitionState.from_bytes(stored) == state
