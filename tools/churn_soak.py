"""A day of churn in ten minutes: are the disks as full in the evening as they were at noon?

Four kinds of data share the segments of the bookies, as they do in a cluster that is used: records
that age (retention), a table that is compacted, topics that are made and deleted, and a trickle
that is kept for ever, so that no segment empties by itself. Bookies are killed with -9 and come
back. What lives is the same all the time but for the trickle; so must the disks be, journals and
indexes together, once the first third of the run has filled them. At the end everything that was
acknowledged and lives is read and compared, and so is every copy of every ledger.

Prints `churn: OK …` or what is wrong, exit code 1.
Usage: python -m tools.churn_soak [--minutes 10] [--seed 1]
"""

from __future__ import annotations

import argparse
import pathlib
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from octavo import Client
from octavo.client.messaging.producing.futures import SendFuture
from octavo.runtime.errors import BufferFull, OctavoError
from octavo.testing import LocalCluster
from tools import life_table
from tools.storage_soak import (
    BOOKIE_SETTINGS,
    BROKER_SETTINGS,
    COPIES,
    SEGMENT_BYTES,
    Fleet,
    Judge,
    check,
    until_healed,
    write,
)

BOOKIES = 4
RETENTION_MS = 20_000
AGED, KEPT = "aged", "kept"
AGED_SETTINGS = {
    "segment.bytes": "1048576",
    "segment.ms": "2000",
    "retention.ms": str(RETENTION_MS),
}
BOOKIE = {**BOOKIE_SETTINGS, "audit_interval_s": 5.0}
"""Also: what was written while a bookie was away for a moment is looked for every 5 s."""
BROKER = {
    **BROKER_SETTINGS,
    "min_segment_bytes": 65_536,
    "retention_check_interval_ms": 500,
    "compaction_check_interval_ms": 500,
}
RECORD_BYTES = 8 * 1024
AGED_PER_S, KEPT_PER_S = 250, 4
PASSING_RECORDS = 200
"""Of a topic that is made and deleted, 32 KiB each."""
PASSING_TOPICS = 3
"""So many of them live at a time."""
STEP_S = 4.0
SAMPLE_S = 1.0
GROWTH_MAX = 1.1
"""The middle of the last third beside that of the second one."""
TIMEOUT_S = 60.0
_LASTS = threading.Event()
"""Never set: a wait lasts its time."""


class Sample(NamedTuple):
    """How much the bookies hold at a moment."""

    at_s: float
    size_bytes: int
    index_bytes: int
    """Of which are indexes."""


def numbered(topic: str, number: int) -> bytes:
    """The one value of a record."""
    head = b"%s/%d/" % (topic.encode(), number)
    return head + random.Random(head).randbytes(RECORD_BYTES)


class NumberedSender(threading.Thread):
    """Writes numbered records to one topic at a pace."""

    def __init__(self, servers: str, ends: threading.Event, topic: str, per_s: int) -> None:
        super().__init__(name=f"sender of {topic}", daemon=True)
        self._servers = servers
        self._ends = ends
        self.topic = topic
        self._pause_s = 1 / per_s
        self.sent: list[SendFuture] = []
        self.failed = ""

    def run(self) -> None:
        try:
            with Client(self._servers) as client, client.producer(linger_ms=5) as producer:
                while not self._ends.is_set():
                    value = numbered(self.topic, len(self.sent))
                    try:
                        self.sent.append(producer.send_nowait(self.topic, value, partition=0))
                    except BufferFull:
                        _LASTS.wait(0.1)
                    _LASTS.wait(self._pause_s)
                producer.flush(TIMEOUT_S)
        except OctavoError as error:
            self.failed = f"the {self.name} failed: {error}"

    def judge(self, client: Client) -> list[str]:
        """What is wrong with what the topic holds."""
        start = client.admin.list_offsets(self.topic, "earliest", timeout=TIMEOUT_S)[0] or 0
        with client.reader(self.topic, start="earliest") as reader:
            found = {one.offset: bytes(one.value or b"") for one in reader.read_to_end()}
        wrong = [self.failed] if self.failed else []
        lost = 0
        for number, future in enumerate(self.sent):
            if future.exception(timeout=TIMEOUT_S) is not None:
                wrong.append(f"{self.topic}: {number} was not acknowledged")
                continue
            offset = future.result(timeout=TIMEOUT_S).offset
            if offset >= start:
                lost += found.get(offset) != numbered(self.topic, number)
        if lost:
            wrong.append(f"{self.topic}: {lost} records are lost or others")
        return wrong


class Scale(threading.Thread):
    """Weighs what the bookies hold: journals and indexes, in blocks that are taken."""

    def __init__(self, folder: pathlib.Path, ends: threading.Event) -> None:
        super().__init__(name="scale", daemon=True)
        self._folder = folder
        self._ends = ends
        self.samples: list[Sample] = []

    def run(self) -> None:
        began_s = time.monotonic()
        while not self._ends.wait(SAMPLE_S):
            size, index = self._weigh()
            self.samples.append(Sample(time.monotonic() - began_s, size, index))

    def _weigh(self) -> tuple[int, int]:
        size = index = 0
        for bookie in self._folder.glob("bookie-*"):
            for file in bookie.rglob("*"):
                try:
                    taken = file.lstat().st_blocks * 512
                except FileNotFoundError:
                    continue  # it went meanwhile
                size += taken
                index += taken if "index" in file.parts else 0
        return size, index

    def thirds(self) -> tuple[float, float, float]:
        """The middle of each third of the run, in bytes."""
        third_s = self.samples[-1].at_s / 3
        parts: tuple[list[int], list[int], list[int]] = ([], [], [])
        for sample in self.samples:
            parts[min(int(sample.at_s / third_s), 2)].append(sample.size_bytes)
        first, second, last = (statistics.median(part) for part in parts)
        return first, second, last


