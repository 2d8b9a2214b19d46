"""What `octavo top` shows, beside tests/golden/, and what its looks do when parts are away."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import pty
import select
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from rich.cells import cell_len

from octavo.bookie.control import ControlServer
from octavo.cli import top
from octavo.cli.failures import ExitCode
from octavo.cli.program import run
from octavo.cli.top_disks import LEDGERS_EVERY_S, Disk, DiskWatch
from octavo.cli.top_screen import Look, Reading, bytes_text, number_text, text_of
from octavo.client.messaging import Client
from octavo.client.messaging.api.descriptions import (
    BookieDescription,
    BrokerLoad,
    ClusterHealth,
    FleetBroker,
)
from octavo.client.messaging.group_admin.values import GroupLag, GroupListing, PartitionLag
from octavo.errors import GroupIdNotFound, OctavoError
from octavo.proto.bookie_pb2 import InfoReply, ListLedgersReply, ListLedgersRequest
from tests.fake_broker import FakeClusterThread

T = TypeVar("T")
GOLDEN = pathlib.Path(__file__).parent.parent / "golden"
LONG = "clicks.of.every.customer.in.every.country." * 6


def broker(number: int, load: BrokerLoad | None) -> FleetBroker:
    return FleetBroker(
        broker_id=f"broker-{number}",
        address=f"127.0.0.1:765{number}" if load else "",
        started_ms=0,
        bundles=8 if load else 0,
        drained=load is None,
        leaving=False,
        load=load,
    )


BUSY = BrokerLoad(0.734, 0.7, 0.3, 48_400_000, 1_500_000_000, 99_950, 120, "orders-3", 0.5)
BOOKIES = tuple(
    BookieDescription(f"bookie-{n}", "x", f"127.0.0.1:318{n}", "", "ro" if n == 3 else "rw")
    for n in (1, 2, 3)
)
READINGS = (
    Reading("orders", "billing", "STABLE", 0, 812.0, 812.0),
    Reading("orders", "audit", "EMPTY", 1_234_567, 812.0, 0.0),
    Reading(LONG, "one", "STABLE", 12, None, None),
)
DISKS = {
    "bookie-1": Disk(free_bytes=1_234 << 30, total_bytes=1_800 << 30, ledgers=1_234),
    "bookie-3": Disk(free_bytes=1 << 20, total_bytes=1_800 << 30, ledgers=None),
}
WHOLE = Look(
    "2026-01-02 03:04:05+00:00", (broker(0, BUSY), broker(1, None)), BOOKIES, READINGS, 12,
    disks=DISKS,
)  # fmt: skip


@pytest.mark.parametrize("width", [80, 200])
def test_a_cluster_beside_the_golden_file(width: int) -> None:
    text = text_of(WHOLE, width)
    path = GOLDEN / f"top-{width}.txt"
    if os.environ.get("OCTAVO_TEST_GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("width", [1, 10, 40, 80, 81, 200])
@pytest.mark.parametrize("height", [1, 5, 24, None])
def test_no_line_is_wider_and_no_picture_higher_than_the_screen(
    width: int, height: int | None
) -> None:
    wide = Reading("日本語" * 40, "\x1b[2Jevil\n", "STABLE", 10**15, 1e12, 1e12)
    missing = ("groups: " + "x" * 300,)
    look = Look("now", WHOLE.brokers, BOOKIES, (*READINGS, wide), 1, missing, DISKS)
    text = text_of(look, width, height)
    assert "\x1b" not in text
    assert all(cell_len(line) <= width for line in text.splitlines())
    assert height is None or len(text.splitlines()) <= height


def test_what_does_not_fit_is_counted() -> None:
    many = tuple(Reading("t", f"g{n}", "EMPTY", n, 0.0, 0.0) for n in range(50))
    text = text_of(Look("now", (), (), many, 1), 80, 24)
    assert "groups: 50" in text
    shown = sum(line.startswith("t ") for line in text.splitlines())
    assert 0 < shown < 50
    assert f"... {50 - shown} more" in text
    assert "g49" in text
    assert "g0 " not in text, "the worst come first"


@pytest.mark.parametrize("width", [60, 80, 200])
def test_figures_of_disks_are_whole_or_seen_to_be_cut(width: int) -> None:
    name = "a-bookie-with-a-rather-long-name-of-its-own-" * 2
    bookies = (
        *(BookieDescription(f"b{n}", "x", "10.0.0.1:3181", "", "rw") for n in range(9)),
        BookieDescription(name, "x", f"{name}:3181", "", "ro"),
    )
    disks = {one.bookie_id: Disk(123 << 30, 1_023 << 30, 1_234_567) for one in bookies}
    text = text_of(Look("now", (), bookies, (), 1, (), disks), width, 24)
    head, first = [line for line in text.splitlines() if line.startswith(("BOOKIE", "a-b"))]
    for title, figure in {"USED": "900GiB", "DISK": "1023GiB", "FULL": "87%"}.items():
        end = head.index(title) + len(title)
        assert first[:end].endswith(f" {figure}"), f"{title} of {first!r}"
    assert "1,234,567" in first
    assert "…" in first
    assert "... " in text, "what takes no records is shown first"


def test_nothing_there_and_nothing_known_are_told_apart() -> None:
    empty = text_of(Look("now", (), (), (), 0), 80)
    assert "groups: 0" in empty
    assert "0 topics" in empty
    unknown = text_of(Look("now", None, None, None, None, ("brokers: away",)), 80)
    for part in ("brokers", "bookies", "groups", "topics"):
        assert f"{part}: not known" in unknown
    assert "! brokers: away" in unknown


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999, "999"),
        (999.6, "1.0k"),
        (12_345, "12.3k"),
        (123_456, "123k"),
        (1e15, "1000T"),
    ],
)
def test_numbers(number: float, text: str) -> None:
    assert number_text(number) == text


def test_bytes() -> None:
    assert [bytes_text(one) for one in (0, 1023, 1024, 1.5 * 2**20)] == [
        "0B", "1023B", "1.0KiB", "1.5MiB",
    ]  # fmt: skip


@pytest.fixture
def fake() -> Iterator[FakeClusterThread]:
    thread = FakeClusterThread()
    yield thread
    thread.stop()


def test_a_part_that_is_away_is_said_and_the_others_shown(
    fake: FakeClusterThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(fake.bootstrap) as client:
        looks = top.Looks(client, 5.0)
        assert looks.take().brokers

        def away(**_: object) -> None:
            raise OctavoError("broker-9 does not answer")

        monkeypatch.setattr(client.admin, "cluster_health", away)
        look = looks.take()
        assert look.bookies is None
        assert look.brokers
        assert any("broker-9 does not answer" in line for line in look.missing)
        for name in ("list_brokers", "list_topics", "list_groups"):
            monkeypatch.setattr(client.admin, name, away)
        assert looks.take(may_fail=True).brokers is None
        with pytest.raises(OctavoError, match="broker-9"):
            looks.take()


def told(answer: list[T]) -> Callable[..., list[T]]:
    def tell(*, timeout: float) -> list[T]:
        return answer

    return tell


def test_a_broker_that_was_there_is_missed(
    fake: FakeClusterThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [broker(1, BUSY), broker(2, BUSY)]
    with Client(fake.bootstrap) as client:
        looks = top.Looks(client, 5.0)
        monkeypatch.setattr(client.admin, "list_brokers", told(both))
        assert not any("lived" in line for line in looks.take().missing)
        monkeypatch.setattr(client.admin, "list_brokers", told(both[:1]))
        (line,) = (line for line in looks.take().missing if "lived" in line)
        assert line.startswith("broker-2 lived")


def test_a_cluster_that_is_down_is_one_line_and_its_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["top", "--once", "-b", "127.0.0.1:1", "--timeout", "0.3"]) in (
        ExitCode.UNAVAILABLE,
        ExitCode.TIMEOUT,
    )
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err


def test_q_is_heard_and_other_keys_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    main, side = pty.openpty()
    before = termios.tcgetattr(side)
    with os.fdopen(side, "r") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with top.listening() as wait:
            os.write(main, b"x")
            assert not wait(0.05)
            timer = threading.Timer(0.05, os.write, (main, b"q"))
            timer.start()
            assert wait(10.0)
            timer.join()
        assert termios.tcgetattr(side) == before
    os.close(main)


class Controls:
    """The control services of bookies, real ones, on the loop of the brokers' double."""

    def __init__(self, fake: FakeClusterThread) -> None:
        self._fake = fake
        self.counted: list[str] = []
        self._servers: list[ControlServer] = []

    def start(self, name: str, free_bytes: int = 40, total_bytes: int = 100) -> BookieDescription:
        info = InfoReply(bookie_id=name, free_bytes=free_bytes, disk_total_bytes=total_bytes)

        async def count(_request: ListLedgersRequest) -> ListLedgersReply:
            self.counted.append(name)
            return ListLedgersReply(stored=7)

        def nothing(*_: object) -> None:
            raise AssertionError("a look changes nothing")

        async def start() -> int:
            server = ControlServer(lambda: info, nothing, nothing, count)
            self._servers.append(server)
            return await server.start("127.0.0.1", 0)

        return BookieDescription(name, "x", "", f"127.0.0.1:{self._fake.run(start())}", "rw")

    def stop(self) -> None:
        while self._servers:
            self._fake.run(self._servers.pop().stop())


