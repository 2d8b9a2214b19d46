"""`octavo status`, `restart`, `down`, `probe`: the processes of a cluster on this machine."""

from __future__ import annotations

import asyncio
import pathlib
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from octavo.cli.failures import ExitCode, say_error
from octavo.cli.folder import DEFAULT_DATA, DataOption, require_cluster
from octavo.cli.output import Format, FormatOption, Row, beside_work, count_of, emit_rows, note
from octavo.cli.probing import PROBE_TIMEOUT_MIN_S, PROBE_TIMEOUT_S, probe_server
from octavo.cli.session import DEFAULT_TIMEOUT_S, TimeoutOption, connected
from octavo.runtime.errors import ConfigError, NotEnoughBookies, OctavoError, RequestTimedOut

if TYPE_CHECKING:
    from octavo.client.messaging.api.descriptions import ClusterHealth, FleetBroker
    from octavo.supervisor.cluster_file import ClusterFile, ProcessEntry

DOWN_TIMEOUT_S = 60.0
RESTART_TIMEOUT_S = 120.0
HEALTH_TIMEOUT_S = 5.0
STATUS_CHECK_S = 1.0
_TABLE_COLUMNS = ("name", "pid", "address", "state")
"""What fits a terminal of 80 columns; the other forms have the role and the log as well."""
_BOOKIE_STATES = {"rw": "ready", "ro": "read-only"}


