"""Exports that go on: lag, trouble that passes and trouble that does not, stops (spark §5, §13)."""

from __future__ import annotations

import asyncio
import errno
import pathlib
import re
from collections.abc import AsyncGenerator, Callable
from functools import partial

import pytest

from octavo.client.exports.following import (
    ExportFollower,
    FollowEvents,
    FollowReport,
    FollowSettings,
    topic_pattern,
)
from octavo.client.exports.log_view import TopicLog
from octavo.client.exports.manifest import Manifest
from octavo.client.exports.reports import ExportProgress, ExportReport, JoinProgress
from octavo.client.exports.roll_watch import RollWatch
from octavo.client.exports.tree import LocalTree
from octavo.proto.segments import Segment, StoredBatch
from octavo.runtime.errors import BrokerUnavailable, ConfigError, OctavoError, UnknownTopic
from octavo.spark.export import export_follow_async
from tests.spark_memory import MemoryTopic, numbered

QUICK = FollowSettings(poll_s=0.005, lag_target_s=0.02, stop_grace_s=5.0)
WITHIN_S = 60.0


class MemoryCluster:
    """Topics in memory, as a FollowSource; `fault` is raised instead of an answer."""

    def __init__(self, *topics: MemoryTopic) -> None:
        self.by_name = {topic.topic: topic for topic in topics}
        self.fault: OctavoError | None = None
        self.fault_of: dict[str, OctavoError] = {}
        self.rolls: list[tuple[str, int]] = []
        self.looks = 0
        self.looked = asyncio.Event()
        self.blocked: asyncio.Event | None = None
        """Reads of batches wait for it."""
        self.reading = asyncio.Event()

    def _answer(self, topic: str) -> MemoryTopic:
        self.looks += 1
        self.looked.set()
        if self.fault is not None:
            raise self.fault
        if topic in self.fault_of:
            raise self.fault_of[topic]
        if topic not in self.by_name:
            raise UnknownTopic(f"no topic {topic!r}")
        return self.by_name[topic]

    async def describe(self, topic: str) -> TopicLog:
        return self._answer(topic).log()

    async def roll(self, topic: str, partition: int) -> None:
        found = self._answer(topic)
        self.rolls.append((topic, partition))
        if not found.segments[partition][-1].closed:
            found.close_last(partition)

    async def topics(self) -> list[str]:
        if self.fault is not None:
            raise self.fault
        return sorted(self.by_name)

    async def batches(
        self, segment: Segment, start_offset: int, visible_end: int
    ) -> AsyncGenerator[StoredBatch, None]:
        self.reading.set()
        if self.blocked is not None:
            await self.blocked.wait()
        (owner,) = (t for t in self.by_name.values() if segment.ledger_id in t.stored)
        async for found in owner.batches(segment, start_offset, visible_end):
            yield found

    def headers(self, segment: Segment, start_offset: int, visible_end: int) -> object:
        raise AssertionError("an export reads whole batches")


