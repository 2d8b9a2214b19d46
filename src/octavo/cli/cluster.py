"""`octavo up`: the one-command cluster on this machine, in the foreground or detached."""

from __future__ import annotations

import asyncio
import os
import pathlib
import select
import subprocess
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.failures import ExitCode, tell
from octavo.cli.folder import DEFAULT_DATA, DataOption
from octavo.cli.output import count_of, note, write_beside_work
from octavo.cli.servers import LOG_FORMAT_VARIABLE, LogFormatName, LogFormatOption
from octavo.cli.session import parse_settings
from octavo.cli.terminal import is_terminal
from octavo.runtime.system_errors import naming
from octavo.supervisor.spec import (
    DEFAULT_BOOKIES,
    DEFAULT_BROKERS,
    DEFAULT_PORT,
    EMBEDDED,
    ClusterSpec,
)

if TYPE_CHECKING:
    from octavo.supervisor.cluster_file import ClusterFile

DETACHED_LOG = "up.log"
RELAY_EVERY_S = 0.1


def up(
    bookies: Annotated[
        int | None,
        typer.Option(help=f"Storage servers. [default: {DEFAULT_BOOKIES}, or as before]"),
    ] = None,
    brokers: Annotated[
        int | None, typer.Option(help=f"Brokers. [default: {DEFAULT_BROKERS}, or as before]")
    ] = None,
    data: DataOption = DEFAULT_DATA,
    port: Annotated[
        int | None,
        typer.Option(
            help="Port of the first broker; 0 takes free ports and keeps them. "
            f"[default: {DEFAULT_PORT}, or as before]"
        ),
    ] = None,
    metadata: Annotated[
        str, typer.Option(help="Metadata store: embedded, or zk://host:2181/octavo.")
    ] = EMBEDDED,
    detach: Annotated[bool, typer.Option("--detach", help="Return once it runs.")] = False,
    bookie_set: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Setting of each bookie.")
    ] = None,
    broker_set: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Setting of each broker.")
    ] = None,
    start_timeout: Annotated[float, typer.Option(help="Seconds to wait for each server.")] = 60.0,
    control: Annotated[bool, typer.Option("--control", hidden=True)] = False,
    log_format: LogFormatOption = LogFormatName.TEXT,
) -> int:
    """Start a cluster on this machine.

    Ctrl-C stops it, its data stays.
    """
    # Imported here: other commands do not need the process table.
    from octavo.supervisor.cluster_file import read_cluster_file

    data = data.absolute()
    str(data).encode()  # databases below it take text only: UnicodeEncodeError says so at once
    before = read_cluster_file(data)
    spec = ClusterSpec(
        data_dir=data,
        bookies=_first(bookies, before.bookies if before else None, DEFAULT_BOOKIES),
        brokers=_first(brokers, before.brokers if before else None, DEFAULT_BROKERS),
        port=_first(port, before.port if before else None, DEFAULT_PORT),
        metadata=metadata,
        bookie_settings=parse_settings(bookie_set or [], "--bookie-set"),
        broker_settings=parse_settings(broker_set or [], "--broker-set"),
        start_timeout_s=start_timeout,
    )
    spec.validate()
    if before is not None and spec.port != before.port:
        note(f"--port {spec.port}: the brokers were at {before.bootstrap_servers} before")
    os.environ[LOG_FORMAT_VARIABLE] = log_format.value  # for what this starts
    return _detached(spec) if detach else _serve(spec, log_format, control=control)


def _first(asked: int | None, before: int | None, default: int) -> int:
    """The first that is given."""
    if asked is not None:
        return asked
    return before if before is not None else default


