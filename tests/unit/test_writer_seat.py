"""One writer at a time (X32): the seat alone, and over owners of one partition."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from octavo.metadata.partition_record import PartitionState
from octavo.runtime.errors import (
    IllegalStateError,
    InvalidRequest,
    InvariantViolation,
    MetadataCorrupt,
    MetadataUnavailable,
    NotLeader,
)
from octavo.runtime.errors_of_writers import (
    ExclusiveWriterBusy,
    ExclusiveWriterRequired,
    ProducerFenced,
)
from octavo.serving.partition.log import Appended, Conditions
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.partition.writer_seat import WriterSeat
from tests.serving_rig import NAME, TOPIC_ID, Answers, Rig, make_batch

A, B, C = (bytes([number]) * 16 for number in (1, 2, 3))
EXCLUSIVE = {"exclusive_writer": "true"}


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    yield made
    await made.close()


# --- the seat ------------------------------------------------------------------------------------


def seat() -> WriterSeat:
    made = WriterSeat(NAME, lease_s=10.0, required=True)
    made.loaded(0, b"", 0.0)
    return made


def claim(one: WriterSeat, token: bytes, now_s: float, *, fence: bool = False) -> int:
    one.begin_claim(token, fence=fence, now_s=now_s)
    if token != one.holder:
        one.listed(one.epoch + 1, token)
    return one.claimed(token, now_s)


def test_x32_the_second_waits_until_the_first_leaves_or_is_silent() -> None:
    one = seat()
    assert claim(one, A, 0.0) == 1
    with pytest.raises(ExclusiveWriterBusy) as caught:
        claim(one, B, 9.0)
    assert caught.value.retriable
    one.renew(A, 1, 9.0)
    with pytest.raises(ExclusiveWriterBusy):
        claim(one, B, 18.0)
    assert claim(one, B, 19.0) == 2
    with pytest.raises(ProducerFenced) as fenced:
        one.renew(A, 1, 19.5)
    assert not fenced.value.retriable
    one.leave(A, 1)  # of one that was fenced: it takes nothing from the other
    with pytest.raises(ExclusiveWriterBusy):
        claim(one, C, 20.0)
    one.leave(B, 2)
    assert claim(one, C, 20.0) == 3


def test_x32_fencing_asks_nobody() -> None:
    one = seat()
    assert claim(one, A, 0.0) == 1
    assert claim(one, B, 0.0, fence=True) == 2
    one.check(2)
    with pytest.raises(ProducerFenced, match="with epoch 2; this one's was 1"):
        one.check(1)


def test_x32_asking_again_is_the_same_claim() -> None:
    one = seat()
    assert claim(one, A, 0.0) == 1
    assert claim(one, A, 5.0) == 1
    assert claim(one, A, 50.0) == 1, "nobody came meanwhile"


def test_one_claim_at_a_time_and_one_that_failed_blocks_nobody() -> None:
    one = seat()
    one.begin_claim(A, fence=False, now_s=0.0)
    one.begin_claim(A, fence=False, now_s=0.0)  # a repetition
    for fence in (False, True):
        with pytest.raises(ExclusiveWriterBusy, match="about to take it"):
            one.begin_claim(B, fence=fence, now_s=0.0)
    one.gave_up()
    assert claim(one, B, 0.0) == 1
    with pytest.raises(ProducerFenced, match="too late"):
        one.claimed(A, 0.0)


def test_who_may_write() -> None:
    one = seat()
    with pytest.raises(ExclusiveWriterRequired):
        one.check(0)
    claim(one, A, 0.0)
    one.check(1)
    with pytest.raises(NotLeader):
        one.check(2)  # claimed of a later owner
    with pytest.raises(NotLeader):
        one.renew(A, 2, 0.0)
    one.required = False
    for epoch in (0, 1, 2):
        one.check(epoch)
    with pytest.raises(IllegalStateError, match="exclusive writer"):
        claim(one, A, 0.0)


def test_a_new_owner_gives_the_writer_a_whole_lease() -> None:
    one = WriterSeat(NAME, lease_s=10.0, required=True)
    one.loaded(7, A, 100.0)
    with pytest.raises(ExclusiveWriterBusy):
        claim(one, B, 109.0)
    one.renew(A, 7, 109.0)
    assert claim(one, B, 119.0) == 8


@pytest.mark.parametrize("token", [b"", b"short", bytes(17)])
def test_what_is_no_token(token: bytes) -> None:
    with pytest.raises(InvalidRequest):
        claim(seat(), token, 0.0)


# --- the record ----------------------------------------------------------------------------------


def test_the_record_keeps_it_and_older_builds_refuse_it() -> None:
    plain = PartitionState(TOPIC_ID, 0)
    held = replace(plain, writer_epoch=3, writer=A)
    assert PartitionState.from_bytes(held.to_bytes()) == held
    assert plain.to_bytes()[1] == 1, "of what nobody claimed they understand all"
    assert held.to_bytes()[1] == 4
    with pytest.raises(MetadataCorrupt):
        PartitionState.from_bytes(replace(held, writer=bytes(65)).to_bytes())


def test_the_epoch_never_goes_back_and_never_means_two() -> None:
    held = PartitionState(TOPIC_ID, 0, writer_epoch=3, writer=A)
    held.check_successor(replace(held, writer_epoch=4, writer=B))
    held.check_successor(held)
    for wrong in (replace(held, writer_epoch=2), replace(held, writer=B)):
        with pytest.raises(InvariantViolation):
            held.check_successor(wrong)


# --- one partition -------------------------------------------------------------------------------


async def write(shell: PartitionShell, value: bytes, epoch: int, sequence: int = -1) -> Appended:
    pid = 7 if sequence >= 0 else -1
    batch = make_batch([value], pid=pid, epoch=min(pid, 0), sequence=sequence)
    answers = Answers()
    shell.append(batch, -1, answers.reply, Conditions(writer_epoch=epoch))
    (answer,) = await answers.wait(1)
    assert isinstance(answer, Appended)
    return answer


async def test_x32_the_old_holder_is_fenced_and_the_epoch_outlives_the_owner(rig: Rig) -> None:
    shell = await rig.broker().open(NAME, **EXCLUSIVE)
    with pytest.raises(ExclusiveWriterRequired):
        await write(shell, b"anybody", 0)
    first = await shell.writers.claim(A, fence=False)
    await write(shell, b"a", first, sequence=0)
    with pytest.raises(ExclusiveWriterBusy):
        await shell.writers.claim(B, fence=False)
    second = await shell.writers.claim(B, fence=True)
    assert (first, second) == (1, 2)
    with pytest.raises(ProducerFenced):
        await write(shell, b"late", first, sequence=1)
    again = await write(shell, b"a", first, sequence=0)
    assert again.duplicate, "a retry of what is stored is still answered (A8)"
    await write(shell, b"b", second)

    moved = await rig.broker().open(NAME, **EXCLUSIVE)  # the owner is gone, or believes it is there
    with pytest.raises(ProducerFenced):
        await write(moved, b"late", first)
    await write(moved, b"b2", second)
    with pytest.raises(ExclusiveWriterBusy):
        await moved.writers.claim(C, fence=False)
    assert moved.writers.renew(B, second) == second
    moved.writers.leave(B, second)
    assert await moved.writers.claim(C, fence=False) == 3
    with pytest.raises(NotLeader):
        await shell.writers.claim(A, fence=True)  # it lost its office: it cannot list anything
    assert moved.high_watermark == 3


async def test_x32_a_claim_of_unknown_outcome_is_repeated(rig: Rig) -> None:
    broker = rig.broker()
    shell = await broker.open(NAME, **EXCLUSIVE)
    await write(shell, b"a", await shell.writers.claim(A, fence=False))
    broker.store.suspend()
    with pytest.raises(MetadataUnavailable):
        await shell.writers.claim(B, fence=True)
    await write(shell, b"a2", 1)  # nobody took it
    broker.store.resume()
    assert await shell.writers.claim(B, fence=True) == 2
    with pytest.raises(ProducerFenced):
        await write(shell, b"late", 1)


async def test_x32_the_topic_may_have_a_writer_and_then_none(rig: Rig) -> None:
    broker = rig.broker()
    shell = await broker.open()
    with pytest.raises(IllegalStateError):
        await shell.writers.claim(A, fence=False)
    await write(shell, b"anybody", 0)
    shell.adopt(broker.settings(**EXCLUSIVE))
    with pytest.raises(ExclusiveWriterRequired):
        await write(shell, b"anybody", 0)
    await write(shell, b"a", await shell.writers.claim(A, fence=False))
    shell.adopt(broker.settings())
    await write(shell, b"anybody", 0)
    assert shell.high_watermark == 3
