"""What groups promise their users, one promise a test (F006 to F112, X05)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from octavo import Client, GroupConsumer, OffsetAndMetadata, Record, TopicPartition
from octavo.errors import GroupIdNotFound, NonEmptyGroup
from tests.group_client import RawMember
from tests.group_cluster import GroupCluster


@pytest.fixture(scope="module")
def found() -> Iterator[GroupCluster]:
    made = GroupCluster()
    yield made
    made.close()


@pytest.fixture
def topic(found: GroupCluster, request: pytest.FixtureRequest) -> str:
    name = str(request.node.name)
    found.topic(name, 2, records=5)
    return name


def reading(client: Client, topic: str, group: str) -> GroupConsumer:
    return client.consumer(
        topic, group=group, auto_offset_reset="earliest", enable_auto_commit=False
    )


def read(found: GroupCluster, consumer: GroupConsumer, count: int) -> list[Record]:
    records: list[Record] = []

    def enough() -> bool:
        records.extend(consumer.poll(count - len(records), timeout=0.1))
        return len(records) == count

    found.until(enough)
    return records


def stored(found: GroupCluster, group: str, topic: str) -> dict[int, int]:
    offsets = found.client.admin.list_group_offsets(group)
    return {one.partition: one.offset for one in offsets if one.topic == topic}


def test_f006_f007_f093_each_group_sees_everything_and_moves_no_other(
    found: GroupCluster, topic: str
) -> None:
    client = found.client
    with (
        reading(client, topic, f"a-{topic}") as one,
        reading(client, topic, f"b-{topic}") as other,
        client.reader(topic) as plain,
    ):
        first = read(found, one, 10)
        one.commit()
        assert stored(found, f"a-{topic}", topic) == {0: 5, 1: 5}
        assert other.committed(TopicPartition(topic, 0))[TopicPartition(topic, 0)] is None
        second = read(found, other, 10)
        other.commit({TopicPartition(topic, 1): 3})
        assert sum(1 for _ in plain.read_to_end()) == 10
        key = sorted((r.partition, r.offset) for r in first)
        assert key == sorted((r.partition, r.offset) for r in second)
        with pytest.raises(NonEmptyGroup):
            client.admin.delete_group(f"a-{topic}")
    client.admin.delete_group(f"a-{topic}")
    with pytest.raises(GroupIdNotFound):
        client.admin.describe_group(f"a-{topic}")
    assert stored(found, f"b-{topic}", topic) == {1: 3}


def test_f010_a_group_goes_back_as_often_as_it_likes_and_disturbs_nobody(
    found: GroupCluster, topic: str
) -> None:
    with (
        reading(found.client, topic, f"a-{topic}") as one,
        reading(found.client, topic, f"b-{topic}") as other,
    ):
        read(found, one, 10)
        one.commit()
        for _ in range(2):
            one.seek_to_beginning()
            assert len(read(found, one, 10)) == 10
        one.seek(TopicPartition(topic, 1), 3)
        assert [r.offset for r in read(found, one, 2)] == [3, 4]
        one.seek_to_time(1)
        assert len(read(found, one, 10)) == 10
        assert stored(found, f"a-{topic}", topic) == {0: 5, 1: 5}
        assert len(read(found, other, 10)) == 10


def test_f109_f110_o2_what_is_committed_is_the_next_record_to_read(
    found: GroupCluster, topic: str
) -> None:
    where = TopicPartition(topic, 0)
    with reading(found.client, topic, topic) as consumer:
        read(found, consumer, 10)
        consumer.commit()
        assert consumer.committed(where) == {where: OffsetAndMetadata(5)}, "0 to 4 were read"
        consumer.commit({where: 2})
        assert consumer.committed(where) == {where: OffsetAndMetadata(2)}, "O2: also backwards"
    with reading(found.client, topic, topic) as consumer:
        assert [(r.partition, r.offset) for r in read(found, consumer, 3)] == [
            (0, 2), (0, 3), (0, 4),
        ]  # fmt: skip


def test_f112_o9_a_poll_commits_what_earlier_ones_returned_and_not_what_it_returns(
    found: GroupCluster, topic: str
) -> None:
    with found.client.consumer(
        topic, group=topic, auto_offset_reset="earliest", auto_commit_interval_ms=0
    ) as consumer:
        read(found, consumer, 3)
        assert sum(stored(found, topic, topic).values()) in (0, 1, 2), "never what came last"
        read(found, consumer, 1)
        found.until(lambda: sum(stored(found, topic, topic).values()) == 3)
        read(found, consumer, 2)
        found.until(lambda: sum(stored(found, topic, topic).values()) in (4, 5))
    assert sum(stored(found, topic, topic).values()) == 6, "the end commits the rest"


def owned(member: RawMember) -> set[int]:
    return {partition for _, partition in member.owned}


def test_x05_what_is_paused_stays_its_own_and_quiet_through_a_rebalance(
    found: GroupCluster, topic: str
) -> None:
    with reading(found.client, topic, topic) as consumer:
        read(found, consumer, 2)
        places = [TopicPartition(topic, number) for number in range(2)]
        consumer.pause()
        before = {where: consumer.position(where) for where in places}
        other = found.join(f"m-{topic}", topic, group=topic)
        found.until(lambda: consumer.poll(timeout=0.05) == [] and len(other.owned) == 1)
        (kept,) = consumer.assignment()
        assert owned(other) == {1 - kept.partition}
        found.leave(other)

        def both() -> bool:
            consumer.poll(timeout=0.05)
            return len(consumer.assignment()) == 2

        found.until(both)
        assert consumer.position(kept) == before[kept]
        assert all(one.partition != kept.partition for one in consumer.poll(timeout=0.2))
        consumer.resume(kept)
        back = read(found, consumer, 5 - before[kept])
        assert [r.offset for r in back if r.partition == kept.partition][:1] in (
            [before[kept]], [],
        )  # fmt: skip


def test_f008_f091_f092_members_share_and_the_fifth_of_four_partitions_is_idle(
    found: GroupCluster, topic: str
) -> None:
    found.topic(f"{topic}-4", 4)
    for group, members in ((f"x-{topic}", 2), (f"y-{topic}", 5)):
        joined = [found.join(f"{group}-{n}", f"{topic}-4", group=group) for n in range(members)]
        wanted = [2, 2] if members == 2 else [0, 1, 1, 1, 1]
        found.until(lambda j=joined, w=wanted: sorted(len(one.owned) for one in j) == w)  # type: ignore[misc]
        slots = [slot for one in joined for slot in one.owned]
        assert len(slots) == len(set(slots)) == 4, "each by one"
        assert not any(one.error for one in joined), "who has nothing is healthy"
        for one in joined:
            found.leave(one)


def test_rb12_w3_the_next_step_of_an_iteration_looks_at_the_clock_before_it_yields(
    found: GroupCluster, topic: str
) -> None:
    """As after SIGCONT: time is over, and neither the timer nor a heartbeat came to say so."""
    heard: list[tuple[str, int]] = []
    with found.client.consumer(
        topic,
        group=topic,
        auto_offset_reset="earliest",
        on_lost=lambda slots: heard.append(("lost", len(slots))),
        on_assign=lambda slots: heard.append(("assign", len(slots))),
    ) as consumer:
        records = iter(consumer)
        first = [next(records) for _ in range(3)]
        opening = consumer._async.group_opening  # pyright: ignore[reportPrivateUsage]
        assert opening.handout.ready, "an iteration that has something at hand"
        session = opening.session
        assert session is not None

        def stood_still() -> None:
            beats = session.core.beats
            beats.late_at_s -= 10_000.0
            session.readings.handout.good_until_s = beats.late_at_s

        consumer._thread.call(stood_still)  # pyright: ignore[reportPrivateUsage]
        again = [next(records)]
        assert heard == [("assign", 2), ("lost", 2), ("assign", 2)]
        again += [next(records) for _ in range(9)]
        assert len({(r.partition, r.offset) for r in again}) == 10, "RB14: from what is committed"
        assert {(r.partition, r.offset) for r in first} <= {(r.partition, r.offset) for r in again}
