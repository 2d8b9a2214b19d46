"""An exception out of a signal handler strikes a read at every place in turn.

Whatever was read and reached nobody is read again: the next record is the one that comes next.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from octavo import AsyncClient, Client
from octavo.client.messaging.api import consumer, hand_over, opening
from octavo.client.messaging.api.consumer import AsyncConsumer
from octavo.client.messaging.reading import buffers, fetch_streams, fetcher, reading_core
from octavo.client.messaging.sync import loop_thread
from octavo.proto import batch as batch_format
from tests.fake_broker import FakeCluster, FakeClusterThread
from tests.strikes import Strikes

LIMIT_S = 10.0
PLACES_MIN = 10
"""In the hand-over to the loop and back; 20 or more when written."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C of this test; a real one still ends the run."""


def filled(cluster: FakeCluster) -> None:
    log = cluster.create("t", 1).partitions[0]
    for _ in range(200):
        log.append(batch_format.encode([1] * 4, [b"k"] * 4, [b"v"] * 4), 1)


@pytest.fixture
def fake() -> Iterator[FakeClusterThread]:
    made = FakeClusterThread()
    made.call(lambda: filled(made.cluster))
    yield made
    made.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a call never begun
def test_f8_ctrl_c_at_any_place_of_the_wait_loses_no_record(fake: FakeClusterThread) -> None:
    with Client(fake.bootstrap) as client, client.reader("t") as reader:
        following = 0
        at = 0
        while True:
            at += 1
            strikes = Strikes([str(loop_thread.__file__)], Interrupted(), at=at)
            try:
                with strikes:
                    records = reader.poll(1, timeout=LIMIT_S)
            except Interrupted:
                records = []
            following += len(records)
            (record,) = reader.poll(1, timeout=LIMIT_S)
            assert record.offset == following, f"after {strikes.struck}"
            following += 1
            if not strikes.struck:
                break
        assert at > PLACES_MIN
    gc.collect()  # here, where what a call that never began has to say is expected


TAKING = [
    str(module.__file__)
    for module in (
        consumer,
        hand_over,
        opening,
        fetcher,
        fetch_streams,
        buffers,
        reading_core,
    )
]
TAKING_MIN = 30
"""Places from a reading call to its records; 60 or more when written."""


async def offsets(reader: AsyncConsumer, form: str) -> list[int]:
    """What one call hands out at once, in one of both forms."""
    if form == "records":
        return [record.offset for record in await reader.poll(3, timeout=0)]
    batch = await reader.poll_arrow(1, timeout=0)
    return [] if batch is None else batch.column("offset").to_pylist()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a call never begun
@pytest.mark.parametrize("form", ["records", "arrow"])
async def test_f9_what_a_strike_took_out_of_the_buffers_is_handed_out_again(
    fake: FakeClusterThread, form: str
) -> None:
    """On the loop: between the buffers and the caller nothing is lost and nothing comes twice."""
    async with AsyncClient(fake.bootstrap) as client, client.reader("t") as reader:
        following = 0
        at = 0
        while True:
            at += 1
            while not reader.buffered_bytes:  # noqa: ASYNC110  # buffers are no event
                await asyncio.sleep(0.001)
            got: list[int] = []
            strikes = Strikes(TAKING, Interrupted(), at=at)
            try:
                with strikes:
                    got = await offsets(reader, form)
            except Interrupted:
                pass
            got += [record.offset for record in await reader.poll(1, timeout=LIMIT_S)]
            assert got == list(range(following, following + len(got))), f"after {strikes.struck}"
            following += len(got)
            if not strikes.struck:
                break
        assert at > TAKING_MIN
    gc.collect()  # here, where what a call that never began has to say is expected
