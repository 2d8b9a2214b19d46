"""A log whose beginning goes while it grows and servers are killed: is a record ever missed?

Small segments roll all the time, retention deletes what is older or larger than it may be, records
are deleted on request, brokers and bookies are killed with -9 and come back. A follower reads on:
each jump it makes must lead to where the log began at that moment, and never back. Probes below the
start must be refused. At the end every acknowledged record that is retained is there, once and
where it was said, and no ledger exists that no list and no trash names.
Usage: python -m tools.life_soak [--duration 120] [--seed 1]
"""

from __future__ import annotations

import argparse
import pathlib
import random
import sys
import tempfile
import threading
import time

from octavo import Client, TopicPartition
from octavo.client.messaging.producing.futures import SendFuture
from octavo.runtime.errors import BufferFull, NoOffsetForPartition, OctavoError, OffsetOutOfRange
from octavo.testing import LocalCluster
from tools import life_table
from tools.life_census import Census

TOPIC = "life"
PARTITIONS = 2
RETENTION_MS = 20_000
SETTINGS = {
    "segment.bytes": "65536",
    "segment.ms": "2000",
    "retention.ms": str(RETENTION_MS),
    "retention.bytes": "2000000",
}
BROKER = {
    "min_segment_bytes": 65_536,
    "retention_check_interval_ms": 500,
    "trash_delay_ms": 1_000,
    "session_timeout_s": 3.0,
    "compaction_check_interval_ms": 500,
    "compaction_memory_bytes": 16_384,
}
BOOKIE = {
    "segment_bytes": 4 << 20,
    "gc_interval_s": 3.0,
    "gc_confirm_s": 2.0,
    "compaction_check_s": 2.0,
    "compaction_minor_interval_s": 5.0,
    "compaction_major_interval_s": 10.0,
}
DISK_MB_MAX = 250
"""At any moment, all servers and their logs together. What is retained is 8 MB and its copies 24;
the rest is journals that wait for the collection, segments made ahead, and metadata."""
TIMEOUT_S = 60.0
_LASTS = threading.Event()
"""Never set: a wait lasts its time."""


class Facts:
    """What the threads found, and what is wrong."""

    def __init__(self) -> None:
        self.ends = threading.Event()
        self.wrong: list[str] = []
        self.trims = 0
        self.kills = 0
        self.probes = 0
        self.disk_mb = 0.0
        """The most that was seen."""
        self.compactions = self.rolls = self.rolls_least = self.orphans = self.unsure = 0
        self.seen: list[dict[int, int]] = [{} for _ in range(PARTITIONS)]
        self.jumps: list[list[tuple[int, int]]] = [[] for _ in range(PARTITIONS)]


class Sender(threading.Thread):
    """One producer of numbered records, alternating between the partitions."""

    def __init__(self, servers: str, facts: Facts, seed: int) -> None:
        super().__init__(name="sender", daemon=True)
        self._servers = servers
        self._rng = random.Random(seed)
        self._facts = facts
        self.sent: list[tuple[int, int, SendFuture]] = []

    def run(self) -> None:
        try:
            self._send()
        except OctavoError as error:
            self._facts.wrong.append(f"the sender failed: {error}")

    def _send(self) -> None:
        with Client(self._servers) as client, client.producer(linger_ms=2) as producer:
            number = 0
            while not self._facts.ends.is_set():
                partition = number % PARTITIONS
                value = b"%d:" % number + self._rng.randbytes(1000)
                try:
                    future = producer.send_nowait(TOPIC, value, partition=partition)
                    self.sent.append((partition, number, future))
                    number += 1
                except BufferFull:
                    _LASTS.wait(0.1)
                _LASTS.wait(0.004)
            producer.flush(TIMEOUT_S)


class Follower(threading.Thread):
    """A reader that is open all the time; says what it skipped."""

    def __init__(self, servers: str, facts: Facts) -> None:
        super().__init__(name="follower", daemon=True)
        self._servers = servers
        self._facts = facts

    def run(self) -> None:
        facts = self._facts
        with Client(self._servers) as client:
            reader = client.reader(TOPIC, start="earliest")
            expected = [0] * PARTITIONS
            newest = [-1] * PARTITIONS
            while not facts.ends.is_set():
                try:
                    polled = reader.poll(timeout=0.2)
                except OctavoError as error:
                    facts.wrong.append(f"the follower failed: {error}")
                    return
                for record in polled:
                    at, offset = record.partition, record.offset
                    number = int(bytes(record.value or b"").partition(b":")[0])
                    if offset < expected[at]:
                        facts.wrong.append(f"{at}: {offset} was read again")
                    if number <= newest[at]:
                        facts.wrong.append(f"{at}: {number} follows {newest[at]}")
                    if offset > expected[at]:
                        self._jumped(client, at, expected[at], offset)
                    facts.seen[at][offset] = number
                    expected[at], newest[at] = offset + 1, number
            reader.close()

    def _jumped(self, client: Client, at: int, before: int, offset: int) -> None:
        start = client.admin.list_offsets(TOPIC, "earliest", timeout=TIMEOUT_S)[at] or 0
        self._facts.jumps[at].append((before, offset))
        if start < offset:
            self._facts.wrong.append(f"{at}: {before}..{offset} skipped, the log begins at {start}")


