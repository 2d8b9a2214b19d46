"""What one send asks for besides being stored, against the fake broker (F032, X14)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import cast

import grpc
import pyarrow as pa
import pytest

from octavo import AsyncClient
from octavo.client.messaging.cluster.transport import ProduceCall
from octavo.client.messaging.partitioner import partition_of
from octavo.runtime.errors import ConfigError, DedupWindowFull, NotEnoughReplicas
from tests.bookie_rig import until
from tests.fake_broker import FakeCluster


async def test_f032_each_send_waits_for_the_promise_that_it_asked_for(
    client: AsyncClient, fake: FakeCluster
) -> None:
    async with client.producer(enable_idempotence=False, linger_ms=50) as producer:
        await producer.send("one", b"first")
        fake.brokers[0].faults.hold.clear()  # the broker answers nothing
        answered = [producer.send_nowait("one", b"answered", acks=acks) for acks in (1, "all")]
        taken = producer.send_nowait("one", b"taken", acks=0)
        last = producer.send_nowait("one", b"last")
        assert (await taken).offset == -1
        assert not any(future.done() for future in (*answered, last))
        fake.brokers[0].faults.hold.set()
        assert [(await future).offset for future in (*answered, last)] == [1, 2, 4]
    assert fake.log("one").values() == [b"first", b"answered", b"answered", b"taken", b"last"]


async def test_f032_many_records_and_columns_wait_for_the_promise_that_they_asked_for(
    client: AsyncClient, fake: FakeCluster
) -> None:
    table = pa.table({"value": ["x", "y"]})
    async with client.producer(acks=0) as hasty:
        assert (await hasty.send_arrow("one", table)).unknown_offsets == 2
    async with client.producer(enable_idempotence=False) as producer:
        fake.brokers[0].faults.hold.clear()  # the broker answers nothing
        taken = await producer.send_many("one", [b"a", b"b"], acks=0)
        columns = await producer.send_arrow("one", table, acks=0)
        assert (taken.unknown_offsets, columns.unknown_offsets) == (2, 2)
        answered = asyncio.ensure_future(producer.send_many("one", [b"c", b"d"], acks=1))
        await until(lambda: producer.engine().unacknowledged() == 2)
        fake.brokers[0].faults.hold.set()
        assert (await answered).offsets(0) == [range(6, 8)]
        for copies, told in ((2, None), (3, NotEnoughReplicas)):
            with contextlib.nullcontext() if told is None else pytest.raises(told):
                await producer.send_many("one", [b"e"], min_insync_replicas=copies)
            with contextlib.nullcontext() if told is None else pytest.raises(told):
                await producer.send_arrow("one", table, min_insync_replicas=copies)
    stored = b"".join(value or b"" for value in fake.log("one").values())
    assert stored == b"xyabxycdexy"


async def test_f032_an_answer_to_acks_0_hides_no_silent_broker(
    client: AsyncClient, fake: FakeCluster
) -> None:
    """Brokers answer batches of acks=0, too: each counts once, so what else is owed stays owed."""
    fake.brokers[0].faults.answers_acks_0 = True
    async with client.producer(enable_idempotence=False, linger_ms=0) as producer:
        await producer.send("one", b"first", acks=0)
        await producer.send("one", b"second")
        fake.brokers[0].faults.hold.clear()
        futures = [producer.send_nowait("one", b"%d" % n, acks=(0, "all")[n % 2]) for n in range(4)]
        link = next(iter(producer.engine().delivery._links.values()))  # pyright: ignore[reportPrivateUsage]
        await futures[2]
        fake.brokers[0].faults.hold.set()
        await producer.flush(60)
        await until(lambda: not link._owed)  # pyright: ignore[reportPrivateUsage]
        assert link._progress.owed == 0  # pyright: ignore[reportPrivateUsage]


async def test_a4_a_stream_that_ends_while_closing_waits_for_it_is_no_error_of_closing(
    client: AsyncClient, fake: FakeCluster
) -> None:
    async with client.producer(acks=0) as producer:
        await producer.send("one", b"taken")
        link = next(iter(producer.engine().delivery._links.values()))  # pyright: ignore[reportPrivateUsage]
        found = link._call  # pyright: ignore[reportPrivateUsage]
        assert found is not None

        class Ends:
            """The connection is lost while the end is being written."""

            async def done_writing(self) -> None:
                link._call = None  # pyright: ignore[reportPrivateUsage]

            async def code(self) -> grpc.StatusCode:
                return grpc.StatusCode.UNAVAILABLE

        link._call = cast("ProduceCall", Ends())  # pyright: ignore[reportPrivateUsage]
        await link.written_out(1.0)
        link._call = found  # pyright: ignore[reportPrivateUsage]
    assert fake.log("one").values() == [b"taken"]


async def test_f032_what_a_send_may_not_ask_for(client: AsyncClient, fake: FakeCluster) -> None:
    async with client.producer() as numbered:
        for acks in (0, 1, "all"):
            with pytest.raises(ConfigError, match="this producer is idempotent"):
                await numbered.send("one", b"v", acks=acks)
            with pytest.raises(ConfigError, match="this producer is idempotent"):
                numbered.send_nowait("one", b"v", acks=acks)
            with pytest.raises(ConfigError, match="this producer is idempotent"):
                await numbered.send_many("one", [b"v"], acks=acks)
            with pytest.raises(ConfigError, match="this producer is idempotent"):
                await numbered.send_arrow("one", pa.table({"value": ["v"]}), acks=acks)
    async with client.producer(enable_idempotence=False) as producer:
        for wrong in (2, "1.0", True, -2, b"1", [1]):
            with pytest.raises(ConfigError, match="is not allowed"):
                await producer.send("one", b"v", acks=wrong)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        for copies in (0, 65, -1, True, "2", 1.5):
            with pytest.raises(ConfigError, match="min_insync_replicas"):
                await producer.send("one", b"v", min_insync_replicas=copies)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        with pytest.raises(ConfigError, match="nobody would hear"):
            await producer.send("one", b"v", acks=0, min_insync_replicas=2)
    assert fake.log("one").values() == []


async def test_f032_a_topic_that_asks_for_less_is_told_at_once(
    client: AsyncClient, fake: FakeCluster
) -> None:
    """Waiting for bookies would not help; the sequence is used again by what comes next (§18)."""
    async with client.producer() as producer:
        await producer.send("one", b"first", min_insync_replicas=2)
        futures = [
            producer.send_nowait("one", b"%d" % n, min_insync_replicas=(None, 3)[n % 2])
            for n in range(6)
        ]
        for number, future in enumerate(futures):
            if number % 2:
                with pytest.raises(NotEnoughReplicas, match=r"min\.insync\.replicas is 2"):
                    await future
            else:
                await future
    assert fake.log("one").values() == [b"first", b"0", b"2", b"4"]


# --- records that are kept once (X14) ------------------------------------------------------------


@pytest.mark.parametrize("numbered", [True, False])
async def test_x14_a_second_send_is_told_of_the_first(
    client: AsyncClient, fake: FakeCluster, numbered: bool
) -> None:
    async with client.producer(enable_idempotence=numbered, linger_ms=20) as producer:
        first = await producer.send("one", b"paid", dedup_id="order-1", headers={"h": b"1"})
        assert not first.duplicate
        futures = [
            producer.send_nowait("one", b"a"),
            producer.send_nowait("one", b"b", dedup_id=b"order-2"),
            producer.send_nowait("one", b"c"),
            producer.send_nowait("one", b"again", dedup_id=b"order-1"),
            producer.send_nowait("one", b"d", dedup_id=b"order-3"),
            producer.send_nowait("one", b"e"),
        ]
        told = [await future for future in futures]
        assert [(one.offset, one.duplicate) for one in told] == [
            (1, False),
            (2, False),
            (3, False),
            (0, True),
            (4, False),
            (5, False),
        ]
    assert fake.log("one").values() == [b"paid", b"a", b"b", b"c", b"d", b"e"]
    async with client.reader("one", start="earliest") as reader:
        records = [record async for record in reader.read_to_end()]
    assert records[0].headers == [("h", b"1"), ("dedup_id", b"order-1")]


async def test_x14_sends_before_the_topic_is_known_and_over_lost_replies(
    client: AsyncClient, fake: FakeCluster
) -> None:
    async with client.producer() as producer:
        early = [producer.send_nowait("one", b"%d" % n, dedup_id=f"{n % 2}") for n in range(4)]
        assert [(await one).offset for one in early] == [0, 1, 0, 1]
        fake.brokers[0].faults.lose_replies = 1
        after = [producer.send_nowait("one", b"n%d" % n, dedup_id=f"n{n}") for n in range(4)]
        after.append(producer.send_nowait("one", b"numbered"))
        assert [(await one).offset for one in after] == [2, 3, 4, 5, 6]
    assert fake.log("one").values() == [b"0", b"1", b"n0", b"n1", b"n2", b"n3", b"numbered"]


async def test_x14_an_id_without_a_key_finds_its_partition(
    client: AsyncClient, fake: FakeCluster
) -> None:
    async with client.producer(linger_ms=0) as one, client.producer(linger_ms=0) as other:
        for number in range(30):
            first = await one.send("orders", b"v", dedup_id=f"id-{number}")
            again = await other.send("orders", b"v", dedup_id=f"id-{number}")
            assert (first.partition, first.offset) == (again.partition, again.offset)
            assert again.duplicate
        keyed = await one.send("orders", b"v", key=b"k", dedup_id="id-0")
        assert keyed.partition == partition_of(b"k", 3), "a key decides as ever"
    assert sum(len(fake.log("orders", number).values()) for number in range(3)) in (30, 31)


async def test_x14_what_is_no_id(client: AsyncClient, fake: FakeCluster) -> None:
    async with client.producer() as producer:
        for wrong in ("", b"", "x" * 129, 7, bytearray(b"a")):
            with pytest.raises(ConfigError, match="dedup_id"):
                await producer.send("one", b"v", dedup_id=wrong)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        with pytest.raises(ConfigError, match="would hide it"):
            await producer.send("one", b"v", dedup_id="a", headers=[("dedup_id", b"b")])
    async with client.producer(acks=1) as plain:
        with pytest.raises(ConfigError, match="acks=1"):
            await plain.send("one", b"v", dedup_id="a")
        assert (await plain.send("one", b"v", dedup_id="a", acks="all")).offset == 0
    assert fake.log("one").values() == [b"v"]


async def test_x14_a_full_window_holds_the_send_until_it_may_go(
    client: AsyncClient, fake: FakeCluster
) -> None:
    async with client.producer() as producer:
        fake.brokers[0].faults.refuse = [DedupWindowFull("2 ids count", throttle_ms=20)] * 3
        held = producer.send_nowait("one", b"held", dedup_id="a")
        behind = producer.send_nowait("one", b"behind")
        assert [(await one).offset for one in (held, behind)] == [0, 1]
    async with client.producer(delivery_timeout_ms=1_500, request_timeout_ms=1_200) as producer:
        fake.brokers[0].faults.refuse = [DedupWindowFull("2 ids count", throttle_ms=20)] * 99
        with pytest.raises(DedupWindowFull, match="it was not stored"):
            await producer.send("one", b"never", dedup_id="b")
        fake.brokers[0].faults.refuse = []
        assert (await producer.send("one", b"later")).offset == 2


@pytest.mark.parametrize("numbered", [True, False])
async def test_x14_many_with_ids_are_told_of_the_first_ones(
    client: AsyncClient, fake: FakeCluster, numbered: bool
) -> None:
    ids = [f"id-{number}" for number in range(600)]  # more than may be under way at a time
    values = [one.encode() for one in ids]
    async with client.producer(enable_idempotence=numbered) as producer:
        first = await producer.send("orders", b"before", dedup_id="id-7")
        report = await producer.send_many("orders", iter(values), dedup_ids=iter(ids))
        assert (report.count, report.duplicates) == (600, 1)
        assert range(first.offset, first.offset + 1) in report.offsets(first.partition)
        assert "1 of them duplicates" in repr(report)
        again = await producer.send_many("orders", values, dedup_ids=ids)
        assert (again.count, again.duplicates) == (600, 600)
        keyed = await producer.send_many(
            "orders", [b"v"] * 3, keys=[b"k", None, b"k"], dedup_ids=["n", "id-1", "m"]
        )
        assert (keyed.count, keyed.duplicates) == (3, 1), "a key decides, else the id"
        home = partition_of(b"k", 3)
        assert fake.log("orders", home).values()[-2:] == [b"v", b"v"]
    stored = [value or b"" for n in range(3) for value in fake.log("orders", n).values()]
    assert sorted(stored) == sorted([*values[:7], *values[8:], b"before", b"v", b"v"])


async def test_x14_what_are_no_ids_of_many(client: AsyncClient, fake: FakeCluster) -> None:
    async with client.producer() as producer:
        for ids, told in (
            ("abc", "is one id"),
            (b"abc", "is one id"),
            (["a", None, "c"], "dedup_id=None"),
            (["a", "", "c"], "dedup_id of 0 bytes"),
            (["a", "b"], "fewer items"),
            (["a", "b", "c", "d"], "more items"),
        ):
            with pytest.raises(ConfigError, match=told):
                await producer.send_many("one", [b"v"] * 3, dedup_ids=ids)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        await producer.flush(60)
        assert fake.log("one").values() == [b"v"] * 3, "of the last: too many are seen at the end"
    async with client.producer(acks=1) as plain:
        with pytest.raises(ConfigError, match="acks=1"):
            await plain.send_many("one", [b"v"], dedup_ids=["a"])


async def test_x14_many_with_ids_stop_at_the_first_that_fails(
    client: AsyncClient, fake: FakeCluster
) -> None:
    """Else those behind it would wait for as long, window after window."""
    taken = 0

    def values() -> Iterator[bytes]:
        nonlocal taken
        while taken < 5_000:
            taken += 1
            yield b"v"

    fake.brokers[0].faults.refuse = [DedupWindowFull("2 ids count", throttle_ms=20)] * 999
    async with client.producer(delivery_timeout_ms=1_500, request_timeout_ms=1_200) as producer:
        with pytest.raises(DedupWindowFull) as caught:
            await producer.send_many(
                "one", values(), dedup_ids=(f"{number}" for number in range(5_000))
            )
    assert "what came after them was not sent" in caught.value.__notes__[0]
    assert taken <= 1_024
