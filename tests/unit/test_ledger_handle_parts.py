"""The parts of a ledger handle, each by itself: slots, callbacks, budget (§3)."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from octavo.client.ledger.config import LedgerClientConfig
from octavo.client.ledger.entry_callbacks import EntryCallbacks
from octavo.client.ledger.handle_budget import HandleBudget
from octavo.client.ledger.pool import BookiePool
from octavo.client.ledger.quorum_actions import FailedSlot, QuorumLimits, RetrySlot
from octavo.client.ledger.quorum_slots import Slots
from octavo.metadata.ledger_record import Quorum
from octavo.proto.bookie_wire import Status
from octavo.runtime.clock import ManualClock
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.errors import BookieUnavailable, InvariantViolation, OctavoError, UnknownOutcome
from octavo.runtime.ids import EntryId, LedgerId, Member
from tests.static_addresses import StaticAddresses

A, B, C, D = (Member(name, uuid.uuid5(uuid.NAMESPACE_DNS, name)) for name in "abcd")
LIMITS = QuorumLimits()


def slots_with(*failed: int, status: Status = Status.TIMEOUT) -> Slots:
    slots = Slots(Quorum(3, 3, 2), (A, B, C))
    for slot in failed:
        slots.fail(FailedSlot(slot, slots.members[slot], status, True, 0.0))
        slots.validate()
    return slots


def test_w8_an_occupant_that_was_replaced_takes_nothing() -> None:
    slots = slots_with(1)
    assert (slots.active, slots.short, slots.takes(1, 0)) == ((0, 2), True, False)
    slots.install({1: D})
    slots.validate()
    assert (slots.members, slots.active, slots.short) == ((A, D, C), (0, 1, 2), False)
    assert slots.generation(1) == 1
    assert slots.takes(1, 1)
    assert not slots.takes(1, 0)
    assert slots.takes(0, 0)  # nobody else was touched


def test_c2_only_a_failed_slot_is_replaced_and_by_nobody_who_is_there() -> None:
    slots = slots_with(2)
    assert slots.replaced({2: D}) == (A, B, D)
    assert slots.members == (A, B, C)  # C-4: memory does not run ahead of the metadata
    with pytest.raises(InvariantViolation, match="healthy"):
        slots.replaced({0: D})
    with pytest.raises(InvariantViolation, match="twice"):
        slots.replaced({2: A})


def test_3_4_a_refusal_is_tried_again_after_a_pause_and_not_for_ever() -> None:
    slots = slots_with()
    assert slots.each[0].refuse(LIMITS, 10.0)
    assert slots.refusing
    due = 10.0 + LIMITS.refusal_retry_s
    assert slots.retries_due(due - 0.001) == []
    assert slots.retries_due(due) == [RetrySlot(0, 0, new_connection=False)]
    assert not slots.refusing
    assert slots.retries_due(due) == []
    assert slots.each[0].refuse(LIMITS, 10.0 + LIMITS.add_timeout_s)
    assert not slots.each[0].refuse(LIMITS, 10.1 + LIMITS.add_timeout_s)


@pytest.mark.parametrize(
    ("failed", "status", "keeps"),
    [
        ((0,), Status.TIMEOUT, True),  # Qa of each write set are left
        ((0, 1), Status.TIMEOUT, False),
        ((0,), Status.DISK_FULL, False),  # W-7: it will not come back by itself
    ],
)
def test_w7_a_delayed_change_waits_only_while_qa_can_be_reached(
    failed: tuple[int, ...], status: Status, *, keeps: bool
) -> None:
    slots = slots_with(*failed, status=status)
    assert slots.keep_failed(QuorumLimits(delay_ensemble_change=True)) is keeps
    assert not slots.keep_failed(QuorumLimits())
    assert slots.keep_failed(QuorumLimits(ensemble_changes_enabled=False))


def test_w6_every_entry_is_told_once_in_order_whoever_raises(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[tuple[int, type[OctavoError] | None]] = []
    callbacks = EntryCallbacks(LedgerId(7))

    def done(entry: EntryId, error: OctavoError | None) -> None:
        told.append((entry, None if error is None else type(error)))
        if entry == 1:
            raise ValueError("a sender's fault")

    first: list[int] = []
    for number in range(4):
        callbacks.add(EntryId(number), done, first.append if number % 2 == 0 else None)
    callbacks.copied(EntryId(1))
    assert (first, told) == ([0], [])
    callbacks.confirmed(EntryId(2))
    assert told == [(0, None), (1, None), (2, None)]
    assert "entry 1 of ledger 7" in caplog.text
    callbacks.unknown(BookieUnavailable("gone"))
    callbacks.unknown(BookieUnavailable("gone"))
    assert told[3:] == [(3, UnknownOutcome)]
    callbacks.copied(EntryId(3))
    assert first == [0]  # of what is unknown no copy is told


async def test_w10_room_comes_back_with_answers_and_nobody_waits_for_a_stopped_handle() -> None:
    config = LedgerClientConfig(handle_in_flight_bytes=100, process_in_flight_bytes=150)
    pool = BookiePool(
        StaticAddresses({}), config=config, clock=ManualClock(), entropy=SeededEntropy(1)
    )
    one, other = HandleBudget(pool), HandleBudget(pool)
    one.moved(100)
    assert not one.has_room
    assert other.has_room
    other.moved(60)
    waiting = [asyncio.create_task(budget.wait()) for budget in (one, other)]
    await asyncio.sleep(0)
    one.moved(-20)  # the handle has room, and so has the process
    await asyncio.wait_for(asyncio.gather(*waiting), 30)
    assert (one.in_flight_bytes, pool.in_flight_bytes) == (80, 140)
    one.moved(20)
    stopped = asyncio.create_task(one.wait())
    await asyncio.sleep(0)
    assert not stopped.done()
    one.end()
    await asyncio.wait_for(stopped, 30)
