"""What was measured of one cluster, for sizing: each figure with the run that it comes from. Pure.

All of it ran on one machine with 2 cores that clients, one broker and three bookies shared, in
slow hours too, the footprint beside other work. Of several runs the worst one counts. MB are 10^6
bytes. docs/sizing.md shows the same figures.
"""

from __future__ import annotations

from typing import NamedTuple


class Figure(NamedTuple):
    """A measured number: its unit is in the constant's name."""

    value: float
    source: str


PEERS = "`make bench-peers`, 2026-11-28 09:09 UTC"
CURVE = "`python -m bench.cost_curve`, 2026-11-28 03:31 UTC, read off its picture"

BROKER_WRITE_MB_PER_S = Figure(101, f"w1 with 64 KiB batches, 8 partitions; {PEERS}")
"""Records of 1 KiB from one producer, nobody reads; also of each of three bookies."""
BROKER_RECORDS_PER_S = Figure(504_102, f"w2, JSON records of 300 to 316 bytes; {PEERS}")
BROKER_READ_MB_PER_S = Figure(197, f"w6, delivered to three readers that keep up; {PEERS}")
"""All readers together, while one producer writes a third of it."""
READERS_AT_ONCE = 3
CONSUMER_READ_MB_PER_S = Figure(159, f"w5, 1 KiB records as rows; {PEERS}")
CONSUMER_RECORDS_PER_S = Figure(395_805, "`python -m bench.record_sizes`, 312 bytes, poll")
PRODUCER_WRITE_MB_PER_S = BROKER_WRITE_MB_PER_S
PRODUCER_RECORDS_PER_S = BROKER_RECORDS_PER_S

PARTITIONS_AT_FULL_SPEED = 100
"""So many partitions shared the load and a broker wrote no less than with few."""
MANY_PARTITIONS = 1_000
"""The most that shared a load."""
MANY_PARTITIONS_WRITE_MB_PER_S = Figure(20, f"each record to the next of 1,000 partitions; {CURVE}")

MESSAGE_BYTES_LEAST, MESSAGE_BYTES_MOST = 300, 1_024
"""Sizes that were written."""
BROKERS, BOOKIES = 1, 3
"""How many there were."""
COPIES = 3
BOOKIE_HELD_BYTES = 4_000_000_000
"""The most that a bookie held at the end of a bench (`make bench`, w5: two times 2 GB)."""

FOOTPRINT = "`python -m bench.footprint`, 2026-11-29 21:03 UTC"
BROKER_MIB = Figure(120, f"a broker without partitions; {FOOTPRINT}")
PARTITION_KIB = Figure(33, f"of a broker, for each of 1,000 written once, then idle; {FOOTPRINT}")
"""30 for each of 10,000, the most on one broker that were measured."""

LATENCY_MESSAGES_PER_S = 1_000
"""Single records of 1 KiB, linger 0 (w3)."""
PUBLISH_P99_MS_BEST = Figure(9, "w3, README.md, the best hour")
PUBLISH_P99_MS_WORST = Figure(20, "w3, README.md, the worst hour")