class Passing:
    """Topics that are made and deleted; the newest few live."""

    def __init__(self) -> None:
        self.living: dict[str, int] = {}
        self.made = 0

    def step(self, client: Client) -> None:
        """One comes, and the oldest goes once there are enough."""
        name = f"passing-{self.made}"
        self.living[name] = write(client, name, PASSING_RECORDS)
        self.made += 1
        if len(self.living) > PASSING_TOPICS:
            oldest = next(iter(self.living))
            client.admin.delete_topic(oldest, timeout=TIMEOUT_S)
            del self.living[oldest]


def strike(fleet: Fleet, rng: random.Random, judge: Judge) -> None:
    """A bookie is killed and comes back."""
    victim = rng.choice(fleet.names)
    judge.add(fleet.info(victim))
    fleet.cluster.kill(victim)
    judge.kills += 1
    _LASTS.wait(rng.uniform(0.0, 2.0))
    fleet.cluster.restart(victim)


def weighed(scale: Scale, judge: Judge) -> str:
    """What the scale showed; says what is wrong with it."""
    first, second, last = scale.thirds()
    slack = BOOKIES * SEGMENT_BYTES
    if last > second * GROWTH_MAX + slack:
        judge.wrong.append(f"the disks grow: {second / 1e6:.0f} MB, then {last / 1e6:.0f} MB")
    most = max(sample.size_bytes for sample in scale.samples)
    thirds = ",".join(f"{size / 1e6:.0f}" for size in (first, second, last))
    return f"disk_mb={thirds} disk_max_mb={most / 1e6:.0f}"


def churn(
    fleet: Fleet, client: Client, judge: Judge, rng: random.Random, minutes: float, seed: int
) -> tuple[str, float]:
    """Write, let age, delete, kill for so long; what the disks held, and how many MB came in."""
    ends, servers = threading.Event(), fleet.cluster.bootstrap_servers
    client.admin.create_topic(AGED, 1, AGED_SETTINGS)
    client.admin.create_topic(KEPT, 1, {"segment.ms": "2000"})
    client.admin.create_topic(life_table.TOPIC, life_table.PARTITIONS, life_table.SETTINGS)
    numbers = [
        NumberedSender(servers, ends, AGED, AGED_PER_S),
        NumberedSender(servers, ends, KEPT, KEPT_PER_S),
    ]
    keyed = life_table.KeyedSender(servers, ends, seed)
    scale = Scale(fleet.cluster.data, ends)
    threads = [*numbers, keyed, scale]
    passing, began_s, told = Passing(), time.monotonic(), 0
    with client.table_view(life_table.TOPIC) as table:
        for thread in threads:
            thread.start()
        while (passed_s := time.monotonic() - began_s) < minutes * 60:
            passing.step(client)
            if rng.random() < STEP_S / 20:
                strike(fleet, rng, judge)
            _LASTS.wait(STEP_S)
            if passed_s // 60 > told and scale.samples:
                told = int(passed_s // 60)
                held = scale.samples[-1]
                print(
                    f"churn: minute {told}: {held.size_bytes / 1e6:.0f} MB on the disks, of which "
                    f"{held.index_bytes / 1e6:.0f} are indexes",
                    flush=True,
                )
        ends.set()
        for thread in threads:
            thread.join(2 * TIMEOUT_S)
            if thread.is_alive():
                judge.wrong.append(f"the {thread.name} does not end")
        table.refresh(TIMEOUT_S)
        rows = table.snapshot()
    for sender in numbers:
        judge.wrong += sender.judge(client)
        judge.checked += len(sender.sent)
    judge.wrong += life_table.judge(client, keyed, rows)
    check(client, passing.living, judge)
    written = passing.made * PASSING_RECORDS * 32 * 1024
    written += sum(len(sender.sent) for sender in numbers) * RECORD_BYTES
    return weighed(scale, judge), written / 1e6


def run(minutes: float, seed: int, folder: pathlib.Path) -> int:
    """The soak; returns the exit code."""
    rng, judge = random.Random(seed), Judge()
    settings = {"bookie_settings": BOOKIE, "broker_settings": BROKER}
    with LocalCluster(bookies=BOOKIES, brokers=1, data=folder, **settings) as cluster:  # type: ignore[arg-type]
        fleet = Fleet(cluster)
        with Client(cluster.bootstrap_servers) as client:
            disks, written_mb = churn(fleet, client, judge, rng, minutes, seed)
            under_replicated = until_healed(fleet, judge)
            totals = judge.total(fleet)
        judge.wrong += [
            f"a traceback in a log: {text[-300:]}" for text in fleet.logs() if "Traceback" in text
        ]
    for name in ("segments_removed", "compactions", "ledgers_deleted"):
        if not totals[name]:
            judge.wrong.append(f"{name}=0: nothing was tried")
    for line in judge.wrong:
        print(f"churn: WRONG {line}")
    verdict = "FAILED" if judge.wrong else "OK"
    print(
        f"churn: {verdict} minutes={minutes:g} written_mb={written_mb:.0f} "
        f"copies={COPIES} {disks} reclaimed_mb={totals['reclaimed_bytes'] >> 20} "
        f"compactions={totals['compactions']} segments_removed={totals['segments_removed']} "
        f"ledgers_deleted={totals['ledgers_deleted']} kills={judge.kills} "
        f"checked={judge.checked} lost={sum('lost' in line for line in judge.wrong)} "
        f"under_replicated={under_replicated} seed={seed}"
    )
    return 1 if judge.wrong else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="octavo-churn-") as folder:
        return run(options.minutes, options.seed, pathlib.Path(folder) / "data")


if __name__ == "__main__":
    sys.exit(main())
