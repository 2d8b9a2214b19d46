"""Reads metric pages as Prometheus would: over HTTP, with the library's own parser."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Iterable
from typing import NamedTuple

from prometheus_client.core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

TIMEOUT_S = 30.0


class Page(NamedTuple):
    """One page, parsed."""

    families: dict[str, Family]
    """By the name that the page tells in its HELP lines."""

    def value(self, name: str, **labels: str) -> float:
        """One series; KeyError unless there is exactly one with these labels."""
        found = self.values(name, **labels)
        if len(found) != 1:
            raise KeyError(f"{name} {labels}: {len(found)} series")
        return found[0]

    def values(self, name: str, **labels: str) -> list[float]:
        """All series of a name that have these labels, and perhaps others."""
        return [
            sample.value
            for family in self.families.values()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]


def parsed(text: str) -> Page:
    """A page from its text; the parser takes the `_total` of counters away."""
    return Page(
        {
            family.name + ("_total" if family.type == "counter" else ""): family
            for family in text_string_to_metric_families(text)
        }
    )


def fetched(address: str) -> Page:
    """The page of a server process; blocks."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=TIMEOUT_S) as reply:
        return parsed(reply.read().decode())


async def asked(address: str, *words: bytes, host: str = "127.0.0.1") -> bytes:
    """What a server answers to these bytes, until it closes the connection."""
    reader, writer = await asyncio.open_connection(host, int(address.rpartition(":")[2]))
    try:
        writer.writelines(words)
        async with asyncio.timeout(TIMEOUT_S):
            return await reader.read()
    finally:
        writer.close()


GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


async def page_of(address: str) -> Page:
    """The page of a server on this loop."""
    head, _, body = (await asked(address, GET)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    return parsed(body.decode())


def total(values: Iterable[float]) -> int:
    """Counts as a whole number."""
    return round(sum(values))
