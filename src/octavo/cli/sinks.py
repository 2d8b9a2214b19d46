"""`octavo sink …`: what Spark writes exactly once, what is left staged of it, and how to end it."""

from __future__ import annotations

import sys
import time
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
from octavo.runtime.errors import ConfigError, UnknownTopic

if TYPE_CHECKING:
    from octavo.client.messaging import Client
    from octavo.client.messaging.api.descriptions import SinkDescription

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
        found = client.admin.describe_sink(sink, timeout=timeout)
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
        found = client.admin.describe_sink(sink, timeout=timeout)
        if not yes:
            gives_up = (
                f" and give up its batch {found.batch_id}" if found.state == "decided" else ""
            )
            if not sys.stdin.isatty():
                raise ConfigError(
                    f"sink {sink} was not ended", hint=f"add --yes to end it{gives_up}"
                )
            typer.confirm(f"End sink {sink}{gives_up}, for ever?", abort=True, err=True)
        ended = client.admin.end_sink(sink, timeout=timeout)
        with suppress(UnknownTopic):  # nothing was staged, or a broker deleted it meanwhile
            client.admin.delete_topic(ended.staging_topic, timeout=timeout)
    note(f"ended sink {sink}")
    return ExitCode.OK


def _row(sink: SinkDescription) -> Row:
    return {
        "sink": sink.sink_id,
        "state": sink.state,
        "batch": sink.batch_id if sink.batch_id >= 0 else None,
        "idle_s": max(round(time.time() - sink.changed_ms / 1000), 0),
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
