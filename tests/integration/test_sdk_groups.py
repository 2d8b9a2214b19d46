"""Consumers of a group on real processes, as users see them (RB11 to RB13, O9 to O11, W12, F7)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Unpack

import pytest

from octavo import AsyncClient, Client, GroupConsumer, OffsetAndMetadata, Record, TopicPartition
from octavo.client.messaging.api.options import GroupOptions
from octavo.errors import (
    CommitFailed,
    DeserializationFailed,
    FencedInstanceId,
    IllegalStateError,
    NoOffsetForPartition,
)
from octavo.testing import LocalCluster

pytestmark = pytest.mark.process
PARTITIONS = 4
WAIT_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2) as running:
        yield running


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster.bootstrap_servers, retry_backoff_ms=20) as made:
        yield made


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    name = str(request.node.name)
    client.admin.create_topic(name, partitions=PARTITIONS)
    return name


def send(client: Client, topic: str, count: int, start: int = 0) -> None:
    with client.producer() as producer:
        values = [b"%d" % number for number in range(start, start + count)]
        producer.send_many(topic, values, keys=values)


def read(consumer: GroupConsumer, count: int) -> list[Record]:
    """At least so many records."""
    records: list[Record] = []
    until_s = time.monotonic() + WAIT_S
    while len(records) < count:
        assert time.monotonic() < until_s, f"{len(records)} of {count} records"
        records += consumer.poll(timeout=0.2)
    return records


def values(records: list[Record]) -> list[object]:
    return [record.value for record in records]


class Heard:
    """What callbacks said, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, tuple[int, ...]]] = []

    def hears(self, what: str) -> Callable[[list[TopicPartition]], None]:
        def callback(partitions: list[TopicPartition]) -> None:
            self.events.append((what, tuple(one.partition for one in partitions)))

        return callback

    @property
    def owned(self) -> set[int]:
        found: set[int] = set()
        for what, partitions in self.events:
            found = found.union(partitions) if what == "assign" else found.difference(partitions)
        return found


def until(condition: Callable[[], object], *consumers: GroupConsumer) -> None:
    """Poll all of them until it holds."""
    until_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until_s, "it never came true"
        for consumer in consumers:
            consumer.poll(timeout=0.05)


def member(
    client: Client, topic: str, heard: Heard, **options: Unpack[GroupOptions]
) -> GroupConsumer:
    options.setdefault("auto_offset_reset", "earliest")
    return client.consumer(
        topic,
        group=f"g-{topic}",
        on_assign=heard.hears("assign"),
        on_revoke=heard.hears("revoke"),
        on_lost=heard.hears("lost"),
        **options,
    )


def test_f004_f111_the_first_hour(client: Client, topic: str) -> None:
    send(client, topic, 30)
    seen: list[bytes | None] = []
    with client.consumer(topic, group="billing", auto_offset_reset="earliest") as consumer:
        for record in consumer:
            seen.append(record.value)
            consumer.commit()
            if len(seen) == 20:
                break
    with client.consumer(topic, group="billing") as consumer:
        seen += [record.value for record in read(consumer, 10)]
        assert sum(consumer.lag().values()) == 0
    assert sorted(seen, key=lambda value: int(value or b"")) == [b"%d" % n for n in range(30)]


def test_rb11_members_share_and_hear_in_order(client: Client, topic: str) -> None:
    """Cooperative: kept partitions stay, each change is told once, nobody reads a record twice."""
    send(client, topic, 100)
    one, two = Heard(), Heard()
    first = member(client, topic, one, auto_commit_interval_ms=100)
    records = read(first, 100)
    assert one.events == [("assign", (0, 1, 2, 3))]
    second = member(client, topic, two)
    until(lambda: len(two.owned) == 2, first, second)
    assert [what for what, _ in one.events] == ["assign", "revoke", "assign"]
    assert one.events[2] == ("assign", ())
    assert one.owned | two.owned == {0, 1, 2, 3}
    send(client, topic, 50, 100)
    records += read(second, 10)
    second.close()
    second.close()
    assert two.events[-1][0] == "revoke"
    records += read(first, 150 - len(records))
    until(lambda: len(one.owned) == PARTITIONS, first)
    assert len(records) == len(set(values(records))) == 150, "O9: what was handed out is committed"
    first.close()


def test_o9_o10_commits_are_of_what_was_handed_out(client: Client, topic: str) -> None:
    send(client, topic, 40)
    consumer = member(client, topic, Heard(), enable_auto_commit=False)
    read(consumer, 40)
    partition = TopicPartition(topic, 0)
    assert consumer.committed(partition) == {partition: None}
    told: list[object] = []
    consumer.commit_async({partition: 1}, lambda offsets, error: told.append((offsets, error)))
    until(lambda: told, consumer)
    assert told == [({partition: OffsetAndMetadata(1)}, None)]
    consumer.commit({partition: OffsetAndMetadata(3, "here")})
    assert consumer.committed(partition)[partition] == OffsetAndMetadata(3, "here")
    consumer.commit()
    ends = consumer.end_offsets()
    assert consumer.committed() == {where: OffsetAndMetadata(end) for where, end in ends.items()}
    consumer.close()
    with pytest.raises(IllegalStateError, match="closed"):
        consumer.poll()


