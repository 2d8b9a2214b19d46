"""Storage that is churned: topics written and deleted, bookies killed, and the space must return.

First 200 MB of topics are written and deleted: how long until the bookies' disks hold what they
held before? Then rounds: topics are written, some of them deleted, a bookie is killed with SIGKILL
at a moment drawn from the seed (while it collects and compacts) and started again, and every record
that was acknowledged for a topic that lives is read and compared. After a third of the rounds one
bookie is killed for good, its folder removed, and another one of a new id started: its copies must
be made again. In every third round the victim is away until its copies were made elsewhere, so
that it has some to give up. After two thirds one is decommissioned that holds data. At the end
every copy of every ledger is read and compared with the others. Settings are lowered so that
minutes show what takes hours: segments of 4 MiB, a comparison every 3 s, 2 s between two proofs, a
minor round of compaction every 5 s and a major one every 10 s, a bookie is lost after 4 s.

Prints `storage: OK …` or what is wrong, exit code 1.
Usage: python -m tools.storage_soak [--seed 1] [--rounds 10] [--mb 200]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field

import grpc

from octavo import Client
from octavo.client.autorecovery.operator import DrainProgress, operating
from octavo.proto.bookie_pb2 import InfoReply, InfoRequest
from octavo.proto.bookie_pb2_grpc import BookieControlStub
from octavo.proto.endpoints import open_blocking_channel
from octavo.testing import LocalCluster

BOOKIES = 5
COPIES = 3
LOST, RETIRED, REPLACEMENT = "bookie-4", "bookie-5", "bookie-6"
HEALED_WITHIN_S = 90.0
LONG_AWAY_S = 15.0
SEGMENT_BYTES = 4 << 20
BOOKIE_SETTINGS: dict[str, object] = {
    "segment_bytes": SEGMENT_BYTES,
    "gc_interval_s": 3.0,
    "gc_confirm_s": 2.0,
    "compaction_check_s": 2.0,
    "compaction_minor_interval_s": 5.0,
    "compaction_major_interval_s": 10.0,
    "compaction_bytes_per_s": float(64 << 20),
    "gc_surplus_interval_s": 5.0,
    "gc_surplus_quiet_s": 5.0,
    "metadata_session_timeout_s": 3.0,
    "lost_delay_s": 4.0,
    "fleet_poll_s": 0.5,
    "open_fragment_grace_s": 2.0,
    "audit_recheck_s": 2.0,
}
BROKER_SETTINGS: dict[str, object] = {"trash_delay_ms": 0}
RECORD_BYTES = 32 * 1024
SPACE_BACK_S = 60.0
READ_BYTES_PER_S = 256 << 20
SLACK_BYTES = BOOKIES * 3 * SEGMENT_BYTES
"""The open segment of each bookie, the next one, and what of the last is alive."""
COUNTED = (
    "reclaimed_bytes", "segments_removed", "compactions", "ledgers_deleted", "damaged_entries",
    "ledgers_repaired", "slots_replaced", "surplus_deleted",
)  # fmt: skip
_LASTS = threading.Event()
"""Never set: a wait lasts its time."""


class Fleet:
    """The bookies of a cluster, of which one is lost, one retires and one comes."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.names = [name for name in cluster.processes if name.startswith("bookie")]
        self._first = tuple(self.names)
        self._addresses = {name: cluster.process(name).health_address for name in self.names}
        self._replacement: subprocess.Popen[bytes] | None = None

    def disk_bytes(self) -> int:
        """Space that the journals of all bookies take."""
        total = 0
        for name in self.names:
            with os.scandir(self.cluster.data / name / "journal") as found:
                for file in found:
                    try:
                        total += file.stat().st_blocks * 512
                    except FileNotFoundError:
                        continue  # removed meanwhile
        return total

    def info(self, name: str) -> InfoReply | None:
        """What a bookie says of itself; None while it is away."""
        try:
            with open_blocking_channel(self._addresses[name]) as channel:
                return BookieControlStub(channel).Info(InfoRequest(), timeout=5)  # type: ignore[no-any-return]
        except grpc.RpcError:
            return None

    def infos(self) -> list[InfoReply]:
        """What all say that are there."""
        return [info for name in self.names if (info := self.info(name)) is not None]

    def lose(self, name: str) -> None:
        """Process and folder are gone for good."""
        self.cluster.kill(name)
        shutil.rmtree(self.cluster.data / name)
        self.names.remove(name)

    def retire(self, name: str) -> None:
        """The process of a decommissioned bookie ends."""
        self.cluster.terminate(name)
        self.names.remove(name)

    def start_replacement(self) -> None:
        """Another bookie, of a new id, beside the supervisor's."""
        settings = [f"{key}={value}" for key, value in BOOKIE_SETTINGS.items()]
        self._replacement = subprocess.Popen(
            [
                *(sys.executable, "-m", "octavo", "bookie", "--id", REPLACEMENT),
                *("--metadata", self.cluster.metadata),
                *("--data", str(self.cluster.data / REPLACEMENT)),
                *("--port", "0", "--control-port", "0"),
                *(word for setting in settings for word in ("-X", setting)),
            ],
            stdout=subprocess.DEVNULL,
            stderr=(self.cluster.data / f"{REPLACEMENT}.log").open("wb"),
        )
        deadline_s = time.monotonic() + SPACE_BACK_S
        while (address := asyncio.run(_control_address(self.cluster.metadata))) is None:
            if time.monotonic() > deadline_s or self._replacement.poll() is not None:
                raise RuntimeError(f"{REPLACEMENT} did not start")
            _LASTS.wait(0.2)
        self._addresses[REPLACEMENT] = address
        self.names.append(REPLACEMENT)

    def close(self) -> None:
        """Stop what the supervisor does not know."""
        if self._replacement is not None:
            self._replacement.terminate()
            self._replacement.wait(30)

    def logs(self) -> list[str]:
        """Of every bookie that ever was."""
        logs = [self.cluster.log(name) for name in self._first]
        replacement = self.cluster.data / f"{REPLACEMENT}.log"
        return [*logs, replacement.read_text() if replacement.exists() else ""]


