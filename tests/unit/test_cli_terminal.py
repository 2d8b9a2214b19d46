"""Text on a terminal: lines of its width, commands whole; anything prints in any encoding."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from typing import TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.cli.terminal import fitted, wrapped


@pytest.fixture
def screen() -> Iterator[TextIO]:
    """A terminal of 80 columns."""
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with os.fdopen(side, "w") as stream:
        yield stream
    os.close(main)


def test_long_text_ends_its_lines_between_words(screen: TextIO) -> None:
    text = "degraded: writes are acknowledged, but new ledgers hold 2 copies not 3 (a broker)"
    assert wrapped(text, screen).split("\n") == [
        "degraded: writes are acknowledged, but new ledgers hold 2 copies not 3 (a",
        "  broker)",
    ]
    assert wrapped(text, io.StringIO()) == text


def test_commands_and_paths_are_not_broken(screen: TextIO) -> None:
    command = "`octavo down --data /a/rather/long/folder-name/with-hyphens/and/more/of/it`"
    text = f"running in the background (pid 12345); {command} stops it"
    assert command in wrapped(text, screen)
    path = "/x" * 60
    assert path in wrapped(f"error: {path}: No space left on device", screen)


@given(st.text(alphabet="ab `-/", max_size=300))
def test_wrapping_loses_no_character_but_spaces(text: str) -> None:
    assert fitted(text, 40).split() == text.split()


@pytest.mark.parametrize("words", [("\udcff\u20ac",), ("status", "--data", "\udcff\u20ac")])
@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_any_argument_is_named_in_any_locale(words: tuple[str, ...], locale: str) -> None:
    environment = {**os.environ, "LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment.pop("PYTHONIOENCODING", None)
    done = subprocess.run(
        [sys.executable, "-m", "octavo", *words],
        env=environment,
        capture_output=True,
        timeout=180,
        check=False,
    )
    assert done.returncode in (2, 3)
    assert done.stderr.startswith(b"error: ")
    assert b"unexpected" not in done.stderr
