"""`octavo cluster health` and `octavo ledger show`: what the storage looks like now."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.failures import ExitCode
from octavo.cli.output import (
    Format,
    FormatOption,
    Row,
    beside_work,
    count_of,
    emit_one,
    emit_rows,
    note,
    spread_of,
    write_text,
)
from octavo.cli.session import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    BootstrapOption,
    TimeoutOption,
    connected,
)
from octavo.cli.terminal import wrapped

if TYPE_CHECKING:
    from octavo.client.messaging.api.descriptions import ClusterHealth, LedgerDescription

NAMED_MAX = 5
READ_ONLY_HINT = (
    "a bookie is read-only while its disk is full: make room there, "
    "it takes records again by itself"
)

ledger_app = typer.Typer(help="Look at ledgers, check their copies, close them.")
cluster_app = typer.Typer(help="Look at the cluster.")


@cluster_app.callback()
def _cluster() -> None:
    """Look at the cluster."""


@ledger_app.callback()
def _ledger() -> None:
    """Look at ledgers, check their copies, close them."""


@cluster_app.command()
def health(
    output: FormatOption = Format.TABLE,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """Say in one sentence whether records can be written; exit code 0 or 5."""
    with connected(bootstrap, timeout) as client:
        found = client.admin.cluster_health(timeout=timeout)
    healthy, sentence = judge(found)
    with beside_work():
        _print_health(found, healthy, sentence, output)
    if output is Format.TABLE and found.writable_bookies < len(found.bookies):
        note(f"hint: {READ_ONLY_HINT}")
    return ExitCode.OK if healthy else ExitCode.UNAVAILABLE


def _print_health(found: ClusterHealth, healthy: bool, sentence: str, output: Format) -> None:
    if output is Format.TABLE:
        write_text(wrapped(sentence, sys.stdout) + "\n")
    else:
        emit_one(
            {
                "healthy": healthy,
                "sentence": sentence,
                "cluster_id": found.cluster_id,
                "brokers": [{"name": b.broker_id, "address": b.address} for b in found.brokers],
                "bookies": [
                    {
                        "name": b.bookie_id,
                        "address": b.wire_address,
                        "state": b.state,
                        "domain": b.fault_domain or None,
                    }
                    for b in found.bookies
                ],
                "metadata_connected": found.metadata_connected,
                "write_quorum": found.write_quorum,
                "ack_quorum": found.ack_quorum,
                "degraded_ledgers": found.degraded_ledgers,
                "short_segments": found.short_segments,
                "segments": found.segments,
                "census_complete": found.census_complete,
                "marked_ledgers": found.marked_ledgers,
                "audited_ms": found.audited_ms,
                "unchecked_ledgers": found.unchecked_ledgers,
                "returned_bookies": list(found.returned_bookies),
                "metadata_error": found.metadata_error or None,
            },
            output,
        )


def judge(found: ClusterHealth) -> tuple[bool, str]:
    """Whether acknowledged writes are possible, and the sentence that says so."""
    writable = found.writable_bookies
    read_only = [bookie.bookie_id for bookie in found.bookies if bookie.state != "rw"]
    facts = f"{count_of(len(found.brokers), 'broker')}, {count_of(writable, 'writable bookie')}"
    facts += _spread(found)
    if read_only:
        names = ", ".join(read_only[:NAMED_MAX])
        more = ", ..." if len(read_only) > NAMED_MAX else ""
        facts += f", {count_of(len(read_only), 'read-only bookie')}: {names}{more}"
    if not found.metadata_connected:
        why = found.metadata_error or "the metadata store is away"
        return False, f"unhealthy: {why}, nothing new can be opened ({facts})"
    if writable < found.ack_quorum:
        return False, (
            f"unhealthy: nothing can be acknowledged, {count_of(writable, 'writable bookie')} "
            f"of the {found.ack_quorum} that must hold a copy ({facts})"
        )
    if writable < found.write_quorum:
        return True, (
            f"degraded: writes are acknowledged, but new ledgers hold {writable} copies "
            f"instead of {found.write_quorum} ({facts})"
        )
    marked = found.marked_ledgers or 0
    healing = f"; copies of {count_of(marked, 'ledger')} are being made" if marked else ""
    if found.short_segments is None:
        return False, f"unhealthy: the catalog cannot be read, copies are not known ({facts})"
    if found.short_segments:
        looked = count_of(found.segments or 0, "segment")
        which = looked if found.census_complete else f"the newest {looked}"
        return True, (
            f"writes are healthy, but of {which} {found.short_segments} cannot have all copies "
            "now: written while bookies were too few, or on bookies that are away"
            f"{healing} ({facts})"
        )
    if found.returned_bookies:
        return True, f"writes are healthy, but {_returned(found)}{healing} ({facts})"
    if found.marked_ledgers:
        return True, f"writes are healthy{healing} ({facts})"
    return True, (
        f"healthy: {facts}; new records go to {found.write_quorum} bookies and are acknowledged "
        f"by {found.ack_quorum}"
    )


def _spread(found: ClusterHealth) -> str:
    """Over how many machines, and named fault domains, copies can be spread (3.8)."""
    writable = [bookie for bookie in found.bookies if bookie.state == "rw"]
    if not writable or not all(bookie.host for bookie in writable):  # not known
        return ""
    return f" {spread_of([(bookie.fault_domain, bookie.host) for bookie in writable])}"


def _returned(found: ClusterHealth) -> str:
    """7.3: no marks prove nothing before somebody has looked."""
    names = found.returned_bookies
    shown = ", ".join(names[:NAMED_MAX]) + (", ..." if len(names) > NAMED_MAX else "")
    came, have = ("it", "has") if len(names) == 1 else ("they", "have")
    return (
        f"whether {shown} {have} all copies is not known yet: nobody has looked at every ledger "
        f"since {came} came back"
    )


@ledger_app.command()
def show(
    ledger_id: Annotated[int, typer.Argument(help="Number of the ledger.", min=0)],
    output: FormatOption = Format.TABLE,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """Show state, ensembles and last entry of a ledger, and what each bookie holds of it."""
    with connected(bootstrap, timeout) as client:
        found = client.admin.show_ledger(ledger_id, timeout=timeout)
    facts = _facts(found)
    holders: list[Row] = [
        {
            "bookie": holder.bookie_id,
            "incarnation": holder.incarnation,
            "reachable": holder.reachable,
            "last_add_confirmed": holder.last_add_confirmed if holder.reachable else None,
            "fenced": holder.fenced if holder.reachable else None,
            "error": holder.error or None,
        }
        for holder in found.holders
    ]
    if output in (Format.TABLE, Format.CSV):
        emit_one(facts, output)
        emit_rows(holders, output, title="holders")
    else:
        emit_one({**facts, "holders": holders}, output)
    return ExitCode.OK


def _facts(found: LedgerDescription) -> Row:
    """Bounds of each ensemble are inclusive; None: open at the end."""
    nexts = [fragment.first_entry - 1 for fragment in found.fragments[1:]]
    ensembles: list[Row] = [
        {"first_entry": fragment.first_entry, "last_entry": last, "members": list(fragment.members)}
        for fragment, last in zip(found.fragments, [*nexts, found.last_entry], strict=True)
    ]
    return {
        "ledger": found.ledger_id,
        "state": found.state,
        "last_entry": found.last_entry,
        "bytes": found.length,
        "created_ms": found.created_ms,
        "E/Qw/Qa": f"{found.ensemble_size}/{found.write_quorum}/{found.ack_quorum}",
        "degraded": found.degraded,
        "custom": dict(found.custom),
        "ensembles": ensembles,
    }
