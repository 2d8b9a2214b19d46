"""What the pipelines share says what goes wrong in one line (`examples/pipelines/running.py`)."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from examples.pipelines import dedupe, history, page_views, running, sessions, table
from tests.fake_broker import FakeClusterThread


def never(_spark: SparkSession, _arguments: argparse.Namespace) -> None:
    raise AssertionError("nothing is run")


@pytest.fixture
def handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)
    running._interrupted.clear()  # pyright: ignore[reportPrivateUsage]


def test_a_topic_that_is_not_there_is_told_before_spark_starts() -> None:
    fake = FakeClusterThread()
    try:
        given = ["--bootstrap", fake.bootstrap, "--source", "nope"]
        with pytest.raises(SystemExit) as ended:
            running.main("dedupe", lambda: dedupe.parse(given), never)
    finally:
        fake.stop()
    said = str(ended.value.code)
    assert said.startswith("dedupe: [UNKNOWN_TOPIC]")
    assert "nope" in said
    assert "\n" not in said


@pytest.mark.parametrize(
    "parse", [dedupe.parse, sessions.parse, page_views.parse, table.parse, history.parse]
)
def test_wrong_arguments_are_told_before_anything_starts(
    parse: Callable[[list[str] | None], argparse.Namespace], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        running.main("p", lambda: parse(["--bootsrap", "h:1"]), never)
    assert ended.value.code == 2
    assert "unrecognized arguments: --bootsrap" in capsys.readouterr().err


def test_of_a_failed_query_the_line_is_told_that_says_why() -> None:
    ours = "octavo.runtime.errors.UnknownTopic: [UNKNOWN_TOPIC] topic 'x' does not exist"
    error = PySparkException(f"Query failed: Traceback:\n  File a\n{ours}\n SQLSTATE: 38000")
    assert running.reason(error) == ours
    assert running.reason(PySparkException("out of memory\nat java.lang")) == "out of memory"


@pytest.mark.usefixtures("handler")
def test_a_second_interrupt_does_not_wait() -> None:
    running.stop_on_interrupt()
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
