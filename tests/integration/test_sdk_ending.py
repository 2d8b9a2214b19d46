"""How programs end that did not close their clients: nothing is lost unsaid."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.fake_broker import FakeClusterThread
from tests.integration.test_sdk_interrupts import python


@pytest.fixture
def fake() -> Iterator[FakeClusterThread]:
    cluster = FakeClusterThread()
    cluster.call(lambda: cluster.cluster.create("t", 1))
    yield cluster
    cluster.call(cluster.cluster.brokers[0].faults.hold.set)
    cluster.stop()


def count(fake: FakeClusterThread) -> int:
    return fake.call(lambda: len(fake.cluster.log("t").values()))


SEVERAL = """
import sys
from octavo import Client
from octavo.client.messaging.sync import ending
ending.EXIT_TIMEOUT_S = 1.0
keep = []
for address in sys.argv[1:]:
    client = Client(address)
    client.connect()  # what is left for the exit is to send
    producer = client.producer(linger_ms=0)
    keep.append((client, producer))
    for n in range(10):
        producer.send_nowait("t", b"%d" % n)
"""


def test_a_client_that_cannot_send_takes_no_other_with_it(fake: FakeClusterThread) -> None:
    silent = FakeClusterThread()
    silent.call(lambda: silent.cluster.create("t", 1))
    silent.call(silent.cluster.brokers[0].faults.hold.clear)
    code, _, err = python(SEVERAL, silent.bootstrap, silent.bootstrap, fake.bootstrap)
    assert code == 120
    assert "20 records may be lost" in err
    assert "Event loop is closed" not in err
    assert count(fake) == 10
    silent.call(silent.cluster.brokers[0].faults.hold.set)
    silent.stop()


def test_several_unclosed_clients_end_in_silence_when_all_is_sent(fake: FakeClusterThread) -> None:
    code, _, err = python(SEVERAL, *[fake.bootstrap] * 4)
    assert (code, err) == (0, "")
    assert count(fake) == 40


ASYNC = """
import asyncio, sys
from octavo import AsyncClient
async def main():
    client = AsyncClient(sys.argv[1])
    producer = client.producer(linger_ms=500)
    await producer.send("t", b"first")
    for n in range(100):
        producer.send_nowait("t", b"%d" % n)
{run}
"""


@pytest.mark.parametrize(
    "run",
    [
        "asyncio.run(main())",
        "loop = asyncio.new_event_loop()\nloop.run_until_complete(main())\nloop.close()",
    ],
)
def test_a_loop_that_ends_without_close_says_how_many_records_are_lost(
    fake: FakeClusterThread, run: str
) -> None:
    code, _, err = python(ASYNC.format(run=run), fake.bootstrap)
    assert code == 120
    assert "100 records may be lost" in err


DROPPED = """
import gc, sys, threading, warnings
from octavo import Client
warnings.simplefilter("always")
def one():
    client = Client(sys.argv[1])
    client.producer(linger_ms=50).send_nowait("t", b"x")
for _ in range(10):
    one()
gc.collect()
for thread in threading.enumerate():
    if thread.name == "octavo-client":
        thread.join(60)
print(sum(thread.name == "octavo-client" for thread in threading.enumerate()))
"""


def test_dropped_clients_warn_send_and_keep_no_threads(fake: FakeClusterThread) -> None:
    code, out, err = python(DROPPED, fake.bootstrap)
    assert (code, out.strip()) == (0, "0")
    assert err.count("dropped without close()") == 10
    assert count(fake) == 10


KEPT_PRODUCER = """
import gc, sys
from octavo import Client
def make():
    return Client(sys.argv[1]).producer()
producer = make()
producer.send("t", b"1")
gc.collect()
producer.send("t", b"2")
"""


def test_a_program_may_keep_only_the_producer(fake: FakeClusterThread) -> None:
    assert python(KEPT_PRODUCER, fake.bootstrap) == (0, "", "")
    assert count(fake) == 2


AFTER_MAIN = """
import sys, threading
from octavo import Client
client = Client(sys.argv[1])
producer = client.producer()
def work():
    threading.main_thread().join()
    for n in range(100):
        producer.send_nowait("t", b"%d" % n)
threading.Thread(target=work).start()
"""


def test_a_thread_may_be_the_first_user_after_the_main_thread_ended(
    fake: FakeClusterThread,
) -> None:
    code, _, err = python(AFTER_MAIN, fake.bootstrap)
    assert (code, err) == (0, "")
    assert count(fake) == 100


BURST = """
import asyncio, sys
from octavo import AsyncClient
async def main():
    async with AsyncClient(sys.argv[1]) as client, client.producer() as producer:
        for n in range(30_000):
            producer.send_nowait("t", b"%d" % n)
asyncio.run(main())
"""


def test_a_burst_before_the_first_metadata_may_fill_the_buffer(fake: FakeClusterThread) -> None:
    code, _, err = python(BURST, fake.bootstrap)
    assert (code, err) == (0, "")
    assert count(fake) == 30_000


ONE = """
import sys
from octavo import Client
with Client(sys.argv[1]) as client, client.producer() as producer:
    producer.send("t", b"x")
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_descriptors_do_not_matter(fake: FakeClusterThread, closed: str) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f'"$0" -c "$1" "$2" {closed}', sys.executable, ONE, fake.bootstrap],
        timeout=180,
        check=False,
    )
    assert (done.returncode, count(fake)) == (0, 1)