def _serve(spec: ClusterSpec, log_format: LogFormatName, *, control: bool) -> int:
    # Imported here: the supervisor loads gRPC and the metadata server.
    from octavo.runtime.telemetry import configure_logging
    from octavo.supervisor.layout import log_path
    from octavo.supervisor.serve import answer, serve
    from octavo.supervisor.supervisor import SUPERVISOR, ClusterEvent

    log = log_path(spec.data_dir, SUPERVISOR)
    log.parent.mkdir(parents=True, exist_ok=True)
    configure_logging("INFO", log, log_format.value)

    is_up = False

    def on_event(event: ClusterEvent) -> None:
        if control:
            answer(event)
        elif is_up or event.kind != "starting":  # a start says what it waits for instead
            note(event.text)

    def on_up(cluster: ClusterFile) -> None:
        nonlocal is_up
        is_up = True
        if control:
            answer(ClusterEvent("ready", SUPERVISOR, cluster.bootstrap_servers), event="up")
            return
        write_beside_work(_welcome(cluster, spec.data_dir))
        if is_terminal(sys.stderr):
            note("Ctrl-C stops it; the data stays.")

    note(
        f"starting {count_of(spec.bookies, 'bookie')} and {count_of(spec.brokers, 'broker')}, "
        f"data in {spec.data_dir}"
    )
    asyncio.run(serve(spec, on_event=on_event, on_up=on_up, control=control))
    note("octavo stopped")
    return ExitCode.OK


def _welcome(cluster: ClusterFile, data_dir: pathlib.Path) -> str:
    first = cluster.bootstrap_servers.split(",", 1)[0]
    setting = ""
    if first != f"127.0.0.1:{DEFAULT_PORT}":
        setting = f"export OCTAVO_BOOTSTRAP_SERVERS={cluster.bootstrap_servers}\n"
    return (
        f"octavo is up at {cluster.bootstrap_servers} ({data_dir / 'cluster.json'})\n{setting}"
        "octavo topic create orders\n"
        "echo hello | octavo produce orders && octavo consume orders --from start\n"
    )


def _detached(spec: ClusterSpec) -> int:
    """Run the same cluster from a background process; return once it is up or has failed."""
    logs = spec.data_dir / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    log_path = logs / DETACHED_LOG
    reading, writing = os.pipe()
    with naming(log_path), log_path.open("wb") as log:
        # The last chance to say that a disk is full: the process in the background could not.
        log.write(f"octavo {' '.join(_up_words(spec))}\n".encode("utf-8", "surrogateescape"))
        log.flush()
        said_from = log.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "octavo", *_up_words(spec)],
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=log,
            start_new_session=True,
        )
    os.close(writing)
    try:
        welcome = _relay(reading, log_path, said_from)
    except BaseException:  # Ctrl-C: what was not asked to go on does not
        process.terminate()
        process.wait()
        raise
    finally:
        os.close(reading)
    if not welcome:
        return process.wait() or ExitCode.ERROR
    write_beside_work(welcome.decode("utf-8", "surrogateescape"))
    note(
        f"running in the background (pid {process.pid}); "
        f"`octavo down --data {spec.data_dir}` stops it"
    )
    return ExitCode.OK


def _relay(reading: int, log_path: pathlib.Path, said_from: int) -> bytes:
    """What the process in the background writes to its stdout, b"" when it ended instead.

    Until then what it says on stderr, which is its log, is said here.
    """
    with log_path.open("rb") as log:
        log.seek(said_from)
        while True:
            ready = select.select([reading], [], [], RELAY_EVERY_S)[0]
            welcome = os.read(reading, select.PIPE_BUF) if ready else b""  # one write, or the end
            if said := log.read():
                tell(said.decode("utf-8", "surrogateescape"))
            if ready:
                return welcome


def _up_words(spec: ClusterSpec) -> list[str]:
    words = ["up", "--data", str(spec.data_dir), "--port", str(spec.port)]
    words += ["--bookies", str(spec.bookies), "--brokers", str(spec.brokers)]
    words += ["--metadata", spec.metadata, "--start-timeout", str(spec.start_timeout_s)]
    for option, settings in (
        ("--bookie-set", spec.bookie_settings),
        ("--broker-set", spec.broker_settings),
    ):
        for key, value in settings.items():
            words += [option, f"{key}={value}"]
    return words
