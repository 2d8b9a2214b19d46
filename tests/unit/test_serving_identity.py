"""What a partition says of producers it forgot, and how it ends with its topic or in doubt."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from octavo.metadata.ledger_record import LedgerMetadata
from octavo.metadata.topics import PartitionState, VersionedPartition
from octavo.proto.batch import decode_header
from octavo.proto.segments import Segment
from octavo.runtime.errors import OutOfOrderSequence, UnknownOutcome, UnknownTopic
from octavo.runtime.ids import EntryId, LedgerId
from octavo.serving.partition.producers import Kind, ProducerStates
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.segments import closed_segments, first_state
from tests.serving_rig import NAME, Answers, Rig, make_batch, produce, until


def known(base: int, count: int = 1, batches: int = 1) -> ProducerStates[object]:
    """A state that began with `base`, after an earlier one was forgotten."""

    states: ProducerStates[object] = ProducerStates()
    for number in range(batches):
        sequence = base + number * count
        header = decode_header(make_batch([b"v"] * count, pid=7, epoch=0, sequence=sequence))
        token = object()
        assert states.begin(header, number * count, 1000, token) == (number == 0)
        states.confirm(7, token)
    return states


def test_i5_a_state_that_began_later_vouches_for_nothing_before_it() -> None:
    states = known(base=10)
    first = states.decide(7, 0, 10, 1)
    assert (first.kind, first.base_offset, first.is_first) == (Kind.DUPLICATE, 0, True)
    older = states.decide(7, 0, 9, 1)
    assert (older.kind, older.base_offset, older.is_vouched) == (Kind.DUPLICATE, -1, False)


def test_i5_a_state_that_knows_the_first_sequence_vouches_for_all() -> None:
    states = known(base=0, batches=3)
    assert not states.decide(7, 0, 0, 1).is_first
    assert states.decide(7, 0, 0, 2).is_vouched  # not the batch that was stored, but below it


def test_i4_a_full_window_says_enough() -> None:
    states = known(base=10, batches=5)
    assert states.decide(7, 0, 9, 1).is_vouched


def test_i3_what_is_only_pending_is_no_proof_in_an_error() -> None:

    states = known(base=0)
    pending = decode_header(make_batch([b"v"] * 4, pid=7, epoch=0, sequence=1))
    states.begin(pending, 1, 1000, object())
    verdict = states.decide(7, 0, 2, 1)  # inside the pending batch, whose fate is open
    assert (verdict.kind, verdict.last_sequence) == (Kind.OUT_OF_ORDER, 0)


async def test_an_acknowledgement_says_that_the_producer_was_unknown(rig: Rig) -> None:
    shell = await rig.broker().open()
    first = await produce(shell, make_batch(pid=7, epoch=0, sequence=40))
    second = await produce(shell, make_batch(pid=7, epoch=0, sequence=41))
    again = await produce(shell, make_batch(pid=7, epoch=0, sequence=40))
    assert [a.producer_was_unknown for a in (first, second, again)] == [True, False, True]
    with pytest.raises(OutOfOrderSequence) as refused:
        await produce(shell, make_batch(pid=7, epoch=0, sequence=39))
    assert refused.value.details["last_sequence"] == -1


# --- a list write of unknown outcome --------------------------------------------------------------


def test_a_segment_is_described_once_whatever_the_list_shows() -> None:
    def closed(ledger: int, base: int) -> Segment:
        return Segment(LedgerId(ledger), base, base + 5, last_entry=EntryId(6))

    start = first_state(NAME.topic_id, 0)

    def with_segments(*segments: Segment) -> tuple[Segment, ...]:
        return closed_segments(replace(start, segments=segments), closed(2, 5))

    both = (closed(1, 0), closed(2, 5))
    assert with_segments(closed(1, 0), Segment(LedgerId(2), 5)) == both  # not in the list yet
    assert with_segments(*both, Segment(LedgerId(3), 10)) == both  # there, with its successor
    assert with_segments(*both) == both


async def in_doubt(rig: Rig) -> tuple[PartitionShell, asyncio.Future[list[object]]]:
    """A shell whose roll's list write happened and lost its reply, with a batch waiting."""
    broker = rig.broker()
    shell = await broker.open(segment_bytes="65536")
    await produce(shell, make_batch([b"x" * 1000]))
    plain, lost = broker.catalog.cas, asyncio.Event()

    async def cas(
        old: VersionedPartition, new: PartitionState, *, creates: LedgerMetadata | None = None
    ) -> VersionedPartition:
        made = await plain(old, new, creates=creates)
        if len(new.segments) == 2 and not lost.is_set():
            lost.set()
            raise UnknownOutcome("the reply is lost, and reading back failed too")
        return made

    broker.catalog.cas = cas  # type: ignore[method-assign]
    writer = rig.bookies.writers[-1]
    close = writer.close

    async def close_while_written() -> LedgerMetadata:
        shell.append(make_batch([b"next"]), -1, lambda _answer: None)
        return await close()

    writer.close = close_while_written  # type: ignore[method-assign]
    rolling: asyncio.Future[list[object]]
    rolling = asyncio.gather(shell.roll(), return_exceptions=True)  # type: ignore[assignment]
    async with asyncio.timeout(30):
        await lost.wait()
    return shell, rolling


async def test_ml7_unload_settles_a_list_write_in_doubt_instead_of_waiting(rig: Rig) -> None:
    shell, rolling = await in_doubt(rig)
    async with asyncio.timeout(30):
        await shell.close(60.0)
    await rolling
    again = await rig.broker().open(segment_bytes="65536")
    ids = [segment.ledger_id for segment in again.described()]
    assert len(ids) == len(set(ids))
    assert again.high_watermark >= 1


# --- a partition that goes with its topic ---------------------------------------------------------


async def test_adds_that_are_pending_when_the_topic_goes_are_answered_unknown_topic(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    shell = await rig.broker().open()
    await produce(shell, make_batch())
    rig.bookies.hold = True
    answers = Answers()
    for _ in range(3):
        shell.append(make_batch(), -1, answers.reply)
    with caplog.at_level(logging.WARNING):
        ending = asyncio.ensure_future(shell.abandon(UnknownTopic("topic 'orders' was deleted")))
        await until(lambda: len(answers.all) == 3)
        rig.bookies.release()  # the bookies' answers come while the partition ends
        await ending
    assert all(isinstance(answer, UnknownTopic) for answer in answers.all)
    assert not [record for record in caplog.records if record.exc_info]
