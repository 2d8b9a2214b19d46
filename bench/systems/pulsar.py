"""Apache Pulsar standalone: said to be missing, with the reason, so that nobody wonders."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

from bench.systems import System, Unavailable

REASON = (
    "its broker cannot be had by package name: Maven's registry has pulsar-broker 4.0 without "
    "pulsar-opentelemetry and jetcd-core-shaded, which it needs"
)


class Pulsar(System):
    """Never available here."""

    name = "pulsar"
    setting = "standalone"
    driver = ""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)

    def prepare(self) -> None:
        raise Unavailable(REASON)

    def start(self) -> None:
        raise Unavailable(REASON)

    def stop(self) -> None:
        return

    def endpoint(self) -> Mapping[str, str]:
        return {}

    def processes(self) -> Mapping[str, list[int]]:
        return {}

    def create_topic(self, name: str, partitions: int) -> None:
        raise Unavailable(REASON)

    def versions(self) -> Mapping[str, str]:
        return {}