def probe(client: Client, facts: Facts, rng: random.Random) -> None:
    """Below the start nothing is read; at the start, the record there or a later start."""
    at = rng.randrange(PARTITIONS)
    start = client.admin.list_offsets(TOPIC, "earliest", timeout=TIMEOUT_S)[at] or 0
    if start == 0:
        return
    below = rng.randrange(start)
    with client.consumer(auto_offset_reset="none") as consumer:
        place = TopicPartition(TOPIC, at)
        consumer.assign([place])
        consumer.seek(place, below)
        deadline_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline_s:
            try:
                polled = consumer.poll(timeout=1.0)
            except (OffsetOutOfRange, NoOffsetForPartition):
                facts.probes += 1
                return
            if polled:
                facts.wrong.append(f"{at}: {polled[0].offset} was read, the log began at {start}")
                return
    facts.wrong.append(f"{at}: a read below {start} is not answered")


def look(client: Client, facts: Facts, starts: list[int]) -> None:
    """Note whether logs begin later than before."""
    for at in range(PARTITIONS):
        log = client.admin.describe_log(TOPIC, at, timeout=TIMEOUT_S)
        if log.log_start < starts[at]:
            facts.wrong.append(f"{at}: the start went back from {starts[at]} to {log.log_start}")
        facts.trims += log.log_start > starts[at]
        starts[at] = log.log_start


def trim(client: Client, facts: Facts, rng: random.Random) -> None:
    """Delete a random part of a random partition."""
    at = rng.randrange(PARTITIONS)
    log = client.admin.describe_log(TOPIC, at, timeout=TIMEOUT_S)
    before = rng.choice((-1, rng.randint(log.log_start, log.high_watermark)))
    start = client.admin.delete_records(TOPIC, at, before, timeout=TIMEOUT_S)
    if start < max(before, log.log_start):
        facts.wrong.append(f"{at}: deleted before {before}, and the log begins at {start}")


def kill(cluster: LocalCluster, facts: Facts, rng: random.Random) -> None:
    """Kill one server; it comes back after a moment."""
    name = rng.choice(sorted(n for n in cluster.processes if n.startswith(("broker", "bookie"))))
    cluster.kill(name)
    facts.kills += 1
    _LASTS.wait(rng.uniform(0.1, 3.0))
    cluster.restart(name)


def judge(client: Client, facts: Facts, sender: Sender) -> int:
    """Compare what was acknowledged with what is there; how many records are lost."""
    lost = 0
    acknowledged: list[dict[int, int]] = [{} for _ in range(PARTITIONS)]
    for partition, number, future in sender.sent:
        if future.exception(timeout=TIMEOUT_S) is None:
            acknowledged[partition][future.result(timeout=TIMEOUT_S).offset] = number
    found: list[dict[int, int]] = [{} for _ in range(PARTITIONS)]
    with client.reader(TOPIC, start="earliest") as reader:
        for record in reader.read_to_end():
            number = int(bytes(record.value or b"").partition(b":")[0])
            found[record.partition][record.offset] = number
    starts = client.admin.list_offsets(TOPIC, "earliest", timeout=TIMEOUT_S)
    for at in range(PARTITIONS):
        start = starts[at] or 0
        offsets = [offset for offset in sorted(found[at]) if offset >= start]
        if offsets and offsets != list(range(start, offsets[-1] + 1)):
            facts.wrong.append(f"{at}: the log has holes behind {start}")
        if len(set(found[at].values())) != len(found[at]):
            facts.wrong.append(f"{at}: a record is there twice")
        for offset, number in acknowledged[at].items():
            if offset >= start:
                lost += offset not in found[at]
            for place in (found[at], facts.seen[at]):
                if place.get(offset, number) != number:
                    facts.wrong.append(f"{at}: {offset} is {place[offset]}, told was {number}")
        last = max(facts.seen[at], default=-1)
        skipped = {o for low, high in facts.jumps[at] for o in range(low, high)}
        lost += sum(
            offset < last and offset not in facts.seen[at] and offset not in skipped
            for offset in acknowledged[at]
        )
    return lost