async def _control_address(metadata: str) -> str | None:
    async with operating(metadata) as operator:
        found = operator.client.directory.find(REPLACEMENT)
        return found.control_address if found is not None else None


async def _wrong_copies(metadata: str) -> tuple[int, list[str]]:
    """Ledgers, and what is wrong with them when every copy is read."""
    async with operating(metadata) as operator:
        ledgers, wrong = 0, []
        async for found in operator.verified(read=True, bytes_per_s=READ_BYTES_PER_S):
            ledgers += 1
            if found.problems or found.unknown:
                told = "; ".join((*found.problems, *found.unknown))
                wrong.append(f"ledger {found.ledger_id} {found.state}: {told}")
        return ledgers, wrong


async def _decommission(metadata: str, name: str) -> int:
    """How many ledgers it had at the beginning."""
    most = 0

    def progress(so_far: DrainProgress) -> None:
        nonlocal most
        most = max(most, so_far.ledgers)

    async with operating(metadata) as operator:
        await operator.decommission(name, timeout_s=HEALED_WITHIN_S, on_progress=progress)
    return most


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

    def total(self, fleet: Fleet) -> dict[str, int]:
        """Gauges of all processes so far."""
        totals = dict(self.before_kills)
        for info in fleet.infos():
            for name in COUNTED:
                totals[name] += int(getattr(info, name))
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


