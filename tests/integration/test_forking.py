"""Forks: which children may have a client of their own, how others end, and the recipes as printed.

The programs run in processes of their own against a fake broker; the recipes are the blocks of
docs/forking.md. Each child has an alarm: one that hangs is killed by it and counts as failed.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.fake_broker import FakeClusterThread
from tests.test_layout import ROOT

CHILDREN = 20
TIMEOUT_S = 120
PAGE = (ROOT / "docs/forking.md").read_text()


@pytest.fixture
def fake() -> Iterator[FakeClusterThread]:
    cluster = FakeClusterThread()
    cluster.call(lambda: cluster.cluster.create("one", 1))
    cluster.call(lambda: cluster.cluster.create("orders", 1))
    yield cluster
    cluster.stop()


def run(
    program: str, *arguments: str, folder: pathlib.Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `program`, warnings of Python about threads and forks aside."""
    path = [sys.executable, "-W", "ignore::DeprecationWarning"]
    path += ["-W", "ignore::ResourceWarning"]
    if folder is None:
        path += ["-c", program]
    else:
        (folder / "program.py").write_text(program)
        path.append("program.py")
    return subprocess.run(
        [*path, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def values(fake: FakeClusterThread, topic: str) -> list[bytes]:
    return fake.call(lambda: [value or b"" for value in fake.cluster.log(topic).values()])


COMMON = f"""
import os, signal, sys, threading
from octavo import Client
from octavo.errors import ForkedClientError
address, kind = sys.argv[1:3]
def use(text, records=20):
    with Client(address) as client, client.producer() as producer:
        for _ in range(records):
            producer.send_nowait("one", text)
def child():
    signal.alarm(20)
    try:
        use(b"child")
    except ForkedClientError as error:
        os._exit(5 if "docs/forking.md" in error.hint else 6)
    os._exit(0)
ends = []
CHILDREN = {CHILDREN}
def fork_and_wait(meanwhile=lambda: None):
    pid = os.fork()
    if pid == 0:
        child()
    meanwhile()
    ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""

CLOSED_BEFORE = f"""{COMMON}
for _ in range(CHILDREN):
    if kind == "closed":
        use(b"parent")
        fork_and_wait()
    else:
        fork_and_wait(lambda: use(b"parent"))
print(sorted(set(ends)), len(ends))
"""


@pytest.mark.parametrize("kind", ["closed", "not-made-yet"])
def test_a_child_has_its_own_client_when_none_was_open(fake: FakeClusterThread, kind: str) -> None:
    done = run(CLOSED_BEFORE, fake.bootstrap, kind)
    assert (done.stdout.strip(), done.stderr) == (f"[0] {CHILDREN}", "")
    found = values(fake, "one")
    assert found.count(b"child") == found.count(b"parent") == 20 * CHILDREN


CLOSED_WITH_A_CYCLE = f"""{COMMON}
def fail():
    with Client(address) as client:
        try:
            client.admin.describe_topic("missing", timeout=1)
        except Exception as error:
            error.itself = error  # its traceback holds frames of the client until collected
for _ in range(5):
    fail()
    fork_and_wait()
print(sorted(set(ends)))
"""


def test_what_only_the_collector_would_find_does_not_count_as_open(fake: FakeClusterThread) -> None:
    done = run(CLOSED_WITH_A_CYCLE, fake.bootstrap, "")
    assert (done.stdout.strip(), done.stderr) == ("[0]", "")


OPEN_MEANWHILE = f"""{COMMON}
stop = threading.Event()
def churn():
    while not stop.is_set():
        use(b"parent")
        stop.wait(0.01)
use(b"imports")  # a fork beside an import of another thread is Python's own trouble
thread = threading.Thread(target=churn)
thread.start()
for _ in range(CHILDREN):
    fork_and_wait()
stop.set()
thread.join()
use(b"last")
print(sorted(set(ends) - {{0, 5}}), len(ends))
"""


def test_forks_beside_opening_and_closing_clients_work_or_are_refused_but_never_hang(
    fake: FakeClusterThread,
) -> None:
    done = run(OPEN_MEANWHILE, fake.bootstrap, "")
    assert (done.stdout.strip(), done.stderr) == (f"[] {CHILDREN}", "")
    assert values(fake, "one").count(b"last") == 20


BETWEEN_HANDLERS = f"""
import concurrent.futures.thread, logging, os, threading  # whose handlers hold locks: later still
between, opened = threading.Event(), threading.Event()
def other_handler():  # of another library: registered before octavo's, so it runs after it
    between.set()
    opened.wait(0.5)
os.register_at_fork(before=other_handler)
{COMMON}
use(b"imports")
def open_in_between():
    between.wait()
    with Client(address) as client, client.producer() as producer:
        producer.send("one", b"parent")
        opened.set()
thread = threading.Thread(target=open_in_between)
thread.start()
fork_and_wait()
thread.join()
print(ends)
"""


def test_no_client_opens_between_the_look_and_the_fork(fake: FakeClusterThread) -> None:
    """Other libraries' handlers run in between and let other threads run: a client that one of them
    opened was not seen, and the child waited for ever."""
    done = run(BETWEEN_HANDLERS, fake.bootstrap, "")
    assert (done.stdout.strip(), done.stderr) == ("[0]", "")
    assert sorted(set(values(fake, "one"))) == [b"child", b"imports", b"parent"]


OPEN = f"""{COMMON}
client = Client(address)
producer = client.producer(linger_ms=0)
producer.send("one", b"warm")
stop = threading.Event()
def load():
    while not stop.is_set():
        producer.send_nowait("one", b"load").result(60)
thread = threading.Thread(target=load)
thread.start()
for _ in range(CHILDREN):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        inner = os.fork()  # what cannot work in a child cannot in a child of it
        if inner == 0:
            child()
        refused = os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]) == 5
        try:
            use(b"child")
        except ForkedClientError:
            sys.exit(5 if refused else 7)  # an ordinary end, with exit functions
        sys.exit(0)
    ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
