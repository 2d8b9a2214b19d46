"""The root of the `octavo` command."""

from __future__ import annotations

from typing import Annotated

import typer

from octavo import __version__
from octavo.cli import (
    bookies,
    brokers,
    cluster,
    collect,
    consume,
    doctor,
    export,
    group_lag,
    group_reset,
    groups,
    ledger_copies,
    ledger_list,
    ledgers,
    logs,
    metadata_copies,
    processes,
    produce,
    quotas,
    servers,
    sinks,
    top,
    topics,
    verify,
)
from octavo.cli.output import write_text

app = typer.Typer(
    name="octavo",
    help="Octavo, a distributed message queue: `octavo up` starts one here.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Octavo, a distributed message queue: `octavo up` starts one here."""
    if version:
        write_text(f"octavo {__version__}\n")
    elif context.invoked_subcommand is None:
        write_text(context.get_help() + "\n")


for command in (
    cluster.up,
    processes.status,
    top.top,
    logs.logs,
    processes.restart,
    processes.down,
    processes.probe,
    doctor.doctor,
    produce.produce,
    consume.consume,
    export.export,
    verify.verify,
    servers.broker,
    servers.bookie,
    servers.autorecovery,
):
    app.command()(command)
ledgers.ledger_app.command("list")(ledger_list.list_ledgers)
ledgers.ledger_app.command()(collect.collect)
ledgers.ledger_app.command()(ledger_copies.verify)
ledgers.ledger_app.command()(ledger_copies.recover)
groups.app.command()(group_lag.lag)
groups.app.command()(group_reset.reset)
app.add_typer(topics.app, name="topic")
app.add_typer(groups.app, name="group")
app.add_typer(bookies.app, name="bookies")
app.add_typer(brokers.app, name="brokers")
app.add_typer(metadata_copies.app, name="metadata")
app.add_typer(quotas.app, name="quotas")
app.add_typer(sinks.app, name="sink")
app.add_typer(ledgers.cluster_app, name="cluster")
app.add_typer(ledgers.ledger_app, name="ledger")
