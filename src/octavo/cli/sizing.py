"""How many partitions, brokers and bookies a load needs, and how much disk. Pure.

F024, F089, F147: arithmetic over what was measured (`sizing_figures`), and nothing else: where a
question goes beyond it, the answer says so (F149). More load never gets less of anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Final

from octavo.cli import sizing_figures as measured
from octavo.runtime.errors import ConfigError

PARTITIONS_LEAST = 6
PARTITIONS_FOR_EACH_CONSUMER = 2
PARTITIONS_OF_A_TOPIC_MAX = 10_000
DISK_USED_AT_MOST = 0.90
"""Bookies warn above it, and stop taking records at 95 %."""
MB: Final = 1_000_000
DAY_S: Final = 86_400

_LIMITS: dict[str, tuple[float, float]] = {
    "messages_per_s": (0.001, 1e12),
    "message_bytes": (1, 4 << 20),
    "groups": (0, 1_000),
    "consumers": (1, 100_000),
    "retention_days": (0.001, 36_500),
    "replication": (1, 64),
    "stored_ratio": (0.001, 1.0),
    "keys": (1, 10**15),
    "p99_ms": (0.001, 1e9),
    "bookie_disk_tb": (0.001, 1e6),
}


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is asked of a topic at its busiest time; raises ConfigError for what cannot be."""

    messages_per_s: float
    message_bytes: float = 1_024
    consumers: int | None = None
    """Of the largest group, at the same time; None: as many as the rate needs."""
    groups: int = 1
    """Each reads everything."""
    retention_days: float = 7
    replication: int = 3
    stored_ratio: float = 1.0
    """Stored bytes for one that is sent: below 1 with compression."""
    keys: int | None = None
    """Different keys; None: none, or far more than partitions."""
    p99_ms: float | None = None
    """How long a publish may take."""
    bookie_disk_tb: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least, most = _LIMITS[field.name]
            if value is not None and not least <= value <= most:  # what is no number is neither
                raise ConfigError(
                    f"--{field.name.replace('_', '-')} {value} is not allowed",
                    hint=f"a number from {least:,g} to {most:,g}",
                )

    @property
    def write_mb_per_s(self) -> float:
        """What producers send."""
        return self.messages_per_s * self.message_bytes / MB

    @property
    def read_mb_per_s(self) -> float:
        """What all groups together are sent."""
        return self.write_mb_per_s * self.groups


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What the load needs at least, and where that is more than was ever measured."""

    partitions: int
    brokers: int
    bookies: int
    producers: int
    consumers: int
    """Of each group, so that it does not fall behind."""
    partition_reasons: dict[str, int]
    """What each rule asks for; the largest counts, no more than there are keys."""
    bookie_reasons: dict[str, int]
    """What each rule asks for; the largest counts."""
    write_mb_per_s: float
    read_mb_per_s: float
    sent_bytes_per_day: int
    kept_bytes: int
    """Of one copy."""
    disk_bytes: int
    """Of all copies."""
    bookie_disk_bytes: int
    """Size of each bookie's disk, so that it stays below 90 %."""
    broker_idle_memory_bytes: int
    """Of each broker, its partitions included, while nothing is sent."""
    warnings: tuple[str, ...]
    beyond: tuple[str, ...]
    """Beyond what was measured."""


def advise(load: Load) -> Advice:
    """The arithmetic; raises ConfigError when no topic can have so many partitions."""
    needed = _consumers_needed(load)
    by_rate = _brokers_by_rate(load)
    reasons = {
        "least": PARTITIONS_LEAST,
        "consumers": PARTITIONS_FOR_EACH_CONSUMER * (load.consumers or needed),
        "throughput": by_rate,
    }
    wanted = max(reasons.values())
    partitions = wanted if load.keys is None else min(wanted, load.keys)
    if partitions > PARTITIONS_OF_A_TOPIC_MAX:
        raise ConfigError(
            f"{partitions:,} partitions are more than a topic can have",
            hint=f"{PARTITIONS_OF_A_TOPIC_MAX:,} at most: divide the load among several topics",
        )
    kept = math.ceil(load.write_mb_per_s * MB * load.retention_days * DAY_S * load.stored_ratio)
    disk = kept * load.replication
    bookie_reasons = _bookies(load, disk)
    bookies = max(bookie_reasons.values())
    brokers = _brokers(load, by_rate, partitions)
    made = Advice(
        partitions=partitions,
        brokers=brokers,
        bookies=bookies,
        producers=_at_least_one(
            load.write_mb_per_s / measured.PRODUCER_WRITE_MB_PER_S.value,
            load.messages_per_s / measured.PRODUCER_RECORDS_PER_S.value,
        ),
        consumers=needed,
        partition_reasons=reasons,
        bookie_reasons=bookie_reasons,
        write_mb_per_s=load.write_mb_per_s,
        read_mb_per_s=load.read_mb_per_s,
        sent_bytes_per_day=math.ceil(load.write_mb_per_s * MB * DAY_S),
        kept_bytes=kept,
        disk_bytes=disk,
        bookie_disk_bytes=math.ceil(disk / bookies / DISK_USED_AT_MOST),
        broker_idle_memory_bytes=_idle_memory_bytes(math.ceil(partitions / brokers)),
        warnings=tuple(_warnings(load, wanted, needed)),
        beyond=(),
    )
    return replace(made, beyond=tuple(_beyond(load, made)))


