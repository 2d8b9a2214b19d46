"""`octavo quotas …`: what single clients may use of each broker."""

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
    from octavo.client.messaging.api.descriptions import ClientQuota

DEFAULT_ROW = "(default)"

app = typer.Typer(help="List and change what single clients may use of each broker.")

ClientArgument = Annotated[str, typer.Argument(metavar="CLIENT_ID", help="Setting client_id.")]
PER_BROKER = "per second and broker; 0: no limit"


@app.command("list")
def list_quotas(
    output: FormatOption = Format.TABLE,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """List clients with quotas of their own, and the default of the broker that answers.

    A quota is per broker and per client id, over all connections of that id. In the other formats
    "no limit" is 0 and "default" is null.
    """
    with connected(bootstrap, timeout) as client:
        quotas = client.admin.list_quotas(timeout=timeout)
    shown = _shown if output is Format.TABLE else _row
    emit_rows([shown(one) for one in quotas], output, title="quotas")
    return ExitCode.OK


@app.command("set")
def set_quota(
    client_id: ClientArgument,
    bytes_in: Annotated[int | None, typer.Option(help=f"Bytes it sends, {PER_BROKER}.")] = None,
    bytes_out: Annotated[int | None, typer.Option(help=f"Bytes it reads, {PER_BROKER}.")] = None,
    requests: Annotated[
        int | None, typer.Option(help=f"Messages on streams and other calls, {PER_BROKER}.")
    ] = None,
    connections: Annotated[
        int | None, typer.Option(help="Connections to one broker; 0: no limit.")
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """Change what a client may use of each broker; what is not named stays as it is.

    Counts at once, also for clients that are connected. Who goes beyond it is slowed down, and
    answered THROTTLED if it goes on; further connections are refused.
    """
    if (bytes_in, bytes_out, requests, connections) == (None, None, None, None):
        raise typer.BadParameter(
            "name at least one of --bytes-in, --bytes-out, --requests, --connections"
        )
    with connected(bootstrap, timeout) as client:
        client.admin.set_quota(
            client_id,
            bytes_in_per_s=bytes_in,
            bytes_out_per_s=bytes_out,
            requests_per_s=requests,
            connections_max=connections,
            timeout=timeout,
        )
    note(f"quotas of {client_id} are set")
    return ExitCode.OK


@app.command("unset")
def unset_quota(
    client_id: ClientArgument,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """Take back the quotas of a client: the brokers' default counts for it again."""
    with connected(bootstrap, timeout) as client:
        client.admin.unset_quota(client_id, timeout=timeout)
    note(f"{client_id} has no quotas of its own")
    return ExitCode.OK


def _shown(quota: ClientQuota) -> Row:
    """As people read it: 0 would look like nothing at all."""
    from octavo.client.messaging.api.descriptions import quota_text

    values = _row(quota).items()
    return {name: one if isinstance(one, str) else quota_text(one) for name, one in values}


def _row(quota: ClientQuota) -> dict[str, str | int | None]:
    return {
        "client": quota.client_id or DEFAULT_ROW,
        "bytes_in_per_s": quota.bytes_in_per_s,
        "bytes_out_per_s": quota.bytes_out_per_s,
        "requests_per_s": quota.requests_per_s,
        "connections": quota.connections_max,
    }
