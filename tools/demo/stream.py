"""The streaming part of the demo: a producer, a follower, and processes killed between them."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Callable
from typing import NamedTuple

from octavo import Client, TopicPartition
from octavo.runtime.errors import OctavoError, RequestTimedOut
from octavo.testing import LocalCluster
from tools.demo.flights import Flights
from tools.demo.members import GROUP, MEMBER_OPTIONS, GroupFacts, judged
from tools.demo.proof import Position
from tools.groups_soak.fleet import Fleet

TOPIC = "flights"
PARTITIONS = 6
CHUNK_ROWS = 2_000
POLL_RECORDS = 20_000
QUIET_LIMIT_S = 90.0
"""The follower gives up after this long without a new record: long enough for any take-over."""

Consumed = list[tuple[int, int, bytes | None, bytes | None]]
Progress = Callable[[str, int], None]
"""(which, rows so far)"""


class Fault(NamedTuple):
    """One thing done to the cluster when `at_fraction` of the rows are acknowledged."""

    at_fraction: float
    text: str
    act: Callable[[], None]


class Streamed(NamedTuple):
    """What the producer was told, what the follower read, and what the group made of it."""

    acked: dict[int, Position | None]
    consumed: Consumed
    faults: list[str]
    group: GroupFacts


class Follower(threading.Thread):
    """Reads all partitions from the start while the producer works, until told when to end."""

    def __init__(self, bootstrap: str, progress: Progress) -> None:
        super().__init__(name="follower", daemon=True)
        self._servers = bootstrap
        self._progress = progress
        self._wanted: int | None = None
        self.consumed: Consumed = []
        self.error: OctavoError | None = None

    def finish_at(self, rows: int) -> None:
        """No more than `rows` will come."""
        self._wanted = rows

    def run(self) -> None:
        """Poll until everything is there; an error ends the thread and is kept."""
        try:
            self._follow()
        except OctavoError as error:
            self.error = error

    def _follow(self) -> None:
        quiet_s = 0.0
        with Client(self._servers) as client, client.consumer() as consumer:
            where = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
            consumer.assign(where)
            consumer.seek_to_beginning(*where)
            while self._wanted is None or len(self.consumed) < self._wanted:
                records = consumer.poll(max_records=POLL_RECORDS, timeout=1.0)
                self.consumed.extend((r.partition, r.offset, r.key, r.value) for r in records)
                self._progress("consumed", len(self.consumed))
                quiet_s = 0.0 if records else quiet_s + 1.0
                if quiet_s > QUIET_LIMIT_S:
                    raise RequestTimedOut(f"no new record for {QUIET_LIMIT_S:.0f} s")
            # Anything beyond what was acknowledged would be a duplicate: look once more.
            extra = consumer.poll(max_records=POLL_RECORDS, timeout=1.0)
            self.consumed.extend((r.partition, r.offset, r.key, r.value) for r in extra)


def stream(
    cluster: LocalCluster, flights: Flights, work: pathlib.Path, progress: Progress
) -> Streamed:
    """Send every flight while `_faults` happen, and return both sides of the story."""
    with Client(cluster.bootstrap_servers) as client:
        client.admin.create_topic(TOPIC, partitions=PARTITIONS)
        follower = Follower(cluster.bootstrap_servers, progress)
        follower.start()
        with Fleet(cluster.bootstrap_servers, TOPIC, GROUP, work, 3, MEMBER_OPTIONS) as members:
            faults = [*_faults(cluster, client), *_group_faults(cluster, client, members)]
            faults.sort(key=lambda fault: fault.at_fraction)
            return _streamed(client, flights, follower, members, faults, progress)


def _streamed(
    client: Client,
    flights: Flights,
    follower: Follower,
    members: Fleet,
    faults: list[Fault],
    progress: Progress,
) -> Streamed:
    rows = len(flights.values)
    done: list[str] = []
    acked: dict[int, Position | None] = {}
    lock = threading.Lock()

    def note(row: int, partition: int, offset: int) -> None:
        with lock:
            acked[row] = (partition, offset) if offset >= 0 else None

    with client.producer() as producer:
        for start in range(0, rows, CHUNK_ROWS):
            stop = min(start + CHUNK_ROWS, rows)
            for row in range(start, stop):
                future = producer.send_nowait(TOPIC, flights.values[row], key=flights.keys[row])
                future.add_done_callback(
                    lambda f, row=row: note(row, f.result().partition, f.result().offset)
                )
            progress("acked", len(acked))
            while faults and len(acked) >= faults[0].at_fraction * rows:
                fault = faults.pop(0)
                fault.act()
                done.append(f"at {len(acked):,} acknowledged rows: {fault.text}")
        producer.flush(timeout=120)
    progress("acked", len(acked))
    if faults:
        raise OctavoError(f"only {len(done)} faults were injected: the run proves nothing")
    follower.finish_at(len(acked))
    follower.join()
    if follower.error is not None:
        raise follower.error
    ends = client.admin.list_offsets(TOPIC)
    group = judged(client, members, {slot: end or 0 for slot, end in ends.items()})
    return Streamed(acked, follower.consumed, done, group)


def _faults(cluster: LocalCluster, client: Client) -> list[Fault]:
    """A bookie first, then the broker that owns partition 0, each back while the stream goes on."""
    owner: list[str] = []

    def kill_owner() -> None:
        found = client.admin.describe_topic(TOPIC).partitions[0].owner_id
        if not found:
            raise OctavoError("partition 0 has no owner in mid-stream")
        owner.append(found)
        cluster.kill(found)

    return [
        Fault(0.20, "kill -9 bookie-2", lambda: cluster.kill("bookie-2")),
        Fault(0.35, "kill -9 the broker that owns partition 0", kill_owner),
        Fault(0.55, "bookie-2 started again", lambda: cluster.restart("bookie-2")),
        Fault(0.48, "the broker started again", lambda: cluster.restart(owner[0])),
    ]


def _group_faults(cluster: LocalCluster, client: Client, members: Fleet) -> list[Fault]:
    """Two members follow, a third joins, one is killed, and then their coordinator's broker.

    The broker is killed when the owner of partition 0 is back, and comes back itself.
    """
    names: list[str] = []
    coordinator: list[str] = []

    def join() -> None:
        names.append(members.join())

    def kill_coordinator() -> None:
        coordinator.append(client.admin.describe_group(GROUP).coordinator_id)
        cluster.kill(coordinator[0])

    return [
        Fault(0.0, "the first member joined", join),
        Fault(0.0, "the second member joined", join),
        Fault(0.15, "the third member joined", join),
        Fault(0.45, "kill -9 the first member", lambda: members.kill(names[0])),
        Fault(0.58, "kill -9 the broker that coordinates the group", kill_coordinator),
        Fault(0.68, "that broker started again", lambda: cluster.restart(coordinator[0])),
    ]
