"""`octavo probe`: the short path takes its plain form only, and loads little."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys

import pytest

from octavo.cli.failures import ExitCode
from octavo.cli.probing import PROBE_TIMEOUT_S, plain_probe

HEAVY = ("typer", "octavo.cli.app", "octavo.client.messaging.api.client", "psutil", "pyarrow")
LOADED = f"""
import sys
from octavo.__main__ import main
try:
    main()
finally:
    sys.stdout.write(",".join(name for name in {HEAVY!r} if name in sys.modules))
"""


@pytest.mark.parametrize("name", HEAVY)
def test_what_is_not_loaded_exists(name: str) -> None:
    """A module that was renamed is never loaded, and says nothing."""
    assert importlib.util.find_spec(name) is not None


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("probe h:1", ("h:1", PROBE_TIMEOUT_S)),
        ("probe h:1 --timeout 2.5", ("h:1", 2.5)),
        ("probe --timeout 2.5 h:1", ("h:1", 2.5)),
        ("probe", None),
        ("probe --help", None),
        ("probe h:1 --timeout", None),
        ("probe h:1 --timeout soon", None),
        ("probe h:1 --timeout 0", None),
        ("probe h:1 --timeout nan", None),
        ("probe h:1 --timeout inf", None),
        ("probe h:1 h:2", None),
        ("probe h:1 --service octavo.broker.Broker", None),  # the long way knows it
        ("status", None),
        ("", None),
    ],
)
def test_only_the_plain_form_is_short(words: str, found: tuple[str, float] | None) -> None:
    assert plain_probe(words.split()) == found


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LOADED, *words],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_a_server_that_is_away_is_5_and_little_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    done = run("probe", f"127.0.0.1:{port}", "--timeout", "5")
    assert done.returncode == ExitCode.UNAVAILABLE
    assert done.stderr == f"127.0.0.1:{port} is not ready\n"
    assert done.stdout == ""


@pytest.mark.parametrize("words", [("probe",), ("probe", "h:1", "--timeout", "soon")])
def test_wrong_words_are_refused_as_by_every_command(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert done.returncode == ExitCode.USAGE
    assert done.stderr.startswith("error: ")
