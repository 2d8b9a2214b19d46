"""`octavo topic set|unset|grow|trim` as a person at a terminal meets them."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator

import pytest

from octavo.cli.failures import ExitCode
from octavo.cli.program import run
from octavo.client.messaging import Client
from tests.fake_broker import FakeClusterThread

Octavo = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fake() -> Iterator[FakeClusterThread]:
    thread = FakeClusterThread()
    thread.call(lambda: thread.cluster.create("t", 2))
    yield thread
    thread.stop()


@pytest.fixture
def octavo(
    fake: FakeClusterThread,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Octavo:
    monkeypatch.setenv("OCTAVO_BOOTSTRAP_SERVERS", fake.bootstrap)
    monkeypatch.setattr(sys, "stdin", io.StringIO())

    def call(*words: str) -> tuple[int, str, str]:
        code = run(words)
        out, err = capsys.readouterr()
        return code, out, err

    return call


def fill(fake: FakeClusterThread, count: int, partition: int) -> None:
    with Client(fake.bootstrap) as client, client.producer() as producer:
        stamps = [1000 * n for n in range(count)]
        producer.send_many("t", [b"v"] * count, timestamps_ms=stamps, partition=partition)


def test_settings_are_set_and_unset(octavo: Octavo) -> None:
    code, _, err = octavo("topic", "set", "t", "retention.ms=5", "segment.ms=9000")
    assert code == ExitCode.OK
    assert "topic t: retention.ms is" in err
    assert "topic t: segment.ms is" in err
    _, out, _ = octavo("topic", "describe", "t", "-o", "json")
    assert json.loads(out)["settings"] == {"retention.ms": "5", "segment.ms": "9000"}
    code, _, err = octavo("topic", "unset", "t", "segment.ms")
    assert (code, "(default)" in err) == (ExitCode.OK, True)
    _, out, _ = octavo("topic", "describe", "t", "-o", "json")
    assert json.loads(out)["settings"] == {"retention.ms": "5"}


def test_describe_says_whose_a_setting_is(octavo: Octavo) -> None:
    octavo("topic", "set", "t", "retention.ms=5")
    _, out, _ = octavo("topic", "describe", "t")
    assert ["retention.ms", "5", "topic"] in [line.split() for line in out.splitlines()]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("set", "t", "retention.ms"), "KEY=VALUE"),
        (("set", "nowhere", "a=b"), "does not exist"),
        (("grow", "nowhere", "-p", "5"), "does not exist"),
        (("grow", "t", "-p", "0"), "partitions=0"),
        (("trim", "t", "--before", "end"), "--yes"),
        (("trim", "t", "--before", "5", "--yes"), "offsets of its own"),
        (("trim", "t", "--before", "start", "--yes"), "nothing lies before"),
        (("trim", "t", "--before", "yesterday", "--yes"), "not a position"),
        (("trim", "t", "--before", "5", "-p", "1", "--yes"), "above"),
    ],
)
def test_what_cannot_be_is_said(octavo: Octavo, words: tuple[str, ...], text: str) -> None:
    code, out, err = octavo("topic", *words)
    assert code != ExitCode.OK
    assert text in err
    assert not out


def test_a_topic_grows(octavo: Octavo, fake: FakeClusterThread) -> None:
    code, _, err = octavo("topic", "grow", "t", "-p", "5")
    assert (code, "topic t has 5 partitions" in err) == (ExitCode.OK, True)
    assert len(fake.cluster.topics["t"].partitions) == 5


@pytest.mark.parametrize(
    ("before", "starts"),
    [
        (["end"], [6, 4]),
        (["end-2"], [4, 2]),
        (["end-100"], [0, 0]),
        (["@3000"], [3, 3]),
        (["@5000"], [5, 4]),  # nothing of partition 1 is that late: all of it is older
        (["3", "-p", "0"], [3, 0]),
        (["end", "-p", "1", "-p", "1"], [0, 4]),
    ],
)
def test_the_oldest_records_go(
    octavo: Octavo, fake: FakeClusterThread, before: list[str], starts: list[int]
) -> None:
    fill(fake, 6, 0)
    fill(fake, 4, 1)
    code, out, _ = octavo("topic", "trim", "t", "--before", *before, "--yes", "-o", "json")
    assert code == ExitCode.OK
    assert [fake.cluster.log("t", n).log_start for n in (0, 1)] == starts
    rows: list[dict[str, int]] = json.loads(out)
    assert all(row["start"] == starts[row["partition"]] for row in rows)


def test_compact_tells_what_became_of_each_partition(
    octavo: Octavo, fake: FakeClusterThread
) -> None:
    fill(fake, 5, 1)
    code, out, _ = octavo("topic", "compact", "t", "-o", "json")
    assert code == ExitCode.OK
    rows = json.loads(out)
    assert [(row["partition"], row["cleaned_to"]) for row in rows] == [(0, 0), (1, 5)]
    code, out, _ = octavo("topic", "compact", "t", "-p", "1", "-o", "json")
    assert [row["partition"] for row in json.loads(out)] == [1]
    code, _, err = octavo("topic", "compact", "nowhere")
    assert (code != ExitCode.OK, "nowhere" in err) == (True, True)
