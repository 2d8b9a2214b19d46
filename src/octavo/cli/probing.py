"""`octavo probe` on a short path: health checks start it every few seconds on every server.

The entry point comes here before typer and the SDK are loaded, and gRPC's blocking channel stands
in for asyncio. Words that are not the plain form (`--help`, a typing error) go the usual way.
"""

from __future__ import annotations

from collections.abc import Sequence

PROBE_TIMEOUT_S = 3.0
PROBE_TIMEOUT_MIN_S = 0.1


def plain_probe(words: Sequence[str]) -> tuple[str, float] | None:
    """Address and seconds of `probe ADDRESS [--timeout SECONDS]`, None for anything else."""
    match words:
        case ["probe", address] if not address.startswith("-"):
            return address, PROBE_TIMEOUT_S
        case ["probe", address, "--timeout", seconds] | ["probe", "--timeout", seconds, address]:
            try:
                timeout_s = float(seconds)
            except ValueError:
                return None
            if address.startswith("-") or not PROBE_TIMEOUT_MIN_S <= timeout_s < float("inf"):
                return None
            return address, timeout_s
        case _:
            return None


def probe_server(address: str, timeout_s: float, service: str | None = None) -> int:
    """Ask one server through grpc.health.v1 and say the answer on stderr. Exit code 0 or 5.

    `service` None: whether it has started.
    """
    # Imported here: loads gRPC, without its asyncio part.
    from octavo.cli.failures import ExitCode, tell
    from octavo.proto.health import STARTED
    from octavo.supervisor.health import is_serving_now

    named = STARTED if service is None else service
    serving = is_serving_now(address, timeout_s, service=named)
    what = f"{service} of {address}" if service else address
    tell(f"{what} is {'ready' if serving else 'not ready'}\n")
    return ExitCode.OK if serving else ExitCode.UNAVAILABLE