class Run:
    """A follower that runs, and what it told."""

    def __init__(
        self,
        cluster: MemoryCluster,
        tree: LocalTree,
        *topics: str,
        settings: FollowSettings = QUICK,
        pattern: re.Pattern[str] | None = None,
    ) -> None:
        self.said: list[str] = []
        self.published: list[ExportProgress] = []
        self.joined: list[JoinProgress] = []
        self.reports: list[ExportReport] = []
        self.stop = asyncio.Event()
        self._news = asyncio.Event()
        events = FollowEvents(
            published=self._told(self.published.append),
            joined=self._told(self.joined.append),
            looked=self._told(self.reports.append),
            trouble=self._told(partial(self._say, "trouble")),
            recovered=self._told(lambda: self.said.append("recovered")),
            left=self._told(partial(self._say, "left")),
        )
        follower = ExportFollower(
            cluster,  # type: ignore[arg-type]  # it serves no headers
            tree,
            topics,
            settings,
            pattern=pattern,
            events=events,
        )
        self.task = asyncio.create_task(follower.run(self.stop))
        self.task.add_done_callback(lambda _: self._news.set())

    def _say(self, what: str, topic: str, error: Exception) -> None:
        self.said.append(f"{what} {topic} {type(error).__name__}")

    def _told(self, call: Callable[..., None]) -> Callable[..., None]:
        def told(*args: object) -> None:
            call(*args)
            self._news.set()

        return told

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something that is told makes it true."""
        async with asyncio.timeout(WITHIN_S):
            while not condition():
                self._news.clear()
                await self._news.wait()
                if self.task.done() and not condition():
                    self.task.result()
                    pytest.fail(f"it ended: {self.said}")

    async def end(self) -> FollowReport:
        self.stop.set()
        async with asyncio.timeout(WITHIN_S):
            return await self.task


def orders(rows: int = 10, *, closed: bool = True) -> MemoryTopic:
    topic = MemoryTopic()
    topic.append([numbered(rows)], closed=closed)
    return topic


def exported(root: pathlib.Path, topic: str = "orders") -> int:
    return Manifest(LocalTree(root), topic).load().next_offset(0)


def temporary(root: pathlib.Path) -> list[pathlib.Path]:
    return list(root.rglob(".tmp-*"))


def test_open_ledgers_are_due_when_they_are_late_or_large() -> None:
    topic = MemoryTopic(partitions=2)
    topic.append([numbered(1)], closed=False, size_bytes=10)
    topic.append([], 1, closed=False)
    watch = RollWatch(5.0, 1000)
    assert watch.due(topic.log(), 100.0) == []
    assert watch.due(topic.log(), 104.9) == []
    assert watch.due(topic.log(), 105.0) == [0], "the empty one is left open"
    assert watch.due(topic.log(), 106.0) == [0], "until it was closed"
    topic.close_last()
    assert watch.due(topic.log(), 107.0) == []
    topic.append([numbered(1, 1)], closed=False, size_bytes=999)
    assert watch.due(topic.log(), 110.0) == [], "another ledger waits anew"
    assert watch.due(topic.log(), 114.9) == []
    topic.close_last()
    topic.append([numbered(1, 2)], closed=False, size_bytes=1000)
    assert watch.due(topic.log(), 115.0) == [0], "large"
    assert RollWatch(None, None).due(topic.log(), 1e9) == []


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (FollowSettings(poll_s=0), "poll_s"),
        (FollowSettings(lag_target_s=-1), "lag_target_s"),
        (FollowSettings(file_bytes=-1), "file_bytes"),
        (FollowSettings(poll_s=5, lag_target_s=9), "cannot be held"),
    ],
)
def test_settings_that_mean_nothing(settings: FollowSettings, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        settings.validate()


def test_a_look_is_a_quarter_of_the_lag_target() -> None:
    assert FollowSettings().look_every_s == 5.0
    assert FollowSettings(lag_target_s=2).look_every_s == 0.5
    assert FollowSettings(lag_target_s=0).look_every_s == 5.0
    with pytest.raises(ConfigError, match="regular expression"):
        topic_pattern("a(")


async def test_neither_topics_nor_a_pattern_or_both(tmp_path: pathlib.Path) -> None:
    for topics, pattern in (([], None), (["a"], "b")):
        with pytest.raises(ConfigError, match="either"):
            await export_follow_async(
                "127.0.0.1:1", topics, tmp_path, stop=asyncio.Event(), pattern=pattern
            )


async def test_records_arrive_though_nobody_closes_their_ledgers(tmp_path: pathlib.Path) -> None:
    topic = orders(closed=False)
    cluster = MemoryCluster(topic)
    run = Run(cluster, LocalTree(tmp_path), "orders")
    await run.until(lambda: exported(tmp_path) == 10)
    topic.append([numbered(5, 10)], closed=False)
    await run.until(lambda: exported(tmp_path) == 15)
    report = await run.end()
    assert cluster.rolls[:2] == [("orders", 0)] * 2
    done = report.topics["orders"]
    assert (done.rows, done.file_count, done.ledgers, report.left) == (15, 2, 2, {})
    assert sum(made.rows for made in run.published) == 15
    assert {made.topic for made in run.published} == {"orders"}


async def test_without_a_lag_target_ledgers_are_left_to_the_brokers(tmp_path: pathlib.Path) -> None:
    cluster = MemoryCluster(orders(closed=False))
    settings = FollowSettings(poll_s=0.001, lag_target_s=0, flush_bytes=0)
    run = Run(cluster, LocalTree(tmp_path), "orders", settings=settings)
    await run.until(lambda: len(run.reports) > 5)
    await run.end()
    assert (cluster.rolls, exported(tmp_path)) == ([], 0)
    assert run.reports[-1].open_ledgers == 1


async def test_small_files_are_joined_on_the_way(tmp_path: pathlib.Path) -> None:
    topic = MemoryTopic()
    run = Run(MemoryCluster(topic), LocalTree(tmp_path), "orders")
    for number in range(12):
        topic.append([numbered(20, number * 20)])
        await run.until(lambda end=20 * number + 20: exported(tmp_path) == end)  # type: ignore[misc]
    await run.until(lambda: bool(run.joined))
    report = await run.end()
    files = Manifest(LocalTree(tmp_path), "orders").load().of_partition(0)
    assert len(files) < 12
    assert sum(entry.rows for entry in files) == 240
    assert report.topics["orders"].joined == sum(made.files for made in run.joined)


async def test_trouble_is_told_once_and_passes(tmp_path: pathlib.Path) -> None:
    topic = orders()
    cluster = MemoryCluster(topic, MemoryTopic("other"))
    run = Run(cluster, LocalTree(tmp_path), "orders", "other")
    await run.until(lambda: len({report.topic for report in run.reports}) == 2)
    cluster.fault = BrokerUnavailable("nobody answers")
    before = cluster.looks
    await run.until(lambda: bool(run.said))
    async with asyncio.timeout(WITHIN_S):
        while cluster.looks < before + 4:
            cluster.looked.clear()
            await cluster.looked.wait()
    topic.append([numbered(5, 10)])
    cluster.fault = None
    await run.until(lambda: "recovered" in run.said and exported(tmp_path) == 15)
    report = await run.end()
    assert [line for line in run.said if line != "recovered"] in (
        ["trouble orders BrokerUnavailable"],
        ["trouble other BrokerUnavailable"],
    )
    assert not report.left


async def test_what_fails_at_the_start_is_not_waited_for(tmp_path: pathlib.Path) -> None:
    cluster = MemoryCluster(orders())
    cluster.fault = BrokerUnavailable("nobody answers")
    run = Run(cluster, LocalTree(tmp_path), "orders")
    async with asyncio.timeout(WITHIN_S):
        report = await run.task
    assert (list(report.left), report.topics, cluster.looks) == (["orders"], {}, 1)
    assert run.said == [], "it is the error of the whole, said by who started it"
    run = Run(cluster, LocalTree(tmp_path), pattern=topic_pattern(".*"))
    with pytest.raises(BrokerUnavailable):
        async with asyncio.timeout(WITHIN_S):
            await run.task


async def test_one_that_fails_first_is_waited_for_beside_others(tmp_path: pathlib.Path) -> None:
    """A service that starts with its cluster: a partition may have no owner yet."""
    cluster = MemoryCluster(orders(), MemoryTopic("late"))
    cluster.fault_of["late"] = BrokerUnavailable("nobody owns it yet")
    run = Run(cluster, LocalTree(tmp_path), "late", "orders")
    await run.until(lambda: "trouble late BrokerUnavailable" in run.said and bool(run.reports))
    del cluster.fault_of["late"]
    await run.until(lambda: {one.topic for one in run.reports} == {"late", "orders"})
    report = await run.end()
    assert (report.left, run.said[-1]) == ({}, "recovered")


async def test_all_that_fail_first_end_it(tmp_path: pathlib.Path) -> None:
    cluster = MemoryCluster(orders())
    cluster.fault = BrokerUnavailable("nobody answers")
    run = Run(cluster, LocalTree(tmp_path), "orders", "late")
    async with asyncio.timeout(WITHIN_S):
        report = await run.task
    assert (set(report.left), report.topics) == ({"orders", "late"}, {})
    assert "recovered" not in run.said


async def test_a_deleted_topic_is_left_and_the_others_go_on(tmp_path: pathlib.Path) -> None:
    topic = orders()
    cluster = MemoryCluster(topic, MemoryTopic("gone"))
    run = Run(cluster, LocalTree(tmp_path), "orders", "gone")
    await run.until(lambda: len({report.topic for report in run.reports}) == 2)
    del cluster.by_name["gone"]
    await run.until(lambda: "left gone UnknownTopic" in run.said)
    topic.append([numbered(5, 10)])
    await run.until(lambda: exported(tmp_path) == 15)
    report = await run.end()
    assert list(report.left) == ["gone"]


async def test_a_topic_that_was_created_again_is_not_mixed_in(tmp_path: pathlib.Path) -> None:
    cluster = MemoryCluster(orders())
    run = Run(cluster, LocalTree(tmp_path), "orders")
    await run.until(lambda: exported(tmp_path) == 10)
    again = MemoryTopic(topic_id="cd" * 16)
    again.append([numbered(50)])
    cluster.by_name["orders"] = again
    await run.until(lambda: "left orders ConfigError" in run.said)
    async with asyncio.timeout(WITHIN_S):
        report = await run.task  # nothing is left to follow
    assert exported(tmp_path) == 10
    assert "topic_id" in str(report.left["orders"])


async def test_a_pattern_takes_topics_that_come_and_lets_go_of_those_that_leave(
    tmp_path: pathlib.Path,
) -> None:
    cluster = MemoryCluster(orders(), MemoryTopic("not-this"))
    run = Run(cluster, LocalTree(tmp_path), pattern=topic_pattern("ord.*"))
    await run.until(lambda: exported(tmp_path) == 10)
    late = MemoryTopic("ord-late")
    late.next_ledger = 100
    late.append([numbered(3)])
    cluster.by_name["ord-late"] = late
    await run.until(lambda: exported(tmp_path, "ord-late") == 3)
    del cluster.by_name["orders"]
    looks = len(run.reports)
    await run.until(lambda: len(run.reports) > looks + 5)
    report = await run.end()
    assert sorted(report.topics) == ["ord-late", "orders"]
    assert (report.left, run.said) == ({}, [])


class FullTree(LocalTree):
    """A tree on a disk that may be full."""

    full = False
    full_for = ""
    """Files with this in their names only."""

    def _rename(self, source: pathlib.Path, target: pathlib.Path) -> None:
        if self.full and self.full_for in target.name:
            raise OSError(errno.ENOSPC, "No space left on device", str(source))
        super()._rename(source, target)


async def test_a_full_disk_is_waited_for_and_nothing_is_left_on_it(tmp_path: pathlib.Path) -> None:
    topic = orders()
    tree = FullTree(tmp_path)
    run = Run(MemoryCluster(topic), tree, "orders")
    await run.until(lambda: exported(tmp_path) == 10)
    tree.full = True
    topic.append([numbered(5, 10)])
    await run.until(lambda: "trouble orders OSError" in run.said)
    async with asyncio.timeout(WITHIN_S):
        while temporary(tmp_path):  # noqa: ASYNC110  # it tries again, and takes each back
            await asyncio.sleep(0)
    assert exported(tmp_path) == 10
    tree.full = False
    await run.until(lambda: exported(tmp_path) == 15)
    await run.until(lambda: "recovered" in run.said)
    await run.end()
    assert not temporary(tmp_path)


async def test_what_a_look_published_before_it_failed_is_counted(tmp_path: pathlib.Path) -> None:
    topic = MemoryTopic()
    tree = FullTree(tmp_path)
    run = Run(MemoryCluster(topic), tree, "orders")
    await run.until(lambda: bool(run.reports))
    tree.full, tree.full_for = True, f"p00000-{5:020d}-"
    topic.append([numbered(5)], size_bytes=20 << 20)
    topic.append([numbered(7, 5)], size_bytes=20 << 20)
    await run.until(lambda: "trouble orders OSError" in run.said)
    assert exported(tmp_path) == 5
    tree.full = False
    await run.until(lambda: "recovered" in run.said)
    report = await run.end()
    assert (report.topics["orders"].file_count, report.topics["orders"].rows) == (2, 12)


async def test_a_folder_that_is_not_mounted_any_more_is_waited_for(tmp_path: pathlib.Path) -> None:
    """Nothing is begun anew in the empty folder that is in its place."""
    topic = orders()
    lake, unmounted = tmp_path / "lake", tmp_path / "unmounted"
    run = Run(MemoryCluster(topic), LocalTree(lake), "orders")
    await run.until(lambda: bool(run.reports))
    lake.rename(unmounted)
    topic.append([numbered(5, 10)])
    await run.until(lambda: "trouble orders StorageFailed" in run.said)
    assert not lake.exists()
    unmounted.rename(lake)
    await run.until(lambda: exported(lake) == 15)
    await run.until(lambda: "recovered" in run.said)
    await run.end()


async def test_a_stop_waits_for_the_group_at_hand(tmp_path: pathlib.Path) -> None:
    cluster = MemoryCluster(orders())
    cluster.blocked = asyncio.Event()
    run = Run(cluster, LocalTree(tmp_path), "orders")
    async with asyncio.timeout(WITHIN_S):
        await cluster.reading.wait()
    run.stop.set()
    cluster.blocked.set()
    report = await run.end()
    assert report.topics["orders"].rows == exported(tmp_path) == 10


async def test_a_stop_drops_a_group_that_takes_too_long(tmp_path: pathlib.Path) -> None:
    cluster = MemoryCluster(orders())
    cluster.blocked = asyncio.Event()
    settings = FollowSettings(poll_s=0.005, lag_target_s=0.02, stop_grace_s=0.05)
    run = Run(cluster, LocalTree(tmp_path), "orders", settings=settings)
    async with asyncio.timeout(WITHIN_S):
        await cluster.reading.wait()
    report = await run.end()
    assert (report.topics, exported(tmp_path), temporary(tmp_path)) == ({}, 0, [])


async def test_two_followers_export_each_record_once(tmp_path: pathlib.Path) -> None:
    topic = MemoryTopic()
    cluster = MemoryCluster(topic)
    settings = FollowSettings(
        poll_s=0.002, lag_target_s=0.01, file_bytes=20_000, fmt="parquet", table=True
    )
    runs = [Run(cluster, LocalTree(tmp_path), "orders", settings=settings) for _ in range(2)]
    for number in range(10):
        topic.append([numbered(20, number * 20)], closed=number % 2 == 0)
        end = number * 20 + 20
        async with asyncio.timeout(WITHIN_S):
            while exported(tmp_path) < end:
                for run in runs:
                    if run.task.done():  # it should not be, and says why
                        run.task.result()
                cluster.looked.clear()
                await cluster.looked.wait()
    reports = [await run.end() for run in runs]
    assert sum(report.topics["orders"].rows for report in reports) == 200
    assert not any(report.left or run.said for report, run in zip(reports, runs, strict=True))
    files = Manifest(LocalTree(tmp_path), "orders").load().of_partition(0)
    assert sum(entry.rows for entry in files) == 200


async def test_a_broken_promise_of_our_own_ends_it(tmp_path: pathlib.Path) -> None:
    def broken() -> TopicLog:
        raise ZeroDivisionError

    cluster = MemoryCluster(orders())
    cluster.by_name["orders"].log = broken  # type: ignore[method-assign]
    run = Run(cluster, LocalTree(tmp_path), "orders")
    with pytest.raises(ZeroDivisionError):
        async with asyncio.timeout(WITHIN_S):
            await run.task
