"""How busy each broker is, as it says itself (ledger §8.4, O-4): `loads/<broker-id>`, ephemeral.

A report is a few hundred bytes, at most `REPORT_MAX_BYTES`, and is written when something changed
or once in a while. It goes with the session that made it. Nothing here says how old a report is:
whoever reads it sees its number grow, or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from google.protobuf.message import DecodeError

from octavo.metadata.paths import Paths
from octavo.metadata.store import MetadataStore
from octavo.proto import records_pb2
from octavo.runtime.errors import KeyExists, KeyMissing, MetadataCorrupt
from octavo.runtime.telemetry import get_logger

REPORT_BUNDLES_MAX = 64
"""Bundles that one report names: those with the most to do."""
REPORT_MAX_BYTES = 4_096
WRITE_ATTEMPTS = 2
"""A key that is made or goes between two calls is met once."""

_log = get_logger("octavo.metadata.load_reports")


class Load(NamedTuple):
    """How busy one broker was over some time."""

    usage: float
    """What decides: the part of its capacity that is in use, 0 to 1; the larger of the next two."""
    loop_share: float
    """Of one processor, what the event loop's thread took."""
    cpu_share: float
    """Of all processors, what the process took."""
    bytes_in_per_s: int
    bytes_out_per_s: int
    records_in_per_s: int
    partitions: int
    """Open ones."""
    bundles: int
    """Held by the broker."""
    shares: Mapping[int, float]
    """Of its usage, the part of each bundle with something to do; at most REPORT_BUNDLES_MAX."""
    hottest: str = ""
    """The partition with the most to do; empty: none has anything."""
    partition_load_ratio: float = 0.0
    """What that one takes, as a part of all that the broker has to do (F175)."""

    def usage_of(self, bundle: int) -> float:
        """What a bundle takes of the broker's capacity, as far as it is named."""
        return self.usage * self.shares.get(bundle, 0.0)


class LoadReport(NamedTuple):
    """The load that a broker told."""

    broker_id: str
    process_nonce: bytes
    number: int
    """Grows by one with each report of a process."""
    load: Load

    def to_bytes(self) -> bytes:
        """The report as stored; at most REPORT_MAX_BYTES for an id of 200 characters."""
        load = self.load
        return records_pb2.LoadReport(
            broker_id=self.broker_id,
            process_nonce=self.process_nonce,
            number=self.number,
            usage=load.usage,
            loop_share=load.loop_share,
            cpu_share=load.cpu_share,
            bytes_in_per_s=load.bytes_in_per_s,
            bytes_out_per_s=load.bytes_out_per_s,
            records_in_per_s=load.records_in_per_s,
            partitions=load.partitions,
            bundles=load.bundles,
            shares=[
                records_pb2.BundleShare(bundle=bundle, share=share)
                for bundle, share in sorted(load.shares.items())
            ],
            hottest=load.hottest,
            partition_load_ratio=load.partition_load_ratio,
        ).SerializeToString(deterministic=True)

    @classmethod
    def from_bytes(cls, data: bytes) -> LoadReport:
        """Parse; raises MetadataCorrupt, also for figures that cannot be."""
        record = records_pb2.LoadReport()
        try:
            record.ParseFromString(data)
        except DecodeError as error:
            raise MetadataCorrupt(f"load report: {error}") from error
        figures = (record.usage, record.partition_load_ratio, *(one.share for one in record.shares))
        if not record.broker_id or not all(0 <= figure <= 1 for figure in figures):
            raise MetadataCorrupt("load report without broker, or with impossible figures")
        load = Load(
            record.usage,
            record.loop_share,
            record.cpu_share,
            record.bytes_in_per_s,
            record.bytes_out_per_s,
            record.records_in_per_s,
            record.partitions,
            record.bundles,
            {one.bundle: one.share for one in record.shares},
            record.hottest,
            record.partition_load_ratio,
        )
        return cls(record.broker_id, record.process_nonce, record.number, load)


class LoadReports:
    """The reports of all brokers."""

    def __init__(self, store: MetadataStore, paths: Paths) -> None:
        self._store = store
        self._paths = paths

    async def publish(self, report: LoadReport) -> None:
        """Replace what this broker said before.

        A lost reply is no matter: the next report tells the same or better. Raises what the store
        raises.
        """
        key, value = self._paths.load(report.broker_id), report.to_bytes()
        for _ in range(WRITE_ATTEMPTS):
            try:
                await self._store.put(key, value, expected=None)
                return
            except KeyMissing:
                try:
                    await self._store.create(key, value, ephemeral=True)
                    return
                except KeyExists:
                    continue

    async def read(self) -> list[LoadReport]:
        """Every report that can be read, in order of broker; raises MetadataUnavailable."""
        names = await self._store.children(self._paths.loads)
        found = await asyncio.gather(*map(self._read, names))
        return [report for report in found if report is not None]

    async def _read(self, broker_id: str) -> LoadReport | None:
        try:
            found = await self._store.get(self._paths.load(broker_id))
            return None if found is None else LoadReport.from_bytes(found.value)
        except MetadataCorrupt as error:  # M-7: alarm, skip, go on: that broker is not known
            _log.error("load-report-unreadable", broker=broker_id, cause=error.cause)
            return None
