"""`octavo group …` against real brokers in this process: what it prints, says, refuses, asks."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from octavo.cli.failures import ExitCode
from octavo.cli.program import run
from tests.group_cluster import GroupCluster


class Done(NamedTuple):
    code: int
    out: str
    err: str


Octavo = Callable[..., Done]


@pytest.fixture
def found() -> Iterator[GroupCluster]:
    made = GroupCluster()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def octavo(
    found: GroupCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Octavo:
    monkeypatch.setenv("OCTAVO_BOOTSTRAP_SERVERS", found.bootstrap)
    monkeypatch.setattr("sys.stdin", io.StringIO())

    def call(*words: str) -> Done:
        code = run(["group", *words])
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return call


def test_groups_are_listed_in_every_form(found: GroupCluster, octavo: Octavo) -> None:
    assert octavo("list") == Done(0, "(no groups)\n", "")
    assert octavo("list", "-o", "json") == Done(0, "[]\n", "")
    found.topic("t", 2, records=4)
    assert octavo("reset", "billing", "--to", "1", "--topic", "t", "--execute").code == 0
    assert octavo("list").out.splitlines() == [
        "GROUP    STATE  TYPE    MEMBERS",
        "billing  EMPTY  simple        0",
    ]
    (row,) = json.loads(octavo("list", "-o", "json").out)
    assert row == {"group": "billing", "state": "EMPTY", "type": "simple", "members": 0}
    assert '- group: "billing"' in octavo("list", "-o", "yaml").out
    assert octavo("list", "-o", "csv").out == ("group,state,type,members\nbilling,EMPTY,simple,0\n")


def test_a_reset_is_shown_first_and_done_when_asked(found: GroupCluster, octavo: Octavo) -> None:
    found.topic("t", 2, records=4)
    shown = octavo("reset", "g", "--to", "latest", "--topic", "t")
    assert shown.code == 0
    assert shown.out.splitlines() == [
        "TOPIC  PARTITION  BEFORE  AFTER  START  END",
        "t              0       -      4      0    4",
        "t              1       -      4      0    4",
    ]
    assert shown.err == "nothing was changed; 2 partitions would move: --execute does it\n"
    assert octavo("list").out == "(no groups)\n"
    unknown = octavo("reset", "g", "--to", "latest")
    assert (unknown.code, unknown.out) == (ExitCode.NOT_FOUND, "")
    assert "there is no group 'g'" in unknown.err
    done = octavo("reset", "g", "--to", "3", "--topic", "t", "--execute", "-o", "json")
    assert done.err == "group g goes on there; 2 partitions moved\n"
    assert [row["after"] for row in json.loads(done.out)] == [3, 3]
    for to, after in (
        ("-2", 1),
        ("+1", 2),
        ("-99", 0),
        ("end-1", 3),
        ("earliest", 0),
        ("@2000-01-01", 0),
        ("2000-01-01T00:00Z", 0),
        ("-15m", 0),
        ("9999", 4),
    ):
        done = octavo("reset", "g", "--to", to, "--topic", "t:0", "--execute", "-o", "csv")
        rows = list(csv.DictReader(io.StringIO(done.out)))
        assert [(row["partition"], row["after"]) for row in rows] == [("0", str(after))], to
    assert [row["committed"] for row in _partitions(octavo("lag", "g", "-o", "json"))] == [4, 3]


def _partitions(done: Done) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = json.loads(done.out)["partitions"]
    return rows


def test_usage_of_resets(found: GroupCluster, octavo: Octavo) -> None:
    found.topic("t", 1, records=1)
    for words in (
        ("reset", "g"),
        ("reset", "g", "--to", "nonsense"),
        ("reset", "g", "--to", "99999999999999999999"),
        ("reset", "g", "--to", "1", "--topic", "t:x"),
        ("reset", "g", "--to", "1", "--topic", "t:"),
        ("reset", "g", "--to", "-1", "--topic", "t"),
        ("lag", "g", "--uncommitted-from", "middle"),
        ("remove-member", "g"),
        ("remove-member", "g", "--all", "--member", "m"),
        ("describe", ""),
    ):
        done = octavo(*words)
        assert (done.code, done.out) == (ExitCode.USAGE, ""), words
        assert done.err.startswith("error: "), words
    assert octavo("reset", "g", "--to", "1", "--topic", "t:7").code == ExitCode.NOT_FOUND
    assert octavo("reset", "g", "--to", "1", "--topic", "nowhere").code == ExitCode.NOT_FOUND


def test_lag_once_and_watched(found: GroupCluster, octavo: Octavo) -> None:
    found.topic("t", 2, records=4)
    octavo("reset", "g", "--to", "1", "--topic", "t:0", "--execute")
    octavo("reset", "h", "--to", "latest", "--topic", "t", "--execute")
    lines = octavo("lag", "g").out.splitlines()
    assert [line.split() for line in lines[:4]] == [
        ["group", "g"],
        ["state", "EMPTY"],
        ["members", "0"],
        ["lag", "3"],
    ]
    assert " ".join(lines[5].split()) == (
        "TOPIC PARTITION COMMITTED END LAG TIME LAG S NOTE MEMBER"
    )
    assert lines[6].split()[:5] == ["t", "0", "1", "4", "3"]
    whole = json.loads(octavo("lag", "-o", "json").out)
    assert [(row["group"], row["lag"]) for row in whole] == [("g", 3), ("h", 0)]
    watched = octavo("lag", "g", "--watch", "-n", "2", "--interval", "0.2", "-o", "json")
    first, second = map(json.loads, watched.out.splitlines())
    assert (first["lag"], first["drain_per_s"], first["eta_s"]) == (3, None, None)
    assert (second["lag"], second["drain_per_s"], second["eta_s"]) == (3, 0.0, None)
    rows = list(
        csv.DictReader(
            io.StringIO(octavo("lag", "--watch", "-n", "2", "--interval", "0.2", "-o", "csv").out)
        )
    )
    assert [row["group"] for row in rows] == ["g", "h"] * 2
    table = octavo("lag", "g", "--watch", "-n", "2", "--interval", "0.2").out
    assert table.count("TOPIC  PARTITION") == 2
    yaml = octavo("lag", "g", "--watch", "-n", "2", "--interval", "0.2", "-o", "yaml").out
    assert yaml.count("\n---\n") == 1
    assert octavo("lag", "nobody").code == ExitCode.NOT_FOUND


def test_a_group_is_described_with_its_members(found: GroupCluster, octavo: Octavo) -> None:
    found.topic("t", 2, records=4)
    octavo("reset", "g", "--to", "1", "--topic", "t:0", "--execute")
    member = found.join("m", "t")
    found.until(lambda: len(member.owned) == 2)
    found.until(lambda: json.loads(octavo("list", "-o", "json").out)[0]["state"] == "STABLE")
    text = octavo("describe", "g").out
    assert "MEMBER  CLIENT" in text
    told = json.loads(octavo("describe", "g", "-o", "json").out)
    assert (told["group"], told["state"], told["lag"]) == ("g", "STABLE", 7)
    assert told["members"][0]["owned"] == ["t-0", "t-1"]
    rows = list(csv.DictReader(io.StringIO(octavo("describe", "g", "-o", "csv").out)))
    assert [(row["member"], row["uncommitted"], row["lag"]) for row in rows] == [
        ("m", "False", "3"),
        ("m", "True", "4"),
    ]
    refused = octavo("reset", "g", "--to", "latest")
    assert (refused.code, refused.out) == (ExitCode.ERROR, "")
    assert "has 1 members" not in refused.err
    assert "group 'g' has a member" in refused.err


def test_what_is_deleted_is_asked_for(found: GroupCluster, octavo: Octavo) -> None:
    found.topic("t", 2, records=4)
    octavo("reset", "g", "--to", "1", "--topic", "t", "--execute")
    refused = octavo("delete", "g")
    assert (refused.code, refused.out) == (ExitCode.USAGE, "")
    assert "--yes" in refused.err
    dry = octavo("delete", "g", "--dry-run")
    assert dry.err == "nothing was deleted: group g and 2 offsets would be\n"
    assert len(dry.out.splitlines()) == 3
    part = octavo("delete", "g", "--topic", "t:1", "--yes")
    assert part.err == "deleted offsets of group g: 1 committed offset\n"
    assert octavo("delete", "g", "--topic", "t:1", "--yes").err == (
        "group g committed nothing there\n"
    )
    assert octavo("delete", "g", "--yes").err == "deleted group g: 1 committed offset\n"
    gone = octavo("delete", "g", "--yes")
    assert gone.code == ExitCode.NOT_FOUND


def test_members_are_removed(found: GroupCluster, octavo: Octavo) -> None:
    found.topic("t", 1)
    member = found.join("m", "t")
    found.until(lambda: len(member.owned) == 1)
    assert octavo("delete", "g", "--yes").code == ExitCode.ERROR
    assert octavo("remove-member", "g", "--member", "m").code == ExitCode.USAGE
    dry = octavo("remove-member", "g", "--all", "--dry-run")
    assert dry.err == "nobody was removed\n"
    assert dry.out.splitlines()[1].split()[0] == "m"
    unknown = octavo("remove-member", "g", "--instance", "ghost", "--yes")
    assert unknown.code == ExitCode.NOT_FOUND
    assert "has no member ghost" in unknown.err
    assert octavo("remove-member", "g", "--all", "--yes").err == "removed 1 member from group g\n"
    found.until(lambda: member.error is not None)
    assert octavo("remove-member", "g", "--all", "--yes").err == "group g has no members\n"


def test_groups_are_offered_after_a_tab(found: GroupCluster, octavo: Octavo) -> None:
    found.topic("t", 1)
    for name in ("billing", "bills", "audit"):
        octavo("reset", name, "--to", "latest", "--topic", "t", "--execute")
    line = "octavo group describe bil"
    done = subprocess.run(
        [sys.executable, "-c", "from octavo.__main__ import main; main()"],
        env={
            **os.environ,
            "_OCTAVO_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": "3",
        },
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert (done.stdout.split(), done.stderr) == (["billing", "bills"], "")
