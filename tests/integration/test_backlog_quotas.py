"""Backlog quotas on brokers: groups that are behind, producers that wait, are refused or go on
(F162, F001)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from octavo import AsyncClient, RecordMetadata, TopicPartition
from octavo.errors import BacklogQuotaExceeded, OctavoError
from octavo.proto import broker_pb2 as pb
from octavo.runtime.errors_of_groups import CoordinatorLoadInProgress
from octavo.serving import backlog_rounds, streams
from octavo.serving.backlog import Backlog
from octavo.serving.coordinating.coordinator import GroupCoordinator
from octavo.serving.coordinating.group_partition import GroupPartition
from octavo.serving.partition import backlog as gates
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.server import BrokerServer
from tests.group_brokers import World, world
from tests.metrics_client import page_of
from tests.serving_rig import make_batch, until
from tests.serving_server import batch_of, find_owner

RECORD = b"r" * 1_000
BATCH_BYTES = 1_200
"""No batch of one such record is larger."""


class Setup:
    """A topic `t` of one partition, and a client of its brokers."""

    def __init__(
        self, made: World, client: AsyncClient, owner: BrokerServer, shell: PartitionShell
    ) -> None:
        self.world = made
        self.owner = owner
        self.client = client
        self.shell = shell
        self.measurements = 0
        self.refusals = 0
        self._count(shell.backlog)

    def _count(self, gate: gates.BacklogGate) -> None:
        measured, refusal = gate.measured, gate.refusal

        def count_measured(found: Backlog | None, now_s: float, bytes_in: int) -> None:
            self.measurements += 1
            measured(found, now_s, bytes_in)

        def count_refusal() -> OctavoError:
            self.refusals += 1
            return refusal()

        gate.measured, gate.refusal = count_measured, count_refusal  # type: ignore[method-assign]

    async def send(self, count: int) -> list[int]:
        async with self.client.producer(compression_type="none") as producer:
            return [(await producer.send("t", RECORD)).offset for _ in range(count)]

    async def commit(self, group: str, offset: int) -> None:
        reply = await self.world.client.commit(group, await self.world.offset(0, offset))
        assert not reply.HasField("error")

    async def shut(self) -> None:
        await until(lambda: self.shell.backlog.is_shut, "the partition to take no more")

    async def opened(self) -> None:
        await until(lambda: not self.shell.backlog.is_shut, "the partition to take more")

    async def all_read(self) -> list[int]:
        """Offsets of everything that is retained."""
        async with self.client.reader("t", start="earliest") as reader:
            return [record.offset async for record in reader.read_to_end()]


@asynccontextmanager
async def prepared(
    monkeypatch: pytest.MonkeyPatch, brokers: int = 1, *, time_ms: int = -1, **config: str
) -> AsyncGenerator[Setup]:
    monkeypatch.setattr(backlog_rounds, "LOOK_S", 0.02)
    monkeypatch.setattr(gates, "CHECK_OVER_S", 0.05)
    monkeypatch.setattr(gates, "HOLD_MS", 50)
    page = {"metrics_port": 0, "metrics_partitions_max": 10}
    async with world(brokers, backlog_check_interval_ms=100, **page) as made:
        address = made.brokers[0].address
        async with AsyncClient(address) as client:
            named = {f"backlog.quota.{name}": value for name, value in config.items()}
            named["backlog.quota.time.ms"] = str(time_ms)
            await client.admin.create_topic("t", partitions=1, config=named)
            clients = {one.address: one for one in made.brokers}
            owner = made.server(await find_owner(clients, "t", 0))
            shell = owner.registry.find("t", 0)
            assert shell is not None
            yield Setup(made, client, owner, shell)


async def moved(found: Setup, group: str, offset: int) -> int:
    """Where the group is once it is not at `offset` any more."""
    async with asyncio.timeout(30):
        while True:
            committed = await found.world.client.committed(group)
            if committed["t", 0] != offset:
                return committed["t", 0]
            await asyncio.sleep(0.02)


async def test_f162_f001_a_burst_is_taken_up_to_the_limit_then_held_and_drained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every consumer is stopped: sends are acknowledged up to the limit, wait behind it, and go on
    when it is drained; all are there once."""
    quota = 20 * BATCH_BYTES
    async with prepared(monkeypatch, bytes=str(quota), policy="producer_hold") as found:
        await found.commit("stopped", 0)
        acknowledged = await found.send(20)
        assert acknowledged == list(range(20))
        async with found.client.producer(compression_type="none") as producer:
            waiting: list[asyncio.Future[RecordMetadata]] = []

            def is_shut() -> bool:
                if not found.shell.backlog.is_shut:
                    waiting.append(asyncio.ensure_future(producer.send("t", RECORD)))
                return found.shell.backlog.is_shut

            await until(is_shut, "the limit to be reached")
            last = asyncio.ensure_future(producer.send("t", RECORD))
            page = await page_of(found.owner.metrics.page.address)
            held = found.refusals
            await until(lambda: found.refusals > held + 2, "it to be sent again, and held again")
            assert not last.done(), "it waits, and nothing is dropped"
            end = found.shell.high_watermark
            await found.commit("stopped", end)
            await last
            await asyncio.gather(*waiting)
        await found.opened()
        stored = await found.all_read()
        assert stored == list(range(len(waiting) + 21))
    over = "octavo_broker_partitions_over_backlog_quota"
    assert page.value(over, policy="producer_hold") == 1
    assert page.value(over, policy="evict_oldest") == 0
    assert page.value("octavo_partition_backlog_bytes", topic="t", partition="0") > quota
    assert page.value("octavo_partition_backlog_quota_bytes", topic="t", partition="0") == quota


