"""What a topic's settings keep: the rule, and a partition that follows it (R1-R4, I10)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from octavo.metadata.topics import PartitionState, TrashedLedger
from octavo.proto.segments import Segment
from octavo.runtime.ids import EntryId, LedgerId
from octavo.serving.partition.limits import limits_of
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.retention import (
    KEEP_ALL,
    UNLIMITED,
    RetentionRule,
    retained_from,
    wants_an_owner,
)
from octavo.serving.segments import first_state
from octavo.serving.topic_config import parse_topic_config, settings_of
from tests.serving_rig import NAME, Broker, Rig, make_batch, make_config, produce, until

NOW_MS = 1_000_000
Rule = Callable[..., int]


def segment(number: int, base: int, end: int, size: int, newest_ms: int | None) -> Segment:
    return Segment(
        LedgerId(number),
        base,
        end_offset=end,
        size_bytes=size,
        first_append_ms=None if newest_ms is None else newest_ms - 10,
        last_append_ms=newest_ms,
        last_entry=EntryId(3),
    )


def some_log(rng: random.Random) -> list[Segment]:
    """Segments of rising age; some without records, one perhaps of unknown age."""
    out: list[Segment] = []
    base, newest_ms = 0, NOW_MS - 5_000
    for number in range(rng.randint(0, 6)):
        count = rng.choice((0, 1, 7))
        newest_ms += rng.choice((0, 1, 500, 1_000))
        known_ms = None if not count or rng.random() < 0.05 else newest_ms
        out.append(segment(number, base, base + count, rng.choice((10, 100)), known_ms))
        base += count
    return out


def must_stay(one: Segment, later_bytes: int, rule: RetentionRule) -> bool:
    """R1, R2 in words: young or of unknown age, and not beyond the size."""
    if one.base_offset == one.end_offset:
        return False
    newest_ms = one.last_append_ms
    is_old = newest_ms is not None and rule.age_ms >= 0 and NOW_MS - newest_ms > rule.age_ms
    is_much = rule.size_bytes >= 0 and later_bytes >= rule.size_bytes
    return not is_old and not is_much


def check(rule_of: Rule, seed: int) -> None:
    rng = random.Random(seed)
    log = some_log(rng)
    rule = RetentionRule(rng.choice((UNLIMITED, 0, 1_000, 3_000)), rng.choice((UNLIMITED, 0, 150)))
    open_bytes = rng.choice((0, 100))
    end = log[-1].end_offset or 0 if log else 0
    start = rng.randint(0, end)
    cut = rule_of(log, rule, log_start=start, open_bytes=open_bytes, now_ms=NOW_MS)
    edges = {one.end_offset for one in log}
    assert cut == start or (cut > start and cut in edges)
    for i, one in enumerate(log):
        later = open_bytes + sum(other.size_bytes for other in log[i + 1 :])
        assert one.end_offset is not None
        if one.end_offset <= start:
            continue
        if must_stay(one, later, rule):
            assert cut <= max(start, one.base_offset), "what must stay goes"
            break
        assert cut >= one.end_offset, "what is past stays"


def test_r1_r2_the_rule_keeps_what_must_stay_and_nothing_else() -> None:
    for seed in range(3_000):
        check(retained_from, seed)


def by_the_oldest(log: Sequence[Segment], rule: RetentionRule, **how: int) -> int:
    return retained_from(
        [replace(one, last_append_ms=one.first_append_ms) for one in log], rule, **how
    )


def as_if_known(log: Sequence[Segment], rule: RetentionRule, **how: int) -> int:
    return retained_from(
        [replace(one, last_append_ms=one.last_append_ms or 0) for one in log], rule, **how
    )


def without_the_open(
    log: Sequence[Segment], rule: RetentionRule, *, open_bytes: int, **how: int
) -> int:
    return retained_from(log, rule, open_bytes=0, **how)


def around_the_young(log: Sequence[Segment], rule: RetentionRule, **how: int) -> int:
    cuts = [retained_from(log[i:], rule, **how) for i in range(len(log))]
    return max(cuts, default=how["log_start"])


def to_the_byte(log: Sequence[Segment], rule: RetentionRule, **how: int) -> int:
    more = rule.size_bytes + 1 if rule.size_bytes >= 0 else rule.size_bytes
    return retained_from(log, rule._replace(size_bytes=more), **how)


def only_by_age(log: Sequence[Segment], rule: RetentionRule, **how: int) -> int:
    return retained_from(log, rule._replace(size_bytes=UNLIMITED), **how)


def from_the_first(
    log: Sequence[Segment], rule: RetentionRule, *, log_start: int, **how: int
) -> int:
    return retained_from(log, rule, log_start=0, **how)


@pytest.mark.parametrize(
    "bug",
    [
        by_the_oldest,
        as_if_known,
        without_the_open,
        around_the_young,
        to_the_byte,
        only_by_age,
        from_the_first,
    ],
)
def test_a_planted_bug_is_found(bug: Rule) -> None:
    def breaks(seed: int) -> bool:
        try:
            check(bug, seed)
        except AssertionError:
            return True
        return False

    assert any(breaks(seed) for seed in range(3_000))


# --- settings -----------------------------------------------------------------------------------


def test_the_default_is_a_week_and_settings_change_it() -> None:
    config = make_config()
    week = parse_topic_config({}, config)
    assert (week.retention_ms, week.retention_bytes) == (7 * 86_400_000, -1)
    given = parse_topic_config({"retention.ms": "1209600000", "retention.bytes": "5"}, config)
    assert (given.retention_ms, given.retention_bytes) == (14 * 86_400_000, 5)


def test_what_an_internal_topic_holds_stays_unless_it_says_otherwise() -> None:
    config = make_config()
    kept = settings_of({}, config, internal=True)
    assert (kept.retention_ms, kept.retention_bytes) == (-1, -1)
    assert settings_of({"retention.ms": "5"}, config, internal=True).retention_ms == 5


@pytest.mark.parametrize(
    "stored",
    [
        {"retention.ms": "P7D"},
        {"retention.bytes": "1GiB", "retention.ms": "1000"},
        {"cleanup.policy": "tier"},
        {"cleanup.policy": "compact", "delete.retention.ms": "P1D"},
        {"retention.ms": "5", "min.insync.replicas": "60"},
    ],
)
def test_a_rule_of_a_newer_build_deletes_nothing(stored: dict[str, str]) -> None:
    found = settings_of(stored, make_config())
    assert (found.retention_ms, found.retention_bytes) == (-1, -1)
    assert not found.compacts


@pytest.mark.parametrize(
    ("policy", "shown", "compacts", "keeps_all"),
    [
        ("delete", "delete", False, False),
        ("compact", "compact", True, True),
        (" delete , compact ", "compact,delete", True, False),
    ],
)
def test_k9_a_topic_that_is_only_compacted_ignores_age_and_size(
    policy: str, shown: str, compacts: bool, keeps_all: bool
) -> None:
    stored = {"cleanup.policy": policy, "retention.ms": "5", "retention.bytes": "6"}
    found = settings_of(stored, make_config())
    assert (found.cleanup_policy, found.compacts) == (shown, compacts)
    assert found.retention == (KEEP_ALL if keeps_all else RetentionRule(5, 6))
    assert limits_of(found, make_config(), spread=0).retention.rule == found.retention


def test_k3_a_compacted_topic_rolls_before_its_records_are_too_old_to_be_dirty() -> None:
    stored = {"cleanup.policy": "compact", "max.compaction.lag.ms": "5000"}
    found = settings_of(stored, make_config())
    assert limits_of(found, make_config(), spread=0).roll.segment_ms == 5_000
    kept = found._replace(cleanup_policy="delete")
    assert limits_of(kept, make_config(), spread=0).roll.segment_ms == 604_800_000


# --- a partition --------------------------------------------------------------------------------


async def filled(broker: Broker, count: int, **config: str) -> PartitionShell:
    shell = await broker.open(NAME, **config)
    for i in range(count):
        await produce(shell, make_batch([b"%d" % i], pid=3, epoch=0, sequence=i))
        if i + 1 < count:
            await shell.roll()
    return shell


async def ticked(shell: PartitionShell, condition: Callable[[], bool]) -> None:
    """Housekeeping goes on until `condition()` holds."""

    def holds() -> bool:
        shell.tick()
        return condition()

    await until(holds)


async def test_r2_a_log_beyond_its_size_loses_its_oldest_segments(rig: Rig) -> None:
    shell = await filled(rig.broker(retention_check_interval_ms=100), 5, retention_bytes="600")
    sizes = [one.size_bytes for one in shell.described()]
    await ticked(shell, lambda: shell.log_start > 0)
    opened = shell._core.segment  # pyright: ignore[reportPrivateUsage]
    assert opened is not None
    left = sum(one.size_bytes for one in shell.described()[:-1]) + opened.size_bytes
    assert left >= 600 > left - sizes[0]
    assert shell.high_watermark == 5


async def test_r1_r3_an_idle_partition_empties_and_knows_its_producers(rig: Rig) -> None:
    broker = rig.broker(retention_check_interval_ms=100)
    shell = await filled(broker, 3, retention_ms="150")
    await ticked(shell, lambda: shell.log_start == 3)
    # On the way there the last one that goes may stand alone, until the next one is durable.
    await ticked(
        shell,
        lambda: [(one.base_offset, one.end_offset) for one in shell.described()] == [(3, None)],
    )
    await ticked(shell, lambda: len(rig.bookies.deleted) == 3)
    made = broker.backend.created
    for _ in range(20):  # and rests then
        shell.tick()
    assert broker.backend.created == made
    await shell.close(1.0)
    successor = await rig.broker().open()
    assert (successor.log_start, successor.high_watermark) == (3, 3)
    again = await produce(successor, make_batch([b"2"], pid=3, epoch=0, sequence=2))
    assert again.duplicate


async def test_r1_what_is_young_stays(rig: Rig) -> None:
    broker = rig.broker(retention_check_interval_ms=100)
    shell = await filled(broker, 3, retention_ms="60000")
    for _ in range(50):
        shell.tick()
    assert shell.log_start == 0
    assert len(shell.described()) == 3


async def test_a6_housekeeping_opens_no_degraded_ledger(rig: Rig) -> None:
    broker = rig.broker(retention_check_interval_ms=100)
    shell = await filled(broker, 1, retention_ms="100")
    await shell.roll()
    rig.bookies.live = 2
    made = broker.backend.created
    for _ in range(20):
        shell.tick()
    assert broker.backend.created == made
    rig.bookies.live = 3
    await ticked(shell, lambda: shell.log_start == 1)
    await ticked(shell, lambda: broker.backend.created == made + 1)


# --- a list that nobody serves ------------------------------------------------------------------


WEEK = RetentionRule(1_000, UNLIMITED)
OLD, YOUNG = NOW_MS - 2_000, NOW_MS - 10


def listed(*segments: Segment, **changes: object) -> PartitionState:
    state = replace(first_state(NAME.topic_id, 0), segments=segments, max_ledger_id_ever=99)
    return replace(state, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "rule", "expected"),
    [
        (listed(), WEEK, False),
        (listed(segment(1, 0, 5, 10, YOUNG)), WEEK, False),
        (listed(segment(1, 0, 5, 10, OLD)), WEEK, True),
        (listed(segment(1, 0, 5, 10, OLD)), KEEP_ALL, False),
        (listed(segment(1, 0, 5, 10, OLD), segment(2, 5, 6, 10, YOUNG)), WEEK, True),
        # Emptied already: its snapshot is all that is left.
        (listed(segment(1, 5, 5, 10, None), log_start_offset=5), WEEK, False),
        # Cut off, and not dropped yet.
        (listed(segment(1, 0, 5, 10, YOUNG), log_start_offset=5), WEEK, True),
        (
            listed(segment(1, 0, 5, 9, OLD), segment(2, 5, 5, 9, None), log_start_offset=5),
            WEEK,
            True,
        ),
        # Its owner died: only an opener can tell how old it is.
        (listed(Segment(LedgerId(1), 0)), WEEK, True),
        (listed(Segment(LedgerId(1), 0)), KEEP_ALL, False),
        (listed(trash=(TrashedLedger(LedgerId(3), "trimmed", NOW_MS - 50),)), KEEP_ALL, True),
        (listed(trash=(TrashedLedger(LedgerId(3), "trimmed", NOW_MS - 5),)), KEEP_ALL, False),
    ],
)
def test_who_needs_an_owner(state: PartitionState, rule: RetentionRule, expected: bool) -> None:
    assert wants_an_owner(state, rule, now_ms=NOW_MS, trash_delay_ms=20) is expected
