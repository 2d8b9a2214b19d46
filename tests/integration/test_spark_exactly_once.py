"""Batches of sinks over real processes: each is added once, whatever dies between (ADR 67)."""

from __future__ import annotations

import asyncio
import pathlib
import time
import uuid
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pytest

from octavo import Client
from octavo.errors import OctavoError, UnknownTopic
from octavo.proto.sink_staging import staging_topic
from octavo.runtime.errors import StorageFailed
from octavo.spark import exactly_once, staging_rows
from octavo.spark.exactly_once import Committing, commit
from octavo.spark.publication import SinkState
from octavo.spark.sink_client import Numbered, SinkClient, StagedRange
from octavo.spark.sink_options import SinkColumns, WriteOptions
from octavo.spark.staged import Target
from octavo.spark.staging import Batch, Staged, stage
from octavo.testing import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.process

T = TypeVar("T")

COLUMNS = SinkColumns("value", key="key")


@dataclass
class Sink:
    """A sink of one topic, as a driver of Spark sees it."""

    client: Client
    servers: str
    topic: str
    sink_id: str = field(default_factory=lambda: f"query/{uuid.uuid4()}")

    @property
    def options(self) -> WriteOptions:
        return WriteOptions(self.servers, self.topic, True)

    def staged(self, batch_id: int, mark: str, *tasks: int) -> list[Staged]:
        """A batch staged by tasks with so many rows each; `mark` tells attempts apart."""
        found: list[Staged] = []
        number = 0
        for count in tasks:
            numbers = range(number, number + count)
            number += count
            keys = pa.array([f"k{n % 10}" if n % 3 else None for n in numbers])
            values = pa.array([f"{batch_id}/{n}/{mark}" for n in numbers])
            rows = pa.record_batch({"key": keys, "value": values})
            found.append(stage([rows], self.options, COLUMNS, Batch(self.sink_id, batch_id)))
        return found

    def commit(self, batch_id: int, staged: Sequence[Staged], *, is_last: bool = False) -> None:
        commit(self.options, Batch(self.sink_id, batch_id), staged, is_last=is_last)

    def added(self) -> dict[int, tuple[list[int], set[str]]]:
        """By batch: the numbers of its rows as the log has them, and which attempts they are of."""
        found: dict[int, tuple[list[int], set[str]]] = {}
        with self.client.reader(self.topic, start="earliest") as reader:
            for record in reader.read_to_end():
                batch_id, number, mark = (record.value or b"").decode().split("/")
                numbers, marks = found.setdefault(int(batch_id), ([], set()))
                numbers.append(int(number))
                marks.add(mark)
        return {batch_id: (sorted(numbers), marks) for batch_id, (numbers, marks) in found.items()}

    def left_staged(self) -> int:
        log = self.client.admin.describe_log(staging_topic(self.sink_id), 0)
        return log.high_watermark - log.log_start


def sink_on(servers: str) -> Iterator[Sink]:
    with Client(servers) as client:
        topic = f"once-{uuid.uuid4().hex[:8]}"
        client.admin.create_topic(topic, partitions=3)
        yield Sink(client, servers, topic)


@pytest.fixture
def sink(shared_cluster: LocalCluster) -> Iterator[Sink]:
    yield from sink_on(shared_cluster.bootstrap_servers)


def test_nothing_is_seen_before_the_commit_and_a_replay_adds_nothing(sink: Sink) -> None:
    staged = sink.staged(0, "a", 300, 0, 200)
    lost = sink.staged(0, "lost", 100)
    assert sink.added() == {}
    assert sink.left_staged() > 0
    sink.commit(0, staged)
    assert sink.added() == {0: (list(range(500)), {"a"})}
    assert sink.left_staged() == 0  # what an attempt left that was not committed went, too
    assert lost[0].pieces > 0
    again = sink.staged(0, "b", 100, 100, 100, 200)
    assert all(one.was_decided and not one.pieces for one in again)
    sink.commit(0, again)
    sink.commit(1, sink.staged(1, "c", 10))
    sink.commit(2, sink.staged(2, "d", 0))
    sink.commit(3, sink.staged(3, "e", 7))
    assert sink.added() == {
        0: (list(range(500)), {"a"}),
        1: (list(range(10)), {"c"}),
        3: (list(range(7)), {"e"}),
    }


class Died(Exception):
    """Stands for kill -9 of a driver."""