def _at_least_one(*shares: float) -> int:
    return max(1, *map(math.ceil, shares))


def partition_mb_per_s(groups: int) -> float:
    """What one partition, and one broker, was measured to take while so many groups read it."""
    if groups == 0:
        return measured.BROKER_WRITE_MB_PER_S.value
    readers = max(groups, measured.READERS_AT_ONCE)
    return min(measured.BROKER_WRITE_MB_PER_S.value, measured.BROKER_READ_MB_PER_S.value / readers)


def _brokers_by_rate(load: Load) -> int:
    return _at_least_one(
        load.write_mb_per_s / partition_mb_per_s(load.groups),
        load.messages_per_s / measured.BROKER_RECORDS_PER_S.value,
    )


def _brokers(load: Load, by_rate: int, partitions: int) -> int:
    """So many that each has few partitions, or little to write for each of many."""
    few = math.ceil(partitions / measured.PARTITIONS_AT_FULL_SPEED)
    many = max(
        math.ceil(partitions / measured.MANY_PARTITIONS),
        math.ceil(load.write_mb_per_s / measured.MANY_PARTITIONS_WRITE_MB_PER_S.value),
    )
    return max(by_rate, min(few, many))


def _bookies(load: Load, disk_bytes: int) -> dict[str, int]:
    """Enough for copies on different ones, for the rate, and for what is kept."""
    stored = load.write_mb_per_s * load.stored_ratio * load.replication
    reasons = {
        "copies": load.replication,
        "throughput": math.ceil(stored / measured.BROKER_WRITE_MB_PER_S.value),
    }
    if load.bookie_disk_tb is not None:
        room = load.bookie_disk_tb * 1e12 * DISK_USED_AT_MOST
        reasons["disk"] = math.ceil(disk_bytes / room)
    return reasons


def _idle_memory_bytes(partitions: int) -> int:
    kib = measured.BROKER_MIB.value * 1_024 + measured.PARTITION_KIB.value * partitions
    return math.ceil(kib * 1_024)


def _consumers_needed(load: Load) -> int:
    if not load.groups:
        return 0
    return _at_least_one(
        load.write_mb_per_s / measured.CONSUMER_READ_MB_PER_S.value,
        load.messages_per_s / measured.CONSUMER_RECORDS_PER_S.value,
    )


def _warnings(load: Load, wanted: int, consumers_needed: int) -> list[str]:
    found: list[str] = []
    if load.keys is not None and load.keys < wanted:
        found.append(
            f"{load.keys:,} keys fill at most {load.keys:,} partitions; the load asks for "
            f"{wanted:,}: keys must be finer, or the load smaller"
        )
    if load.groups and load.consumers is not None and load.consumers < consumers_needed:
        found.append(
            f"a consumer was measured with {measured.CONSUMER_READ_MB_PER_S.value:g} MB/s and "
            f"{measured.CONSUMER_RECORDS_PER_S.value:,.0f} records/s: {load.consumers:,} of them "
            f"fall behind, {consumers_needed:,} do not"
        )
    if load.p99_ms is not None and load.p99_ms < measured.PUBLISH_P99_MS_WORST.value:
        best, worst = measured.PUBLISH_P99_MS_BEST.value, measured.PUBLISH_P99_MS_WORST.value
        when = "in every hour" if load.p99_ms < best else "in slow hours"
        found.append(
            f"a publish p99 of {load.p99_ms:g} ms was missed {when}: {best:g} to {worst:g} ms at "
            f"{measured.LATENCY_MESSAGES_PER_S:,} messages/s"
        )
    return found


def _beyond(load: Load, made: Advice) -> list[str]:
    readers = load.groups * (load.consumers or made.consumers)
    sizes = f"{measured.MESSAGE_BYTES_LEAST} to {measured.MESSAGE_BYTES_MOST:,}"
    each_holds = made.disk_bytes / made.bookies
    said = {
        f"{made.brokers:,} brokers: one was measured; that each does as much as one alone is "
        "assumed": made.brokers > measured.BROKERS,
        f"{made.bookies:,} bookies: three were measured; that each does as much as one of three is "
        "assumed": made.bookies > measured.BOOKIES,
        f"{load.replication} copies: three were measured": load.replication != measured.COPIES,
        f"{readers:,} consumers at a time: three were measured": (
            readers > measured.READERS_AT_ONCE
        ),
        f"messages of {load.message_bytes:,g} bytes: {sizes} were measured": not (
            measured.MESSAGE_BYTES_LEAST <= load.message_bytes <= measured.MESSAGE_BYTES_MOST
        ),
        f"{each_holds / 1e9:,.0f} GB on a bookie: "
        f"{measured.BOOKIE_HELD_BYTES / 1e9:g} GB were measured; disk is arithmetic, without "
        "indexes": each_holds > measured.BOOKIE_HELD_BYTES,
        f"p99 at {load.messages_per_s:,.0f} messages/s: "
        f"{measured.LATENCY_MESSAGES_PER_S:,} messages/s were measured": (
            load.p99_ms is not None and load.messages_per_s > measured.LATENCY_MESSAGES_PER_S
        ),
    }
    return [text for text, applies in said.items() if applies]
