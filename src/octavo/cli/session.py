"""A connected SDK client for one command."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.runtime.deadline import TIMEOUT_S_MAX
from octavo.runtime.errors import ConfigError

if TYPE_CHECKING:
    from octavo.client.messaging import Client

DEFAULT_BOOTSTRAP = "localhost:7650"
DEFAULT_TIMEOUT_S = 10.0
BOOTSTRAP_VARIABLE = "OCTAVO_BOOTSTRAP_SERVERS"
PROXY_VARIABLE = "OCTAVO_USE_HTTP_PROXY"
"""`true`: brokers are reached through the proxy of the environment (`http_proxy`)."""

BootstrapOption = Annotated[
    str,
    typer.Option(
        "-b",
        "--bootstrap",
        envvar=BOOTSTRAP_VARIABLE,
        help="Brokers to start from, host:port, comma separated.",
    ),
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", help="Seconds to wait for the cluster.", min=0.1)
]


@contextmanager
def connected(bootstrap: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> Generator[Client]:
    """A client that has reached a broker within `timeout_s`; closed at the end."""
    # Imported here and not above: the SDK loads gRPC, which `octavo --help` must not pay for.
    from octavo.client.messaging import Client

    proxy = os.environ.get(PROXY_VARIABLE, "false").strip().lower()
    if proxy not in ("true", "false"):
        raise ConfigError(f"{PROXY_VARIABLE}={proxy!r} is not allowed", hint="true or false")
    if not 0 < timeout_s <= TIMEOUT_S_MAX:  # neither is what is no number
        raise ConfigError(f"--timeout {timeout_s} is not allowed", hint="seconds, above 0")
    with Client(bootstrap, use_http_proxy=proxy == "true") as client:
        client.connect(timeout=timeout_s)
        yield client


def parse_settings(pairs: list[str], option: str) -> dict[str, str]:
    """KEY=VALUE words as a dict."""
    settings: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise ConfigError(f"{option} {pair!r} is not of the form KEY=VALUE")
        settings[key.strip()] = value.strip()
    return settings


def typed(settings: dict[str, str]) -> dict[str, Any]:
    """Values as the SDK wants them: whole numbers and true or false are not text."""
    words: dict[str, Any] = {"true": True, "false": False}
    return {
        key: int(value) if value.lstrip("-").isdecimal() else words.get(value.lower(), value)
        for key, value in settings.items()
    }
