"""What one send asks for besides being stored, against the fake broker (F032)."""

from __future__ import annotations

import pytest

from octavo import AsyncClient
from octavo.runtime.errors import ConfigError, NotEnoughReplicas
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
        await producer.flush(10)
        await until(lambda: not link._owed)  # pyright: ignore[reportPrivateUsage]
        assert link._progress.owed == 0  # pyright: ignore[reportPrivateUsage]


async def test_f032_what_a_send_may_not_ask_for(client: AsyncClient, fake: FakeCluster) -> None:
    async with client.producer() as numbered:
        for acks in (0, 1, "all"):
            with pytest.raises(ConfigError, match="this producer is idempotent"):
                await numbered.send("one", b"v", acks=acks)
            with pytest.raises(ConfigError, match="this producer is idempotent"):
                numbered.send_nowait("one", b"v", acks=acks)
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
