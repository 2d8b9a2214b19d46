"""`make cases`: every verdict is counted as what it is, and a case without one is broken."""

from __future__ import annotations

import collections
import pathlib
import subprocess
import sys

import pytest

from tools import cases


@pytest.mark.parametrize(
    ("output", "code", "verdict"),
    [
        ("noise\ncase: RIGHT 3 of 3\n", 0, "RIGHT"),
        ("case: WRONG saw 2\n", 1, "WRONG"),
        ("case: SKIPPED not root\n", 77, "SKIPPED"),
        ("case: BROKEN ImportError\n", 2, "BROKEN"),
        ("case: RIGHT but died later\n", 134, "BROKEN"),
        ("case: RIGHT\nafterthought\n", 0, "BROKEN"),
        ("", 0, "BROKEN"),
        ("", None, "BROKEN"),
    ],
)
def test_a_verdict_needs_its_line_and_its_exit_code(
    output: str, code: int | None, verdict: str
) -> None:
    assert cases.read_verdict(output, code).verdict == verdict


def test_a_case_that_hangs_ends_with_its_children(tmp_path: pathlib.Path) -> None:
    case = tmp_path / "01-hangs.py"
    case.write_text(
        "import subprocess, sys, threading\n"
        "subprocess.Popen([sys.executable, '-c', 'import threading; threading.Event().wait()'])\n"
        "threading.Event().wait()\n"
    )
    outcome = cases.run_case(case, tmp_path / "log", limit_s=1.0)
    assert outcome.verdict == "BROKEN"
    assert "did not end in time" in outcome.words


def test_the_last_line_counts_verdicts(tmp_path: pathlib.Path) -> None:
    (tmp_path / "01-right.py").write_text("print('case: RIGHT yes')\n")
    (tmp_path / "02-wrong.py").write_text("print('case: WRONG no')\nraise SystemExit(1)\n")
    (tmp_path / "03-skipped.py").write_text("print('case: SKIPPED x')\nraise SystemExit(77)\n")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(cases.ROOT / "tools" / "cases.py"), "--folder", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)

    everything = run(str(tmp_path))
    assert everything.stdout.splitlines()[-1] == "cases: right=1 wrong=1 skipped=1"
    assert everything.returncode == 1
    assert run(str(tmp_path), "01", "03").returncode == 0
    assert run(str(tmp_path), "99").returncode == 2
    absent = run(str(tmp_path / "absent"))
    assert absent.returncode == 0
    assert "nothing was run" in absent.stdout


def test_broken_ones_are_named_in_the_last_line() -> None:
    assert cases.summary(collections.Counter(RIGHT=2, BROKEN=1)).endswith("skipped=0 broken=1")
