"""How large and how long each workload is: the numbers of a quick, a standard and a peers' run."""

from __future__ import annotations

from typing import NamedTuple

KIB = 1024
MIB = KIB * KIB
PARTITIONS = 8
PRODUCERS_MANY = 8
READERS = 3
RECORD_BYTES = KIB
W3_PER_S = 1000
W4_PER_S = 500
LINGER_MS = 5


class Plan(NamedTuple):
    """Sizes of one run; all workloads scale with it."""

    rounds: int
    warmup_s: float
    """Each producer sends this long before the clock starts."""
    write_s: float
    write_bytes_max: int
    """A timed write also ends here, over all its producers, so that the disk does not fill up."""
    w2_bytes_max: int
    w3_count: int
    w4_count: int
    latency_warmup: int
    """Paced records sent before the counted ones."""
    catchup_bytes: int
    """w5 reads this much, written for it; 0: it reads what w1 wrote."""
    fanout_s: float
    native_s: float
    """0 leaves the peers' own load tools out."""
    limit_bytes: int
    relay_s: float
    settle_s: float
    """Length of each settling step of a round's start; 0: no settling."""
    json_records: int


QUICK = Plan(
    rounds=1,
    warmup_s=1.0,
    write_s=2.0,
    write_bytes_max=256 * MIB,
    w2_bytes_max=128 * MIB,
    w3_count=3_000,
    w4_count=1_000,
    latency_warmup=1_000,
    catchup_bytes=0,
    fanout_s=2.0,
    native_s=0,
    limit_bytes=96 * MIB,
    relay_s=1.5,
    settle_s=0,
    json_records=100_000,
)

STANDARD = Plan(
    rounds=3,
    warmup_s=1.5,
    write_s=5.0,
    write_bytes_max=768 * MIB,
    w2_bytes_max=512 * MIB,
    w3_count=10_000,
    w4_count=5_000,
    latency_warmup=2_000,
    catchup_bytes=2_000_000_000,
    fanout_s=4.0,
    native_s=0,
    limit_bytes=256 * MIB,
    relay_s=4.0,
    settle_s=4.0,
    json_records=336_776,
)

PEERS = STANDARD._replace(
    catchup_bytes=0,
    write_s=4.0,
    write_bytes_max=512 * MIB,
    w2_bytes_max=384 * MIB,
    w3_count=6_000,
    w4_count=3_000,
    latency_warmup=1_000,
    fanout_s=3.0,
    native_s=3.0,
    settle_s=3.0,
)

TINY = QUICK._replace(
    warmup_s=0.3,
    write_s=0.5,
    write_bytes_max=8 * MIB,
    w2_bytes_max=4 * MIB,
    w3_count=300,
    w4_count=200,
    latency_warmup=100,
    fanout_s=0.3,
    native_s=0.5,
    limit_bytes=4 * MIB,
    relay_s=0.3,
    settle_s=0.3,
    json_records=5_000,
)
"""Shows that everything works; its numbers mean nothing."""

PLANS = {"tiny": TINY, "quick": QUICK, "standard": STANDARD, "peers": PEERS}