def test_f123_a_handler_that_raises_loses_nothing(client: Client, topic: str) -> None:
    """A block that ends with an exception commits nothing: all it got comes again, once."""
    send(client, topic, 12)
    seen: list[bytes | None] = []

    def handle() -> None:
        with member(client, topic, Heard(), auto_commit_interval_ms=600_000) as consumer:
            for record in consumer:
                seen.append(record.value)
                if len(seen) == 5:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        handle()
    with member(client, topic, Heard()) as consumer:
        again = values(read(consumer, 12))
    assert Counter(again) == Counter(b"%d" % number for number in range(12))


def test_o3_x31_partitions_by_hand_commit_without_members(client: Client, topic: str) -> None:
    send(client, topic, 40)
    partition = TopicPartition(topic, 1)
    group = f"simple-{topic}"
    with client.consumer(group=group, auto_offset_reset="earliest") as consumer:
        with pytest.raises(IllegalStateError, match="nothing is subscribed"):
            consumer.poll(timeout=0)
        consumer.assign([partition])
        with pytest.raises(IllegalStateError, match="by hand"):
            consumer.subscribe(topic)
        records = read(consumer, 1)
        consumer.commit({partition: records[0].offset + 1})
        with client.consumer(topic, group=group) as other:
            until(lambda: other.assignment(), other)
            with pytest.raises(CommitFailed):
                consumer.commit()
            with pytest.raises(IllegalStateError, match="subscribes"):
                other.assign([partition])


def test_w12_the_reset_policy_is_resolved_once(client: Client, topic: str) -> None:
    """F6: `latest` is chosen at the first look, also while polls are too short."""
    consumer = member(client, topic, Heard(), auto_offset_reset="latest")
    until(lambda: consumer.assignment(), consumer)
    for partition in consumer.assignment():
        assert consumer.position(partition) == 0
    send(client, topic, 1)
    assert [record.value for record in read(consumer, 1)] == [b"0"]
    consumer.close()
    refusing = member(client, topic, Heard(), auto_offset_reset="none", group_instance_id="n")
    refusing.close()
    nobody = client.consumer(topic, group="nobody", auto_offset_reset="none")
    with pytest.raises(NoOffsetForPartition):
        until(lambda: False, nobody)
    nobody.close()


def test_x04_callbacks_may_call_back_and_raise(client: Client, topic: str) -> None:
    """X04: what a callback raises comes out of poll(), and the member goes on."""
    send(client, topic, 20)
    raised: list[str] = []

    def on_assign(partitions: list[TopicPartition]) -> None:
        with pytest.raises(IllegalStateError, match="callback"):
            consumer.poll()
        for partition in partitions:
            consumer.seek(partition, consumer.end_offsets(partition)[partition])
        consumer.commit()
        raised.append("on_assign")
        raise ValueError("mine")

    consumer = client.consumer(
        topic, group=f"g-{topic}", auto_offset_reset="earliest", on_assign=on_assign
    )
    with pytest.raises(ValueError, match="mine"):
        until(lambda: False, consumer)
    assert raised == ["on_assign"]
    assert consumer.poll(timeout=0.3) == []
    send(client, topic, 5, 20)
    assert len(read(consumer, 5)) == 5
    consumer.close()


def test_x01_a_static_member_comes_back_without_a_rebalance(client: Client, topic: str) -> None:
    one, other = Heard(), Heard()
    static = member(client, topic, one, group_instance_id="s")
    dynamic = member(client, topic, other)
    until(lambda: len(one.owned) == 2 and len(other.owned) == 2, static, dynamic)
    epoch, before = dynamic.group_metadata().epoch, list(other.events)
    static.close()
    again = Heard()
    back = member(client, topic, again, group_instance_id="s")
    until(lambda: len(again.owned) == 2, back, dynamic)
    assert dynamic.group_metadata().epoch == epoch
    assert other.events == before
    usurper = member(client, topic, Heard(), group_instance_id="s")
    with pytest.raises(FencedInstanceId):
        until(lambda: False, usurper, back)
    with pytest.raises(FencedInstanceId):
        back.poll()
    usurper.close(leave_group=True)
    for consumer in (back, dynamic):
        consumer.close()


def test_rb13_close_takes_a_second_whatever_callbacks_do(client: Client, topic: str) -> None:
    release = threading.Event()
    consumer = client.consumer(topic, group=f"g-{topic}", on_revoke=lambda _: release.wait(30))
    until(lambda: consumer.assignment(), consumer)
    began_s = time.monotonic()
    consumer.close()
    assert time.monotonic() - began_s < 15.0  # not the 30 of the callback
    release.set()
    heard = Heard()
    with member(client, topic, heard) as after:
        until(lambda: len(heard.owned) == PARTITIONS, after)  # it left, and was not waited for


