"""The tool that opens many clients: who holds which, and that it says what went wrong."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

import pytest

from tools import client_load
from tools.client_load import MEMBERS_OF_A_GROUP, PARTITIONS, judge, shares, topic_of


@pytest.mark.parametrize(("clients", "processes"), [(2_000, 8), (7, 3), (101, 8)])
def test_every_client_has_one_process_and_one_role(clients: int, processes: int) -> None:
    of_all = shares(clients, processes)
    assert len(of_all) == processes
    counts = [len(one.producers) + len(one.members) + one.idle for one in of_all]
    assert sum(counts) == clients
    assert max(counts) - min(counts) <= 3  # one of each role


def test_most_clients_are_members_and_most_members_rest() -> None:
    of_all = shares(2_000, 8)
    members = collections.Counter(topic for one in of_all for topic in one.members)
    assert set(members.values()) == {MEMBERS_OF_A_GROUP}
    assert members.total() == 1_700
    assert PARTITIONS * 10 == MEMBERS_OF_A_GROUP
    producers = {topic for one in of_all for topic in one.producers}
    assert producers == members.keys()  # every group has something to read
    for one in of_all:
        assert len(set(one.members)) == len(members)  # each group over all processes


def figures(**changes: Any) -> Mapping[str, Any]:  # of a process that holds clients
    made: dict[str, Any] = {
        "errors": {},
        "sent": ["a", "b"],
        "received": ["b", "a"],
        "latencies_s": [0.001, 0.002],
        "grown_bytes": 4096,
    }
    return {**made, **changes}


@pytest.mark.parametrize(
    ("changes", "log", "complaint"),
    [
        ({"received": ["a"]}, "", "1 records were not read"),
        ({"received": ["a", "b", "b"]}, "", "1 records were read again"),
        ({"sent": [], "received": [], "latencies_s": []}, "", "nothing was sent"),
        ({"errors": {"Throttled: too much": 3}}, "", "3 x Throttled: too much"),
        ({}, "x\nlevel='error' event='y'", "level='error' event='y'"),
        ({}, "E1: accept4: Too many open files", "E1: accept4: Too many open files"),
    ],
)
def test_what_went_wrong_is_said(changes: Mapping[str, Any], log: str, complaint: str) -> None:
    assert judge([figures(**changes)], 2, 1.0, 1.0, log) == [complaint]


def test_nothing_wrong_is_said_of_a_good_run(capsys: pytest.CaptureFixture[str]) -> None:
    halves = [figures(received=[]), figures(sent=[], received=["a", "b"])]
    assert judge(halves, 2, 1.25, 30.0, "fine\n") == []
    assert "settle_s=1.25 broker_kib_per_client=30 client_kib=4 sent=2" in capsys.readouterr().out
    assert topic_of(3) == "load-003"
    assert client_load.PRODUCERS_PART + client_load.MEMBERS_PART < 1