def delete_and_wait(fleet: Fleet, client: Client, mb: int, judge: Judge) -> float:
    """How long the space of `mb` of topics takes to return."""
    before = fleet.disk_bytes()
    names = [f"first-{number}" for number in range(4)]
    for name in names:
        write(client, name, (mb << 20) // RECORD_BYTES // len(names))
    full = fleet.disk_bytes()
    if full - before < COPIES * (mb << 20) * 0.8:
        judge.wrong.append(f"{mb} MB of records took {(full - before) >> 20} MB of the disks")
    began_s = time.monotonic()
    for name in names:
        client.admin.delete_topic(name, timeout=60)
    while fleet.disk_bytes() > before + SLACK_BYTES:
        if time.monotonic() - began_s > 2 * SPACE_BACK_S:
            alarms = [info.collection_alarm for info in fleet.infos()]
            left = (fleet.disk_bytes() - before) >> 20
            judge.wrong.append(f"after 2 minutes {left} MB are not back; alarms: {alarms}")
            break
        _LASTS.wait(0.2)
    took_s = time.monotonic() - began_s
    if took_s > SPACE_BACK_S:
        judge.wrong.append(f"the space took {took_s:.0f} s to return")
    return took_s


def one_round(
    number: int,
    fleet: Fleet,
    client: Client,
    rng: random.Random,
    topics: dict[str, int],
    judge: Judge,
) -> None:
    """Write, delete some, kill a bookie somewhere in between, read all that lives."""
    victim = rng.choice([name for name in fleet.names if name not in (RETIRED, REPLACEMENT)])
    for part in range(3):
        topic = f"round-{number}-{part}"
        topics[topic] = write(client, topic, rng.randrange(60, 200))
    for topic in rng.sample(sorted(topics), rng.randrange(1, 4)):
        client.admin.delete_topic(topic, timeout=60)
        del topics[topic]
    _LASTS.wait(rng.uniform(0.0, 9.0))
    judge.add(fleet.info(victim))
    fleet.cluster.kill(victim)
    judge.kills += 1
    # One of three is away for so long that its copies are made elsewhere: what it has is surplus.
    _LASTS.wait(LONG_AWAY_S if number % 3 == 2 else rng.uniform(0.0, 1.0))
    fleet.cluster.restart(victim)
    check(client, topics, judge)


def lose_one(fleet: Fleet, client: Client, topics: dict[str, int], judge: Judge) -> None:
    """A bookie is gone for good while records are written; another one comes."""
    judge.add(fleet.info(LOST))
    fleet.lose(LOST)
    judge.kills += 1
    topics["while-one-is-lost"] = write(client, "while-one-is-lost", 100)
    fleet.start_replacement()
    began_s = time.monotonic()
    until_healed(fleet, judge)
    print(f"storage: {LOST} is lost, healed after {time.monotonic() - began_s:.1f} s", flush=True)
    check(client, topics, judge)


def retire_one(fleet: Fleet, client: Client, topics: dict[str, int], judge: Judge) -> None:
    """A bookie that holds data is decommissioned while records are written."""
    began_s = time.monotonic()
    with ThreadPoolExecutor(1, "decommission") as pool:
        moving = pool.submit(asyncio.run, _decommission(fleet.cluster.metadata, RETIRED))
        topics["while-one-retires"] = write(client, "while-one-retires", 400)
        moved = moving.result()
    took_s = time.monotonic() - began_s
    if not moved:
        judge.wrong.append(f"{RETIRED} was decommissioned and had no ledger")
    judge.add(fleet.info(RETIRED))
    fleet.retire(RETIRED)
    print(f"storage: {RETIRED} had {moved} ledgers, gone after {took_s:.1f} s", flush=True)
    check(client, topics, judge)


def until_healed(fleet: Fleet, judge: Judge) -> int:
    """Every ledger has every copy, read and compared; how many have not in the end."""
    deadline_s = time.monotonic() + HEALED_WITHIN_S
    while True:
        _, wrong = asyncio.run(_wrong_copies(fleet.cluster.metadata))
        if not wrong or time.monotonic() > deadline_s:
            judge.wrong += wrong
            return len(wrong)
        _LASTS.wait(1.0)


def run(seed: int, rounds: int, mb: int, folder: pathlib.Path) -> int:
    """The soak; returns the exit code."""
    rng, judge = random.Random(seed), Judge()
    settings = {"bookie_settings": BOOKIE_SETTINGS, "broker_settings": BROKER_SETTINGS}
    with LocalCluster(bookies=BOOKIES, brokers=1, data=folder, **settings) as cluster:
        fleet = Fleet(cluster)
        with ExitStack() as ending, Client(cluster.bootstrap_servers) as client:
            ending.callback(fleet.close)
            topics = {"lives": write(client, "lives", 100)}
            back_s = delete_and_wait(fleet, client, mb, judge)
            print(
                f"storage: {mb} MB of topics deleted, space back after {back_s:.1f} s", flush=True
            )
            for number in range(rounds):
                if number == rounds // 3:
                    lose_one(fleet, client, topics, judge)
                if number == 2 * rounds // 3:
                    retire_one(fleet, client, topics, judge)
                one_round(number, fleet, client, rng, topics, judge)
                print(
                    f"storage: round {number}: disks {fleet.disk_bytes() >> 20} MB, "
                    f"records {sum(topics.values())}",
                    flush=True,
                )
            under_replicated = until_healed(fleet, judge)
            settle(fleet, COPIES * sum(topics.values()) * RECORD_BYTES, judge)
            check(client, topics, judge)
            totals = judge.total(fleet)
        judge.wrong += [
            f"a traceback in a log: {text[-300:]}" for text in fleet.logs() if "Traceback" in text
        ]
    if not totals["surplus_deleted"] and rounds > 2:
        judge.wrong.append("no surplus copy was given up: nothing was tried")
    if totals["damaged_entries"]:
        judge.wrong.append(f"{totals['damaged_entries']} damaged entries")
    for line in judge.wrong:
        print(f"storage: WRONG {line}")
    verdict = "FAILED" if judge.wrong else "OK"
    print(
        f"storage: {verdict} reclaimed_mb={totals['reclaimed_bytes'] >> 20} "
        f"compactions={totals['compactions']} segments_removed={totals['segments_removed']} "
        f"ledgers_deleted={totals['ledgers_deleted']} repaired={totals['ledgers_repaired']} "
        f"replaced={totals['slots_replaced']} surplus={totals['surplus_deleted']} "
        f"kills={judge.kills} checked={judge.checked} "
        f"lost={sum('lost' in line for line in judge.wrong)} "
        f"under_replicated={under_replicated} space_back_s={back_s:.1f} seed={seed}"
    )
    return 1 if judge.wrong else 0


def settle(fleet: Fleet, living: int, judge: Judge) -> None:
    """The disks come to hold little more than what lives: segments may be a fifth dead."""
    wanted = int(living / 0.75) + SLACK_BYTES
    deadline_s = time.monotonic() + SPACE_BACK_S
    while fleet.disk_bytes() > wanted and time.monotonic() < deadline_s:
        _LASTS.wait(0.5)
    held = fleet.disk_bytes()
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
