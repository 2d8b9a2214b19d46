"""A topic of which bookies keep a small part, written and read while servers are killed (F088).

Records with checksums go into a topic with tiering at a fixed rate; brokers and bookies are killed
with -9 and come back. What the bookies hold on disk is weighed all the time. Then everything is
read from offset 0, a broker is killed on the way, and each acknowledged record must be there, once,
where it was said and with its checksum.
Usage: python -m tools.tier_soak [--gb 5] [--local-mb 200] [--mb-per-s 9] [--seed 1]
"""

from __future__ import annotations

import argparse
import pathlib
import random
import struct
import sys
import tempfile
import threading
import time
import zlib
from array import array
from collections import deque

from octavo import Client
from octavo.client.messaging.producing.futures import SendFuture
from octavo.runtime.errors import BufferFull, OctavoError
from octavo.testing import LocalCluster

TOPIC = "tiered"
PARTITIONS = 4
COPIES = 3
VALUE_BYTES = 64 * 1024
HEAD = struct.Struct(">QI")
"""Number of the record, checksum of the rest of its value."""
SEGMENTS_LOCAL = 8
"""So many segments of a partition make up what is kept locally."""
KILL_EVERY_S = 30.0
TIMEOUT_S = 120.0
SLACK_MB = 600
"""On bookies beside what is kept: segments that are being written or copied, journals made ahead
and not collected yet, indexes; of each copy."""
BROKER = {
    "min_segment_bytes": 65_536,
    "trash_delay_ms": 1_000,
    "session_timeout_s": 3.0,
    "tier_check_interval_ms": 1_000,
    "tier_bytes_per_s": 0,
}
BOOKIE = {
    "segment_bytes": 32 << 20,
    "gc_interval_s": 3.0,
    "gc_confirm_s": 2.0,
    "compaction_check_s": 2.0,
    "compaction_minor_interval_s": 5.0,
    "compaction_major_interval_s": 10.0,
}
_LASTS = threading.Event()
"""Never set: a wait lasts its time."""


class Facts:
    """What was seen, and what is wrong."""

    def __init__(self) -> None:
        self.ends = threading.Event()
        self.wrong: list[str] = []
        self.kills = self.sent = self.read = self.lost = self.unsure = 0
        self.local_mb_max = self.disk_mb_max = self.tiered_mb = 0.0


class Sender(threading.Thread):
    """Sends so many records at a rate, and keeps which number each offset was said to have."""

    def __init__(self, servers: str, facts: Facts, seed: int, count: int, per_s: float) -> None:
        super().__init__(name="sender", daemon=True)
        self._servers = servers
        self._facts = facts
        self._noise = random.Random(seed).randbytes(4 << 20)
        self._count = count
        self._per_s = per_s
        self._waiting: deque[tuple[int, SendFuture]] = deque()
        self.told: list[array[int]] = [array("q") for _ in range(PARTITIONS)]
        """Of each partition offset and number in turn."""

    def run(self) -> None:
        try:
            with Client(self._servers) as client, client.producer(linger_ms=5) as producer:
                began_s, number = time.monotonic(), 0
                while number < self._count and not self._facts.wrong:
                    _LASTS.wait(max(0.0, began_s + number / self._per_s - time.monotonic()))
                    try:
                        future = producer.send_nowait(
                            TOPIC, self._value(number), partition=number % PARTITIONS
                        )
                    except BufferFull:
                        _LASTS.wait(0.05)
                        continue
                    self._waiting.append((number, future))
                    number += 1
                    self._settle(256)
                producer.flush(TIMEOUT_S)
                self._settle(0)
        except OctavoError as error:
            self._facts.wrong.append(f"the sender failed: {error}")
        finally:
            self._facts.ends.set()

    def _value(self, number: int) -> bytes:
        start = number * 7919 % (len(self._noise) - VALUE_BYTES)
        body = self._noise[start : start + VALUE_BYTES - HEAD.size]
        return HEAD.pack(number, zlib.crc32(body)) + body

    def _settle(self, most: int) -> None:
        """Note what became of the oldest, so that at most so many are kept."""
        while len(self._waiting) > most:
            number, future = self._waiting.popleft()
            if future.exception(timeout=TIMEOUT_S) is None:
                place = future.result(timeout=TIMEOUT_S)
                self.told[place.partition].extend((place.offset, number))
                self._facts.sent += 1
            else:
                self._facts.unsure += 1


def weigh(client: Client, folder: pathlib.Path, facts: Facts) -> None:
    """Note what is on bookies now: by the lists, and in blocks of their disks that are taken."""
    local = tiered = 0
    for partition in range(PARTITIONS):
        log = client.admin.describe_log(TOPIC, partition, timeout=TIMEOUT_S)
        local += sum(one.size_bytes for one in log.segments if one.in_ledger)
        tiered += sum(one.size_bytes for one in log.segments if one.object_version is not None)
    facts.local_mb_max = max(facts.local_mb_max, local / 1e6)
    facts.tiered_mb = tiered / 1e6
    size = 0
    for file in folder.glob("bookie-*/**/*"):
        try:
            size += file.lstat().st_blocks * 512
        except FileNotFoundError:
            continue  # it went meanwhile
    facts.disk_mb_max = max(facts.disk_mb_max, size / 1e6)


