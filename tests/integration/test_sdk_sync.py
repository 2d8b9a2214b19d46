"""The sync SDK against the fake broker on a thread of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from octavo import Client, TopicPartition
from octavo.client.messaging.producing.futures import SendFuture
from octavo.proto import batch as batch_format
from octavo.proto.compression import Codec
from octavo.runtime.errors import (
    BrokerUnavailable,
    BufferFull,
    CorruptBatch,
    FlushTimeout,
    IllegalStateError,
    ProducerClosed,
    UnknownTopic,
)
from tests.fake_broker import FakeClusterThread

WHERE = TopicPartition("one", 0)


@pytest.fixture
def fake() -> Iterator[FakeClusterThread]:
    cluster = FakeClusterThread()
    cluster.call(lambda: cluster.cluster.create("orders", 3))
    cluster.call(lambda: cluster.cluster.create("one", 1))
    yield cluster
    cluster.stop()


@pytest.fixture
def client(fake: FakeClusterThread) -> Iterator[Client]:
    with Client(fake.bootstrap, retry_backoff_ms=10) as client:
        yield client


def test_the_first_hour(client: Client) -> None:
    client.connect(timeout=60)
    client.admin.create_topic("new", partitions=6)
    with client.producer() as producer:
        meta = producer.send("new", b"paid", key=b"user-123")
        assert (meta.partition, meta.offset) == (2, 0)
        future = producer.send_nowait("new", "sent", key="user-9", headers=[("trace", b"1")])
        assert future.result(timeout=60).offset == 0
        values = [b"%d" % n for n in range(100)]
        report = producer.send_many("new", values, keys=values)
        assert report.count == 100
        table = pa.table({"id": ["a", "b"], "body": ["x", "y"]})
        assert producer.send_arrow("new", table, key="id", value="body").count == 2
    with client.reader("new", start="earliest") as reader:
        records = list(reader.read_to_end())
        assert len(records) == 104
        assert reader.poll_arrow(timeout=0.05) is None
        reader.seek_to_beginning()
        batch = reader.poll_arrow(timeout=60)
        assert batch is not None
    with client.consumer() as consumer:
        consumer.assign([TopicPartition("new", 2)])
        consumer.seek_to_beginning()
        records = consumer.poll(max_records=1, timeout=60)
        assert records[0].value == b"paid"
        assert consumer.position(TopicPartition("new", 2)) == 1
        for record in consumer:
            assert record.offset == 1
            break
        consumer.pause()
        consumer.resume()
        assert consumer.assignment() == [TopicPartition("new", 2)]
        assert consumer.beginning_offsets() == {TopicPartition("new", 2): 0}
        lag = consumer.lag()[TopicPartition("new", 2)]
        assert lag == consumer.end_offsets()[TopicPartition("new", 2)] - 2
        consumer.seek_to_time(0)
        consumer.seek_to_end()
        assert consumer.lag() == {TopicPartition("new", 2): 0}


def test_sync_admin(client: Client) -> None:
    admin = client.admin
    assert [topic.name for topic in admin.list_topics()] == ["one", "orders"]
    assert admin.describe_topic("orders").name == "orders"
    assert admin.list_offsets("one") == {0: 0}
    assert admin.describe_log("one", 0).log_start == 0
    assert admin.roll("one", 0) == 0
    assert admin.cluster_health().healthy
    assert admin.show_ledger(3).ledger_id == 3
    admin.delete_topic("one")
    with pytest.raises(UnknownTopic):
        admin.describe_topic("one")


def test_send_nowait_wakes_the_loop_for_the_linger_timer(client: Client) -> None:
    with client.producer(linger_ms=10) as producer:
        producer.send("one", b"warm")
        futures = [producer.send_nowait("one", b"%d" % n) for n in range(20)]
        assert [future.result(60).offset for future in futures] == list(range(1, 21))


def test_many_threads_share_a_producer(client: Client, fake: FakeClusterThread) -> None:
    with client.producer(batch_size=2000) as producer:

        def work(name: int) -> list[int]:
            futures = [producer.send_nowait("one", b"%d-%d" % (name, n)) for n in range(500)]
            return [future.result(30).offset for future in futures]

        with ThreadPoolExecutor(4) as pool:
            offsets = list(pool.map(work, range(4)))
    assert sorted(offset for mine in offsets for offset in mine) == list(range(2000))
    values = fake.call(lambda: fake.cluster.log("one").values())
    for name, mine in enumerate(offsets):
        assert mine == sorted(mine)
        assert [values[offset] for offset in mine] == [b"%d-%d" % (name, n) for n in range(500)]


def test_buffer_full_blocks_the_caller_then_raises(client: Client, fake: FakeClusterThread) -> None:
    with client.producer(
        buffer_memory=4 << 20, max_block_ms=1_000, compression_type="none"
    ) as producer:
        producer.send("one", b"warm")
        fake.call(fake.cluster.brokers[0].faults.hold.clear)
        big = b"x" * (1 << 20)
        futures = [producer.send_nowait("one", big) for _ in range(3)]
        with pytest.raises(BufferFull):
            producer.send_nowait("one", big)
        timer = threading.Timer(0.05, lambda: fake.call(fake.cluster.brokers[0].faults.hold.set))
        timer.start()
        futures.append(producer.send_nowait("one", b"x" * 1000))
        timer.join()
        assert len([future.result(60) for future in futures]) == 4


def test_flush_and_close_time_out_with_the_count(client: Client, fake: FakeClusterThread) -> None:
    producer = client.producer()
    producer.send("one", b"warm")
    fake.call(fake.cluster.brokers[0].faults.hold.clear)
    producer.send_nowait("one", b"x")
    with pytest.raises(FlushTimeout):
        producer.flush(timeout=0.05)
    with pytest.raises(FlushTimeout) as caught:
        producer.close(timeout=0.05)
    assert caught.value.details["remaining"] == 1
    with pytest.raises(ProducerClosed):
        producer.send("one", b"x")
    producer.close()
    fake.call(fake.cluster.brokers[0].faults.hold.set)


def test_an_exception_in_with_is_the_one_seen(client: Client, fake: FakeClusterThread) -> None:
    def body() -> None:
        with client.producer(delivery_timeout_ms=1_000, request_timeout_ms=300) as producer:
            producer.send("one", b"warm")
            fake.call(fake.cluster.brokers[0].faults.hold.clear)
            producer.send_nowait("one", b"x")
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        body()
    fake.call(fake.cluster.brokers[0].faults.hold.set)


def test_a_broker_restart_is_survived(client: Client, fake: FakeClusterThread) -> None:
    with client.producer() as producer, client.reader("one") as reader:
        producer.send("one", b"0")
        fake.restart()
        assert producer.send("one", b"1").offset == 1
        seen: list[bytes | None] = []
        while len(seen) < 2:
            seen += [record.value for record in reader.poll(timeout=60)]
        assert seen == [b"0", b"1"]


def test_blocking_calls_from_a_callback_are_refused_not_deadlocked(client: Client) -> None:
    errors: list[BaseException] = []
    done = threading.Event()
    with client.producer() as producer:

        def callback(_: SendFuture) -> None:
            try:
                producer.flush()
            except IllegalStateError as error:
                errors.append(error)
            done.set()

        producer.send_nowait("one", b"x").add_done_callback(callback)
        assert done.wait(60)
    assert len(errors) == 1


def test_use_after_close(fake: FakeClusterThread) -> None:
    client = Client(fake.bootstrap)
    producer = client.producer()
    producer.send("one", b"x")
    reader = client.reader("one")
    client.close()
    client.close()
    for use in (
        lambda: client.connect(),
        lambda: client.producer(),
        lambda: producer.flush(),
        lambda: reader.poll(),
        lambda: producer.send("one", b"x"),
    ):
        with pytest.raises((IllegalStateError, ProducerClosed)):
            use()


def test_connect_to_nothing_says_where_and_why() -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1"):
        client.connect(timeout=0.3)


def test_poll_arrow_gives_back_what_it_could_not_decode(
    fake: FakeClusterThread, client: Client
) -> None:
    """F9: nothing is skipped, whichever thread found the damage."""
    body = batch_format.encode([1, 2], [None, None], [b"a", b"b"], codec=Codec.NONE)
    lying = bytearray(body[batch_format.HEADER_BYTES :])
    lying[-20] = 50  # an offset of the values that lies behind the last one
    bad = batch_format.seal(
        [bytes(lying)], 2, (1, 2), flags=0, codec=0, producer=(-1, -1, -1), schema_id=0
    )
    with client.producer() as producer:
        producer.send("one", b"good")
    fake.call(lambda: fake.cluster.log("one", 0).append(bytes(bad), 1))
    with client.reader("one") as reader:
        for _ in range(2):
            with pytest.raises(CorruptBatch):
                reader.poll_arrow(timeout=60)
            assert reader.position(WHERE) == 0
        assert [record.value for record in reader.poll(max_records=1, timeout=60)] == [b"good"]


def interrupted(call: Callable[[], object]) -> None:
    """A call that is interrupted a moment after it began; on a busy machine, before it does."""
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.1, lambda: signal.pthread_kill(main, signal.SIGINT))
    timer.start()
    try:
        call()
    finally:
        timer.join()


def test_ctrl_c_interrupts_a_poll_and_loses_nothing(client: Client) -> None:
    with client.producer() as producer, client.reader("one") as reader:
        with pytest.raises(KeyboardInterrupt):
            interrupted(lambda: reader.poll(timeout=30))
        producer.send("one", b"x")
        assert [record.value for record in reader.poll(timeout=60)] == [b"x"]
        with pytest.raises(KeyboardInterrupt):
            interrupted(lambda: list(reader))


FORK = """
import os, sys
from octavo import Client
from octavo.errors import ForkedClientError
client = Client(sys.argv[1])
producer = client.producer()
producer.send("one", b"parent")
reader = client.reader("one")
assert reader.poll(timeout=60)
pid = os.fork()
if pid == 0:
    refused = 0
    for use in (
        lambda: producer.send("one", b"child"),
        lambda: producer.send_nowait("one", b"child"),
        lambda: producer.send_many("one", [b"child"]),
        lambda: producer.flush(),
        lambda: reader.poll(),
        lambda: client.connect(),
        lambda: client.producer(),
        lambda: client.admin.list_topics(),
    ):
        try:
            use()
        except ForkedClientError:
            refused += 1
    reader.close()
    producer.close()
    client.close()
    try:
        Client(sys.argv[1]).connect()  # gRPC itself does not survive the fork: said, not hung
    except ForkedClientError as error:
        refused += "spawn" in error.hint
    sys.exit(refused)  # an ordinary end, with exit handlers: must not hang either