stop.set()
thread.join()
client.close()
print(sorted(set(ends)), len(ends))
"""


def test_a_child_forked_under_load_is_refused_and_the_parent_goes_on(
    fake: FakeClusterThread,
) -> None:
    done = run(OPEN, fake.bootstrap, "")
    assert (done.stdout.strip(), done.stderr) == (f"[5] {CHILDREN}", "")
    assert b"child" not in values(fake, "one")


INHERITED = f"""{COMMON}
import gc
from octavo.client.messaging.producing import lost_records
client = Client(address)
producer = client.producer(linger_ms=60_000, delivery_timeout_ms=120_000)
producer.send("one", b"warm")
kept = [producer.send_nowait("one", b"%d" % number) for number in range(1000)]
if kind == "lost":
    lost_records.note_lost(3, "the parent's own loss")
for _ in range(10):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        if kind == "dropped":
            del client, producer, kept
            gc.collect()
        sys.exit(0)
    ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(sorted(set(ends)), len(ends), sum(future.done() for future in kept), flush=True)
if kind == "lost":
    lost_records._lost_records = 0
"""


@pytest.mark.parametrize("kind", ["kept", "dropped", "lost"])
def test_a_child_that_inherits_an_open_client_ends_at_once_without_its_records(
    fake: FakeClusterThread, kind: str
) -> None:
    done = run(INHERITED, fake.bootstrap, kind)
    assert done.stdout.strip() == "[0] 10 0"
    assert done.returncode == 0
    if kind != "lost":
        assert done.stderr == ""
    assert values(fake, "one") == [b"warm", *(b"%d" % number for number in range(1000))]


MULTIPROCESSING = """
import multiprocessing, sys
from octavo import Client
producer = None
def work():
    global producer
    producer = Client(sys.argv[1]).producer(linger_ms=60_000, delivery_timeout_ms=120_000)
    for number in range(1000):
        producer.send_nowait("one", b"%d" % number)
