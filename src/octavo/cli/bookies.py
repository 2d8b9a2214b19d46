"""`octavo bookies`: the fleet of bookies, and what an operator decides about one of them.

These speak to the metadata store and to bookies: they work while no broker does.
"""

from __future__ import annotations

import asyncio
import pathlib
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.failures import ExitCode
from octavo.cli.folder import DEFAULT_DATA, DataOption, require_cluster
from octavo.cli.output import (
    Format,
    FormatOption,
    Row,
    beside_work,
    count_of,
    emit_rows,
    note,
    spread_of,
)
from octavo.runtime.errors import BookieUnavailable, OctavoError

if TYPE_CHECKING:
    from octavo.client.autorecovery.operator import DrainProgress, Operator

INFO_TIMEOUT_S = 1.0
DRAIN_TIMEOUT_S = 3600.0
MARKS_COUNTED_MAX = 1000
SCRUB_COLUMNS = ("whole_s_ago", "read_mb", "damaged", "repaired", "unrepaired", "quarantined")
"""What is told of a scrub: how long ago all was read; since the start of the process how much was
read, entries found damaged, entries made again; and entries and segments that are damaged now."""

app = typer.Typer(help="Look after the bookies of a cluster.")
NameArgument = Annotated[str, typer.Argument(help="A bookie, as `octavo bookies list` names it.")]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--metadata",
        envvar="OCTAVO_METADATA",
        help="Metadata store: zk://host:2181/octavo or embedded://host:port/octavo. "
        "[default: that of the cluster in --data]",
    ),
]


@app.callback()
def _bookies() -> None:
    """Look after the bookies of a cluster."""


def metadata_of(metadata: str | None, data: pathlib.Path) -> str:
    """The store that was named, or that of the cluster in the data folder."""
    return metadata if metadata is not None else require_cluster(data).metadata


@app.command("list")
def list_bookies(
    output: FormatOption = Format.TABLE,
    metadata: StoreOption = None,
    data: DataOption = DEFAULT_DATA,
) -> int:
    """List every bookie of the cluster, those that are away included, with disk and ledgers."""
    # Imported here: loads the ledger client and the metadata stores.
    from octavo.client.autorecovery.operator import operating

    async def run() -> tuple[list[Row], list[str]]:
        async with operating(metadata_of(metadata, data)) as operator:
            return await _rows(operator), await _notes(operator)

    rows, notes = asyncio.run(run())
    with beside_work():
        emit_rows(rows, output, title="bookies")
    if output is Format.TABLE:
        for text in notes:
            note(text)
    return ExitCode.OK


async def _rows(operator: Operator) -> list[Row]:
    from octavo.supervisor.health import bookie_info

    fleet, census = await operator.fleet(), await operator.census()
    live = {b.bookie_id: b for b in operator.client.directory.live()}
    names = sorted({*fleet.incarnations, *fleet.unreadable, *live, *census.by_bookie})
    asked = await asyncio.gather(
        *(bookie_info(live[n].control_address, INFO_TIMEOUT_S) for n in names if n in live)
    )
    infos = dict(zip((name for name in names if name in live), asked, strict=True))
    rows: list[Row] = []
    for name in names:
        there, info, hold = live.get(name), infos.get(name), fleet.holds.get(name)
        held = hold is not None and fleet.incarnations.get(name) == hold.member
        if there is not None:
            state = "read-only" if there.state == "ro" else "ready"
        else:
            state = "away" if name in fleet.incarnations or name in fleet.unreadable else "gone"
        rows.append(
            {
                "bookie": name,
                "state": state,
                "hold": hold.kind.value if hold is not None and held else None,
                "address": there.wire_address if there is not None else None,
                "ledgers": census.by_bookie.get(name, 0),
                "free_mb": info.free_bytes // 1_000_000 if info is not None else None,
                "domain": (there.fault_domain if there is not None else "") or None,
            }
        )
    return rows


async def _notes(operator: Operator) -> list[str]:
    """What is known of missing copies; 7.3: no marks alone prove nothing."""
    notes: list[str] = []
    places = [(b.fault_domain, b.host) for b in operator.client.directory.live() if b.state == "rw"]
    if places:
        writable = count_of(len(places), "writable bookie")
        where = "different ones while that is possible" if len({*places}) > 1 else "it"
        notes.append(f"{writable} {spread_of(places)}: the copies of a record lie on {where}")
    if await operator.repairs.disabled():
        notes.append("autorecovery is switched off: missing copies stay missing")
    marks = len(await operator.repairs.marked(MARKS_COUNTED_MAX))
    report = await operator.repairs.report()
    if report is None:
        notes.append("no auditor has looked at every ledger yet")
        return notes
    age_s = max(0, operator.clock.wall_ms() - report.ended_ms) // 1000
    found = f"{count_of(report.short, 'ledger')} of {report.ledgers} lacked copies"
    if report.unchecked or report.unreadable:
        found += f", {report.unchecked + report.unreadable} could not be looked at"
    notes.append(f"last look {age_s} s ago: {found}; {count_of(marks, 'ledger')} wait for copies")
    return notes


