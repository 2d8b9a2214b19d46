"""A process that reads all partitions and is in no group: what holds it up is no group's doing.

    python -m tools.groups_soak.outsider --servers HOST:PORT --topic T --log FILE

It follows from the end and writes down when records of which partition came. SIGTERM ends it.
"""

from __future__ import annotations

import argparse
import pathlib
import time
from collections.abc import Sequence

from octavo import Client, Record
from octavo.cli.stopping import stop_requests
from tools.groups_soak.member import POLL_S, Log
from tools.groups_soak.story import SEEN, Event

NAME = "outsider"


def note(log: Log, records: Sequence[Record]) -> None:
    """One line for each partition that something came of."""
    now_s, now_ms = time.monotonic(), time.time() * 1000
    first: dict[int, Record] = {}
    after: dict[int, int] = {}
    for record in records:
        first.setdefault(record.partition, record)
        after[record.partition] = record.offset + 1
    for slot, record in first.items():
        sent_s = now_s - max(now_ms - record.timestamp_ms, 0.0) / 1000
        log.write(Event(SEEN, now_s, NAME, {slot: record.offset}, {slot: after[slot]}, sent_s))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--log", type=pathlib.Path, required=True)
    asked = parser.parse_args()
    log = Log(asked.log, NAME)
    with (
        stop_requests() as stop,
        Client(asked.servers, client_id=NAME) as client,
        client.consumer(asked.topic, auto_offset_reset="latest") as consumer,
    ):
        while not stop.came:
            if records := consumer.poll(timeout=POLL_S):
                note(log, records)


if __name__ == "__main__":
    main()