def test_rb13_x03_who_polls_no_more_leaves_and_comes_back(client: Client, topic: str) -> None:
    lazy, keen = Heard(), Heard()
    first = member(client, topic, lazy, max_poll_interval_ms=1_500)
    until(lambda: len(lazy.owned) == PARTITIONS, first)
    second = member(client, topic, keen)
    until(lambda: len(keen.owned) == PARTITIONS, second)
    assert [what for what, _ in lazy.events] == ["assign"], "callbacks run in poll()"
    until(lambda: len(lazy.owned) == 2 and len(keen.owned) == 2, first, second)
    assert lazy.events[1] == ("lost", (0, 1, 2, 3))
    first.close()
    second.close()


def test_f7_x44_what_cannot_be_deserialised_is_named_and_may_be_skipped(
    client: Client, topic: str
) -> None:
    with client.producer() as producer:
        for value in (b'{"a": 1}', b"no json", b'{"a": 2}'):
            producer.send(topic, value, partition=0)
    seen: list[object] = []
    consumer = member(
        client,
        topic,
        Heard(),
        value_deserializer="json",
        interceptors=[Spy(seen)],
    )
    assert values(read(consumer, 1)) == [{"a": 1}]
    for _ in range(2):
        with pytest.raises(DeserializationFailed) as failed:
            until(lambda: False, consumer)
        assert failed.value.details == {"topic": topic, "partition": 0, "offset": 1}
    consumer.seek(TopicPartition(topic, 0), 2)
    assert values(read(consumer, 1)) == [{"a": 2}]
    assert seen == [[{"a": 1}], [{"a": 2}]]
    consumer.close()


class Spy:
    """An interceptor that fails, which changes nothing (X44)."""

    def __init__(self, seen: list[object]) -> None:
        self.seen = seen

    def on_consume(self, records: list[Record]) -> None:
        self.seen.append([record.value for record in records])
        raise RuntimeError("an interceptor's own fault")


def test_x07_patterns_find_topics_that_come_later(client: Client, topic: str) -> None:
    heard = Heard()
    with client.consumer(
        pattern=f"{topic}-.*",
        group=topic,
        auto_offset_reset="earliest",
        on_assign=heard.hears("assign"),
    ) as consumer:
        consumer.poll(timeout=0.1)
        client.admin.create_topic(f"{topic}-new", partitions=2)
        until(lambda: len(heard.owned) == 2, consumer)
        consumer.subscribe(topic, on_assign=heard.hears("assign"), on_revoke=heard.hears("revoke"))
        until(lambda: {one.topic for one in consumer.assignment()} == {topic}, consumer)
        consumer.unsubscribe()
        assert consumer.assignment() == []
        with pytest.raises(IllegalStateError, match="nothing is subscribed"):
            consumer.poll()


async def test_the_async_consumer_has_async_callbacks(cluster: LocalCluster, topic: str) -> None:
    heard: list[str] = []

    async def on_assign(partitions: list[TopicPartition]) -> None:
        await asyncio.sleep(0)
        heard.append(f"assign {len(partitions)}")

    async def on_revoke(partitions: list[TopicPartition]) -> None:
        await consumer.commit()
        heard.append(f"revoke {len(partitions)}")

    async with AsyncClient(cluster.bootstrap_servers) as client:
        async with client.producer() as producer:
            await producer.send_many(topic, [b"x"] * 10)
        count = 0
        async with client.consumer(
            topic, group=topic, auto_offset_reset="earliest", on_assign=on_assign,
            on_revoke=on_revoke,
        ) as consumer:  # fmt: skip
            async for _ in consumer:
                count += 1
                if count == 10:
                    break
            table = await consumer.poll_arrow(timeout=0.1)
            assert table is None
        assert heard == ["assign 4", "revoke 4"]
        async with client.consumer(group=topic) as after:
            committed = await after.committed(*[TopicPartition(topic, n) for n in range(4)])
            assert sum(one.offset for one in committed.values() if one) == 10


def test_rb8_f103_a_coordinator_that_dies_changes_no_epoch(client: Client, topic: str) -> None:
    """RB8: the group goes on at the next coordinator, nobody is revoked anything."""
    send(client, topic, 20)
    with LocalCluster(brokers=2) as own, Client(own.bootstrap_servers) as mine:
        mine.admin.create_topic("t", partitions=2)
        heard = Heard()
        consumer = member(mine, "t", heard)
        until(lambda: len(heard.owned) == 2, consumer)
        epoch = consumer.group_metadata().epoch
        coordinator = mine.admin.describe_group("g-t").coordinator_id
        own.kill(coordinator)
        send(mine, "t", 10)
        assert len(read(consumer, 10)) == 10
        consumer.commit()
        assert consumer.group_metadata().epoch == epoch
        assert heard.events == [("assign", (0, 1))]
        consumer.close()
