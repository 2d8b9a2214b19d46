"""Each read of a broker that a cleaner overtakes: the ledger it is about to read was replaced and
deleted, and it gives what the list names instead (K7). `test_partition_rereading` has the rule."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from octavo.proto import broker_pb2 as pb
from octavo.proto import peers_pb2
from octavo.proto.batch import decode_rows
from octavo.proto.segments import Segment
from octavo.serving.cold import ColdReader
from octavo.serving.group_lag.ends import _tell_time  # pyright: ignore[reportPrivateUsage]
from octavo.serving.partition.shell import PartitionShell
from tests.compaction_rig import keyed_batch
from tests.serving_rig import NOW_MS, until
from tests.serving_server import Client, batch_of, create_topic, fetch_of, find_owner, loopback

VALUES = (b"0", b"1", b"2", b"3")


class Overtaken:
    """A compacted partition of closed segments, read from bookies only."""

    def __init__(self, client: Client, shell: PartitionShell) -> None:
        self.client = client
        self.shell = shell
        self.met: list[int] = []
        """Ledgers that were deleted when a read came to them."""

    def overtake(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        """Let the first call of a method of the cold reader begin only once its ledger is gone."""
        real = getattr(ColdReader, name)

        async def late(
            reader: ColdReader, segment: Segment, *args: object, **more: object
        ) -> object:
            if not self.met:
                self.met.append(segment.ledger_id)
                await self._clean()
                assert all(one.ledger_id != segment.ledger_id for one in self.shell.described())
            return await real(reader, segment, *args, **more)

        monkeypatch.setattr(ColdReader, name, late)

    async def _clean(self) -> None:
        request = pb.CompactRequest(topic="orders", partition=0)
        reply = await self.client.stub.Compact(request)
        assert not reply.HasField("error"), reply.error

        def is_swept() -> bool:
            self.shell.tick()
            return not self.shell._chain.state.trash  # pyright: ignore[reportPrivateUsage]

        await until(is_swept, "empty trash")


@pytest.fixture
async def overtaken() -> AsyncIterator[Overtaken]:
    async with loopback() as cluster:
        client = await cluster.broker("broker-1")
        await create_topic(client, cleanup_policy="compact")
        await find_owner({client.address: client}, "orders", 0)
        shell = cluster.servers[0].registry.find("orders", 0)
        assert shell is not None
        for value in VALUES:
            (ack,) = await client.produce(batch_of(keyed_batch([(b"key", value)])))
            assert not ack.HasField("error"), ack.error
            await shell.roll()
        (ack,) = await client.produce(batch_of(keyed_batch([(b"other", b"value")])))
        assert not ack.HasField("error"), ack.error
        await shell.roll()
        tail = shell._driver.tail  # pyright: ignore[reportPrivateUsage]
        tail.drop_below(shell.high_watermark)
        yield Overtaken(client, shell)


async def test_k7_a_fetch(overtaken: Overtaken, monkeypatch: pytest.MonkeyPatch) -> None:
    overtaken.overtake(monkeypatch, "read_segment")
    (part,) = (await overtaken.client.fetch(fetch_of(0))).partitions
    assert not part.HasField("error"), part.error
    rows = decode_rows(part.batches[0])
    assert (list(rows.offsets), list(rows.values)) == ([3], [b"3"])
    assert part.next_offset <= part.high_watermark
    assert overtaken.met


async def test_k7_a_search_by_time(overtaken: Overtaken, monkeypatch: pytest.MonkeyPatch) -> None:
    overtaken.overtake(monkeypatch, "time_index")
    asked = pb.ListOffset(topic="orders", partition=0, timestamp_ms=NOW_MS)
    (listed,) = (
        await overtaken.client.stub.ListOffsets(pb.ListOffsetsRequest(offsets=[asked]))
    ).offsets
    assert not listed.HasField("error"), listed.error
    assert listed.offset == 3
    assert overtaken.met


async def test_k7_the_time_of_a_group_position(
    overtaken: Overtaken, monkeypatch: pytest.MonkeyPatch
) -> None:
    overtaken.overtake(monkeypatch, "header_in")
    answer = peers_pb2.ToldLog()
    await _tell_time(overtaken.shell, 0, answer)
    assert [told.position for told in answer.times] == [0]
    assert overtaken.met