@app.command()
def readonly(
    name: NameArgument, metadata: StoreOption = None, data: DataOption = DEFAULT_DATA
) -> int:
    """Let a bookie take no new records, until `writable`; it keeps what it has.

    It stays so over restarts. Writers go on with other bookies by themselves.
    """
    from octavo.client.autorecovery.operator import operating

    async def run() -> None:
        async with operating(metadata_of(metadata, data)) as operator:
            await operator.hold_readonly(name)

    asyncio.run(run())
    note(f"{name} takes no new records; `octavo bookies writable {name}` ends that")
    return ExitCode.OK


@app.command()
def writable(
    name: NameArgument, metadata: StoreOption = None, data: DataOption = DEFAULT_DATA
) -> int:
    """End `readonly`, or a decommissioning that is not done yet: what moved stays where it is."""
    from octavo.client.autorecovery.operator import operating

    async def run() -> None:
        async with operating(metadata_of(metadata, data)) as operator:
            await operator.release(name)

    asyncio.run(run())
    note(f"{name} takes records again, unless its disk is full")
    return ExitCode.OK


@app.command()
def scrub(
    name: Annotated[
        str | None, typer.Argument(help="A bookie, as `octavo bookies list` names it; else all.")
    ] = None,
    now: Annotated[
        bool, typer.Option("--now", help="Have it read all its segments, beginning now.")
    ] = False,
    output: FormatOption = Format.TABLE,
    metadata: StoreOption = None,
    data: DataOption = DEFAULT_DATA,
) -> int:
    """Show what bookies found when they read what they store, to find damage before it is needed.

    They do so by themselves, a little at a time. What is damaged is made again from other copies.
    """
    from octavo.client.autorecovery.operator import operating

    async def run() -> tuple[list[Row], list[str]]:
        async with operating(metadata_of(metadata, data)) as operator:
            if name is not None:
                await operator.member_of(name)
            there = operator.client.directory.live()
            chosen = {b.bookie_id: b.control_address for b in there if name in (None, b.bookie_id)}
            if name is not None and not chosen:
                raise BookieUnavailable(f"{name} is away", hint="`octavo bookies list` shows all")
            notes = [await _scrub_now(*one) for one in chosen.items()] if now else []
            now_ms = operator.clock.wall_ms()
            return [await _scrubbed(*one, now_ms) for one in chosen.items()], notes

    rows, notes = asyncio.run(run())
    with beside_work():
        emit_rows(rows, output, title="scrub")
    for text in filter(None, notes):
        note(text)
    return ExitCode.UNAVAILABLE if any(notes) else ExitCode.OK


async def _scrub_now(name: str, address: str) -> str:
    """Ask one bookie; why it did not work, or nothing."""
    from octavo.supervisor.health import scrub_now

    try:
        await scrub_now(address, INFO_TIMEOUT_S)
    except OctavoError as error:
        return f"{name} does not begin: {error.cause}"
    return ""


async def _scrubbed(name: str, address: str, now_ms: int) -> Row:
    """What one bookie says of its scrub; nothing of one that does not answer."""
    from octavo.supervisor.health import bookie_info

    info = await bookie_info(address, INFO_TIMEOUT_S)
    if info is None:
        return {"bookie": name, "state": "no answer", **dict.fromkeys(SCRUB_COLUMNS)}
    ended_s = (now_ms - info.scrub_ended_ms) // 1000 if info.scrub_ended_ms else None
    values = (
        ended_s,
        info.scrub_bytes // 1_000_000,
        info.scrub_entries_damaged,
        info.scrub_entries_repaired,
        info.scrub_entries_waiting,
        info.scrub_segments_quarantined,
    )
    state = "reading" if info.scrub_running else "waiting"
    return {"bookie": name, "state": state, **dict(zip(SCRUB_COLUMNS, values, strict=True))}


@app.command()
def decommission(
    name: NameArgument,
    metadata: StoreOption = None,
    data: DataOption = DEFAULT_DATA,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait for the end; the drain goes on.", min=1)
    ] = DRAIN_TIMEOUT_S,
) -> int:
    """Move every copy of a bookie elsewhere, then take it out of the cluster for good.

    It may run or be lost. Interrupting is safe at any point: the drain goes on, and the same
    command waits for its end. Stop the bookie's process afterwards; it cannot start again.
    """
    from octavo.client.autorecovery.operator import operating

    said = -1

    def say(progress: DrainProgress) -> None:
        nonlocal said
        if progress.ledgers != said:
            said = progress.ledgers
            note(f"{count_of(progress.ledgers, 'ledger')} to move")

    async def run() -> None:
        async with operating(metadata_of(metadata, data)) as operator:
            await operator.decommission(name, timeout_s=timeout, on_progress=say)

    asyncio.run(run())
    note(f"{name} is decommissioned: stop its process and remove its data folder")
    return ExitCode.OK
