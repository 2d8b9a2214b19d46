"""One member of a group as a process of its own, which writes down what it sees.

    python -m tools.groups_soak.member --servers HOST:PORT --topic T --group G --name N --log FILE

It processes records by writing down that it did, and commits afterwards. SIGTERM ends it.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Callable, Sequence

from octavo import Client, Record, TopicPartition
from octavo.cli.stopping import StopRequest, stop_requests
from octavo.client.messaging import GroupConsumer
from tools.groups_soak.story import (
    ASSIGNED,
    COMMITTED,
    ENDED,
    HANDED,
    LOST,
    REVOKED,
    STALLED,
    Event,
    as_line,
)

POLL_S = 0.2
TICK_S = 0.01
STALL_S = 0.03
"""A thread that waits for TICK_S and wakes so late shows that the process was not run."""


class Log:
    """Each event is one write, so that a killed process leaves at most half a line."""

    def __init__(self, path: str, name: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.name = name

    def write(self, event: Event) -> None:
        """One event of this member."""
        os.write(self._file, (as_line(event._replace(who=self.name)) + "\n").encode())

    def change(self, what: str) -> Callable[[list[TopicPartition]], None]:
        """A callback that writes down which partitions came or went."""

        def told(partitions: list[TopicPartition]) -> None:
            slots = dict.fromkeys((where.partition for where in partitions), 0)
            self.write(Event(what, time.monotonic(), first=slots))

        return told


def watch_stalls(log: Log, ends: threading.Event) -> None:
    """Write down when this process was not run though it wanted to."""
    before_s = time.monotonic()
    while not ends.wait(TICK_S):
        now_s = time.monotonic()
        if now_s - before_s > TICK_S + STALL_S:
            log.write(Event(STALLED, now_s, since_s=before_s + TICK_S))
        before_s = now_s


def process(log: Log, records: Sequence[Record]) -> dict[TopicPartition, int]:
    """Write down that they were processed; returns the next offsets."""
    first: dict[int, int] = {}
    after: dict[TopicPartition, int] = {}
    for record in records:
        first.setdefault(record.partition, record.offset)
        if after.get(record.topic_partition, record.offset) != record.offset:
            raise SystemExit(f"{record.topic_partition}: a hole before {record.offset}")
        after[record.topic_partition] = record.offset + 1
    reached = {where.partition: offset for where, offset in after.items()}
    now_s = time.monotonic()
    sent_s = now_s - max(time.time() - min(one.timestamp_ms for one in records) / 1000, 0.0)
    log.write(Event(HANDED, now_s, first=first, next=reached, since_s=sent_s))
    return after


def follow(consumer: GroupConsumer, log: Log, commit_s: float, stop: StopRequest) -> None:
    """Process and commit until it is stopped."""
    open_offsets: dict[TopicPartition, int] = {}
    next_s = 0.0
    while not stop.came:
        if records := consumer.poll(timeout=POLL_S):
            open_offsets |= process(log, records)
        if open_offsets and time.monotonic() >= next_s:
            commit(consumer, log, open_offsets)
            open_offsets.clear()
            next_s = time.monotonic() + commit_s


def commit(consumer: GroupConsumer, log: Log, offsets: dict[TopicPartition, int]) -> None:
    """Commit what is still this member's, without waiting: delivery is what is measured.

    What went meanwhile is another's to process.
    """
    mine = set(consumer.assignment())
    wanted = {where: offset for where, offset in offsets.items() if where in mine}
    if not wanted:
        return
    since_s = time.monotonic()

    def told(done: object, error: Exception | None) -> None:
        if error is None:
            reached = {where.partition: offset for where, offset in wanted.items()}
            log.write(Event(COMMITTED, time.monotonic(), next=reached, since_s=since_s))

    consumer.commit_async(wanted, told)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name in ("servers", "topic", "group", "name", "log"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--commit-s", type=float, default=0.25)
    parser.add_argument("--poll-records", type=int, default=500)
    parser.add_argument("--instance", default=None)
    asked = parser.parse_args()
    log = Log(asked.log, asked.name)
    watcher = threading.Thread(target=watch_stalls, args=(log, threading.Event()), daemon=True)
    with (
        stop_requests() as stop,
        Client(asked.servers, client_id=asked.name) as client,
        client.consumer(
            asked.topic,
            group=asked.group,
            on_assign=log.change(ASSIGNED),
            on_revoke=log.change(REVOKED),
            on_lost=log.change(LOST),
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            group_instance_id=asked.instance,
            max_poll_records=asked.poll_records,
        ) as consumer,
    ):
        watcher.start()
        follow(consumer, log, asked.commit_s, stop)
    log.write(Event(ENDED, time.monotonic()))


if __name__ == "__main__":
    main()
