"""Storage that is churned: topics written and deleted, bookies killed, and the space must return.

First 200 MB of topics are written and deleted: how long until the bookies' disks hold what they
held before? Then rounds: topics are written, some of them deleted, a bookie is killed with SIGKILL
at a moment drawn from the seed (while it collects and compacts) and started again, and every record
that was acknowledged for a topic that lives is read and compared. Settings are lowered so that
minutes show what takes hours: segments of 4 MiB, a comparison every 3 s, 2 s between two proofs, a
minor round of compaction every 5 s and a major one every 10 s.

Prints `storage: OK …` or what is wrong, exit code 1.
Usage: python -m tools.storage_soak [--seed 1] [--rounds 10] [--mb 200]
"""

from __future__ import annotations

import argparse
import os
import pathlib
import random
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

from octavo import Client
from octavo.proto.bookie_pb2 import InfoReply, InfoRequest
from octavo.proto.bookie_pb2_grpc import BookieControlStub
from octavo.proto.endpoints import open_blocking_channel
from octavo.testing import LocalCluster

BOOKIES = 3
SEGMENT_BYTES = 4 << 20
BOOKIE_SETTINGS: dict[str, object] = {
    "segment_bytes": SEGMENT_BYTES,
    "gc_interval_s": 3.0,
    "gc_confirm_s": 2.0,
    "compaction_check_s": 2.0,
    "compaction_minor_interval_s": 5.0,
    "compaction_major_interval_s": 10.0,
    "compaction_bytes_per_s": float(64 << 20),
}
BROKER_SETTINGS: dict[str, object] = {"trash_delay_ms": 0}
RECORD_BYTES = 32 * 1024
SPACE_BACK_S = 60.0
SLACK_BYTES = BOOKIES * 3 * SEGMENT_BYTES
"""The open segment of each bookie, the next one, and what of the last is alive."""
COUNTED = (
    "reclaimed_bytes", "segments_removed", "compactions", "ledgers_deleted", "damaged_entries",
)  # fmt: skip
_LASTS = threading.Event()
"""Never set: a wait lasts its time."""


def disk_bytes(cluster: LocalCluster) -> int:
    """Space that the journals of all bookies take."""
    total = 0
    for number in range(1, BOOKIES + 1):
        with os.scandir(cluster.data / f"bookie-{number}" / "journal") as found:
            for file in found:
                try:
                    total += file.stat().st_blocks * 512
                except FileNotFoundError:
                    continue  # removed meanwhile
    return total


def info_of(cluster: LocalCluster, name: str) -> InfoReply | None:
    """What a bookie says of itself; None while it is away."""
    try:
        with open_blocking_channel(cluster.process(name).health_address) as channel:
            return BookieControlStub(channel).Info(InfoRequest(), timeout=5)  # type: ignore[no-any-return]
    except grpc.RpcError:
        return None


@dataclass
class Judge:
    """What was told and what was found."""

    wrong: list[str] = field(default_factory=list[str])
    checked: int = 0
    kills: int = 0
    before_kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    """Gauges of bookies that were killed, as of a moment before."""

    def add(self, info: InfoReply | None) -> None:
        """Count what a process did that is about to end."""
        for name in COUNTED:
            self.before_kills[name] += int(getattr(info, name)) if info is not None else 0

    def total(self, cluster: LocalCluster) -> dict[str, int]:
        """Gauges of all processes so far."""
        totals = dict(self.before_kills)
        for number in range(1, BOOKIES + 1):
            info = info_of(cluster, f"bookie-{number}")
            for name in COUNTED:
                totals[name] += int(getattr(info, name)) if info is not None else 0
        return totals


def value_of(topic: str, number: int) -> bytes:
    """The one value of a record."""
    head = b"%s/%d/" % (topic.encode(), number)
    return head + random.Random(head).randbytes(RECORD_BYTES)


def write(client: Client, topic: str, records: int) -> int:
    """Write numbered records; returns how many were acknowledged, which are the first ones."""
    client.admin.create_topic(topic, partitions=2, timeout=60)
    with client.producer(linger_ms=5) as producer:
        for number in range(records):
            producer.send_nowait(topic, value_of(topic, number), key=b"%d" % number)
        producer.flush(120)
    return records


def check(client: Client, topics: dict[str, int], judge: Judge) -> None:
    """Every acknowledged record is there, once, with its bytes."""
    for topic, records in topics.items():
        with client.reader(topic, start="earliest") as reader:
            found = [bytes(record.value or b"") for record in reader.read_to_end()]
        missing = {value_of(topic, number) for number in range(records)}.difference(found)
        if missing or len(found) != records:
            judge.wrong.append(f"{topic}: {len(found)} of {records}, {len(missing)} are lost")
        judge.checked += records