async def test_f162_refused_producers_hear_why_and_an_altered_topic_takes_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quota = str(2 * BATCH_BYTES)
    async with prepared(monkeypatch, bytes=quota, policy="producer_exception") as found:
        await found.send(5)
        measured = found.measurements
        await until(lambda: found.measurements > measured + 1)
        await found.send(1)  # no group, no backlog
        await found.commit("slow", 6)
        await found.commit("slower", 1)
        await found.shut()
        with pytest.raises(BacklogQuotaExceeded) as caught:
            await found.send(1)
        assert f"backlog.quota.bytes={quota}" in str(caught.value)
        assert "octavo group lag" in (caught.value.hint or "")
        await found.client.admin.alter_topic("t", config={"backlog.quota.bytes": "1000000"})
        await found.opened()
        offsets = await found.send(1)
        assert offsets == [6], "nothing of what was refused is there"
        await found.client.admin.alter_topic("t", config={"backlog.quota.time.ms": "1"})
        await found.shut()
        assert "backlog.quota.time.ms=1" in str(found.shell.backlog.excess)
        for group in ("slow", "slower"):
            await found.commit(group, 7)
        await found.opened()


async def test_f162_a_coordinator_that_is_away_holds_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with prepared(monkeypatch, brokers=2, bytes="1") as found:
        await found.send(3)
        await found.commit("slow", 1)
        await found.shut()
        home = (await found.world.client.find("slow")).partition
        real = GroupCoordinator.of_partition
        silent = {(home + 1) % 50}  # one that has no group of the topic

        async def of_partition(self: GroupCoordinator, partition: int) -> GroupPartition:
            if partition in silent:
                raise CoordinatorLoadInProgress("it is being read")
            return await real(self, partition)

        monkeypatch.setattr(GroupCoordinator, "of_partition", of_partition)
        await found.opened()
        await found.send(1)
        silent.clear()
        await found.shut()


async def test_f162_who_gets_no_answers_is_slowed_down_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "PAUSE_MAX_S", 0.2)
    async with prepared(monkeypatch, bytes="1", policy="producer_exception") as found:
        await found.send(2)
        await found.commit("slow", 0)
        await found.shut()
        call = found.world.brokers[0].stub.Produce()
        for _ in range(2):
            batch = batch_of(make_batch([RECORD]), topic="t", acks=0)
            await call.write(pb.ProduceRequest(batches=[batch]))
        await call.done_writing()
        replies = [reply async for reply in call]
        assert max(reply.throttle_ms for reply in replies) == 200
        stored = await found.all_read()
        assert stored == [0, 1, 2, 3]


async def test_f162_an_evicted_group_is_told_and_goes_on_where_it_was_put(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its member hears that the partition is lost; the records stay for everybody else."""
    quota = 10 * BATCH_BYTES
    async with prepared(monkeypatch, bytes=str(quota), policy="evict_oldest") as found:
        await found.send(10)
        await found.commit("ahead", 40)
        lost: list[TopicPartition] = []
        async with found.client.consumer(
            "t", group="slow", auto_offset_reset="earliest", enable_auto_commit=False,
            on_lost=lost.extend, max_poll_records=1,
        ) as consumer:  # fmt: skip
            first: list[int] = []
            while not first:
                first += [record.offset for record in await consumer.poll(timeout=0.2)]
            await consumer.commit()
            async with found.client.producer(compression_type="none") as producer:
                await producer.send_many("t", [RECORD] * 30)  # one batch: one eviction
            offset = await moved(found, "slow", 1)
            seen: list[int] = []
            async with asyncio.timeout(30):
                while not lost or offset not in seen:
                    seen += [record.offset for record in await consumer.poll(timeout=0.05)]
        assert first == [0]
        assert min(one for one in seen if one > 9) == offset, "it goes on where it was put"
        assert 0.7 * quota < (40 - offset) * len(RECORD) <= quota
        assert found.owner._backlogs.evicted > 0  # pyright: ignore[reportPrivateUsage]
        ahead = await found.world.client.committed("ahead")
        assert ahead == {("t", 0): 40}
        stored = await found.all_read()
        assert stored == list(range(40)), "retention keeps what it keeps"


async def test_f162_an_eviction_by_age_moves_groups_to_what_is_young_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with prepared(monkeypatch, time_ms=600, policy="evict_oldest") as found:
        await found.send(3)
        await found.commit("slow", 0)
        await until(lambda: found.shell.backlog.known is not None)

        put = await moved(found, "slow", 0)
        assert put <= 3
        (young,) = await found.send(1)
        while put != young + 1:  # all of it is too old at last
            put = await moved(found, "slow", put)
        stored = await found.all_read()
        assert stored == [0, 1, 2, 3]
