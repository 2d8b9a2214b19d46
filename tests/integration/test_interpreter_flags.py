"""Programs under `python -X dev -O -W error`: no assertion carries behaviour, nothing warns.

`make test-flags` runs the unit and property tests so; here are real programs against real servers,
which pass the flags on to the processes that they start.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from octavo.testing import LocalCluster

pytestmark = pytest.mark.process

FLAGS = ["-X", "dev", "-O", "-W", "error"]
PROGRAM = """
import octavo, sys
assert False, "assertions are off"
with octavo.Client(sys.argv[1]) as client:
    client.admin.create_topic("sdk", partitions=2)
    with client.producer() as producer:
        for n in range(100):
            producer.send_nowait("sdk", b"%d" % n)
    with client.reader("sdk", start="earliest") as reader:
        print(sum(int(record.value) for record in reader.read_to_end()))
"""


@pytest.fixture(scope="module")
def flagged() -> Iterator[LocalCluster]:
    """A cluster whose servers run with the flags as far as the environment carries them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONDEVMODE", "1")
        patch.setenv("PYTHONOPTIMIZE", "1")
        with LocalCluster() as running:
            yield running


def run(*words: str, given: str = "") -> str:
    done = subprocess.run(
        [sys.executable, *FLAGS, *words],
        input=given,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )
    assert "Warning" not in done.stderr
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_sdk(flagged: LocalCluster) -> None:
    assert run("-c", PROGRAM, flagged.bootstrap_servers) == "4950\n"


def test_command_line(flagged: LocalCluster, tmp_path: pathlib.Path) -> None:
    at = ("--bootstrap", flagged.bootstrap_servers)
    octavo = ("-m", "octavo")
    run(*octavo, "topic", "create", "lines", *at)
    run(*octavo, "produce", "lines", *at, given="one\ntwo\nthree\n")
    assert run(*octavo, "consume", "lines", *at) == "one\ntwo\nthree\n"
    run(*octavo, "export", "lines", "--to", str(tmp_path / "lake"), "--roll", *at)
    run(*octavo, "export", "lines", "--to", str(tmp_path / "lake"), "--verify", *at)
    run(*octavo, "cluster", "health", *at)


def test_servers_say_no_warning(flagged: LocalCluster) -> None:
    logs = sorted((flagged.data / "logs").glob("*.log"))
    assert len(logs) >= 4
    for log in logs:
        assert "Warning:" not in log.read_text(encoding="utf-8"), log.name
