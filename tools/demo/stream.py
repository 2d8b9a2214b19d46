"""The streaming part of the demo: a producer, a follower, and processes killed between them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from octavo import Client, TopicPartition
from octavo.runtime.errors import OctavoError, RequestTimedOut
from octavo.testing import LocalCluster
from tools.demo.flights import Flights
from tools.demo.proof import Position

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
    """What the producer was told and what the follower read."""

    acked: dict[int, Position | None]
    consumed: Consumed
    faults: list[str]


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


def stream(cluster: LocalCluster, flights: Flights, progress: Progress) -> Streamed:
    """Send every flight while `_faults` happen, and return both sides of the story."""
    rows = len(flights.values)
    with Client(cluster.bootstrap_servers) as client:
        client.admin.create_topic(TOPIC, partitions=PARTITIONS)
        follower = Follower(cluster.bootstrap_servers, progress)
        follower.start()
        faults = _faults(cluster, client)
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
    return Streamed(acked, follower.consumed, done)


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
        Fault(0.40, "kill -9 the broker that owns partition 0", kill_owner),
        Fault(0.55, "bookie-2 started again", lambda: cluster.restart("bookie-2")),
        Fault(0.70, "the broker started again", lambda: cluster.restart(owner[0])),
    ]
