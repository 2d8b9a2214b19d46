"""`octavo brokers …`: the brokers of a cluster, and which of them may serve partitions."""

from __future__ import annotations

from typing import Annotated

import typer

from octavo.cli.failures import ExitCode
from octavo.cli.output import Format, FormatOption, Row, emit_rows, note
from octavo.cli.session import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    BootstrapOption,
    TimeoutOption,
    connected,
)

DRAIN_TIMEOUT_S = 60.0

app = typer.Typer(help="List, drain and undrain the brokers of a cluster.")

BrokerArgument = Annotated[str, typer.Argument(help="Id of the broker.")]


@app.command("list")
def list_brokers(
    output: FormatOption = Format.TABLE,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """List brokers with their state and how many bundles of partitions each serves.

    States: serving; drained, it takes nothing until it is undrained; leaving, it is about to stop;
    down, it is drained and does not live.
    """
    with connected(bootstrap, timeout) as client:
        brokers = client.admin.list_brokers(timeout=timeout)
    rows: list[Row] = [
        {
            "broker": broker.broker_id,
            "state": broker.state,
            "bundles": broker.bundles,
            "address": broker.address,
        }
        for broker in brokers
    ]
    emit_rows(rows, output, title="brokers")
    return ExitCode.OK


@app.command()
def drain(
    broker: BrokerArgument,
    wait: Annotated[
        bool, typer.Option(help="Return when it serves nothing; else when that is noted.")
    ] = True,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DRAIN_TIMEOUT_S,
) -> int:
    """Have a broker give away every partition and take none, over its restarts too.

    Producers and consumers go on at the brokers that take them. `octavo brokers undrain` ends it.
    """
    with connected(bootstrap, timeout) as client:
        client.admin.drain_broker(broker, wait=wait, timeout=timeout)
    note(f"{broker} is drained" if wait else f"{broker} gives its partitions away")
    return ExitCode.OK


@app.command()
def undrain(
    broker: BrokerArgument,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """Let a drained broker serve partitions again; it gets its share after a while."""
    with connected(bootstrap, timeout) as client:
        client.admin.undrain_broker(broker, timeout=timeout)
    note(f"{broker} may serve partitions")
    return ExitCode.OK
