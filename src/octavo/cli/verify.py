"""`octavo verify`: everything that the cluster stores, every copy of it.

It speaks to the metadata store and to bookies: it works while no broker does.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.bookies import StoreOption, metadata_of
from octavo.cli.failures import ExitCode
from octavo.cli.folder import DEFAULT_DATA, DataOption
from octavo.cli.output import (
    Format,
    FormatOption,
    Row,
    RowStream,
    beside_work,
    note,
    write_text,
)
from octavo.cli.progress import PROGRESS_EVERY_S, Progress
from octavo.cli.stopping import loop_stops
from octavo.runtime.errors import OctavoError
from octavo.runtime.tasks import TaskOwner

if TYPE_CHECKING:
    from octavo.client.verification.sweep import Sweep
    from octavo.client.verification.totals import Finding, Totals
    from octavo.runtime.clock import Clock

READ_BYTES_PER_S = 64 << 20
_WIDTHS = {"what": 20, "verdict": 7, "found": 48}


def verify(
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Ask bookies which entries they have; read none of them."),
    ] = False,
    bytes_per_s: Annotated[
        int, typer.Option("--bytes-per-s", help="Bound of all reading together.", min=1)
    ] = READ_BYTES_PER_S,
    at_once: Annotated[
        int, typer.Option("--at-once", help="Ledgers looked at together.", min=1, max=64)
    ] = 4,
    tier_root: Annotated[
        str,
        typer.Option(
            "--tier-root",
            envvar="OCTAVO_BROKER_TIER_ROOT",
            help="The brokers' tier_root, as this machine sees it: its files are read too.",
        ),
    ] = "",
    output: FormatOption = Format.TABLE,
    metadata: StoreOption = None,
    data: DataOption = DEFAULT_DATA,
) -> int:
    """Check every copy, the lists of topics, the tier's files.

    Prints what is not as it should be, and at the end one line with all counters. Exit code 1: a
    copy or a file is missing, damaged or different, or a list contradicts its ledgers. 5: nothing
    is known to be wrong, but not every bookie could be asked, or the tier not looked at. A ledger
    that no topic lists is told as an orphan and is no failure. Nothing is changed: autorecovery
    makes missing copies again. Files of the tier are read with --tier-root. Open ledgers are
    looked at up to what is acknowledged.
    """
    # Imported here: loads the ledger client and the metadata stores.
    from octavo.client.autorecovery.operator import operating
    from octavo.client.verification.sweep import Sweep
    from octavo.metadata.connect import root_of
    from octavo.metadata.paths import Paths

    url = metadata_of(metadata, data)
    report = _Report(output)

    async def run() -> Totals:
        async with operating(url) as operator:
            sweep = Sweep(
                operator,
                Paths(root_of(url)),
                read=not quick,
                bytes_per_s=bytes_per_s,
                at_once=at_once,
                tier_root=tier_root,
            )
            try:
                return await _told(sweep, report, operator.clock)
            finally:
                report.end(sweep.totals)

    totals = asyncio.run(run())
    if not totals.ended:
        return ExitCode.INTERRUPTED
    if totals.wrong:
        return ExitCode.ERROR
    return ExitCode.UNAVAILABLE if totals.unsure else ExitCode.OK


async def _told(sweep: Sweep, report: _Report, clock: Clock) -> Totals:
    """Report what is found until everything was looked at, or somebody stops it."""
    totals = sweep.totals

    def line(passed_s: float) -> str:
        return (
            f"{totals.ledgers} ledgers, {totals.entries} entries, {totals.lists} lists, "
            f"{totals.files} files, "
            f"{totals.read_bytes / passed_s / 1e6:.0f} MB/s; {totals.wrong} wrong"
        )

    async def work(progress: Progress) -> OctavoError | OSError | None:
        """Its error is a value: it is no failed task, but what the command ends with."""
        try:
            async with aclosing(sweep.findings()) as findings:
                async for finding in findings:
                    progress.clear()
                    report.tell(finding)
        except (OctavoError, OSError) as error:
            return error
        return None

    async def show(progress: Progress) -> None:
        while True:
            progress.show()
            await clock.sleep(PROGRESS_EVERY_S)

    owner = TaskOwner("verify")
    with Progress(line) as progress, loop_stops() as stopped:
        try:
            owner.spawn(show(progress), name="show")
            stopping = owner.spawn(stopped.wait(), name="stop")
            working = owner.spawn(work(progress), name="work")
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await owner.close()
    error = None if working.cancelled() else working.result()
    if error is not None:
        raise error
    return totals


class _Report:
    """Findings while they are found, and the counters behind them."""

    def __init__(self, form: Format) -> None:
        self._form = form
        self._rows = RowStream(form, _WIDTHS, title="problems")
        self._count = 0

    def tell(self, finding: Finding) -> None:
        row: Row = {
            "what": finding.subject,
            "verdict": finding.verdict.value.lower(),
            "found": "; ".join(finding.texts),
        }
        with beside_work():
            if self._form is Format.JSON:
                write_text(f"{',' if self._count else self._head()}\n    {json.dumps(row)}")
            else:
                self._rows.emit(row)
        self._count += 1

    @staticmethod
    def _head() -> str:
        return '{\n  "findings": ['

    def end(self, totals: Totals) -> None:
        """The line at the end; on stdout where a table stands, else beside the data."""
        with beside_work():
            if self._form is Format.JSON:
                head = "\n  ]" if self._count else f"{self._head()}]"
                figures = {"verdict": totals.verdict.value, "ended": totals.ended}
                rest = json.dumps({**figures, **totals.figures()}, indent=2)
                write_text(f"{head},{rest[1:]}\n")
            elif self._form is Format.TABLE:
                write_text(totals.line() + "\n")
            else:
                self._rows.end()
                note(totals.line())
