"""The context of a trace in text and headers, and what is loaded for it (F171)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from octavo.client.messaging import AsyncClient, Client, Record, trace_processing
from octavo.client.messaging.tracing import carried_by, with_context
from octavo.errors import ConfigError
from octavo.proto.produce_wire import ProduceItem, decode_produce, encode_produce
from octavo.proto.tracing import TraceParent, parse_traceparent
from octavo.serving.config import BrokerConfig
from octavo.serving.process import run
from octavo.serving.tracing import RequestTracing

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        (f"00-{TRACE}-{SPAN}-01", 1),
        (f"00-{TRACE}-{SPAN}-00", 0),
        (f"00-{TRACE}-{SPAN}-01".encode(), 1),
        (f"cc-{TRACE}-{SPAN}-01", 1),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", 1),
    ],
)
def test_w3c_a_context_is_read_also_of_later_versions(text: str | bytes, flags: int) -> None:
    assert parse_traceparent(text) == TraceParent(TRACE, SPAN, flags)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        b"\xff\xfe",
        "00",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01-" + "x" * 100,
    ],
)
def test_w3c_what_is_no_context_is_none(text: str | bytes | None) -> None:
    assert parse_traceparent(text) is None


def test_a_batch_carries_it_over_the_wire() -> None:
    sent = [ProduceItem(1, "t", 0, -1, b"batch", traceparent=f"00-{TRACE}-{SPAN}-01")]
    sent.append(ProduceItem(2, "t", 0, -1, b"batch"))
    got = decode_produce(encode_produce(sent))
    assert [one.traceparent for one in got] == [sent[0].traceparent, ""]


def test_headers_get_a_context_unless_they_have_one() -> None:
    ours = (("traceparent", b"ours"),)
    assert with_context((), ours) == [*ours]
    assert with_context((("a", b"1"),), ours) == [("a", b"1"), *ours]
    theirs = [("traceparent", b"theirs")]
    assert with_context(theirs, ours) is theirs
    assert with_context(theirs, ()) is theirs
    assert carried_by([("a", None), *theirs]) == "theirs"
    assert carried_by([("traceparent", None)]) == carried_by([]) == ""
    assert carried_by([("traceparent", b"\xff" * 129)]) == "", (
        "a header of any size is not sent twice"
    )
    assert len(carried_by([("traceparent", b"\xff" * 128)])) == 128


@pytest.fixture
def without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an environment without the extras."""
    for name in [one for one in sys.modules if one.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)


@pytest.mark.usefixtures("without_packages")
def test_without_the_extra_asking_for_it_is_one_line_and_what_to_install() -> None:
    record = Record("t", 0, 0, None, b"", (), 0)
    config = BrokerConfig(broker_id="b", tracing=True)
    for ask in (
        lambda: AsyncClient("127.0.0.1:1", tracing=True),
        lambda: Client("127.0.0.1:1", tracing=True),
        lambda: trace_processing(record),
        lambda: RequestTracing(config),
        lambda: run(config),
    ):
        with pytest.raises(ConfigError) as caught:
            ask()
        assert caught.value.cause == "tracing is on, but OpenTelemetry is not installed"
        assert caught.value.hint == "pip install 'octavo[otel]'"


def test_a_broker_without_what_sends_spans_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError) as caught:
        run(BrokerConfig(broker_id="b", tracing=True))
    assert caught.value.hint == "pip install 'octavo[otel-broker]'"


def test_a_wrong_word_for_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="tracing='maybe'"):
        AsyncClient("127.0.0.1:1", tracing="maybe")  # type: ignore[arg-type]


def test_nothing_of_it_is_loaded_unless_asked_for() -> None:
    program = """
import sys
from octavo import Client
from octavo.serving import process, tracing
Client("127.0.0.1:1").close()
sys.exit("opentelemetry" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