def weigh(folder: pathlib.Path, facts: Facts) -> None:
    """Note what is on disk now, in blocks that are taken."""
    size = 0
    for file in folder.rglob("*"):
        try:
            size += file.lstat().st_blocks * 512
        except FileNotFoundError:
            continue  # it went meanwhile
    facts.disk_mb = max(facts.disk_mb, size / 1e6)
    if size / 1e6 > DISK_MB_MAX:
        facts.wrong.append(f"{size / 1e6:.0f} MB are on disk, more than {DISK_MB_MAX}")


def _strike(cluster: LocalCluster, client: Client, facts: Facts, rng: random.Random) -> None:
    """One thing that happens."""
    step = rng.random()
    if step < 0.15:
        kill(cluster, facts, rng)
    elif step < 0.35:
        trim(client, facts, rng)
    elif step < 0.6:
        probe(client, facts, rng)
    else:
        _LASTS.wait(0.3)


def run(duration_s: float, seed: int, folder: pathlib.Path) -> tuple[Facts, int]:
    """The soak; what was found, and how many records are lost."""
    rng, facts = random.Random(seed), Facts()
    settings = {"broker_settings": BROKER, "bookie_settings": BOOKIE}
    with LocalCluster(bookies=3, brokers=2, data=folder, **settings) as cluster:  # type: ignore[arg-type]
        servers = cluster.bootstrap_servers
        with Client(servers) as client:
            client.admin.create_topic(TOPIC, PARTITIONS, SETTINGS)
            client.admin.create_topic(life_table.TOPIC, life_table.PARTITIONS, life_table.SETTINGS)
            topics = {TOPIC: PARTITIONS, life_table.TOPIC: life_table.PARTITIONS}
            census = Census(cluster.metadata, topics)
            sender, follower = Sender(servers, facts, seed), Follower(servers, facts)
            keyed = life_table.KeyedSender(servers, facts.ends, seed)
            threads = (sender, follower, keyed)
            with client.table_view(life_table.TOPIC) as table:
                for thread in (census, *threads):
                    thread.start()
                starts = [0] * PARTITIONS
                end_s = time.monotonic() + duration_s
                while time.monotonic() < end_s and not facts.wrong:
                    look(client, facts, starts)
                    weigh(folder, facts)
                    _strike(cluster, client, facts, rng)
                facts.ends.set()
                for thread in threads:
                    thread.join(2 * TIMEOUT_S)
                    if thread.is_alive():
                        facts.wrong.append(f"the {thread.name} does not end")
                look(client, facts, starts)
                lost = judge(client, facts, sender)
                table.refresh(TIMEOUT_S)
                rows = table.snapshot()
            facts.wrong += life_table.judge(client, keyed, rows)
            facts.unsure = len(keyed.wanted()[1])
            note(census, facts)
        return facts, lost


def note(census: Census, facts: Facts) -> None:
    """What the lists showed."""
    census.end(TIMEOUT_S)
    if census.failed:
        facts.wrong.append(census.failed)
    if census.orphans:
        facts.wrong.append(f"ledgers {sorted(census.orphans)} are in no list and no trash")
    facts.compactions = len(census.compacted)
    rolls = [len(ledgers) - 1 for ledgers in census.listed.values()]
    facts.rolls, facts.rolls_least = sum(rolls), min(rolls, default=0)
    facts.orphans = len(census.orphans)


def main() -> int:
    """Run and print one line; 0 when nothing is lost or wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--duration", type=float, default=120.0, help="seconds")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        facts, lost = run(args.duration, args.seed, pathlib.Path(folder) / "data")
    for one in facts.wrong[:20]:
        print(one)
    verdict = "OK" if not facts.wrong and not lost else "WRONG"
    print(
        f"life: {verdict} rolls={facts.rolls} rolls_least={facts.rolls_least} trims={facts.trims} "
        f"compactions={facts.compactions} kills={facts.kills} lost={lost} "
        f"wrong={len(facts.wrong)} disk_mb={facts.disk_mb:.0f} probes={facts.probes} "
        f"unsure={facts.unsure} orphans={facts.orphans} seed={args.seed}"
    )
    return 0 if verdict == "OK" else 1


if __name__ == "__main__":
    sys.exit(main())
