"""Real broker processes: the busy one gives a bundle away, and an operator moves one (O-3, O-4)."""

from __future__ import annotations

import threading
import time

import pytest

from octavo import Client
from octavo.client.messaging.records import TopicPartition
from octavo.testing import LocalCluster

pytestmark = pytest.mark.process

TOPIC = "orders"
PARTITIONS = 12
VALUE = b"x" * 8_000
SETTINGS = {
    "ownership_settle_s": 0.5,
    "load_report_interval_s": 0.5,
    "shedding_interval_s": 1.0,
    "shedding_above_average_percent": 4,
    "shedding_hits": 2,
    "shedding_grace_s": 600,
}
WAIT_S = 60.0


class Traffic:
    """Producers of the partitions of one broker, each record numbered, until `stop`."""

    def __init__(self, client: Client, partitions: list[int]) -> None:
        self.sent = dict.fromkeys(partitions, 0)
        self.failed: list[BaseException] = []
        self._client = client
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(partition,)) for partition in partitions
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, partition: int) -> None:
        try:
            with self._client.producer() as producer:
                while not self._stop.is_set():
                    number = self.sent[partition]
                    producer.send(TOPIC, b"%d:" % number + VALUE, partition=partition)
                    self.sent[partition] += 1
        except BaseException as error:  # noqa: BLE001 - the test tells it
            self.failed.append(error)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(WAIT_S)


def owners(client: Client) -> dict[int, str]:
    found = client.admin.describe_topic(TOPIC)
    return {one.partition: one.owner_id for one in found.partitions}


def served_elsewhere(client: Client, than: str) -> dict[int, str]:
    """Bundles that were moved by decision and have arrived, not at that broker."""
    return {
        one.bundle: one.owner_id
        for one in client.admin.list_bundles()
        if one.owner_id == one.placed_on != than
    }


def read_back(client: Client, partition: int, count: int) -> list[int]:
    """The numbers of all records of a partition, in order."""
    numbers: list[int] = []
    where = TopicPartition(TOPIC, partition)
    with client.consumer() as consumer:
        consumer.assign([where])
        consumer.seek_to_beginning(where)
        deadline_s = time.monotonic() + WAIT_S
        while len(numbers) < count and time.monotonic() < deadline_s:
            values = [record.value or b"" for record in consumer.poll(timeout=1.0)]
            numbers += [int(value.partition(b":")[0]) for value in values]
    return numbers


def test_the_busy_broker_gives_a_bundle_away_and_an_operator_moves_exactly_one() -> None:
    with (
        LocalCluster(brokers=3, broker_settings=SETTINGS) as cluster,
        Client(cluster.bootstrap_servers) as client,
    ):
        admin = client.admin
        admin.create_topic(TOPIC, partitions=PARTITIONS)
        with client.producer() as producer:
            for partition in range(PARTITIONS):
                producer.send(TOPIC, b"-1:", partition=partition)
        before = owners(client)
        busiest = max(set(before.values()), key=list(before.values()).count)
        theirs = [partition for partition, owner in before.items() if owner == busiest]
        traffic = Traffic(client, theirs)
        try:
            deadline_s = time.monotonic() + WAIT_S
            while not served_elsewhere(client, busiest) and time.monotonic() < deadline_s:
                assert not traffic.failed
        finally:
            traffic.stop()
        assert not traffic.failed
        shed = served_elsewhere(client, busiest)
        assert shed, admin.list_brokers()

        (idle,) = [n for n in sorted(before) if n not in theirs][:1]
        bundle = admin.find_bundle(TOPIC, idle)
        to = next(name for name in sorted(set(before.values())) if name != bundle.owner_id)
        others = {one.bundle: one.owner_id for one in admin.list_bundles()}
        assert admin.unload_bundle(bundle.bundle, to).owner_id == to
        after = {one.bundle: one.owner_id for one in admin.list_bundles()}
        assert after == {**others, bundle.bundle: to}

        for partition in theirs:
            count = traffic.sent[partition]
            assert read_back(client, partition, count + 1) == list(range(-1, count))
        assert read_back(client, idle, 1) == [-1]