def status(
    data: DataOption = DEFAULT_DATA,
    output: FormatOption = Format.TABLE,
    bootstrap: Annotated[
        str,
        typer.Option("-b", "--bootstrap", help="Of a cluster elsewhere: as its broker sees it."),
    ] = "",
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """Show the processes of a cluster on this machine.

    Exit code 5 unless all are ready. With --bootstrap those that are registered in any cluster:
    what is down and not drained is not among them.
    """
    if bootstrap:
        if data != DEFAULT_DATA:
            raise ConfigError("--bootstrap and --data exclude each other")
        return _remote(bootstrap, timeout, output)
    cluster = require_cluster(data)
    alive = cluster.supervisor_alive()
    seen = asyncio.run(_look(cluster, data.absolute())) if alive else {}
    rows: list[Row] = [
        {
            "name": "metadata",
            "role": "metadata",
            "pid": cluster.supervisor_pid if alive else 0,
            "address": cluster.metadata,
            "state": "ready" if alive else "down",
            "log": cluster.metadata_log,
            "metrics": "",
        }
    ]
    rows += [_row(entry, alive, seen.get(entry.name, _Seen())) for entry in cluster.children]
    with beside_work():
        if output is Format.TABLE:
            shown = [{name: row[name] for name in _TABLE_COLUMNS} for row in rows]
            emit_rows([{**row, "pid": row["pid"] or None} for row in shown], output)
        else:
            emit_rows(rows, output)
    for look in seen.values():
        for why in (look.read_only, look.keeps_space):
            if why:
                note(why)
    if not alive:
        say_error("the cluster is not running", f"start it with `octavo up --data {data}`")
    elif down := [str(row["name"]) for row in rows if row["state"] == "down"]:
        note(
            f"{', '.join(down)} down: `octavo logs {down[0]} --data {data}` shows why, "
            f"`octavo restart {down[0]} --data {data}` starts it"
        )
    return ExitCode.OK if all(row["state"] == "ready" for row in rows) else ExitCode.UNAVAILABLE


def _remote(bootstrap: str, timeout_s: float, output: Format) -> int:
    with connected(bootstrap, timeout_s) as client:
        brokers = client.admin.list_brokers(timeout=timeout_s)
        rows = registered(brokers, client.admin.cluster_health(timeout=timeout_s))
    with beside_work():
        shown = rows if output is not Format.TABLE else [
            {name: row[name] for name in _TABLE_COLUMNS if name != "pid"} for row in rows
        ]  # fmt: skip
        emit_rows(shown, output)
    return ExitCode.OK if all(row["state"] == "ready" for row in rows) else ExitCode.UNAVAILABLE


def registered(brokers: Sequence[FleetBroker], health: ClusterHealth) -> list[Row]:
    """The servers of a cluster as one of its brokers knows them, in the columns of `status`."""
    seen = [("metadata", "metadata", "", "ready" if health.metadata_connected else "down")]
    seen += [
        (one.broker_id, "broker", one.address, "ready" if one.state == "serving" else one.state)
        for one in brokers
    ]
    seen += [
        (one.bookie_id, "bookie", one.wire_address, _BOOKIE_STATES.get(one.state, one.state))
        for one in health.bookies
    ]
    return [
        {
            "name": name,
            "role": role,
            "pid": None,
            "address": address,
            "state": state,
            "log": "",
            "metrics": "",
        }
        for name, role, address, state in seen
    ]


class _Seen(NamedTuple):
    """What one process answered."""

    serving: bool = False
    read_only: str | None = None
    """Why it takes no records, in words."""
    keeps_space: str | None = None
    """Why it gives no space back, in words."""


def _row(entry: ProcessEntry, alive: bool, seen: _Seen) -> Row:
    state: str = entry.state if alive else "down"
    if state == "ready" and not seen.serving:
        state = "not answering"
    elif state == "ready" and seen.read_only:
        state = "read-only"
    return {
        "name": entry.name,
        "role": entry.role,
        "pid": entry.pid if alive else 0,
        "address": entry.address,
        "state": state,
        "log": entry.log,
        "metrics": entry.metrics_address,
    }


async def _look(cluster: ClusterFile, data: pathlib.Path) -> dict[str, _Seen]:
    # Imported here: loads gRPC.
    from octavo.supervisor.disks import keeps_space_because, read_only_because
    from octavo.supervisor.health import bookie_info, is_serving

    async def one(entry: ProcessEntry) -> _Seen:
        serving = await is_serving(entry.health_address, STATUS_CHECK_S)
        if not serving or entry.role != "bookie":
            return _Seen(serving)
        info = await bookie_info(entry.health_address, STATUS_CHECK_S)
        if info is None:
            return _Seen(serving)
        read_only = read_only_because(entry, info, data)
        return _Seen(serving, read_only, keeps_space_because(entry, info))

    looks = await asyncio.gather(*map(one, cluster.children))
    return {entry.name: look for entry, look in zip(cluster.children, looks, strict=True)}


def restart(
    name: Annotated[str, typer.Argument(help="A process as `octavo status` names it.")],
    data: DataOption = DEFAULT_DATA,
    force: Annotated[
        bool, typer.Option("--force", help="Also when nothing can be written meanwhile.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait until it serves again.", min=1)
    ] = RESTART_TIMEOUT_S,
) -> int:
    """Stop one process in good order and start it again.

    Returns when it serves. One that is down is started. A bookie without which records could not
    be acknowledged is left alone without --force.
    """
    # Imported here: loads the process table.
    from octavo.supervisor.control import ask

    cluster = require_cluster(data)
    entry = cluster.child(name)
    if entry is None:
        known = ", ".join(child.name for child in cluster.children)
        say_error(f"no process called {name!r} here", f"known: {known}")
        return ExitCode.NOT_FOUND
    if not cluster.supervisor_alive():
        say_error("the cluster is not running", f"start it with `octavo up --data {data}`")
        return ExitCode.UNAVAILABLE
    if entry.role == "bookie" and entry.state != "down" and not force:
        _require_enough_others(cluster, name)
    if entry.role == "broker" and cluster.brokers == 1:
        note(f"{name} is the only broker: clients wait until it is back")
    for answer in ask(cluster, ["restart", name], timeout):
        if answer.event == "failed":
            say_error(answer.text, answer.hint)
            return ExitCode.UNAVAILABLE
        if answer.text:
            note(answer.text)
    return ExitCode.OK


def _require_enough_others(cluster: ClusterFile, name: str) -> None:
    """Raise NotEnoughBookies unless the other bookies are surely enough to acknowledge records."""
    hint = "wait until the others are ready, or add --force"
    try:
        with connected(cluster.bootstrap_servers, HEALTH_TIMEOUT_S) as client:
            found = client.admin.cluster_health(timeout=HEALTH_TIMEOUT_S)
    except OctavoError as error:
        raise NotEnoughBookies(
            f"{name} was left alone: no broker tells how many bookies are there ({error.cause})",
            hint=hint,
        ) from error
    others = writable_without(found, name)
    if others < found.ack_quorum:
        raise NotEnoughBookies(
            f"{name} was left alone: without it {count_of(others, 'bookie')} could take records, "
            f"and {found.ack_quorum} must hold each before it is acknowledged",
            hint=hint,
        )


def writable_without(found: ClusterHealth, name: str) -> int:
    """Bookies that take new records, this one not counted."""
    return sum(bookie.state == "rw" and bookie.bookie_id != name for bookie in found.bookies)


def probe(
    address: Annotated[
        str, typer.Argument(help="host:port of a broker or of a bookie's control port.")
    ],
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait.", min=PROBE_TIMEOUT_MIN_S)
    ] = PROBE_TIMEOUT_S,
    service: Annotated[
        str | None,
        typer.Option(help="Ask whether this takes work, octavo.broker.Broker say; '': liveness."),
    ] = None,
) -> int:
    """Ask one server whether it is ready: exit code 0 or 5.

    For health checks of containers.
    """
    return probe_server(address, timeout, service)


def down(
    data: DataOption = DEFAULT_DATA,
    timeout: Annotated[float, typer.Option(help="Seconds to wait.", min=1)] = DOWN_TIMEOUT_S,
) -> int:
    """Stop the cluster in a data folder. Its data stays."""
    # Imported here: see `up`.
    import psutil

    cluster = require_cluster(data)
    if not cluster.supervisor_alive():
        note("the cluster is not running")
        return ExitCode.OK
    try:
        process = psutil.Process(cluster.supervisor_pid)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout)
    except psutil.NoSuchProcess:
        pass
    except psutil.AccessDenied as error:
        raise PermissionError(13, "not allowed to stop the cluster", str(data)) from error
    except psutil.TimeoutExpired as error:
        raise RequestTimedOut(
            f"pid {cluster.supervisor_pid} still runs after {timeout:.0f} s",
            hint=f"read {cluster.metadata_log}",
        ) from error
    note("octavo stopped")
    return ExitCode.OK