_, status = os.waitpid(pid, 0)
producer.send("one", b"parent again")
client.close()
print(os.waitstatus_to_exitcode(status))
"""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_a_forked_child_is_refused_at_once_and_the_parent_goes_on(
    fake: FakeClusterThread,
) -> None:
    done = python(FORK, fake.bootstrap)
    assert done.stdout.strip() == "9", done.stderr
    values = fake.call(lambda: fake.cluster.log("one").values())
    assert values == [b"parent", b"parent again"]


EXIT = """
import sys
from octavo import Client
producer = Client(sys.argv[1]).producer(linger_ms=1000)
for number in range(10_000):
    producer.send_nowait("one", b"%d" % number)
"""


def test_complaint_2_a_script_without_flush_loses_nothing(fake: FakeClusterThread) -> None:
    done = python(EXIT, fake.bootstrap)
    assert done.returncode == 0, done.stderr
    values = fake.call(lambda: fake.cluster.log("one").values())
    assert values == [b"%d" % number for number in range(10_000)]


EXIT_UNSENT = """
import sys
from octavo import Client
from octavo.client.messaging.sync import ending
ending.EXIT_TIMEOUT_S = 0.3
client = Client(sys.argv[1])
producer = client.producer()
producer.send_nowait("one", b"lost?")
"""


def test_complaint_2_or_it_is_told(fake: FakeClusterThread) -> None:
    fake.call(fake.cluster.brokers[0].faults.hold.clear)
    done = python(EXIT_UNSENT, fake.bootstrap)
    assert "1 records may be lost: an unclosed client at exit" in done.stderr
    assert done.returncode == 120
    assert "were not acknowledged within 0.3 s" in done.stderr
    fake.call(fake.cluster.brokers[0].faults.hold.set)
