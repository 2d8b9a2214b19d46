"""An exception out of a signal handler strikes the wait of a sync read at every place in turn.

Whatever was read and reached nobody is read again: the next record is the one that comes next.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from octavo import Client
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
    for _ in range(100):
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