class Dying(SinkClient):
    """A driver that dies before or after the n-th call of one kind."""

    def __init__(self, servers: str, kind: str, number: int, *, after: bool) -> None:
        super().__init__(servers)
        self._dies = (kind, number, after)
        self._calls_of: dict[str, int] = {}

    async def _dying(self, kind: str, call: Coroutine[object, object, T]) -> T:
        seen = self._calls_of[kind] = self._calls_of.get(kind, 0) + 1
        due = (kind, seen) == self._dies[:2]
        if due and not self._dies[2]:
            call.close()
            raise Died
        result = await call
        if due:
            raise Died
        return result

    async def decide_sink(
        self, sink_id: str, batch_id: int, plan: bytes, staged: StagedRange | None
    ) -> SinkState:
        return await self._dying("decide", super().decide_sink(sink_id, batch_id, plan, staged))

    async def store(self, target: Target, batches: Sequence[Numbered]) -> None:
        await self._dying("store", super().store(target, batches))

    async def published_sink(self, sink_id: str, batch_id: int) -> None:
        await self._dying("published", super().published_sink(sink_id, batch_id))


STEPS = [
    (kind, number, after)
    for kind, numbers in (("decide", (1,)), ("store", (1, 2, 3)), ("published", (1,)))
    for number in numbers
    for after in (False, True)
]


async def commit_until_death(client: SinkClient, batch: Batch, of: list[Staged]) -> None:
    async with client:
        with pytest.raises((Died, ExceptionGroup)):
            await Committing(client, batch, of).run()


def test_a_driver_dies_at_each_step_and_the_next_one_finishes(sink: Sink) -> None:
    for batch_id, (kind, number, after) in enumerate(STEPS):
        first = sink.staged(batch_id, "first", 40, 40)
        client = Dying(sink.servers, kind, number, after=after)
        asyncio.run(commit_until_death(client, Batch(sink.sink_id, batch_id), first))
        sink.commit(batch_id, sink.staged(batch_id, "second", 20, 20, 40))
        numbers, marks = sink.added()[batch_id]
        assert numbers == list(range(80)), (kind, number, after)
        # What was decided is what counts, however little of it was sent.
        assert marks == {"second" if (kind, after) == ("decide", False) else "first"}
        assert sink.left_staged() == 0


async def commit_all_at_once(sink: Sink, batch: Batch, attempts: list[list[Staged]]) -> None:
    async def one(mine: list[Staged]) -> None:
        async with SinkClient(sink.servers) as client:
            await Committing(client, batch, mine).run()

    await asyncio.gather(*(one(mine) for mine in attempts))


def test_three_drivers_commit_one_batch_at_the_same_time(sink: Sink) -> None:
    for batch_id in range(3):
        attempts = [sink.staged(batch_id, mark, 100, 100) for mark in ("a", "b", "c")]
        asyncio.run(commit_all_at_once(sink, Batch(sink.sink_id, batch_id), attempts))
        numbers, marks = sink.added()[batch_id]
        assert numbers == list(range(200))
        assert len(marks) == 1


def test_a_transaction_is_written_once_and_leaves_nothing_staged(sink: Sink) -> None:
    sink.commit(0, sink.staged(0, "a", 50), is_last=True)
    with pytest.raises(UnknownTopic):
        sink.left_staged()
    sink.commit(0, sink.staged(0, "b", 50), is_last=True)
    assert sink.added() == {0: (list(range(50)), {"a"})}


class Stalling(SinkClient):
    """A driver that stands still before or after a call of one kind, and goes on much later."""

    def __init__(self, servers: str, kind: str, *, after: bool) -> None:
        super().__init__(servers)
        self._stalls = (kind, after)
        self.reached = asyncio.Event()
        self.goes_on = asyncio.Event()

    async def _stalling(self, kind: str, call: Coroutine[object, object, T]) -> T:
        if (kind, False) == self._stalls:
            await self._stand_still()
        result = await call
        if (kind, True) == self._stalls:
            await self._stand_still()
        return result

    async def _stand_still(self) -> None:
        self.reached.set()
        await self.goes_on.wait()

    async def decide_sink(
        self, sink_id: str, batch_id: int, plan: bytes, staged: StagedRange | None
    ) -> SinkState:
        return await self._stalling("decide", super().decide_sink(sink_id, batch_id, plan, staged))

    async def store(self, target: Target, batches: Sequence[Numbered]) -> None:
        await self._stalling("store", super().store(target, batches))

    async def published_sink(self, sink_id: str, batch_id: int) -> None:
        await self._stalling("published", super().published_sink(sink_id, batch_id))


