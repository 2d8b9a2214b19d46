"""Client halves: the same five tasks over each system's own Python client, inside a worker process.

A driver is made from the endpoint that the system's server half gave. Client packages are imported
by the driver's own module only, so that nothing else needs them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

Visit = Callable[[Sequence[bytes | None]], None]
"""Gets the values of each poll of an untimed, verifying read."""


class WriteSettings(NamedTuple):
    """How a producer batches; a driver whose client has no batches ignores it."""

    batch_bytes: int
    linger_ms: int
    compression: str
    buffer_bytes: int
    """Records accepted and not yet acknowledged."""
    spread: bool = False
    """Each record to the next partition, instead of whole batches in turn."""

    @classmethod
    def of(cls, given: Mapping[str, object]) -> WriteSettings:
        """From JSON."""
        return cls(
            int(str(given["batch_bytes"])),
            int(str(given["linger_ms"])),
            str(given["compression"]),
            int(str(given["buffer_bytes"])),
            bool(given.get("spread", False)),
        )


class Driver(Protocol):
    """What a worker can ask of a client."""

    def write(self, topic: str, values: Iterable[bytes], settings: WriteSettings) -> int:
        """Send everything, return the number acknowledged once all are."""
        ...

    def paced(
        self, topic: str, per_s: float, count: int, make: Callable[[float], bytes]
    ) -> list[float]:
        """Send `make(due)` at each due time, no linger; seconds from due to acknowledged."""
        ...

    def follow(
        self, topic: str, count: int, ready: Callable[[], None], seen: Callable[[bytes], None]
    ) -> None:
        """Read from the start as records arrive; `ready` is called before waiting for them."""
        ...

    def read(self, topic: str, count: int, visit: Visit | None) -> tuple[int, int]:
        """Read `count` records from the start as rows; returns rows and value bytes."""
        ...

    def read_arrow(self, topic: str, count: int, visit: Visit | None) -> tuple[int, int]:
        """The same as Arrow record batches; only for clients that have them."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class MissedRecords(RuntimeError):
    """Fewer records came, or were acknowledged, than must have been."""


NEVER = float("inf")
"""The latency of a record that was not acknowledged (yet)."""


def complete(samples: list[float]) -> list[float]:
    """The samples, none of which may be missing."""
    missing = samples.count(NEVER)
    if missing:
        raise MissedRecords(f"{len(samples) - missing} of {len(samples)} acknowledged")
    return samples


POLL_TIMEOUT_S = 20.0
"""A reader that hears nothing for this long reports what is missing."""


def connect(name: str, endpoint: Mapping[str, str]) -> Driver:
    """The driver called `name`, connected to `endpoint`."""
    module = importlib.import_module(f"bench.drivers.{name}")
    made: Driver = module.connect(endpoint)
    return made
