"""`make groups-soak`: members of one group come, go, freeze and die at random, under load.

    python -m tools.groups_soak [--duration 300] [--seed 1] [--members 10] [--keep]

Each member is a process. What they write down is judged by `checker`; at last every record must
have been processed and committed. Prints one line, `groups: OK ...` or `groups: FAILED ...`.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping

from octavo import Client
from octavo.runtime.errors import OctavoError
from octavo.testing import LocalCluster
from tools.groups_soak.checker import Verdict, judge
from tools.groups_soak.fleet import Fleet
from tools.groups_soak.story import BROKEN, OBSERVED, TARGETED, Event, Limits, Span, as_line

TOPIC = "soak"
GROUP = "soak"
PARTITIONS = 30
SESSION_TIMEOUT_MS = 6_000
HEARTBEAT_MS = 1_000
LIMITS = Limits(
    session_timeout_s=SESSION_TIMEOUT_MS / 1000,
    own_limit_s=(SESSION_TIMEOUT_MS - 2 * HEARTBEAT_MS) / 1000,
)
SEND_EVERY_S = 0.05
"""Each partition gets a record so often: what is kept and gives nothing shows as a gap."""
PAUSE_S = (1.5, 4.0)
"""Between two things that happen."""
FREEZE_S = (0.5, 10.0)
BROKER_EVERY_S = 45.0
BROKER_AWAY_S = 4.0
RECOVERED_S = 10.0
"""For so long after a broker came back, pauses are its doing."""
SETTLE_S = 60.0
STORY = "story"
"""File with all events in order, for whoever asks what happened (`--keep`)."""
OBSERVE_EVERY_S = 0.5


class Load(threading.Thread):
    """A record for each partition, again and again."""

    def __init__(self, servers: str) -> None:
        super().__init__(name="load", daemon=True)
        self._servers = servers
        self.ends = threading.Event()
        self.failure: OctavoError | None = None

    def run(self) -> None:
        """Until it is told to end; an error is told by the main thread."""
        try:
            with Client(self._servers) as client, client.producer(linger_ms=2) as producer:
                while not self.ends.wait(SEND_EVERY_S):
                    for number in range(PARTITIONS):
                        producer.send_nowait(TOPIC, b"x" * 100, partition=number)
                producer.flush(60)
        except OctavoError as error:
            self.failure = error


class Observer(threading.Thread):
    """Looks at committed offsets and targets as a tool does, and writes down what it saw."""

    def __init__(self, servers: str) -> None:
        super().__init__(name="observer", daemon=True)
        self._servers = servers
        self.ends = threading.Event()
        self.seen: list[Event] = []

    def run(self) -> None:
        """A look every half second; one that nobody answers is none."""
        with Client(self._servers) as client:
            while not self.ends.wait(OBSERVE_EVERY_S):
                since_s = time.monotonic()
                with contextlib.suppress(OctavoError):
                    offsets = client.admin.list_group_offsets(GROUP, timeout=5)
                    found = {one.partition: one.offset for one in offsets}
                    self.seen.append(Event(OBSERVED, time.monotonic(), "", {}, found, since_s))
                    group = client.admin.describe_group(GROUP, timeout=5)
                    for one in group.members:
                        slots = dict.fromkeys((where.partition for where in one.target), 0)
                        self.seen.append(Event(TARGETED, time.monotonic(), one.client_id, slots))


class Soak:
    """One run over a cluster of its own."""

    def __init__(
        self, cluster: LocalCluster, client: Client, fleet: Fleet, rng: random.Random
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._fleet = fleet
        self._rng = rng
        self._lasts = threading.Event()
        """Never set: a wait lasts its time."""
        self._next_broker_s = time.monotonic() + BROKER_EVERY_S / 2
        self.counts: dict[str, int] = {}
        self.broken: list[Event] = []

    def settle(self, ends: Mapping[int, int] | None = None) -> None:
        """Until the group is stable, owns everything, and has committed up to `ends`."""
        deadline_s = time.monotonic() + SETTLE_S
        while True:
            self._fleet.check()
            with contextlib.suppress(OctavoError):
                group = self._client.admin.describe_group(GROUP, timeout=5)
                offsets = self._client.admin.list_group_offsets(GROUP, timeout=5)
                found = {one.partition: one.offset for one in offsets}
                owned = sum(len(member.owned) for member in group.members)
                if owned == PARTITIONS and group.state == "STABLE" and ends in (None, found):
                    return
            if time.monotonic() > deadline_s:
                raise SystemExit(f"groups: FAILED the group is not settled after {SETTLE_S:.0f} s")
            self._lasts.wait(0.2)

    def play(self, duration_s: float) -> None:
        """Whatever happens to members and coordinators."""
        end_s = time.monotonic() + duration_s
        while time.monotonic() < end_s:
            self._fleet.thaw_due()
            self._fleet.check()
            if time.monotonic() >= self._next_broker_s:
                self._kill_coordinator()
            else:
                self._count(self._fleet.act(self._rng, FREEZE_S))
            self._lasts.wait(self._rng.uniform(*PAUSE_S))
        self._fleet.thaw_all()

    def _kill_coordinator(self) -> None:
        since_s = time.monotonic()
        with contextlib.suppress(OctavoError):
            name = self._client.admin.describe_group(GROUP, timeout=5).coordinator_id
            self._cluster.kill(name)
            self._lasts.wait(BROKER_AWAY_S)
            self._cluster.restart(name)
            self._count("coordinator killed")
        self.broken.append(Event(BROKEN, time.monotonic() + RECOVERED_S, since_s=since_s))
        self._next_broker_s = time.monotonic() + BROKER_EVERY_S

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


def run(work: pathlib.Path, duration_s: float, seed: int, members: int) -> int:
    """A whole run; returns the exit code."""
    settings = {
        "group_session_timeout_ms": SESSION_TIMEOUT_MS,
        "group_heartbeat_interval_ms": HEARTBEAT_MS,
    }
    with LocalCluster(brokers=2, data=work / "cluster", broker_settings=settings) as cluster:
        servers = cluster.bootstrap_servers
        with Client(servers) as client, Fleet(servers, TOPIC, GROUP, work, members) as fleet:
            client.admin.create_topic(TOPIC, partitions=PARTITIONS)
            load, observer = Load(servers), Observer(servers)
            load.start()
            observer.start()
            soak = Soak(cluster, client, fleet, random.Random(seed))
            fleet.watch(servers, TOPIC)
            fleet.fill()
            soak.settle()
            start_s = time.monotonic()
            soak.play(duration_s)
            load.ends.set()
            load.join()
            if load.failure is not None:
                raise load.failure
            ends = {slot: end or 0 for slot, end in client.admin.list_offsets(TOPIC).items()}
            soak.settle(ends)
            epochs = client.admin.describe_group(GROUP).epoch
            span = Span(start_s, time.monotonic())
            observer.ends.set()
            observer.join()
            events = fleet.finish() + soak.broken + observer.seen
            events.sort(key=lambda one: one.at_s)
            with (work / STORY).open("w", encoding="utf-8") as story:
                story.writelines(f"{as_line(event)}\n" for event in events)
            verdict = judge(events, ends, LIMITS, span)
            return tell(verdict, soak.counts, fleet.started, epochs, sum(ends.values()))


def tell(
    verdict: Verdict, counts: Mapping[str, int], members: int, epochs: int, records: int
) -> int:
    """Print what happened, what is wrong, and the one line; returns the exit code."""
    print(", ".join(f"{what}: {count}" for what, count in sorted(counts.items())))
    for text in verdict.wrong[:20]:
        print(f"wrong: {text}")
    print(
        f"groups: {'FAILED' if verdict.wrong else 'OK'} members={members} epochs={epochs} "
        f"overlaps={verdict.overlaps} lost={verdict.lost} "
        f"longest_pause_ms={verdict.longest_pause_ms} "
        f"longest_unowned_ms={verdict.longest_unowned_ms} records={records} "
        f"repeated={verdict.repeated} repeated_committed={verdict.repeated_committed} "
        f"commits_back={verdict.commits_back}"
    )
    return int(bool(verdict.wrong))


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--duration", type=float, default=300.0, help="seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--keep", action="store_true", help="keep logs and data")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    work = pathlib.Path(tempfile.mkdtemp(prefix="octavo-groups-"))
    try:
        return run(work, asked.duration, asked.seed, asked.members)
    finally:
        if asked.keep:
            print(f"logs and data are kept in {work}")
        else:
            shutil.rmtree(work)


if __name__ == "__main__":
    sys.exit(main())
