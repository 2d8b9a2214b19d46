"""What a local cluster consists of, and the command line of each of its processes."""

from __future__ import annotations

import dataclasses
import pathlib
import re
import sys
from collections.abc import Mapping
from typing import Literal

from octavo.runtime.address import join_address
from octavo.runtime.errors import ConfigError

Role = Literal["bookie", "broker"]

DEFAULT_PORT = 7650
DEFAULT_BOOKIES = 3
DEFAULT_BROKERS = 1
DEFAULT_ACK_QUORUM = 2
"""`ack_quorum` of brokers to whom nothing else is said."""
EMBEDDED = "embedded"
"""Value of `metadata` that makes the supervisor host the store itself."""
ROOT_KEY = "/octavo"
PARENT_PID_VARIABLE = "OCTAVO_PARENT_PID"
"""A server that finds this in its environment dies with that process (see `octavo.cli.servers`)."""

_CHILDREN_MAX = 64
_NAME = re.compile(r"(bookie|broker)-[1-9][0-9]*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """Everything `octavo up` was told; `validate()` is called before anything is started."""

    data_dir: pathlib.Path
    bookies: int = DEFAULT_BOOKIES
    brokers: int = DEFAULT_BROKERS
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    """Port of broker-1, the next ones follow it; 0 takes free ports and keeps them from then on."""
    metadata: str = EMBEDDED
    bookie_settings: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    broker_settings: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    start_timeout_s: float = 60.0
    stop_timeout_s: float = 15.0

    def validate(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        for what, count in (("bookies", self.bookies), ("brokers", self.brokers)):
            if not 1 <= count <= _CHILDREN_MAX:
                raise ConfigError(f"{count} {what}: must be 1 to {_CHILDREN_MAX}")
        if not 0 <= self.port <= 65535 - self.brokers:
            raise ConfigError(f"port {self.port} is out of range")
        if self.metadata != EMBEDDED and "://" not in self.metadata:
            raise ConfigError(
                f"metadata address {self.metadata!r} is not an address",
                hint="use zk://host:2181/octavo, or leave it out for the embedded store",
            )

    def child_names(self) -> list[tuple[Role, str]]:
        """Role and name of each child in the order in which they are started."""
        bookies: list[tuple[Role, str]] = [
            ("bookie", f"bookie-{i + 1}") for i in range(self.bookies)
        ]
        brokers: list[tuple[Role, str]] = [
            ("broker", f"broker-{i + 1}") for i in range(self.brokers)
        ]
        return bookies + brokers

    def quorum_settings(self) -> dict[str, str]:
        """Broker settings that let a cluster of one or two bookies write at all."""
        if self.bookies >= DEFAULT_BOOKIES:
            return {}
        count = str(self.bookies)
        return {"ensemble_size": count, "write_quorum": count, "ack_quorum": count}

    def enough(self, role: Role) -> int:
        """With how many of a role a cluster that has data is of use.

        Bookies for an acknowledgement (Qa), one broker. An ack quorum that is no number is left to
        the brokers to refuse.
        """
        if role == "broker":
            return 1
        quorum = {**self.quorum_settings(), **self.broker_settings}.get("ack_quorum", "")
        wanted = int(quorum) if quorum.isdecimal() else DEFAULT_ACK_QUORUM
        return max(1, min(wanted, self.bookies))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChildSpec:
    """One child process: who it is, where it listens, where it keeps its files."""

    role: Role
    name: str
    host: str
    port: int
    control_port: int | None
    """Bookies serve gRPC beside their data port; brokers have one port only."""
    metadata_url: str
    data_dir: pathlib.Path
    log: pathlib.Path
    settings: Mapping[str, str]

    @property
    def address(self) -> str:
        """Where clients of this role connect."""
        return join_address(self.host, self.port)

    @property
    def metrics_address(self) -> str:
        """Where the page for Prometheus is; empty: nowhere."""
        port = self.settings.get("metrics_port", "")
        if not port.isdecimal() or int(port) == 0:
            return ""
        return join_address(self.settings.get("metrics_host") or self.host, int(port))

    @property
    def health_address(self) -> str:
        """Where grpc.health.v1 answers."""
        return join_address(self.host, self.control_port or self.port)

    def command(self) -> list[str]:
        """The command line, runnable by hand as well."""
        words = [sys.executable, "-m", "octavo", self.role, "--id", self.name]
        words += ["--metadata", self.metadata_url, "--host", self.host, "--port", str(self.port)]
        if self.role == "bookie":
            words += ["--control-port", str(self.control_port), "--data", str(self.data_dir)]
        for key, value in sorted(self.settings.items()):
            words += ["-X", f"{key}={value}"]
        return words


def is_child_name(name: str) -> bool:
    """Whether `name` has the form of a child's name."""
    return _NAME.fullmatch(name) is not None