async def commit_behind_others(sink: Sink, slow: Stalling, late: list[Staged], later: int) -> None:
    """Another driver commits the same batch, and so many that follow it, while this one stands."""
    async with slow:
        committing = asyncio.ensure_future(Committing(slow, Batch(sink.sink_id, 0), late).run())
        await slow.reached.wait()
        for batch_id in range(1 + later):
            # Only now: tasks of a batch begin when the one before is committed.
            staged = await asyncio.to_thread(sink.staged, batch_id, "quick", 60)
            async with SinkClient(sink.servers) as quick:
                await Committing(quick, Batch(sink.sink_id, batch_id), staged).run()
        slow.goes_on.set()
        await committing


@pytest.mark.parametrize("later", [0, 2])
@pytest.mark.parametrize(
    ("kind", "after", "decided"),
    [
        ("decide", False, "quick"),
        ("decide", True, "late"),
        ("store", False, "late"),
        ("published", False, "late"),
    ],
)
def test_a_driver_that_was_taken_for_dead_goes_on_and_does_no_harm(
    sink: Sink, kind: str, after: bool, decided: str, later: int
) -> None:
    """It meets what is published, trimmed, or of a later epoch, and ends in peace."""
    late = sink.staged(0, "late", 30, 30)
    slow = Stalling(sink.servers, kind, after=after)
    asyncio.run(commit_behind_others(sink, slow, late, later))
    added = sink.added()
    assert added.pop(0) == (list(range(60)), {decided})
    assert added == {n: (list(range(60)), {"quick"}) for n in range(1, 1 + later)}


def test_a_decision_whose_rows_are_gone_stays_and_says_so(sink: Sink) -> None:
    """Somebody deletes the staging topic between decision and publication: nothing is made up."""
    first = sink.staged(0, "first", 40)
    client = Dying(sink.servers, "store", 1, after=False)
    asyncio.run(commit_until_death(client, Batch(sink.sink_id, 0), first))
    sink.client.admin.delete_topic(staging_topic(sink.sink_id))
    with pytest.raises(UnknownTopic):
        sink.commit(0, sink.staged(0, "second", 40))
    sink.client.admin.create_topic(staging_topic(sink.sink_id), partitions=1)
    with pytest.raises(StorageFailed, match="was made anew"):
        sink.commit(0, sink.staged(0, "third", 40))
    assert sink.added() == {}


def test_a_decision_whose_staged_records_were_trimmed_stays_and_says_so(sink: Sink) -> None:
    first = sink.staged(0, "first", 40)
    client = Dying(sink.servers, "store", 1, after=False)
    asyncio.run(commit_until_death(client, Batch(sink.sink_id, 0), first))
    topic = staging_topic(sink.sink_id)
    sink.client.admin.delete_records(topic, 0, before=1)
    with pytest.raises(StorageFailed, match=r"comes where 0 is due|0 of"):
        sink.commit(0, [])
    assert sink.added() == {}


def test_a_batch_that_its_writer_left_is_published_before_the_next_one(sink: Sink) -> None:
    """A checkpoint that skipped a decided batch: its rows are not lost."""
    first = sink.staged(0, "first", 40)
    client = Dying(sink.servers, "store", 1, after=False)
    asyncio.run(commit_until_death(client, Batch(sink.sink_id, 0), first))
    sink.commit(1, sink.staged(1, "next", 30))
    assert sink.added() == {0: (list(range(40)), {"first"}), 1: (list(range(30)), {"next"})}
    assert sink.left_staged() == 0