def delete_and_wait(cluster: LocalCluster, client: Client, mb: int, judge: Judge) -> float:
    """How long the space of `mb` of topics takes to return."""
    before = disk_bytes(cluster)
    names = [f"first-{number}" for number in range(4)]
    for name in names:
        write(client, name, (mb << 20) // RECORD_BYTES // len(names))
    full = disk_bytes(cluster)
    if full - before < BOOKIES * (mb << 20) * 0.8:
        judge.wrong.append(f"{mb} MB of records took {(full - before) >> 20} MB of the disks")
    began_s = time.monotonic()
    for name in names:
        client.admin.delete_topic(name, timeout=60)
    while disk_bytes(cluster) > before + SLACK_BYTES:
        if time.monotonic() - began_s > 2 * SPACE_BACK_S:
            alarms = [
                info.collection_alarm
                for number in range(1, BOOKIES + 1)
                if (info := info_of(cluster, f"bookie-{number}")) is not None
            ]
            left = (disk_bytes(cluster) - before) >> 20
            judge.wrong.append(f"after 2 minutes {left} MB are not back; alarms: {alarms}")
            break
        _LASTS.wait(0.2)
    took_s = time.monotonic() - began_s
    if took_s > SPACE_BACK_S:
        judge.wrong.append(f"the space took {took_s:.0f} s to return")
    return took_s


def one_round(
    number: int,
    cluster: LocalCluster,
    client: Client,
    rng: random.Random,
    topics: dict[str, int],
    judge: Judge,
) -> None:
    """Write, delete some, kill a bookie somewhere in between, read all that lives."""
    victim = f"bookie-{rng.randrange(1, BOOKIES + 1)}"
    for part in range(3):
        topic = f"round-{number}-{part}"
        topics[topic] = write(client, topic, rng.randrange(60, 200))
    for topic in rng.sample(sorted(topics), rng.randrange(1, 4)):
        client.admin.delete_topic(topic, timeout=60)
        del topics[topic]
    _LASTS.wait(rng.uniform(0.0, 9.0))
    judge.add(info_of(cluster, victim))
    cluster.kill(victim)
    judge.kills += 1
    _LASTS.wait(rng.uniform(0.0, 1.0))
    cluster.restart(victim)
    check(client, topics, judge)


def run(seed: int, rounds: int, mb: int, folder: pathlib.Path) -> int:
    """The soak; returns the exit code."""
    rng, judge = random.Random(seed), Judge()
    settings = {"bookie_settings": BOOKIE_SETTINGS, "broker_settings": BROKER_SETTINGS}
    with LocalCluster(bookies=BOOKIES, brokers=1, data=folder, **settings) as cluster:
        with Client(cluster.bootstrap_servers) as client:
            topics = {"lives": write(client, "lives", 100)}
            back_s = delete_and_wait(cluster, client, mb, judge)
            print(
                f"storage: {mb} MB of topics deleted, space back after {back_s:.1f} s", flush=True
            )
            peak = 0
            for number in range(rounds):
                one_round(number, cluster, client, rng, topics, judge)
                peak = max(peak, disk_bytes(cluster))
                print(
                    f"storage: round {number}: disks {disk_bytes(cluster) >> 20} MB, "
                    f"records {sum(topics.values())}",
                    flush=True,
                )
            living = BOOKIES * sum(topics.values()) * RECORD_BYTES
            settle(cluster, living, judge)
            check(client, topics, judge)
        totals = judge.total(cluster)
        logs = [cluster.log(f"bookie-{number}") for number in range(1, BOOKIES + 1)]
        judge.wrong += [
            f"a traceback in a log: {text[-300:]}" for text in logs if "Traceback" in text
        ]
    if totals["damaged_entries"]:
        judge.wrong.append(f"{totals['damaged_entries']} damaged entries")
    for line in judge.wrong:
        print(f"storage: WRONG {line}")
    verdict = "FAILED" if judge.wrong else "OK"
    print(
        f"storage: {verdict} reclaimed_mb={totals['reclaimed_bytes'] >> 20} "
        f"compactions={totals['compactions']} segments_removed={totals['segments_removed']} "
        f"ledgers_deleted={totals['ledgers_deleted']} kills={judge.kills} "
        f"checked={judge.checked} lost={sum('lost' in line for line in judge.wrong)} "
        f"space_back_s={back_s:.1f} seed={seed}"
    )
    return 1 if judge.wrong else 0


def settle(cluster: LocalCluster, living: int, judge: Judge) -> None:
    """The disks come to hold little more than what lives: segments may be a fifth dead."""
    wanted = int(living / 0.75) + SLACK_BYTES
    deadline_s = time.monotonic() + SPACE_BACK_S
    while disk_bytes(cluster) > wanted and time.monotonic() < deadline_s:
        _LASTS.wait(0.5)
    held = disk_bytes(cluster)
    print(f"storage: {living >> 20} MB live, disks hold {held >> 20} MB", flush=True)
    if held > wanted:
        judge.wrong.append(f"disks hold {held >> 20} MB for {living >> 20} MB that live")


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--mb", type=int, default=200)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="octavo-storage-") as folder:
        return run(options.seed, options.rounds, options.mb, pathlib.Path(folder))


if __name__ == "__main__":
    sys.exit(main())
