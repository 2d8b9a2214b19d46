"""The sync client used from signal handlers, finalisers, log handlers and callbacks: never a hang.

Each program runs in a process of its own, so that a hang is a failed test and nothing else.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.fake_broker import FakeClusterThread

LIMIT_S = 180


@pytest.fixture
def fake() -> Iterator[FakeClusterThread]:
    cluster = FakeClusterThread()
    cluster.call(lambda: cluster.cluster.create("t", 2))
    yield cluster
    cluster.call(cluster.cluster.brokers[0].faults.hold.set)
    cluster.stop()


def stored(fake: FakeClusterThread) -> list[bytes | None]:
    return fake.call(
        lambda: [value for p in range(2) for value in fake.cluster.log("t", p).values()]
    )


def python(code: str, *args: str, options: tuple[str, ...] = ()) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, *options, "-c", code, *args],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


BEATS = """
import signal, sys, time
from octavo import Client
sys.setswitchinterval(1e-4)
client = Client(sys.argv[1])
producer = client.producer(batch_size=4096)
producer.send("t", b"first")
reader = client.reader("t", start="latest")
reader.poll(timeout=0.1)
accepted = 1
def beat(*_):
    global accepted
    try:
        {call}
        accepted += {counts}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0005)
signal.signal(signal.SIGALRM, beat)
signal.setitimer(signal.ITIMER_REAL, 0.0005)
end = time.monotonic() + 1.5
while time.monotonic() < end:
    for n in range(20):
        producer.send_nowait("t", b"%d" % accepted, key=b"k%d" % n if n % 2 else None)
        accepted += 1
    {other}
signal.signal(signal.SIGALRM, signal.SIG_IGN)
client.close(60)
print(accepted)
"""


@pytest.mark.parametrize(
    ("call", "counts", "other"),
    [
        ("producer.send_nowait('t', b'x')", 1, "pass"),
        ("producer.send('t', b'x')", 1, "pass"),
        ("producer.send_many('t', [b'x', b'y'])", 2, "producer.send_many('t', [b'z'] * 50)"),
        ("producer.flush(60)", 0, "pass"),
        ("reader.poll(timeout=0)", 0, "reader.poll(timeout=0.001)"),
        ("producer.send_nowait('t', b'x').result(60)", 1, "producer.flush(60)"),
    ],
)
def test_calls_in_a_signal_handler_succeed_whatever_they_interrupt(
    fake: FakeClusterThread, call: str, counts: int, other: str
) -> None:
    code, out, err = python(BEATS.format(call=call, counts=counts, other=other), fake.bootstrap)
    assert code == 0, err
    more = 0
    if "send_many" in other:  # these are not in the program's own count
        more = sum(value == b"z" for value in stored(fake))
    assert len(stored(fake)) == int(out) + more


STOPS = """
import os, signal, sys, threading
from octavo import Client
client = Client(sys.argv[1])
producer = client.producer()
sent = 0
def stop(*_):
    producer.flush(60)
    client.close(60)
    print(sent, flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
producer.send("t", b"first")
main = threading.main_thread().ident
threading.Timer(float(sys.argv[2]), signal.pthread_kill, (main, signal.SIGTERM)).start()
while True:
    producer.send_nowait("t", b"x" * 100)
    sent += 1
"""


@pytest.mark.parametrize("after_s", [0.1, 0.123, 0.141])
def test_a_sigterm_handler_flushes_and_closes_while_the_main_thread_sends(
    fake: FakeClusterThread, after_s: float
) -> None:
    code, out, err = python(STOPS, fake.bootstrap, str(after_s))
    assert code == 0, err
    assert len(stored(fake)) - 1 in (int(out), int(out) + 1)  # one may be just under way


CTRL_C = """
import signal, sys, threading
from octavo import Client
client = Client(sys.argv[1])
producer = client.producer(batch_size=2048)
producer.send("t", b"first", partition=0)
sent = 0
def tick(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, tick)
for _ in range(300):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0007)
        while True:
            producer.send_nowait("t", b"%d" % sent, key=b"%d" % sent, partition=0)
            sent += 1
    except KeyboardInterrupt:
        pass
