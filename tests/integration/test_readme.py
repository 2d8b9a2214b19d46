"""Every block of the README, as printed and in its order, in one clean folder (ports by default).

`make` lines need a network and much time: for them only the targets are looked up.
"""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
from typing import NamedTuple

import pytest

from octavo.supervisor.ports import is_free
from octavo.supervisor.spec import DEFAULT_PORT
from tests.fix_spark import java_problem
from tests.integration.test_first_hour_shell import Shell
from tests.test_layout import ROOT

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not is_free("127.0.0.1", DEFAULT_PORT), reason="port 7650 is in use here"),
]

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SCRIPT_TIMEOUT_S = 180.0
SPARK_ANSWER = "print('rows', sorted(bytes(row.value) for row in {frame}.collect()))\n"


class Block(NamedTuple):
    """One fenced block: its language ("" for the shell) and its text."""

    language: str
    text: str


def blocks_of(text: str) -> list[Block]:
    return [Block(*found) for found in BLOCK.findall(text)]


BLOCKS = blocks_of((ROOT / "README.md").read_text())


def shell_lines() -> list[str]:
    lines = [ln for block in BLOCKS if not block.language for ln in block.text.splitlines()]
    return [line for line in lines if line.strip()]


def run_python(shell: Shell, text: str) -> str:
    path = shell.folder / "printed.py"
    path.write_text(text)
    done = subprocess.run(
        [sys.executable, path.name],
        cwd=shell.folder,
        env={**shell.environment, "PYSPARK_PYTHON": sys.executable},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SCRIPT_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_shell_block(shell: Shell, lines: list[str]) -> dict[str, str]:
    """What each line after `octavo up` printed, by the words up to its first option."""
    return {line.partition("  #")[0].strip(): shell(line).out for line in lines}


def check_shell(said: dict[str, str]) -> None:
    by_start = {line[:20]: out for line, out in said.items()}
    consumed = by_start["octavo consume order"]
    assert sorted(consumed.splitlines()) == ['{"id":1}', '{"id":2}']
    assert by_start["octavo cluster healt"].startswith("healthy: ")


def test_the_make_lines_name_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()
    names = [
        name for line in shell_lines() for name in re.findall(r"^make ([a-z-]+)", line.strip())
    ]
    assert {"demo", "test", "setup"} <= set(names)
    for name in names:
        assert re.search(rf"^{name}:", makefile, re.MULTILINE), name


def test_every_block_is_known() -> None:
    """A block that is added must be run by the test below."""
    assert [block.language for block in BLOCKS] == ["", "", "python", "python"]
    assert blocks_of("```\na\n```\n```python\nb\n```\n") == [
        Block("", "a\n"),
        Block("python", "b\n"),
    ]


@pytest.mark.spark
def test_the_blocks_in_order(tmp_path: pathlib.Path) -> None:
    shell = Shell(tmp_path)
    lines = [line for line in shell_lines() if not line.startswith("make ")]
    assert lines[0].startswith("octavo up ")
    assert all(line.startswith(("octavo ", "printf ")) for line in lines)
    process = shell.start(lines[0].partition("#")[0].strip())
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("octavo is up at 127.0.0.1:7650 ")
        check_shell(run_shell_block(shell, lines[1:]))
        assert list((tmp_path / "lake").rglob("*.arrow")), "the export wrote the records"

        sdk, spark = (block.text for block in BLOCKS if block.language)
        printed = run_python(shell, sdk).splitlines()
        assert len(printed) == 12, "six records of the reader, and the same of the group"
        assert sum(line.endswith("b'paid'") for line in printed) == 2
        assert sum(line.endswith("b'user-4' None") for line in printed[:6]) == 1

        problem = java_problem()
        assert problem is None, problem
        ends = SPARK_ANSWER.format(frame="df") + SPARK_ANSWER.format(frame="files")
        rows = [ln for ln in run_python(shell, spark + ends).splitlines() if ln.startswith("rows")]
        assert rows == ["rows [b'{\"id\":1}', b'{\"id\":2}']"] * 2
        assert shell("octavo status").code == 0
    finally:
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 0
        process.stdout.close()
