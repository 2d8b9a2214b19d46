"""What `octavo top` shows, beside tests/golden/, and what its looks do when parts are away."""

from __future__ import annotations

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

from octavo.cli import top
from octavo.cli.failures import ExitCode
from octavo.cli.program import run
from octavo.cli.top_screen import Look, Reading, bytes_text, number_text, text_of
from octavo.client.messaging import Client
from octavo.client.messaging.api.descriptions import BookieDescription, BrokerLoad, FleetBroker
from octavo.client.messaging.group_admin.values import GroupLag, GroupListing, PartitionLag
from octavo.errors import GroupIdNotFound, OctavoError
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
WHOLE = Look("2026-01-02 03:04:05+00:00", (broker(0, BUSY), broker(1, None)), BOOKIES, READINGS, 12)


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
    look = Look("now", WHOLE.brokers, BOOKIES, (*READINGS, wide), 1, ("groups: " + "x" * 300,))
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
        assert looks.take().missing == ()
        monkeypatch.setattr(client.admin, "list_brokers", told(both[:1]))
        (line,) = looks.take().missing
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
        assert first.missing == ("3 groups more are not looked at",)
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
            assert select.select([main], [], [], 20.0)[0], found
            found += os.read(main, 65536)
        return found

    try:
        said = read_until(b"brokers: 1", 2)
        if way == "q":
            os.write(main, b"q")
        else:
            process.send_signal(signal.SIGINT)
        said = read_until(b"\x1b[?1049l", 1)
        assert process.wait(30) == ExitCode.OK
    finally:
        process.kill()
        process.wait()
    assert b"Traceback" not in said
    assert termios.tcgetattr(side) == before
    os.close(side)
    os.close(main)
