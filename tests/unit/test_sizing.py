"""What a load needs: the figures of the specification, more never gets less, and honest limits."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.cli import sizing_figures as measured
from octavo.cli.sizing import (
    DAY_S,
    DISK_USED_AT_MOST,
    MB,
    PARTITIONS_OF_A_TOPIC_MAX,
    Advice,
    Load,
    advise,
)
from octavo.runtime.errors import ConfigError
from tests.tidy_rules import ROOT

LOADS = st.builds(
    Load,
    messages_per_s=st.floats(0.001, 5e6),
    message_bytes=st.floats(1, 4_096),
    consumers=st.none() | st.integers(1, 3_000),
    groups=st.integers(0, 20),
    retention_days=st.floats(0.01, 400),
    replication=st.integers(1, 5),
    stored_ratio=st.floats(0.1, 1.0),
    keys=st.none() | st.integers(1, 50_000),
    p99_ms=st.none() | st.floats(1, 100),
    bookie_disk_tb=st.none() | st.floats(0.1, 100),
)
MORE = {
    "messages_per_s": 1.7,
    "message_bytes": 1.3,
    "consumers": 2,
    "groups": 2,
    "retention_days": 1.5,
    "replication": 2,
    "keys": 3,
}
"""What can be asked of a load, and a factor by which it grows."""


def counts(found: Advice) -> dict[str, float]:
    return {
        name: getattr(found, name)
        for name in (
            "partitions", "brokers", "bookies", "producers", "consumers", "kept_bytes",
            "disk_bytes",
        )
    }  # fmt: skip


def answer(load: Load) -> Advice | None:
    """None: no topic can have so many partitions."""
    if load.keys is None or load.keys > PARTITIONS_OF_A_TOPIC_MAX:
        needed = max(2 * (load.consumers or 1), load.write_mb_per_s / 101)
        if needed > PARTITIONS_OF_A_TOPIC_MAX:
            with pytest.raises(ConfigError, match="more than a topic can have"):
                advise(load)
            return None
    with suppress(ConfigError):
        return advise(load)
    return None


@given(LOADS, st.sampled_from(sorted(MORE)))
def test_more_of_anything_never_needs_less_of_anything(load: Load, what: str) -> None:
    """Planted: a broker too many where partitions were many, and none of it for a higher rate."""
    value = getattr(load, what)
    if value is None:
        return
    grown = replace(load, **{what: type(value)(value * MORE[what])})
    before, after = answer(load), answer(grown)
    if before is None or after is None:
        assert after is None, "what is too much for a topic stays too much"
        return
    least, most = counts(before), counts(after)
    assert {name: most[name] >= least[name] for name in least} == dict.fromkeys(least, True)


@given(LOADS)
def test_what_is_advised_was_measured_to_be_enough(load: Load) -> None:
    found = answer(load)
    if found is None:
        return
    slack = 1 + 1e-9
    assert load.write_mb_per_s <= found.brokers * measured.BROKER_WRITE_MB_PER_S.value * slack
    assert load.read_mb_per_s <= found.brokers * measured.BROKER_READ_MB_PER_S.value * slack
    assert load.messages_per_s <= found.brokers * measured.BROKER_RECORDS_PER_S.value * slack
    each = math.ceil(found.partitions / found.brokers)
    slow = found.brokers * measured.MANY_PARTITIONS_WRITE_MB_PER_S.value
    assert each <= measured.PARTITIONS_AT_FULL_SPEED or load.write_mb_per_s <= slow * slack
    assert each <= measured.MANY_PARTITIONS
    assert found.bookies >= load.replication
    assert found.disk_bytes <= found.bookies * found.bookie_disk_bytes * DISK_USED_AT_MOST * slack
    if load.bookie_disk_tb is not None:
        assert found.bookie_disk_bytes <= load.bookie_disk_tb * 1e12 * slack + 2
    reading = found.consumers * measured.CONSUMER_READ_MB_PER_S.value
    assert not load.groups or load.write_mb_per_s <= reading * slack
    assert load.keys is None or found.partitions <= load.keys


@given(LOADS)
def test_f149_an_answer_says_so_wherever_no_bench_went(load: Load) -> None:
    found = answer(load)
    if found is None:
        return
    said = " ".join(found.beyond)
    assert ("brokers: one was measured" in said) == (found.brokers > 1)
    assert ("bookies: three were measured" in said) == (found.bookies > 3)
    assert ("copies: three" in said) == (load.replication != 3)
    assert ("consumers at a time" in said) == (
        load.groups * (load.consumers or found.consumers) > measured.READERS_AT_ONCE
    )
    assert ("messages of" in said) == (not 300 <= load.message_bytes <= 1_024)
    assert ("on a bookie" in said) == (found.disk_bytes / found.bookies > 4e9)
    assert ("p99 at" in said) == (load.p99_ms is not None and load.messages_per_s > 1_000)


@pytest.mark.parametrize(
    ("target_mbps", "consumers", "partitions"),
    [(1, 1, 6), (1, 6, 12), (65, 2, 6), (131, 3, 6), (800, 6, 13), (800, 10, 20)],
)
def test_f024_six_two_for_each_consumer_or_the_measured_throughput(
    target_mbps: float, consumers: int, partitions: int
) -> None:
    load = Load(messages_per_s=target_mbps * MB / 1_000, message_bytes=1_000, consumers=consumers)
    assert advise(load).partitions == partitions
    unread = advise(replace(load, groups=0)).partitions
    assert unread == max(6, 2 * consumers, math.ceil(target_mbps / 101))


@pytest.mark.parametrize(
    ("messages_per_s", "gb_per_day", "kept_gb", "disk_gb"),
    [(800_000, 69_120, 483_840, 1_451_520), (1_000_000, 86_400, 604_800, 1_814_400)],
)
def test_f089_both_estimates_of_storage(
    messages_per_s: int, gb_per_day: int, kept_gb: int, disk_gb: int
) -> None:
    found = advise(Load(messages_per_s=messages_per_s, message_bytes=1_000))
    assert found.sent_bytes_per_day == gb_per_day * 10**9 == messages_per_s * 1_000 * DAY_S
    assert (found.kept_bytes, found.disk_bytes) == (kept_gb * 10**9, disk_gb * 10**9)


def test_f154_what_three_groups_are_sent_decides_how_many_brokers() -> None:
    load = Load(messages_per_s=2_000_000, message_bytes=1_000, groups=3)
    found = advise(load)
    assert (found.write_mb_per_s, found.read_mb_per_s) == (2_000, 6_000)
    assert found.brokers == math.ceil(6_000 / 197)
    assert advise(replace(load, groups=0)).brokers == math.ceil(2_000 / 101)
    assert advise(replace(load, groups=6)).brokers == math.ceil(12_000 / 197)


def test_many_partitions_need_brokers_that_have_few_of_them_or_little_to_write() -> None:
    load = Load(messages_per_s=10, consumers=450)
    assert (advise(load).partitions, advise(load).brokers) == (900, 1)
    fast = advise(replace(load, messages_per_s=90_000))
    assert (fast.partitions, fast.brokers) == (900, 5), "92 MB/s: five of 20 MB/s, not nine of 101"
    assert advise(replace(load, messages_per_s=260_000)).brokers == 9
    assert advise(replace(load, consumers=1_500)).brokers == 3, "1,000 were measured on one"


def test_memory_of_a_broker_grows_with_its_partitions() -> None:
    six = advise(Load(messages_per_s=1)).broker_idle_memory_bytes
    assert six == (120 * 1_024 + 6 * 33) * 1_024
    many = advise(Load(messages_per_s=1, consumers=500)).broker_idle_memory_bytes
    assert many - six == (1_000 - 6) * 33 * 1_024


def test_f024_keys_fill_no_more_partitions_than_there_are_of_them() -> None:
    load = Load(messages_per_s=100, consumers=10)
    assert advise(replace(load, keys=20)).warnings == ()
    found = advise(replace(load, keys=3))
    assert found.partitions == 3
    assert "3 keys fill at most 3 partitions; the load asks for 20" in found.warnings[0]


def test_consumers_that_fall_behind_are_said() -> None:
    load = Load(messages_per_s=500_000, message_bytes=1_000)
    assert (advise(load).consumers, advise(load).partitions) == (4, 8)
    found = advise(replace(load, consumers=3))
    assert found.consumers == 4
    assert "3 of them fall behind, 4 do not" in found.warnings[0]
    assert advise(replace(load, groups=0, consumers=3)).warnings == ()
    assert advise(replace(load, groups=0)).consumers == 0


@pytest.mark.parametrize(
    ("p99_ms", "said"), [(5, "missed in every hour"), (9, "in slow hours"), (20, "")]
)
def test_a_target_of_latency_is_compared_with_the_worst_hour(p99_ms: float, said: str) -> None:
    found = advise(Load(messages_per_s=1_000, p99_ms=p99_ms))
    assert said in " ".join(found.warnings)
    assert bool(found.warnings) == bool(said)


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages_per_s": 0}, {"messages_per_s": math.nan}, {"messages_per_s": math.inf},
        {"message_bytes": -1}, {"message_bytes": 5 << 20}, {"consumers": 0}, {"groups": -1},
        {"retention_days": 0}, {"replication": 0}, {"replication": 65}, {"stored_ratio": 1.5},
        {"keys": 0}, {"p99_ms": 0}, {"bookie_disk_tb": 0},
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused_by_the_name_of_the_option(wrong: dict[str, float]) -> None:
    ((name, _),) = wrong.items()
    with pytest.raises(ConfigError, match="--" + name.replace("_", "-")) as refused:
        Load(**{"messages_per_s": 1.0, **wrong})  # type: ignore[arg-type]
    assert refused.value.hint


def test_a_load_for_several_topics_is_refused() -> None:
    with pytest.raises(ConfigError, match="more than a topic can have") as refused:
        advise(Load(messages_per_s=1, consumers=6_000))
    assert "several topics" in (refused.value.hint or "")


def test_the_page_about_sizing_shows_the_figures_that_are_computed_with() -> None:
    page = (ROOT / "docs" / "sizing.md").read_text(encoding="utf-8")
    figures = {
        name: one for name, one in vars(measured).items() if isinstance(one, measured.Figure)
    }
    assert len(figures) >= 8
    missing = [name for name, one in figures.items() if f"| {one.value:,g} |" not in page]
    assert not missing, "the table in docs/sizing.md has other figures"
