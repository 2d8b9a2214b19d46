"""What is said of a metric: name, kind, labels, meaning. The standard library only."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]
Server = Literal["broker", "bookie"]

BOTH: tuple[Server, ...] = ("broker", "bookie")
BROKER: tuple[Server, ...] = ("broker",)
BOOKIE: tuple[Server, ...] = ("bookie",)


class Metric(NamedTuple):
    """One family of series."""

    name: str
    """As on the page: counters end with `_total`, units are base units."""
    kind: Kind
    servers: tuple[Server, ...]
    meaning: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets."""
    setting: str = ""
    """The setting of the server without which there are no series."""
    by_library: bool = False
    """Read from the process by the library that writes the page."""

    @property
    def unit(self) -> str:
        """What the name ends with, when that is a unit."""
        last = self.name.removesuffix("_total").rpartition("_")[2]
        return last if last in ("seconds", "bytes", "ratio") else ""
