"""`octavo brokers …`: the brokers of a cluster, and which of them may serve partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from octavo.client.messaging.api.descriptions import BrokerLoad

DRAIN_TIMEOUT_S = 60.0

app = typer.Typer(help="List and drain brokers, move what they serve.")

BrokerArgument = Annotated[str, typer.Argument(help="Id of the broker.")]


@app.command("list")
def list_brokers(
    output: FormatOption = Format.TABLE,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """List brokers with their state and how many bundles of partitions each serves.

    States: serving; drained, it takes nothing until it is undrained; leaving, it is about to stop;
    down, it is drained and does not live. The load is the part of its capacity that a broker uses:
    of its event loop or of its machine's processors, whichever is larger; without a figure it is
    not known at this time. Rates are those of the last seconds. The hottest partition is the one
    with the most to do, and its percent the part that it takes of all that the broker has to do.
    """
    with connected(bootstrap, timeout) as client:
        brokers = client.admin.list_brokers(timeout=timeout)
    rows: list[Row] = [
        {
            "broker": broker.broker_id,
            "state": broker.state,
            "bundles": broker.bundles,
            **_load_of(broker.load),
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


@app.command("bundles")
def list_bundles(
    broker: Annotated[str, typer.Argument(help="Only those of this broker.")] = "",
    output: FormatOption = Format.TABLE,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """List the bundles of partitions with their owners, and where they were moved to by decision.

    A bundle that was not moved is with the broker that hashing names.
    """
    with connected(bootstrap, timeout) as client:
        bundles = client.admin.list_bundles(timeout=timeout)
    rows: list[Row] = [
        {
            "bundle": one.bundle,
            "owner": one.owner_id,
            "load_percent": _percent(one.usage),
            "moved_to": one.placed_on,
        }
        for one in bundles
        if broker in ("", one.owner_id)
    ]
    emit_rows(rows, output, title="bundles")
    return ExitCode.OK


@app.command()
def unload(
    what: Annotated[
        str,
        typer.Argument(
            metavar="BUNDLE|TOPIC-PARTITION",
            help="Number of a bundle, or a partition in it, such as orders-3.",
        ),
    ],
    to: Annotated[
        str, typer.Option(help="Id of the broker that is to serve it. [default: the idlest one]")
    ] = "",
    wait: Annotated[
        bool, typer.Option(help="Return when it is served there; else when that is noted.")
    ] = True,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DRAIN_TIMEOUT_S,
) -> int:
    """Have another broker serve a bundle, with every partition that lies in it.

    It stays there while that broker lives and may serve, or until it is moved again. Producers and
    consumers go on.
    """
    bundle, partition = _parsed(what)
    with connected(bootstrap, timeout) as client:
        if partition is not None:
            bundle = client.admin.find_bundle(*partition, timeout=timeout).bundle
        found = client.admin.unload_bundle(bundle, to, wait=wait, timeout=timeout)
    if found.owner_id == found.placed_on:
        note(f"bundle {bundle} is served by {found.owner_id}")
    elif found.owner_id:
        note(f"bundle {bundle} goes from {found.owner_id} to {found.placed_on}")
    else:
        note(f"bundle {bundle} is for {found.placed_on}, once somebody asks for it")
    return ExitCode.OK


def _load_of(load: BrokerLoad | None) -> Row:
    """The columns of a load; one that is not known has them too."""
    return {
        "load_percent": None if load is None else _percent(load.usage),
        "bytes_in_per_s": None if load is None else load.bytes_in_per_s,
        "bytes_out_per_s": None if load is None else load.bytes_out_per_s,
        "records_in_per_s": None if load is None else load.records_in_per_s,
        "hottest": None if load is None else load.hottest or None,
        "hottest_percent": None if load is None else _percent(load.partition_load_ratio),
    }


def _percent(share: float | None) -> float | None:
    return None if share is None else round(share * 100, 1)


def _parsed(what: str) -> tuple[int, tuple[str, int] | None]:
    """The number of a bundle, or a topic and a partition."""
    if what.isascii() and what.isdecimal():
        return int(what), None
    topic, dash, partition = what.rpartition("-")
    if not (topic and dash and partition.isascii() and partition.isdecimal()):
        raise typer.BadParameter(f"{what!r} is neither a number nor a partition such as orders-3")
    return 0, (topic, int(partition))
