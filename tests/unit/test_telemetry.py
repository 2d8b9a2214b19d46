"""Structured records reach whoever listens, and never a program's stdout."""

from __future__ import annotations

import json
import logging
import pathlib
import subprocess
import sys

import pytest

from octavo.runtime import log_objects
from octavo.runtime.request_trace import current_trace_id, logged_trace
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger


def run(program: str, *args: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", program, *args],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    return done.stdout, done.stderr


def test_a_program_that_configured_nothing_keeps_its_stdout() -> None:
    program = """
from octavo.runtime import log_objects
from octavo.runtime.telemetry import get_logger
log = get_logger("octavo.part", member="b1")
log.info("quiet")
log.warning("session-lost", session_id=7)
"""
    assert run(program) == ("", "event='session-lost' member='b1' session_id=7\n")


def test_a_program_with_structlog_of_its_own_keeps_it() -> None:
    program = """
import structlog
structlog.configure(processors=[structlog.processors.JSONRenderer()])
from octavo.runtime import log_objects
from octavo.runtime.telemetry import get_logger
get_logger("octavo.part").warning("ours")
structlog.get_logger().warning("theirs")
"""
    assert run(program) == ('{"event": "theirs"}\n', "event='ours'\n")


@pytest.mark.parametrize("to_file", [False, True])
def test_a_server_writes_one_line_for_each_record_of_ours_or_of_a_library(
    tmp_path: pathlib.Path, *, to_file: bool
) -> None:
    program = """
import logging, pathlib, sys
from octavo.runtime.telemetry import configure_logging, get_logger
log = get_logger("octavo.part", member="b1")
configure_logging("WARNING", pathlib.Path(sys.argv[1]) if sys.argv[1:] else None)
log.info("too quiet")
log.warning("session-lost", session_id=7)
logging.getLogger("library").error("of a %s", "library")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("went-wrong")
"""
    path = tmp_path / "log"
    stdout, stderr = run(program, *([str(path)] if to_file else []))
    assert stdout == ""
    assert not to_file or not stderr
    lines = (path.read_text() if to_file else stderr).splitlines()
    assert [line.partition(" level=")[2] for line in lines[:2]] == [
        "'warning' event='session-lost' member='b1' session_id=7",
        "'error' event='of a library'",
    ]
    assert len(lines) == 3
    assert "ZeroDivisionError" in lines[2]
    assert all(line.startswith("timestamp='2") for line in lines)


def test_other_handlers_get_a_text(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="octavo.part"):
        get_logger("octavo.part").bind(key="/a").info("moved", to=3)
    assert caplog.messages == ["event='moved' key='/a' to=3"]


def test_f172_json_lines_are_objects_whatever_is_logged() -> None:
    program = """
import logging
from octavo.runtime.telemetry import configure_logging, get_logger
configure_logging("INFO", log_format="json")
log = get_logger("octavo.part", broker="b1")
log.info("rolled", partition="my-topic-12", size_bytes=7)
log.info("joined", group_id="g", topic="t", partition=3, trace_id="4bf9")
log.warning("odd", payload=b"secret", other=object, nan=float("nan"), lone="\\ud800", line="a\\nb")
logging.getLogger("library").error("of a %s", "library")
try:
    raise ValueError("x" * 50_000)
except ValueError:
    log.exception("went-wrong")
"""
    stdout, stderr = run(program)
    assert stdout == ""
    lines = [json.loads(line) for line in stderr.splitlines()]
    rolled, joined, odd, library, wrong = lines
    assert list(rolled)[:6] == ["ts", "level", "component", "event", "topic", "partition"]
    assert (rolled["component"], rolled["event"], rolled["level"]) == (
        "octavo.part",
        "rolled",
        "info",
    )
    assert (rolled["topic"], rolled["partition"], rolled["size_bytes"]) == ("my-topic", 12, 7)
    assert rolled["broker"] == "b1"
    assert (joined["group"], joined["partition"], joined["trace_id"]) == ("g", 3, "4bf9")
    assert odd["payload"] == "6 bytes"
    assert "secret" not in stderr
    assert (odd["nan"], odd["line"]) == ("nan", "a\nb")
    assert (library["component"], library["event"]) == ("library", "of a library")
    assert "ValueError" in wrong["exception"] or wrong["exception"].startswith("… ")
    assert len(wrong["exception"]) <= log_objects.TEXT_CHARACTERS_MAX + 2


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"partition": "orders"}, {"partition": "orders"}),
        ({"partition": "a-b-0"}, {"topic": "a-b", "partition": 0}),
        ({"partition": "a-1", "topic": "t"}, {"topic": "t", "partition": "a-1"}),
        ({"timestamp": "now", "level": "info"}, {"ts": "now", "level": "info"}),
        ({"x": None, "y": True, "z": 1.5}, {"x": None, "y": True, "z": 1.5}),
        ({"x": memoryview(b"1234")}, {"x": "4 bytes"}),
    ],
)
def test_fields_have_the_names_that_f172_gives_them(
    fields: dict[str, object], expected: dict[str, object]
) -> None:
    assert json.loads(log_objects.json_line(fields)) == expected


async def test_what_outlives_a_request_does_not_speak_in_its_name() -> None:
    tasks = TaskOwner("test")

    async def told() -> str:
        return current_trace_id()

    with logged_trace("4bf9"):
        assert await told() == "4bf9"
        assert await tasks.spawn(told(), name="lives on") == ""
        assert await tasks.spawn(told(), name="of it", of_request=True) == "4bf9"
    assert await tasks.spawn(told(), name="another") == current_trace_id() == ""
    await tasks.close()
