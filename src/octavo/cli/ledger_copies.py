"""`octavo ledger verify` and `recover`: the copies of ledgers, and the end of one.

These speak to the metadata store and to bookies: they work while no broker does.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.bookies import StoreOption, metadata_of
from octavo.cli.failures import ExitCode
from octavo.cli.folder import DEFAULT_DATA, DataOption
from octavo.cli.output import Format, FormatOption, Row, RowStream, beside_work, count_of, note
from octavo.runtime.errors import ConfigError
from octavo.runtime.ids import NO_ENTRY

if TYPE_CHECKING:
    from octavo.client.autorecovery.found import Verified
    from octavo.metadata.ledger_record import LedgerMetadata

READ_BYTES_PER_S = 64 << 20
RECOVER_TIMEOUT_S = 60.0
_WIDTHS = {"ledger": 6, "state": 11, "entries": 8, "copies": 6, "verdict": 8, "found": 34}


def verify(
    ledgers: Annotated[
        list[int] | None, typer.Argument(help="Numbers of ledgers; else all of them.", min=0)
    ] = None,
    read: Annotated[
        bool,
        typer.Option("--read", help="Read every copy, too, and compare them with each other."),
    ] = False,
    output: FormatOption = Format.TABLE,
    metadata: StoreOption = None,
    data: DataOption = DEFAULT_DATA,
) -> int:
    """Ask bookies whether every copy of every entry is there; exit code 0, 1 or 5.

    Prints the ledgers that are not whole, and those that were named. 1: some copy is missing,
    damaged or different. 5: nothing is known to be wrong, but not every bookie could be asked. An
    open ledger is looked at up to what is acknowledged. Nothing is changed: autorecovery makes
    missing copies again.
    """
    # Imported here: loads the ledger client and the metadata stores.
    from octavo.client.autorecovery.operator import operating

    stream = RowStream(output, _WIDTHS, title="ledgers")
    looked = wrong = unsure = 0

    async def run() -> None:
        nonlocal looked, wrong, unsure
        async with operating(metadata_of(metadata, data)) as operator:
            async for found in operator.verified(
                ledgers or (), read=read, bytes_per_s=READ_BYTES_PER_S
            ):
                looked += 1
                wrong += bool(found.problems)
                unsure += bool(found.unknown and not found.problems)
                if ledgers or found.problems or found.unknown:
                    with beside_work():
                        stream.emit(_row(found))

    asyncio.run(run())
    with beside_work():
        stream.end()
    if output is Format.TABLE:
        which = "read and compared" if read else "asked about"
        note(f"{count_of(looked, 'ledger')} {which}: {wrong} lack copies, {unsure} not known")
    if wrong:
        return ExitCode.ERROR
    return ExitCode.UNAVAILABLE if unsure else ExitCode.OK


def _row(found: Verified) -> Row:
    verdict = "wrong" if found.problems else "unknown" if found.unknown else "whole"
    return {
        "ledger": found.ledger_id,
        "state": found.state,
        "entries": found.entries,
        "copies": found.copies,
        "verdict": verdict,
        "found": "; ".join((*found.problems, *found.unknown)) or None,
    }


def recover(
    ledger: Annotated[int, typer.Argument(help="Number of the ledger.", min=0)],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    metadata: StoreOption = None,
    data: DataOption = DEFAULT_DATA,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait for the bookies.", min=1)
    ] = RECOVER_TIMEOUT_S,
) -> int:
    """Close an open ledger where its acknowledged entries end; whoever writes it is stopped.

    A broker goes on in a new ledger by itself, and closes the ledgers of dead ones by itself: this
    is for ledgers whose partition nobody loads. Nothing that was acknowledged is lost.
    """
    from octavo.client.autorecovery.operator import operating

    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError("nothing was closed", hint="add --yes to do it")
        typer.confirm(f"Close ledger {ledger}, and stop its writer?", abort=True, err=True)

    async def run() -> tuple[bool, LedgerMetadata]:
        async with operating(metadata_of(metadata, data)) as operator:
            return await operator.recover(ledger, timeout_s=timeout)

    changed, found = asyncio.run(run())
    ended = "is closed now" if changed else "was closed already"
    held = (
        "it is empty" if found.last_entry == NO_ENTRY else f"its last entry is {found.last_entry}"
    )
    note(f"ledger {ledger} {ended}: {held}")
    return ExitCode.OK
