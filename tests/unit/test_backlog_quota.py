"""Backlog quotas of one partition: what is unread, what is too much, who is told (F162)."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator

import pytest

from octavo.proto.segments import Segment
from octavo.runtime.errors import (
    BacklogQuotaExceeded,
    InvalidConfig,
    NotLeader,
    OctavoError,
    Throttled,
)
from octavo.runtime.ids import EntryId, LedgerId
from octavo.serving.backlog import (
    EVICT,
    HOLD,
    REFUSE,
    Backlog,
    BacklogQuota,
    offset_of_newest,
    unread_bytes,
)
from octavo.serving.partition.backlog import CHECK_OVER_S, HOLD_MS, BacklogGate
from octavo.serving.partition.log import ACKS_NONE, Appended
from octavo.serving.partition.read_path import batch_at, first_appended_since
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.retention import UNLIMITED
from octavo.serving.topic_config import effective, parse_topic_config, settings_of
from tests.serving_rig import NAME, Rig, make_batch, make_config, produce

OVER, WITHIN = Backlog(101, 0), Backlog(100, 0)


@pytest.fixture
async def rig() -> AsyncGenerator[Rig]:
    made = Rig()
    yield made
    await made.close()


# --- settings ------------------------------------------------------------------------


def test_f162_without_a_setting_there_is_no_quota() -> None:
    found = effective({}, make_config())
    assert found["backlog.quota.bytes"] == found["backlog.quota.time.ms"] == "-1"
    assert found["backlog.quota.policy"] == "producer_hold"
    assert parse_topic_config({}, make_config()).backlog_quota.is_off


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("backlog.quota.policy", "producer_request_hold", "producer_hold"),
        ("backlog.quota.policy", "evict", "evict_oldest"),
        ("backlog.quota.bytes", "0", "-1 sets no limit"),
        ("backlog.quota.bytes", "-2", ""),
        ("backlog.quota.time.ms", "soon", ""),
        ("backlog.quota.time", "5", "backlog.quota.time.ms"),
    ],
)
def test_f162_a_wrong_setting_is_refused_with_what_was_meant(
    name: str, value: str, hint: str
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse_topic_config({name: value}, make_config())
    assert name in caught.value.cause
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    "stored",
    [
        {"backlog.quota.policy": "by-vote"},
        {"backlog.quota.bytes": "many"},
        {"backlog.quota.time.ms": "0"},
    ],
)
def test_f162_a_stored_setting_that_cannot_be_read_sets_no_quota(stored: dict[str, str]) -> None:
    given = {"backlog.quota.bytes": "5", "backlog.quota.policy": "evict_oldest"}
    found = settings_of(given | stored, make_config())
    assert found.backlog_quota.is_off
    assert not settings_of(given, make_config()).backlog_quota.is_off


# --- what is unread ------------------------------------------------------------------


def some_log(rng: random.Random) -> tuple[list[Segment], list[int]]:
    """Segments, the last one perhaps open, and the size of each record."""
    segments: list[Segment] = []
    sizes: list[int] = []
    base = start = rng.randint(0, 5)
    count = rng.randint(0, 5)
    for number in range(count):
        records = rng.choice((0, 1, 4, 9))
        size = rng.choice((0, 3, 40))
        end = None if number == count - 1 and rng.random() < 0.5 else base + records
        last = EntryId(3)
        segments.append(Segment(LedgerId(number), base, end, size * records, 1, 1, last))
        sizes += [size] * records
        base += records
    return segments, [0] * start + sizes


def test_f162_what_is_unread_is_the_sum_of_what_comes_from_there_on() -> None:
    for seed in range(500):
        segments, sizes = some_log(random.Random(seed))
        for offset in range(len(sizes) + 3):
            found = unread_bytes(segments, offset, len(sizes))
            assert found == sum(sizes[offset:]), f"seed {seed}, offset {offset}"


def test_f162_an_eviction_moves_as_little_as_needed() -> None:
    for seed in range(500):
        rng = random.Random(seed)
        segments, sizes = some_log(rng)
        keep = rng.choice((0, 1, 20, 100, 1_000))
        offset = offset_of_newest(segments, keep, len(sizes))
        assert sum(sizes[offset:]) <= keep, f"seed {seed}"
        first = segments[0].base_offset if segments else len(sizes)
        if offset > first:
            assert sum(sizes[offset - 1 :]) > keep, f"seed {seed}: one record too far"


def test_f162_either_limit_counts_and_the_limit_itself_is_within() -> None:
    both = BacklogQuota(100, 5_000, HOLD)
    assert Backlog(100, 5_000).excess(both) is None
    assert "101 bytes, backlog.quota.bytes=100" in str(Backlog(101, 0).excess(both))
    assert "5001 ms" in str(Backlog(0, 5_001).excess(both))
    assert Backlog(1 << 50, 1 << 50).excess(BacklogQuota(UNLIMITED, UNLIMITED, HOLD)) is None
    assert both.eviction() == BacklogQuota(90, 4_500, HOLD)
    assert BacklogQuota(UNLIMITED, 10, EVICT).eviction().size_bytes == UNLIMITED


# --- the gate ------------------------------------------------------------------------


def gate(policy: str = HOLD, *, interval_s: float = 60.0, spread: float = 0.0) -> BacklogGate:
    quota = BacklogQuota(100, UNLIMITED, policy)
    return BacklogGate(NAME, quota, interval_s=interval_s, spread=spread)


def test_f162_what_is_not_known_shuts_nothing() -> None:
    for policy in (HOLD, REFUSE, EVICT):
        found = gate(policy)
        assert not found.is_shut
        found.measured(OVER, 1.0, 0)
        assert (found.is_shut, found.evicts) == (policy != EVICT, policy == EVICT)
        found.measured(None, 2.0, 0)
        assert not found.is_shut
        assert not found.evicts
        assert found.known is None


def test_f162_a_drained_backlog_opens_it() -> None:
    found = gate()
    found.measured(OVER, 1.0, 0)
    assert found.is_shut
    found.measured(WITHIN, 3.0, 0)
    assert not found.is_shut


def test_f162_it_is_measured_often_while_it_is_over_and_seldom_otherwise() -> None:
    found = gate(interval_s=60.0, spread=0.5)
    assert not found.is_due(1_000.0, 0)
    assert not found.is_due(1_029.0, 0)
    assert found.is_due(1_030.0, 0), "first after a part of the interval"
    found.measured(WITHIN, 1_030.0, 500)
    assert not found.is_due(1_089.0, 500)
    assert found.is_due(1_090.0, 500)
    found.measured(OVER, 1_090.0, 500)
    assert not found.is_due(1_090.0 + CHECK_OVER_S / 2, 500)
    assert found.is_due(1_090.0 + CHECK_OVER_S, 500)


def test_f162_what_came_in_since_makes_it_due() -> None:
    found = gate()
    found.measured(Backlog(60, 0), 10.0, 1_000)
    assert not found.is_due(20.0, 1_040), "60 and 40 are not more than the quota"
    assert found.is_due(20.0, 1_041)
    assert not found.is_due(10.0 + CHECK_OVER_S / 2, 9_000), "but not at once again"
    found.measured(None, 30.0, 2_000)
    assert not found.is_due(40.0, 2_100)
    assert found.is_due(40.0, 2_101), "nothing is known: what came in may be all of it"


def test_f162_another_quota_counts_at_once_for_what_is_known() -> None:
    found = gate()
    found.measured(OVER, 1.0, 0)
    found.adopt(BacklogQuota(101, UNLIMITED, HOLD))
    assert not found.is_shut
    assert found.is_due(1.0, 0), "and it is measured soon"
    found.adopt(BacklogQuota(50, UNLIMITED, HOLD))
    assert found.is_shut
    found.adopt(BacklogQuota(UNLIMITED, UNLIMITED, HOLD))
    assert not found.is_shut
    assert not found.is_due(1e9, 1 << 40)


# --- who writes ----------------------------------------------------------------------


def refused(shell: PartitionShell, batch: bytes) -> OctavoError:
    with pytest.raises(OctavoError) as caught:
        shell.append(batch, -1, lambda _: None)
    return caught.value


async def test_f162_f001_a_held_producer_is_told_for_how_long_and_nothing_is_lost(
    rig: Rig,
) -> None:
    shell = await rig.broker().open(backlog_quota_bytes="100")
    stored = make_batch([b"v"], pid=7, epoch=0, sequence=0)
    await produce(shell, stored)
    shell.backlog.measured(OVER, 1.0, 0)
    error = refused(shell, make_batch([b"w"], pid=7, epoch=0, sequence=1))
    assert isinstance(error, Throttled)
    assert int(error.details["throttle_ms"]) == HOLD_MS
    assert "backlog.quota.bytes=100" in error.cause
    assert "octavo topic set" in (error.hint or "")
    behind = refused(shell, make_batch([b"w"], pid=7, epoch=0, sequence=2))
    assert isinstance(behind, Throttled), "so is what comes behind it in the same window"
    again = await produce(shell, stored)
    assert (again.duplicate, again.base_offset) == (True, 0), "what is stored is told as ever"
    untold: list[object] = []
    shell.append(make_batch([b"x"]), ACKS_NONE, untold.append)
    assert isinstance(untold[0], Appended), "nobody would send it again"
    shell.backlog.measured(WITHIN, 2.0, 0)
    found = await produce(shell, make_batch([b"w"], pid=7, epoch=0, sequence=1))
    assert found.base_offset == 2


async def test_f162_a_refused_producer_gets_a_typed_error(rig: Rig) -> None:
    shell = await rig.broker().open(
        backlog_quota_bytes="100", backlog_quota_policy="producer_exception"
    )
    shell.backlog.measured(OVER, 1.0, 0)
    error = refused(shell, make_batch())
    assert isinstance(error, BacklogQuotaExceeded)
    assert not error.retriable
    assert "orders-0" in error.cause
    assert "octavo group lag" in (error.hint or "")
    assert shell.high_watermark == 0


async def test_f162_an_owner_in_doubt_does_not_speak_of_backlogs(rig: Rig) -> None:
    broker = rig.broker()
    shell = await broker.open(backlog_quota_bytes="100", backlog_quota_policy="producer_exception")
    shell.backlog.measured(OVER, 1.0, 0)
    broker.certain = False
    assert isinstance(refused(shell, make_batch()), NotLeader)


async def test_f162_evicting_holds_nobody(rig: Rig) -> None:
    shell = await rig.broker().open(backlog_quota_bytes="1", backlog_quota_policy="evict_oldest")
    shell.backlog.measured(OVER, 1.0, 0)
    await produce(shell, make_batch())


async def test_f162_an_altered_topic_opens_its_partitions(rig: Rig) -> None:
    broker = rig.broker()
    shell = await broker.open(backlog_quota_bytes="100")
    shell.backlog.measured(OVER, 1.0, 0)
    refused(shell, make_batch())
    shell.adopt(broker.settings())
    await produce(shell, make_batch())


# --- time ----------------------------------------------------------------------------


async def test_f162_the_first_record_since_a_time_is_found_by_its_append(rig: Rig) -> None:
    """Timestamps of producers say nothing; closed segments, the open one, and between batches."""
    shell = await rig.broker().open()
    answers: list[Appended] = []
    for number in range(12):
        batch = make_batch([b"v"] * (1 + number % 3), timestamp_ms=1_700_000_000_000 - number)
        answers.append(await produce(shell, batch))
        while rig.clock.wall_ms() <= answers[-1].append_time_ms:
            pass
        if number % 5 == 4:
            await shell.roll()
    view = shell.view()
    for number, one in enumerate(answers):
        for low in (0, 1, one.base_offset):
            found = await first_appended_since(view, low, one.append_time_ms)
            assert found == max(low, one.base_offset)
        next_base = answers[number + 1].base_offset if number < 11 else shell.high_watermark
        later = await first_appended_since(view, 0, one.append_time_ms + 1)
        assert later == next_base
        header = await batch_at(view, next_base - 1)
        assert header is not None
        assert header.append_time_ms == one.append_time_ms
    beyond = await batch_at(view, shell.high_watermark)
    assert beyond is None