@pytest.fixture
def controls(fake: FakeClusterThread) -> Iterator[Controls]:
    made = Controls(fake)
    yield made
    made.stop()


def test_bookies_tell_of_their_disks_and_count_ledgers_now_and_then(controls: Controls) -> None:
    now_s = 0.0
    one, two = controls.start("b1"), controls.start("b2")
    gone = BookieDescription("b3", "x", "", "127.0.0.1:1", "rw")
    other = BookieDescription("b4", "x", "", one.control_address, "rw")
    watch = DiskWatch(lambda: now_s)
    for _ in range(2):
        found = watch.look([one, two, gone, other], 10.0)
        assert found == {"b1": Disk(40, 100, 7), "b2": Disk(40, 100, 7)}
        assert (found["b1"].used_bytes, found["b1"].full) == (60, 0.6)
    assert sorted(set(controls.counted)) == ["b1", "b2"]
    counted = len(controls.counted)
    now_s = LEDGERS_EVERY_S
    watch.look([two], 10.0)
    assert len(controls.counted) == counted + 1


def test_disks_are_shown_and_who_does_not_tell_of_his_is_named(
    fake: FakeClusterThread, controls: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    told_of = [controls.start("bookie-0")]
    told_of += [BookieDescription(f"b{n}", "x", "", "127.0.0.1:1", "rw") for n in range(5)]
    with Client(fake.bootstrap) as client:
        health = client.admin.cluster_health()

        def answer(*, timeout: float) -> ClusterHealth:
            return dataclasses.replace(health, bookies=tuple(told_of))

        monkeypatch.setattr(client.admin, "cluster_health", answer)
        looks = top.Looks(client, 5.0)
        look = looks.take()
        assert look.disks == {"bookie-0": Disk(40, 100, 7)}
        assert look.missing == ("disks: no answer at the control port of b0, b1, b2 and 2 more",)
        del told_of[1:]
        assert looks.take().missing == tuple(
            f"b{n} lived in an earlier look and does not any more" for n in range(5)
        )


def lag_of(name: str, taken_s: float, end: int) -> GroupLag:
    part = PartitionLag(
        topic="orders", topic_id="1", partition=0, committed=0, position=0, log_start=0, end=end,
        lag=end, time_lag_s=None, uncommitted=False, ahead=False,
    )  # fmt: skip
    return GroupLag(name, "STABLE", 1, taken_s, (part,))


def test_groups_get_rates_at_the_second_look_and_are_bounded(
    fake: FakeClusterThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [GroupListing(f"g{n}", "STABLE", "consumer", 1) for n in range(top.GROUPS_MAX + 3)]
    now_s, end = 1.0, 10

    def lag(name: str, *, time_lag: bool, timeout: float) -> GroupLag:
        assert not time_lag, "seconds cost a read for each partition"
        if name == "g1":
            raise GroupIdNotFound("deleted meanwhile")
        return lag_of(name, now_s, end)

    with Client(fake.bootstrap) as client:
        looks = top.Looks(client, 5.0)
        monkeypatch.setattr(client.admin, "list_groups", told(names))
        monkeypatch.setattr(client.admin, "group_lag", lag)
        first = looks.take()
        assert "3 groups more are not looked at" in first.missing
        assert first.readings is not None
        assert len(first.readings) == top.GROUPS_MAX - 1
        assert {one.in_per_s for one in first.readings} == {None}
        now_s, end = 3.0, 30
        second = looks.take().readings
        assert second is not None
        assert {(one.in_per_s, one.out_per_s, one.lag) for one in second} == {(10.0, 0.0, 30)}


def test_a_look_without_time_left_says_so(fake: FakeClusterThread) -> None:
    with Client(fake.bootstrap) as client:
        look = top.Looks(client, 0.0).take()
    assert look.missing == tuple(
        f"{part}: no time was left" for part in ("brokers", "bookies", "topics", "groups")
    )


@pytest.mark.process
@pytest.mark.parametrize("way", ["q", "interrupt"])
def test_the_terminal_is_as_it_was(way: str, fake: FakeClusterThread) -> None:
    main, side = pty.openpty()
    before = termios.tcgetattr(side)
    words = [sys.executable, "-m", "octavo", "top", "-b", fake.bootstrap, "--interval", "0.2"]
    process = subprocess.Popen(words, stdin=side, stdout=side, stderr=side, start_new_session=True)
    said = b""

    def read_until(mark: bytes, times: int) -> bytes:
        found = said
        while found.count(mark) < times:
            assert select.select([main], [], [], 90.0)[0], found
            found += os.read(main, 65536)
        return found

    try:
        said = read_until(b"brokers: 1", 2)
        if way == "q":
            os.write(main, b"q")
        else:
            process.send_signal(signal.SIGINT)
        said = read_until(b"\x1b[?1049l", 1)
        assert process.wait(60) == ExitCode.OK
    finally:
        process.kill()
        process.wait()
    assert b"Traceback" not in said
    assert termios.tcgetattr(side) == before
    os.close(side)
    os.close(main)