signal.signal(signal.SIGALRM, signal.SIG_IGN)
client.close(60)
print(sent)
"""


def test_an_exception_out_of_a_handler_tears_no_record(fake: FakeClusterThread) -> None:
    """Key and value of one record stay together, wherever Ctrl-C hits; numbers repeat at most."""
    code, out, err = python(CTRL_C, fake.bootstrap)
    assert code == 0, err
    values = [int(value or b"") for value in stored(fake)[1:]]
    assert values == sorted(values)
    assert set(values) >= set(range(int(out)))


FINALISERS = """
import gc, sys
from octavo import Client
client = Client(sys.argv[1])
producer = client.producer()
producer.send("t", b"first")
accepted = 1
class Ships:
    def __init__(self):
        self.me = self  # garbage for the collector, which runs anywhere
    def __del__(self):
        global accepted
        {call}
        accepted += 1
gc.set_threshold(7)
for n in range(3000):
    Ships()
    producer.send_nowait("t", b"%d" % n)
    accepted += 1
gc.collect()
gc.set_threshold(700)
client.close(60)
print(accepted)
"""


@pytest.mark.parametrize("call", ["producer.send_nowait('t', b'x')"])
def test_finalisers_that_the_collector_runs_may_send(fake: FakeClusterThread, call: str) -> None:
    code, out, err = python(FINALISERS.format(call=call), fake.bootstrap)
    assert code == 0, err
    assert len(stored(fake)) == int(out)


LOG_HANDLER = """
import logging, sys
from octavo import Client
class ToTopic(logging.Handler):
    def __init__(self):
        super().__init__()
        self.client = Client(sys.argv[1])
        self.producer = self.client.producer(linger_ms=1)
    def emit(self, record):
        self.producer.{call}("t", self.format(record).encode())
handler = ToTopic()
logging.getLogger().setLevel(logging.DEBUG)
logging.getLogger().addHandler(handler)
for i in range(50):
    logging.info("message %d", i)
handler.producer.flush(60)
handler.client.close(60)
"""


@pytest.mark.parametrize("call", ["send_nowait", "send"])
def test_a_log_handler_at_debug_may_ship_records(fake: FakeClusterThread, call: str) -> None:
    code, _, err = python(LOG_HANDLER.format(call=call), fake.bootstrap)
    assert code == 0, err
    values = stored(fake)
    assert sum(bytes(value or b"").startswith(b"message ") for value in values) == 50
    assert len(values) < 200  # nothing feeds back


CALLBACKS = """
import sys
from octavo import Client
from octavo.runtime.errors import IllegalStateError
client = Client(sys.argv[1])
producer = client.producer(linger_ms=1)
producer.send("t", b"first")
def done(future):
    try:
        {act}
    except IllegalStateError:
        print("typed")
        raise
first = producer.send_nowait("t", b"a")
first.add_done_callback(done)
first.result(60)
producer.send_nowait("t", b"later").result(60)
client.close(60)
"""


@pytest.mark.parametrize(
    ("act", "said"),
    [
        ("producer.send('t', b'b')", "typed"),
        ("producer.send_nowait('t', b'b').result()", "typed"),
        ("producer.send_many('t', [b'b'])", "typed"),
        ("client.close()", "typed"),
        ("sys.exit(3)", ""),
        ("raise ValueError('x')", ""),
        ("raise KeyboardInterrupt", ""),
    ],
)
def test_b10_a_done_callback_cannot_hang_or_end_the_client(
    fake: FakeClusterThread, act: str, said: str
) -> None:
    code, out, err = python(CALLBACKS.format(act=act), fake.bootstrap)
    assert code == 0, err
    assert out.strip() == said
    assert stored(fake).count(b"later") == 1


CLOSED_IN_THE_MIDDLE = """
import sys, threading
from octavo import Client
from octavo.client.messaging.producing.routing import Router
from octavo.client.messaging.producing.sections import suspended
from octavo.errors import OctavoError
client = Client(sys.argv[1])
producer = client.producer()
producer.send("t", b"first", partition=0)
choose = Router.choose
def closing(*words):
    Router.choose = choose
    with suspended():  # as a signal handler that closes gives the section back
        closer = threading.Thread(target=producer.close)
        closer.start()
        closer.join()
    return choose(*words)
Router.choose = closing
future = producer.send_nowait("t", b"late", partition=0)
try:
    print("stored", future.result(timeout=60))
except OctavoError as error:
    print(error.code)
client.close()
"""


def test_a_record_whose_producer_was_closed_in_the_middle_of_its_append_fails(
    fake: FakeClusterThread,
) -> None:
    code, out, err = python(CLOSED_IN_THE_MIDDLE, fake.bootstrap)
    assert (code, out.split()) == (0, ["PRODUCER_CLOSED"]), out + err
