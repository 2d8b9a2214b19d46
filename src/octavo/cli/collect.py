"""`octavo ledger collect`: bookies compare their ledgers with the metadata now (ADR 36)."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from octavo.cli.failures import ExitCode
from octavo.cli.folder import DEFAULT_DATA, DataOption, require_cluster
from octavo.cli.output import note
from octavo.runtime.errors import ConfigError, OctavoError

CALL_TIMEOUT_S = 10.0


def collect(
    bookie: Annotated[
        str | None, typer.Argument(help="A bookie as `octavo status` names it; else all.")
    ] = None,
    accept_missing: Annotated[
        bool,
        typer.Option(
            "--accept-missing",
            help="Delete also what nothing explains: entries that the metadata has lost are gone.",
        ),
    ] = False,
    compact: Annotated[
        bool, typer.Option("--compact", help="Copy segments together that are not nearly full.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    data: DataOption = DEFAULT_DATA,
) -> int:
    """Have the bookies of this machine look for deleted ledgers now.

    They do so by themselves, too. Nothing is deleted before it was found missing twice. When a
    bookie says that it deletes nothing (`octavo status`), find out why before --accept-missing.
    """
    cluster = require_cluster(data)
    bookies = [child for child in cluster.children if child.role == "bookie"]
    chosen = [child for child in bookies if bookie in (None, child.name)]
    if not chosen:
        known = ", ".join(child.name for child in bookies)
        raise ConfigError(f"no bookie called {bookie!r} here", hint=f"known: {known}")
    if accept_missing and not yes:
        if not sys.stdin.isatty():
            raise ConfigError("nothing was accepted", hint="add --yes to do it")
        names = ", ".join(child.name for child in chosen)
        typer.confirm(f"Delete what the metadata does not know from {names}?", abort=True, err=True)
    failed = False
    for child in chosen:
        why = asyncio.run(_ask(child.health_address, accept_missing, compact))
        failed = failed or bool(why)
        note(f"{child.name} did not hear it: {why}" if why else f"{child.name} looks now")
    return ExitCode.UNAVAILABLE if failed else ExitCode.OK


async def _ask(address: str, accept_missing: bool, compact: bool) -> str:
    """Ask one bookie; why it did not work, in words, or nothing."""
    # Imported here: loads gRPC.
    from octavo.supervisor.health import collect_now

    try:
        await collect_now(address, CALL_TIMEOUT_S, accept_missing=accept_missing, compact=compact)
    except OctavoError as error:
        return error.cause
    return ""
