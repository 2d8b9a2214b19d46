"""`octavo sink …`: what Spark writes exactly once, what is left staged of it, and how to end it."""

from __future__ import annotations

import difflib
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.failures import ExitCode
from octavo.cli.output import Format, FormatOption, Row, emit_one, emit_rows, note
from octavo.cli.session import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    BootstrapOption,
    TimeoutOption,
    connected,
)
from octavo.runtime.errors import ConfigError, InvalidRequest, OctavoError, UnknownTopic

if TYPE_CHECKING:
    from octavo.client.messaging import Client
    from octavo.client.messaging.api.descriptions import SinkDescription

QUIET_S = 60
"""A sink of which something was heard since may belong to a query that runs."""
NAMES_COMPARED_MAX = 10_000
"""Sinks among which one is looked for that was meant."""

app = typer.Typer(help="Look after what Spark writes exactly once.")

SinkArgument = Annotated[
    str, typer.Argument(metavar="SINK", help="query/ID of a checkpoint, or txn/TXNID.")
]


@app.command("list")
def list_sinks(
    unpublished: Annotated[
        bool, typer.Option("--unpublished", help="Only those with a batch decided, not published.")
    ] = False,
    output: FormatOption = Format.TABLE,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """List the queries and transactions that write exactly once.

    "decided": the last batch is to be published by the next start of its query; what it staged
    stays until then. "ended": by an operator.
    """
    with connected(bootstrap, timeout) as client:
        found = client.admin.list_sinks(timeout=timeout)
    rows = [_row(one) for one in found if one.state == "decided" or not unpublished]
    emit_rows(rows, output, title="sinks")
    return ExitCode.OK


@app.command()
def show(
    sink: SinkArgument,
    output: FormatOption = Format.TABLE,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """Show one query or transaction, and how much it has staged."""
    with connected(bootstrap, timeout) as client:
        found = _find(client, sink, timeout)
        staged = _staged(client, found.staging_topic, timeout)
    emit_one({**_row(found), **staged}, output)
    return ExitCode.OK


@app.command()
def end(
    sink: SinkArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Really end it, for ever.")] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """End a query or transaction that never runs again, or must not: for ever.

    It decides nothing any more and fails with SINK_ENDED. A batch that was decided and not
    published is given up, though some of its rows may be in their topic. What it staged is deleted.
    """
    with connected(bootstrap, timeout) as client:
        found = _find(client, sink, timeout)
        was_ended = found.state == "ended"
        if not yes and not was_ended:
            if not sys.stdin.isatty():
                raise ConfigError(
                    f"sink {sink} was not ended", hint=f"add --yes to end it{_price(found)}"
                )
            typer.confirm(f"End sink {sink}{_price(found)}, for ever?", abort=True, err=True)
        ended = client.admin.end_sink(sink, timeout=timeout)
        note(f"sink {sink} was ended before" if was_ended else f"ended sink {sink}")
        try:
            client.admin.delete_topic(ended.staging_topic, timeout=timeout)
        except UnknownTopic:
            pass  # nothing was staged, or a broker deleted it meanwhile
        except OctavoError as error:
            note(f"brokers delete what it staged in their next round, for now: {error.cause}")
    return ExitCode.OK


def _find(client: Client, sink: str, timeout_s: float) -> SinkDescription:
    """One sink. Raises InvalidRequest, which says what may have been meant."""
    try:
        return client.admin.describe_sink(sink, timeout=timeout_s)
    except InvalidRequest as error:
        known: Sequence[SinkDescription] = ()
        with suppress(OctavoError):  # then there is no better hint
            known = client.admin.list_sinks(timeout=timeout_s)
        meant = _meant(sink, [one.sink_id for one in known[:NAMES_COMPARED_MAX]])
        if meant:
            error.hint = f"did you mean {meant!r}?"
        raise


def _meant(word: str, names: Sequence[str]) -> str:
    """The sink that has `word` without its kind, or at its beginning, or one much like it."""
    begins = [name for name in names if word and word in (name[: len(word)], _bare(name, word))]
    close = begins if len(begins) == 1 else difflib.get_close_matches(word, names, n=1)
    return close[0] if close else ""


def _bare(name: str, word: str) -> str:
    """As much of a sink's id as `word` has, without query/ or txn/."""
    return name.partition("/")[2][: len(word)]


def _price(sink: SinkDescription) -> str:
    """What ending a sink costs that is not obvious."""
    gives_up = f" and give up its batch {sink.batch_id}" if sink.state == "decided" else ""
    idle_s = _idle_s(sink)
    if idle_s >= QUIET_S:
        return gives_up
    return f"{gives_up} (it was heard of {idle_s} s ago: its query may be running)"


def _idle_s(sink: SinkDescription) -> int:
    return max(round(time.time() - sink.changed_ms / 1000), 0)


def _row(sink: SinkDescription) -> Row:
    return {
        "sink": sink.sink_id,
        "state": sink.state,
        "batch": sink.batch_id if sink.batch_id >= 0 else None,
        "idle_s": _idle_s(sink),
        "staging_topic": sink.staging_topic,
    }


def _staged(client: Client, topic: str, timeout_s: float) -> Row:
    """What lies in a staging topic, which need not exist."""
    try:
        log = client.admin.describe_log(topic, 0, timeout=timeout_s)
    except UnknownTopic:
        return {"staged_records": 0, "stored_bytes": 0}
    size_bytes = sum(segment.size_bytes for segment in log.segments)
    return {"staged_records": log.high_watermark - log.log_start, "stored_bytes": size_bytes}
