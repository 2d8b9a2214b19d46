"""What a person sees: commands on a terminal of 80 columns and 24 lines, beside `tests/golden/`.

Ports, process ids, folders and figures are replaced by names of the same meaning. Renew the files
with OCTAVO_TEST_GOLDEN=write, and look at what changed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pathlib
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO

import pytest

from octavo.supervisor.cluster_file import read_cluster_file

pyte = pytest.importorskip("pyte", reason="make setup installs it")
pytestmark = pytest.mark.process

COLUMNS, LINES = 80, 24
GOLDEN = pathlib.Path(__file__).parent.parent / "golden"
LIMIT_S = 90.0


class Terminal:
    """A command whose stdout and stderr are a terminal of 80 x 24, and its screen."""

    def __init__(self, *words: str, stdin: int = subprocess.DEVNULL, **environment: str) -> None:
        self._main, side = os.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self._screen = pyte.Screen(COLUMNS, LINES)
        self._stream = pyte.ByteStream(self._screen)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "octavo", *words],
            stdin=stdin,
            stdout=side,
            stderr=side,
            env={**os.environ, "TERM": "xterm", **environment},
            start_new_session=True,
        )
        os.close(side)

    def show(self, condition: Callable[[str], bool] | None = None) -> str:
        """The screen once the condition holds; without one, at the end of the command."""
        end_s = time.monotonic() + LIMIT_S
        while condition is None or not condition(self.text):
            assert time.monotonic() < end_s, self.text
            if not select.select([self._main], [], [], 1.0)[0]:
                continue
            try:
                data = os.read(self._main, 65536)
            except OSError as error:  # how Linux tells that the other side was closed
                if error.errno != errno.EIO:
                    raise
                data = b""
            if not data:
                assert condition is None, self.text
                break
            self._stream.feed(data)
        return self.text

    @property
    def text(self) -> str:
        """The lines of the screen without the empty ones at the end."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip() + "\n"

    def end(self, number: int | None = None) -> int:
        """Send a signal if there is one, wait, and return the exit code."""
        if number is not None:
            os.killpg(self.process.pid, number)
        self.show()
        code = self.process.wait(LIMIT_S)
        os.close(self._main)
        return code


@pytest.fixture(scope="module")
def folder() -> Iterator[pathlib.Path]:
    """A data folder whose path always has the same length."""
    made = pathlib.Path(tempfile.mkdtemp(prefix="octavo-", dir="/tmp"))
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def up(folder: pathlib.Path) -> Iterator[tuple[str, str]]:
    """The screen of `octavo up`, and where its broker listens."""
    terminal = Terminal("up", "--port", "0", "--data", str(folder))
    try:
        screen = terminal.show(lambda text: "Ctrl-C stops it" in text)
        found = read_cluster_file(folder)
        assert found is not None
        yield screen, found.bootstrap_servers
    finally:
        assert terminal.end(signal.SIGINT) == 0


def patient(screen: str) -> str:
    """Without what a slow machine has `octavo up` say while it waits; lines of it may wrap."""
    kept: list[str] = []
    belongs = False
    for line in screen.splitlines():
        belongs = belongs or line.startswith("still waiting for ")
        if not belongs:
            kept.append(line)
        belongs = belongs and len(line) == COLUMNS
    return "".join(f"{line}\n" for line in kept)


def same(name: str, screen: str, folder: pathlib.Path) -> None:
    """Compare with the golden file, or write it."""
    text = patient(screen).replace(str(folder), "/tmp/octavo-DATADATA")
    text = re.sub(r"127\.0\.0\.1:\d{5}", "127.0.0.1:PPPPP", text)
    text = re.sub(
        r"(?m)^(NAME|metadata|bookie-\d|broker-\d) +(PID|\d+) +",
        lambda found: f"{found[1]:<8}  PID  ",
        text,
    )
    if name == "produce":
        text = re.sub(r"\b[\d,]+\b", "N", text)
    ready = [line for line in text.splitlines() if re.match(r"bookie-\d ready", line)]
    in_order = iter(sorted(ready))
    text = "".join((next(in_order) if line in ready else line) + "\n" for line in text.splitlines())
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("OCTAVO_TEST_GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text()


def test_up(up: tuple[str, str], folder: pathlib.Path) -> None:
    same("up", up[0], folder)


def test_status(up: tuple[str, str], folder: pathlib.Path) -> None:
    terminal = Terminal("status", "--data", str(folder))
    same("status", terminal.show(), folder)
    assert terminal.end() == 0


def test_help_names_each_command_in_one_whole_line(folder: pathlib.Path) -> None:
    terminal = Terminal()
    screen = terminal.show()
    assert terminal.end() == 0
    same("help", screen, folder)
    assert "..." not in screen.replace("[ARGS]...", "")


def test_health(up: tuple[str, str], folder: pathlib.Path) -> None:
    terminal = Terminal("cluster", "health", "-b", up[1])
    same("cluster-health", terminal.show(), folder)
    assert terminal.end() == 0


def test_produce_shows_how_far_it_is(up: tuple[str, str], folder: pathlib.Path) -> None:
    created = Terminal("topic", "create", "seen", "-b", up[1])
    assert created.end() == 0
    reading, writing = os.pipe()
    terminal = Terminal("produce", "seen", "-b", up[1], stdin=reading)
    os.close(reading)
    with os.fdopen(writing, "wb") as lines:
        fed = feed(lines)
        next(fed)
        screen = terminal.show(lambda text: next(fed) and "records acknowledged of" in text)
    same("produce", screen, folder)
    assert terminal.show().splitlines()[-1].endswith("records sent to seen")
    assert terminal.end() == 0


def feed(lines: BinaryIO) -> Iterator[bool]:
    """A line whenever the screen is looked at."""
    while True:
        lines.write(b"a line\n")
        lines.flush()
        yield True