def kill(cluster: LocalCluster, facts: Facts, rng: random.Random, kind: str = "") -> None:
    """Kill one server; it comes back after a moment."""
    kinds = (kind,) if kind else ("broker", "bookie")
    name = rng.choice(sorted(n for n in cluster.processes if n.startswith(kinds)))
    cluster.kill(name)
    facts.kills += 1
    _LASTS.wait(rng.uniform(0.1, 3.0))
    cluster.restart(name)


def read(cluster: LocalCluster, facts: Facts, sender: Sender, rng: random.Random) -> None:
    """Everything from offset 0, compared with what was told."""
    told = [dict(zip(pairs[::2], pairs[1::2], strict=True)) for pairs in sender.told]
    seen = [set[int]() for _ in range(PARTITIONS)]
    expected = [0] * PARTITIONS
    with Client(cluster.bootstrap_servers) as client:
        ends = client.admin.list_offsets(TOPIC, "latest", timeout=TIMEOUT_S)
        with client.reader(TOPIC, start="earliest") as reader:
            silent_s = time.monotonic()
            has_killed = False
            while any(expected[at] < (ends[at] or 0) for at in range(PARTITIONS)):
                polled = reader.poll(timeout=1.0)
                if polled:
                    silent_s = time.monotonic()
                elif time.monotonic() - silent_s > TIMEOUT_S:
                    facts.wrong.append(f"nothing is read at {expected} of {ends}")
                    return
                for record in polled:
                    at, offset, value = record.partition, record.offset, bytes(record.value or b"")
                    number, crc = HEAD.unpack_from(value)
                    if offset != expected[at]:
                        facts.wrong.append(f"{at}: {offset} follows {expected[at] - 1}")
                    if zlib.crc32(value[HEAD.size :]) != crc:
                        facts.wrong.append(f"{at}: {offset} has other bytes than were sent")
                    if told[at].get(offset, number) != number or number in seen[at]:
                        facts.wrong.append(f"{at}: {offset} is record {number}")
                    seen[at].add(number)
                    expected[at] = offset + 1
                    facts.read += 1
                if not has_killed and facts.read > facts.sent // 3:
                    has_killed = True
                    kill(cluster, facts, rng, "broker")
                if len(facts.wrong) > 20:
                    return
    for at in range(PARTITIONS):
        facts.lost += sum(offset >= expected[at] for offset in told[at])
        facts.lost += sum(number not in seen[at] for number in told[at].values())


def run(args: argparse.Namespace, folder: pathlib.Path) -> tuple[Facts, float, float]:
    """The soak: what was found, and how long writing and reading took."""
    rng, facts = random.Random(args.seed), Facts()
    local_bytes = int(args.local_mb * 1e6) // PARTITIONS
    settings = {
        "tiering": "true",
        "segment.bytes": str(max(local_bytes // SEGMENTS_LOCAL, 65_536)),
        "retention.local.bytes": str(local_bytes),
        "retention.ms": "-1",
    }
    tier = folder / "tier"
    tier.mkdir()
    data = folder / "data"
    with LocalCluster(
        bookies=3,
        brokers=2,
        data=data,
        broker_settings={**BROKER, "tier_root": str(tier)},
        bookie_settings=BOOKIE,
    ) as cluster:
        count = int(args.gb * 1e9) // VALUE_BYTES
        with Client(cluster.bootstrap_servers) as client:
            client.admin.create_topic(TOPIC, PARTITIONS, settings)
            per_s = args.mb_per_s * 1e6 / VALUE_BYTES
            sender = Sender(cluster.bootstrap_servers, facts, args.seed, count, per_s)
            began_s = kills_s = time.monotonic()
            sender.start()
            while not facts.ends.is_set():
                weigh(client, data, facts)
                facts.ends.wait(1.0)
                if time.monotonic() - kills_s > KILL_EVERY_S:
                    kill(cluster, facts, rng)
                    kills_s = time.monotonic()
            wrote_s = time.monotonic() - began_s
            weigh(client, data, facts)
        limit_mb = COPIES * (args.local_mb + SLACK_MB)
        if facts.disk_mb_max > limit_mb:
            facts.wrong.append(f"{facts.disk_mb_max:.0f} MB on bookies, more than {limit_mb:.0f}")
        read_s = time.monotonic()
        read(cluster, facts, sender, rng)
        return facts, wrote_s, time.monotonic() - read_s


def main() -> int:
    """Run and print one line; 0 when nothing is lost or wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gb", type=float, default=5.0)
    parser.add_argument("--local-mb", type=float, default=200.0)
    parser.add_argument("--mb-per-s", type=float, default=9.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        facts, wrote_s, read_s = run(args, pathlib.Path(folder))
    for one in facts.wrong[:20]:
        print(one)
    verdict = "OK" if not facts.wrong and not facts.lost else "WRONG"
    print(
        f"tier: {verdict} gb={args.gb:g} local_mb={args.local_mb:g} "
        f"local_mb_max={facts.local_mb_max:.0f} bookies_mb_max={facts.disk_mb_max:.0f} "
        f"tiered_mb={facts.tiered_mb:.0f} sent={facts.sent} unsure={facts.unsure} "
        f"read={facts.read} lost={facts.lost} wrong={len(facts.wrong)} kills={facts.kills} "
        f"write_s={wrote_s:.0f} read_s={read_s:.0f} seed={args.seed}"
    )
    return 0 if verdict == "OK" else 1


if __name__ == "__main__":
    sys.exit(main())
