"""`octavo topic advise`: what is printed, in which stream, and what is refused."""

from __future__ import annotations

import json

import pytest

from octavo.cli.failures import ExitCode
from octavo.cli.program import run
from octavo.cli.sizing import Load, advise

Captured = pytest.CaptureFixture[str]


def printed(capsys: Captured, line: str) -> tuple[list[str], list[str]]:
    """The lines of stdout and stderr of a line that succeeds."""
    assert run(["topic", "advise", *line.split()]) == ExitCode.OK
    said = capsys.readouterr()
    return said.out.splitlines(), " ".join(said.err.split()).split("beyond what was measured: ")


def test_f024_f089_a_table_with_reasons_and_what_goes_beyond_on_stderr(capsys: Captured) -> None:
    out, err = printed(capsys, "--target-mbps 800 -s 1000 --consumers 10")
    rows = {line[:14].rstrip(): [part.strip() for part in line[16:].split("  ", 1)] for line in out}
    assert rows["partitions"] == ["20", "two for each consumer of a group"]
    assert rows["brokers"][0] == "13"
    assert rows["disk of all"] == ["1.45 PB", "69.1 TB a day, 484 TB kept for 7 days, 3 copies"]
    assert all(len(line) <= 80 for line in out)
    assert [text.split(":")[0] for text in err[1:]] == [
        "13 brokers", "24 bookies", "10 consumers at a time", "60,480 GB on a bookie",
    ]  # fmt: skip


def test_a_load_that_was_measured_has_nothing_beyond(capsys: Captured) -> None:
    out, err = printed(capsys, "-r 1000 --retention-days 0.01 --p99-ms 20")
    assert [line.split()[1] for line in out[1:3]] == ["6", "1"]
    assert err == [""]


def test_of_few_keys_and_slow_consumers_it_warns(capsys: Captured) -> None:
    out, err = printed(capsys, "-r 500000 -s 1000 --keys 3 --consumers 2")
    assert out[1].split(maxsplit=2) == ["partitions", "3", "no more than there are keys"]
    assert "warning: 3 keys fill at most 3 partitions" in err[0]
    assert "2 of them fall behind, 4 do not" in err[0]


def test_many_partitions_are_the_reason_for_brokers(capsys: Captured) -> None:
    out, _ = printed(capsys, "-r 90000 --consumers 450")
    assert out[2].endswith("one writes at full speed to 100 partitions")


@pytest.mark.parametrize(
    ("line", "bookies", "because"),
    [
        ("-r 10", "3", "each copy on another one"),
        ("--target-mbps 200 --groups 0", "6", "one takes 101 MB/s, copies included"),
        ("--target-mbps 40 --retention-days 2 --bookie-disk-tb 2", "12", "as many disks as hold"),
    ],
)
def test_f147_what_decides_how_many_bookies_is_said(
    capsys: Captured, line: str, bookies: str, because: str
) -> None:
    (row,) = (line for line in printed(capsys, line)[0] if line.startswith("bookies"))
    assert row.split()[1] == bookies
    assert because in row


def test_json_is_all_of_the_answer_in_numbers(capsys: Captured) -> None:
    out, err = printed(capsys, "-r 1000000 -s 1000 -o json")
    found = json.loads("\n".join(out))
    answer = advise(Load(messages_per_s=1e6, message_bytes=1_000))
    assert found.pop("beyond_what_was_measured") == list(answer.beyond)
    assert found.pop("warnings") == []
    assert found == {name: getattr(answer, name) for name in found}
    assert vars(answer).keys() == {*found, "warnings", "beyond"}
    assert err == [""]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "one of --messages-per-s"),
        ("-r 1 --target-mbps 1", "two rates were named"),
        ("-r nan", "--messages-per-s nan is not allowed"),
        ("--target-mbps inf", "--messages-per-s inf is not allowed"),
        ("--target-mbps 1 -s 0", "--message-bytes 0.0 is not allowed"),
        ("--target-mbps 1 -s nan", "--message-bytes nan is not allowed"),
        ("-r 5 --replication 0", "a number from 1 to 64"),
        ("-r 1e9", "divide the load among several topics"),
    ],
)
def test_what_cannot_be_asked_is_a_typed_error(capsys: Captured, line: str, said: str) -> None:
    assert run(["topic", "advise", *line.split()]) not in (ExitCode.OK, None)
    shown = capsys.readouterr()
    assert said in " ".join(shown.err.split())
    assert "Traceback" not in shown.err
    assert shown.out == ""