def test_rows_keep_keys_tombstones_headers_and_the_partition_they_name(sink: Sink) -> None:
    kind = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
    headers = [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None, []]
    rows = pa.record_batch(
        {
            "key": pa.array([b"k", None, b"k"]),
            "value": pa.array([b"v", b"w", None]),
            "headers": pa.array(headers, kind),
            "partition": pa.array([2, 1, 2], pa.int32()),
        }
    )
    columns = SinkColumns("value", key="key", headers="headers", partition="partition")
    batch = Batch(sink.sink_id, 0)
    sink.commit(0, [stage([rows], sink.options, columns, batch)])
    with sink.client.reader(sink.topic, start="earliest") as reader:
        found = [(r.partition, r.key, r.value, tuple(r.headers)) for r in reader.read_to_end()]
    assert sorted(found, key=lambda row: row[0]) == [
        (1, None, b"w", ()),
        (2, b"k", b"v", (("h", b"1"), ("h", None))),
        (2, b"k", None, ()),
    ]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"exclusive.writer": "true"}, "its exclusive writer only"),
        ({"cleanup.policy": "compact"}, "have no key"),
        ({"max.message.bytes": "100"}, "100 are the limit"),
    ],
)
def test_what_the_topic_would_refuse_is_refused_when_it_is_staged(
    sink: Sink, settings: dict[str, str], says: str
) -> None:
    sink.client.admin.alter_topic(sink.topic, settings)
    rows = pa.record_batch({"key": pa.array([None], pa.binary()), "value": pa.array([b"x" * 200])})
    with pytest.raises(OctavoError, match=says):
        stage([rows], sink.options, COLUMNS, Batch(sink.sink_id, 0))
    with pytest.raises(UnknownTopic):
        sink.left_staged()


def test_many_pieces_of_many_partitions_are_published_in_rounds(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round is as large as memory allows; sequences go on over rounds, and over a death."""
    monkeypatch.setattr(exactly_once, "ROUND_BYTES", 1)
    monkeypatch.setattr(staging_rows, "PIECE_BYTES", 1 << 10)
    first = sink.staged(0, "first", 400, 300)
    assert sum(one.pieces for one in first) > 20
    client = Dying(sink.servers, "store", 9, after=True)
    asyncio.run(commit_until_death(client, Batch(sink.sink_id, 0), first))
    sink.commit(0, [])
    assert sink.added() == {0: (list(range(700)), {"first"})}


def owner_of(sink: Sink, cluster: LocalCluster) -> str:
    """The broker that serves partition 0, once somebody does."""
    names = {one.address: name for name, one in cluster.processes.items()}
    deadline_s = time.monotonic() + 30
    while True:
        told = sink.client.admin.describe_topic(sink.topic).partitions[0]
        if told.owner_address in names:
            return names[told.owner_address]
        if time.monotonic() > deadline_s:
            raise AssertionError(f"nobody of {names} is the owner: {told}")


def test_an_owner_and_a_driver_are_killed_between_decision_and_publication() -> None:
    """kill -9 of a broker that stored a part: the next owner knows what is stored (I9)."""
    with LocalCluster(brokers=2) as cluster:
        for sink in sink_on(cluster.bootstrap_servers):
            staged = sink.staged(0, "first", 60, 60)
            client = Dying(sink.servers, "store", 2, after=True)
            asyncio.run(commit_until_death(client, Batch(sink.sink_id, 0), staged))
            cluster.kill(owner_of(sink, cluster))
            sink.commit(0, sink.staged(0, "second", 120))
            assert sink.added() == {0: (list(range(120)), {"first"})}


@pytest.mark.spark
def test_spark_streams_add_each_batch_once_over_a_lost_commit(
    spark: SparkSession, sink: Sink, tmp_path: pathlib.Path
) -> None:
    """The last commit of the checkpoint is gone: its batch is run again with other borders."""
    for part in range(2):
        text = "\n".join(f"{part}/{n}/x" for n in range(100))
        (tmp_path / f"{part}.txt").write_text(text)

    def run(partitions: int) -> None:
        rows = spark.readStream.option("maxFilesPerTrigger", 1).text(f"{tmp_path}/*.txt")
        writer = rows.repartition(partitions).writeStream.format("octavo")
        query = (
            writer.option("octavo.bootstrap.servers", sink.servers)
            .option("topic", sink.topic)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run(2)
    once = {part: (list(range(100)), {"x"}) for part in range(2)}
    assert sink.added() == once
    commits = tmp_path / "checkpoint" / "commits"
    for name in ("1", ".1.crc"):
        (commits / name).unlink()
    run(3)
    assert (commits / "1").exists()
    assert sink.added() == once


@pytest.mark.spark
def test_spark_writes_a_transaction_once(spark: SparkSession, sink: Sink) -> None:
    for attempt in ("a", "b"):
        rows = spark.range(100).selectExpr(f"concat('0/', id, '/{attempt}') AS value")
        writer = rows.write.format("octavo").option("octavo.bootstrap.servers", sink.servers)
        writer.options(topic=sink.topic, txnId=sink.topic).mode("append").save()
    assert sink.added() == {0: (list(range(100)), {"a"})}
