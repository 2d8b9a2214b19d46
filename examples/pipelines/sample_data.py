"""Something to run the pipelines on: topics with clicks and with changes of customers.

    python -m examples.pipelines.sample_data --bootstrap localhost:7650

Each run adds as much again, later in time. Clicks come in visits of ten users, 20 clicks each in
ten minutes, and half an hour lies between the visits; one click in ten is sent twice, as by an
application that repeats what it got no answer to. Changes are whole rows by key; one in nine says
that the customer is gone (no value).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator

from octavo import Client
from octavo.errors import OctavoError, TopicAlreadyExists

BEGIN_MS = 1_767_225_600_000
"""2026-01-01, midnight UTC."""
VISIT_CLICKS = 200
VISIT_EVERY_MS = 40 * 60_000
CLICK_EVERY_MS = 3_000
PAGES = ("/", "/search", "/item", "/cart")
CITIES = ("Aachen", "Bergen", "Cork", "Dijon")
PARTITIONS = 2

Message = tuple[bytes, bytes | None]


def clicks(visits: range) -> Iterator[Message]:
    """Key and value of the clicks of some visits, in order of time; the 220 of each visit."""
    for visit in visits:
        for number in range(VISIT_CLICKS):
            click = visit * VISIT_CLICKS + number
            user = f"user-{visit * 3 % 40 + number % 10}"
            value = {
                "id": f"click-{click}",
                "user": user,
                "page": PAGES[number // 10 % len(PAGES)],
                "at_ms": BEGIN_MS + visit * VISIT_EVERY_MS + number * CLICK_EVERY_MS,
            }
            for _ in range(2 if number % 10 == 0 else 1):
                yield user.encode(), json.dumps(value).encode()


def changes(numbers: range) -> Iterator[Message]:
    """Key and value of changes of 50 customers."""
    for number in numbers:
        customer = number * 7 % 50
        row = {"name": f"Customer {customer}", "city": CITIES[number % len(CITIES)]}
        gone = number % 9 == 8
        yield b"%d" % customer, None if gone else json.dumps(row).encode()


def stored(client: Client, topic: str) -> int:
    """How many records the topic has had; it is created when it is not there."""
    try:
        client.admin.create_topic(topic, partitions=PARTITIONS)
    except TopicAlreadyExists:
        pass
    return sum(end or 0 for end in client.admin.list_offsets(topic, "latest").values())


def add(bootstrap: str, visits: int) -> None:
    """Add visits to `clicks` and 20 changes for each to `customers`, behind what is there."""
    with Client(bootstrap) as client, client.producer() as producer:
        client.connect()
        first = stored(client, "clicks") // (VISIT_CLICKS * 11 // 10)
        begun = stored(client, "customers")
        for topic, messages in (
            ("clicks", clicks(range(first, first + visits))),
            ("customers", changes(range(begun, begun + visits * 20))),
        ):
            count = 0
            for key, value in messages:
                producer.send_nowait(topic, value, key=key)
                count += 1
            producer.flush()
            print(f"{topic}: {count} records added")


def main(argv: list[str] | None = None) -> None:
    """Of the command line."""
    parser = argparse.ArgumentParser(description="adds sample data to the topics of the pipelines")
    parser.add_argument("--bootstrap", default="localhost:7650")
    parser.add_argument("--visits", type=int, default=5)
    arguments = parser.parse_args(argv)
    if arguments.visits < 1:
        parser.error(f"--visits {arguments.visits}: one at least")
    try:
        add(arguments.bootstrap, arguments.visits)
    except OctavoError as error:
        sys.exit(f"sample_data: {error}")


if __name__ == "__main__":
    main()
