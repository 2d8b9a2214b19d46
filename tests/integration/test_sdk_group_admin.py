"""The admin of groups against real brokers: lists that are whole, lag, resets, deletions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from octavo import TopicPartition
from octavo.client.messaging.group_admin.lag import LagHistory
from octavo.client.messaging.group_admin.resets import LastRecords, ShiftBy
from octavo.runtime.errors import ConfigError, InvalidPartition, UnknownTopic
from octavo.runtime.errors_of_groups import (
    GroupIdNotFound,
    GroupSubscribedToTopic,
    InvalidGroupId,
    NonEmptyGroup,
    UnknownMemberId,
)
from tests.group_cluster import GroupCluster

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
def found() -> Iterator[GroupCluster]:
    made = GroupCluster()
    try:
        yield made
    finally:
        made.close()


def places(found: GroupCluster, group: str = "g") -> dict[tuple[str, int], int]:
    offsets = found.client.admin.list_group_offsets(group)
    return {(one.topic, one.partition): one.offset for one in offsets}


def test_where_no_consumer_ever_named_a_group_there_is_none(found: GroupCluster) -> None:
    """Looking must not make the topic of groups either."""
    admin = found.client.admin
    assert admin.list_groups() == []
    assert admin.list_group_offsets("g") == []
    assert admin.describe_groups([]) == []
    asks: list[Callable[[], object]] = [
        lambda: admin.describe_group("g"),
        lambda: admin.delete_group("g"),
        lambda: admin.group_lag("g"),
        lambda: admin.describe_groups(["g"]),
        lambda: admin.reset_offsets("g", "earliest"),
        lambda: admin.delete_group_offsets("g", "t"),
        lambda: admin.remove_members("g", members=["m"]),
    ]
    for ask in asks:
        with pytest.raises(GroupIdNotFound, match="no consumer of this cluster"):
            ask()
    internal = admin.list_topics(include_internal=True)
    assert [topic.name for topic in internal] == []


def test_groups_are_listed_and_described_from_all_coordinators() -> None:
    found = GroupCluster(brokers=3)
    try:
        found.topic("t", 2)
        names = [f"group-{number}" for number in range(36)]  # enough for each to have some
        for name in names:
            found.client.admin.reset_offsets(name, "latest", topics="t")
        member = found.join("m", "t", group="live")
        found.until(lambda: len(member.owned) == 2)
        listed = {one.group_id: one for one in found.client.admin.list_groups()}
        assert sorted(listed) == sorted([*names, "live"])
        assert (listed["live"].type, listed["live"].members) == ("consumer", 1)
        assert (listed["group-0"].type, listed["group-0"].state) == ("simple", "EMPTY")
        described = found.client.admin.describe_groups(["live", "group-3"])
        assert [one.group_id for one in described] == ["live", "group-3"]
        told = described[0].members[0]
        assert (told.member_id, told.client_id, told.topics) == ("m", "raw", ("t",))
        assert told.owned == (TopicPartition("t", 0), TopicPartition("t", 1))
        coordinators = {one.coordinator_id for one in found.client.admin.describe_groups(names)}
        assert len(coordinators) == 3, "or the test shows nothing"
        with pytest.raises(GroupIdNotFound):
            found.client.admin.describe_groups(["live", "nobody"])
    finally:
        found.close()


def test_x20_resets_show_what_they_change_and_change_only_then(found: GroupCluster) -> None:
    found.topic("t", 2, records=10)
    admin = found.client.admin
    begun = datetime.now(UTC)
    dry = admin.reset_offsets("g", "latest", topics=["t"], dry_run=True)
    assert [(one.partition, one.before, one.after) for one in dry] == [(0, None, 10), (1, None, 10)]
    assert admin.list_groups() == [], "a dry run makes no group"
    with pytest.raises(GroupIdNotFound):
        admin.reset_offsets("g", "latest")
    assert admin.reset_offsets("g", 4, topics=["t"]) == [
        one.__class__(one.topic, one.topic_id, one.partition, None, 4, 0, 10) for one in dry
    ]
    assert places(found) == {("t", 0): 4, ("t", 1): 4}
    changes = admin.reset_offsets("g", ShiftBy(-3), topics=[TopicPartition("t", 1)])
    assert [(one.topic_partition, one.before, one.after) for one in changes] == [
        (TopicPartition("t", 1), 4, 1)
    ]
    admin.reset_offsets("g", ShiftBy(-9), topics=[("t", 1)])
    assert places(found) == {("t", 0): 4, ("t", 1): 0}, "never below what is stored"
    admin.reset_offsets("g", 99)
    assert places(found) == {("t", 0): 10, ("t", 1): 10}, "never beyond it"
    admin.reset_offsets("g", LastRecords(3))
    assert places(found) == {("t", 0): 7, ("t", 1): 7}
    admin.reset_offsets("g", timedelta(hours=1))
    assert places(found) == {("t", 0): 0, ("t", 1): 0}
    admin.reset_offsets("g", begun + timedelta(hours=1))
    assert places(found) == {("t", 0): 10, ("t", 1): 10}, "no record is that late: the end"
    admin.reset_offsets("g", "earliest", topics="t")
    assert places(found) == {("t", 0): 0, ("t", 1): 0}


def test_resets_refuse_what_they_cannot_do(found: GroupCluster) -> None:
    found.topic("t", 2, records=3)
    admin = found.client.admin
    admin.reset_offsets("g", 1, topics=[("t", 0)])
    with pytest.raises(ConfigError, match=r"nothing is committed for t-1"):
        admin.reset_offsets("g", ShiftBy(1), topics=["t"])
    with pytest.raises(UnknownTopic):
        admin.reset_offsets("g", 1, topics=["nowhere"])
    with pytest.raises(InvalidPartition, match=r"0\.\.1, not 7"):
        admin.reset_offsets("g", 1, topics=[("t", 7)])
    for wrong in (-1, True, 1.5, "yesterday", None, datetime(2026, 1, 1), timedelta(-1)):
        with pytest.raises(ConfigError):
            admin.reset_offsets("g", wrong)  # type: ignore[arg-type]
    for name in ("", None, "\ud800"):
        with pytest.raises(ConfigError):
            admin.reset_offsets(name, 1)  # type: ignore[arg-type]
    with pytest.raises(InvalidGroupId):
        admin.describe_group("x" * 2_000)
    assert places(found) == {("t", 0): 1}


def test_o3_offsets_of_who_reads_by_other_means(found: GroupCluster) -> None:
    """As they are, within the log or not; of the topics that exist, or of those that are named."""
    found.topic("t", 2, records=3)
    admin = found.client.admin
    admin.commit_offsets("g", {TopicPartition("t", 0): 2, TopicPartition("t", 1): 50})
    assert places(found) == {("t", 0): 2, ("t", 1): 50}
    assert [(one.group_id, one.type) for one in admin.list_groups()] == [("g", "simple")]
    admin.commit_offsets("g", {})
    with pytest.raises(UnknownTopic, match="'nowhere'"):
        admin.commit_offsets("g", {TopicPartition("nowhere", 0): 1})
    with pytest.raises(UnknownTopic, match="'t'"):
        admin.commit_offsets("g", {TopicPartition("t", 0): 1}, topic_ids={"other": "ab" * 16})
    with pytest.raises(ConfigError):
        admin.commit_offsets("g", {TopicPartition("t", 0): -1})
    with pytest.raises(UnknownTopic, match="not stored"):  # O1: of another life
        admin.commit_offsets("g", {TopicPartition("t", 0): 1}, topic_ids={"t": "ab" * 16})
    assert [(one.partition, one.committed) for one in admin.group_lag("g").partitions] == [
        (0, 2), (1, 50),
    ]  # fmt: skip
    member = found.join("m", "t")
    found.until(lambda: len(member.owned) == 2)
    with pytest.raises(NonEmptyGroup):
        admin.commit_offsets("g", {TopicPartition("t", 0): 1})


def test_x20_a_group_with_members_is_not_moved_under_them(found: GroupCluster) -> None:
    found.topic("t", 2, records=3)
    admin = found.client.admin
    admin.reset_offsets("g", 1, topics=["t"])
    member = found.join("m", "t")
    found.until(lambda: len(member.owned) == 2)
    changes: list[Callable[[], object]] = [
        lambda: admin.reset_offsets("g", "latest"),
        lambda: admin.reset_offsets("g", "latest", dry_run=True),
        lambda: admin.delete_group("g"),
    ]
    for change in changes:
        with pytest.raises(NonEmptyGroup):
            change()
    with pytest.raises(GroupSubscribedToTopic):
        admin.delete_group_offsets("g", "t")
    assert places(found) == {("t", 0): 1, ("t", 1): 1}
    with pytest.raises(UnknownMemberId, match="no member ghost"):
        admin.remove_members("g", members=["ghost", "m"])
    found.until(lambda: not admin.describe_group("g").members)
    found.until(lambda: member.error is not None)
    admin.reset_offsets("g", "latest")
    assert places(found) == {("t", 0): 3, ("t", 1): 3}
    with pytest.raises(ConfigError, match="no member was named"):
        admin.remove_members("g")


def test_o7_groups_and_offsets_are_deleted(found: GroupCluster) -> None:
    found.topic("t", 2, records=3)
    found.topic("u", 1, records=3)
    admin = found.client.admin
    admin.reset_offsets("g", 1, topics=["t", "u"])
    dry = admin.delete_group_offsets("g", [("t", 1)], dry_run=True)
    assert [(one.topic, one.partition, one.offset) for one in dry] == [("t", 1, 1)]
    assert len(places(found)) == 3
    admin.delete_group_offsets("g", [("t", 1)])
    assert places(found) == {("t", 0): 1, ("u", 0): 1}
    assert admin.delete_group_offsets("g", "nowhere") == []
    admin.delete_group("g")
    assert admin.list_groups() == []
    with pytest.raises(GroupIdNotFound):
        admin.delete_group("g")


def test_f163_m1_m2_lag_counts_what_is_there_and_not_read(found: GroupCluster) -> None:
    found.topic("t", 3, records=5)
    admin = found.client.admin
    admin.reset_offsets("g", 2, topics=[("t", 0)])
    admin.reset_offsets("g", "latest", topics=[("t", 1)])
    told = admin.group_lag("g")
    first, second = told.partitions
    assert (first.committed, first.end, first.lag, first.uncommitted) == (2, 5, 3, False)
    assert first.time_lag_s is not None
    assert 0 <= first.time_lag_s < 60
    assert (second.lag, second.time_lag_s, second.ahead) == (0, 0.0, False)
    assert (told.lag, told.members) == (3, 0)
    history = LagHistory()
    history.add(told)
    assert history.total() is None
    found.send("t", 1, 4)
    admin.reset_offsets("g", 5, topics=[("t", 0)])
    later = admin.group_lag("g", time_lag=False)
    assert later.time_lag_s is None
    assert later.lag == 4
    history.add(later)
    rates = history.total()
    assert rates is not None
    seconds = later.taken_s - told.taken_s
    assert rates.drain * seconds == pytest.approx(3)
    assert rates.inflow * seconds == pytest.approx(4)
    assert rates.eta_s is None, "it falls behind"


def test_m1_lag_of_members_counts_what_they_never_committed(found: GroupCluster) -> None:
    found.topic("t", 2, records=5)
    member = found.join("m", "t")
    found.until(lambda: len(member.owned) == 2)
    told = found.client.admin.group_lag("g")
    assert [(one.lag, one.uncommitted, one.member_id) for one in told.partitions] == [
        (5, True, "m"),
        (5, True, "m"),
    ]
    latest = found.client.admin.group_lag("g", uncommitted_from="latest")
    assert (latest.lag, latest.partitions[0].uncommitted) == (0, True)
    with pytest.raises(ConfigError):
        found.client.admin.group_lag("g", uncommitted_from="middle")  # type: ignore[arg-type]


def test_o1_a_topic_made_again_inherits_nothing(found: GroupCluster) -> None:
    """O1: neither lag nor a reset takes what was committed in its earlier life."""
    found.topic("t", 1, records=5)
    found.topic("u", 1, records=1)
    admin = found.client.admin
    admin.reset_offsets("g", 4, topics=["t", "u"])
    admin.delete_topic("t")
    found.topic("t", 1, records=2)
    told = admin.group_lag("g")
    assert [one.topic for one in told.partitions] == ["u"]
    changes = admin.reset_offsets("g", "latest", topics="t", dry_run=True)
    assert [(one.before, one.after) for one in changes] == [(None, 2)]