if __name__ == "__main__":
    child = multiprocessing.get_context(sys.argv[2]).Process(target=work)
    child.start()
    child.join(60)
    print(child.exitcode)
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_complaint_2_a_child_of_multiprocessing_without_close_loses_nothing(
    fake: FakeClusterThread, tmp_path: pathlib.Path, method: str
) -> None:
    done = run(MULTIPROCESSING, fake.bootstrap, method, folder=tmp_path)
    assert (done.stdout.strip(), done.stderr) == ("0", "")
    assert values(fake, "one") == [b"%d" % number for number in range(1000)]


# --- the page -----------------------------------------------------------------------------------


def recipes(heading: str, address: str) -> list[str]:
    """The Python blocks below a heading, with the cluster's address."""
    section = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    text = next(part for part in section if part.startswith(heading + "\n"))
    found = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found, heading
    return [block.replace("localhost:7650", address) for block in found]


@pytest.mark.parametrize(
    ("heading", "wanted"),
    [
        ("multiprocessing", {b"from the parent", b"from the child"}),
        ("ProcessPoolExecutor", {b"one", b"two", b"three"}),
        ("A program that forks by itself", {b"before the fork", b"from the child"}),
    ],
)
def test_recipes_of_the_standard_library(
    fake: FakeClusterThread, tmp_path: pathlib.Path, heading: str, wanted: set[bytes]
) -> None:
    (program,) = recipes(heading, fake.bootstrap)
    done = run(program, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert wanted <= set(values(fake, "orders"))


GUNICORN = """
# What gunicorn's arbiter does: load the configuration, preload the application, fork, call hooks.
import os, signal, sys
sys.path.insert(0, os.getcwd())
configuration = {}
exec(open("gunicorn.conf.py").read(), configuration)
assert configuration["preload_app"]
import app
pids = []
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        configuration["post_fork"](None, None)
        body = app.application({}, lambda status, headers: None)
        configuration["worker_exit"](None, None)
        sys.exit(0 if body == [b"stored\\n"] else 1)
    pids.append(pid)
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids])
"""


def test_the_recipe_of_gunicorn(fake: FakeClusterThread, tmp_path: pathlib.Path) -> None:
    configuration, app = recipes("gunicorn", fake.bootstrap)
    (tmp_path / "gunicorn.conf.py").write_text(configuration)
    (tmp_path / "app.py").write_text(app)
    done = run(GUNICORN, folder=tmp_path)
    assert (done.stdout.strip(), done.stderr) == ("[0, 0, 0]", "")
    assert values(fake, "orders") == [b"a request"] * 3


CELERY = """
# What celery's prefork pool does: import the tasks, fork, send the signals around each worker.
import os, signal, sys, types
class Signal(list):
    def connect(self, receiver):
        self.append(receiver)
        return receiver
signals = types.ModuleType("celery.signals")
signals.worker_process_init, signals.worker_process_shutdown = Signal(), Signal()
celery = types.ModuleType("celery")
celery.Celery = lambda name: types.SimpleNamespace(task=lambda function: function)
sys.modules["celery"], sys.modules["celery.signals"] = celery, signals
tasks = {}
exec(open("tasks.py").read(), tasks)
pids = []
for number in range(3):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        for receiver in signals.worker_process_init:
            receiver(sender=None)
        tasks["store"]("task")
        for receiver in signals.worker_process_shutdown:
            receiver(sender=None, pid=os.getpid(), exitcode=0)
        os._exit(0)
    pids.append(pid)
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids])
"""


def test_the_recipe_of_celery(fake: FakeClusterThread, tmp_path: pathlib.Path) -> None:
    (tasks,) = recipes("celery", fake.bootstrap)
    (tmp_path / "tasks.py").write_text(tasks)
    done = run(CELERY, folder=tmp_path)
    assert (done.stdout.strip(), done.stderr) == ("[0, 0, 0]", "")
    assert values(fake, "orders") == [b"task"] * 3
