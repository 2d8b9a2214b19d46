"""`octavo consume --group`: what is out is committed, and what is not out is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from octavo import TopicPartition
from octavo.cli.failures import ExitCode
from octavo.cli.group_consume import ranges_of
from octavo.cli.program import run
from tests.group_cluster import GroupCluster


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[GroupCluster]:
    made = GroupCluster()
    monkeypatch.setenv("OCTAVO_BOOTSTRAP_SERVERS", made.bootstrap)
    try:
        yield made
    finally:
        made.close()


def committed(found: GroupCluster, group: str = "g") -> dict[tuple[str, int], int]:
    offsets = found.client.admin.list_group_offsets(group)
    return {(one.topic, one.partition): one.offset for one in offsets}


def started(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "octavo", "consume", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )


def test_a_group_goes_on_where_it_left_off(
    found: GroupCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    found.topic("t", 2, records=5)
    found.topic("u", 1, records=2)
    assert run(["consume", "t", "u", "--group", "g", "-n", "4"]) == 0
    out, err = capfd.readouterr()
    assert len(out.splitlines()) == 4
    assert err == "assigned: t 0-1; u 0\ngiven up: t 0-1; u 0\n"
    assert sum(committed(found).values()) == 4, "not what was polled beyond -n"
    assert run(["consume", "t", "u", "--group", "g"]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 8
    assert committed(found) == {("t", 0): 5, ("t", 1): 5, ("u", 0): 2}
    assert run(["consume", "t", "u", "--group", "g", "--from", "start"]) == 0
    assert capfd.readouterr().out == "", "--from is for what was never committed"
    assert found.client.admin.group_lag("g").lag == 0


@pytest.mark.parametrize(
    "words",
    [
        ("t", "u"),
        ("t", "--group", "g", "-p", "0"),
        ("t", "--group", "g", "--from", "3"),
        ("t", "--group", "g", "--from", "end-3"),
        ("t", "--group", "g", "--tail", "3"),
        ("t", "--group", "g", "--until", "3"),
        ("t", "--group", "g", "--arrow", "-"),
    ],
)
def test_usage(words: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["consume", *words, "-b", "127.0.0.1:1"]) == ExitCode.USAGE
    assert capfd.readouterr().out == ""


def test_a_misspelt_topic_is_an_error_and_makes_no_group(
    found: GroupCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["consume", "nowhere", "--group", "g", "--timeout", "5"]
    assert run(words) == ExitCode.NOT_FOUND
    assert "nowhere" in capfd.readouterr().err
    assert found.client.admin.list_groups() == []


def test_ctrl_c_commits_what_was_written_and_shares_are_told(found: GroupCluster) -> None:
    found.topic("t", 2, records=5)
    first = started("t", "--group", "g", "--follow")
    try:
        found.until(lambda: committed(found) == {("t", 0): 5, ("t", 1): 5})
        other = found.join("m", "t")
        found.until(lambda: len(other.owned) == 1)
        found.leave(other)
        found.until(lambda: len(found.client.admin.describe_group("g").members[0].owned) == 2)
        found.send("t", 0, 3)
        found.until(lambda: committed(found)[("t", 0)] == 8)
        first.send_signal(signal.SIGINT)
        out, err = first.communicate(timeout=180)
    finally:
        first.kill()
    assert (first.returncode, len(out.splitlines())) == (0, 13)
    lines = err.splitlines()
    assert lines[0] == "assigned: t 0-1"
    assert lines[1].startswith("given up: t ")
    assert lines[2] == lines[1].replace("given up", "assigned")
    assert lines[-1] == "given up: t 0-1"
    assert found.client.admin.list_groups()[0].members == 0, "it left"


def test_what_its_reader_did_not_take_is_not_committed(found: GroupCluster) -> None:
    found.topic("t", 1)
    with found.client.producer() as producer:
        producer.send_many("t", [b"x" * 1000] * 3000)
    process = started("t", "--group", "g", "--follow")
    try:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        process.wait(60)
    finally:
        process.kill()
    assert process.returncode == 0
    assert committed(found).get(("t", 0), 0) < 3000
    if process.stderr is not None:
        process.stderr.close()


def test_partitions_in_words() -> None:
    where = [TopicPartition(*one) for one in (("t", 2), ("t", 0), ("t", 1), ("u", 7), ("t", 4))]
    assert ranges_of(where) == "t 0-2,4; u 7"
