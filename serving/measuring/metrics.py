"""The page of a broker: what each of its parts knows, looked at when somebody asks (F171)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import octavo
from octavo.client.ledger.counters import LedgerCounters
from octavo.metadata.bookies import BookieRegistration
from octavo.metadata.measured import MeasuredStore
from octavo.metadata.store import SessionState
from octavo.metrics import catalogue as m
from octavo.metrics import of_tiering as t
from octavo.metrics.page import MetricsPage
from octavo.metrics.readings import Readings
from octavo.runtime.clock import Clock
from octavo.runtime.sockets import established
from octavo.serving.backlog import BACKLOG_POLICIES
from octavo.serving.backlog_rounds import BacklogRounds
from octavo.serving.cache import TailCache
from octavo.serving.config import BrokerConfig
from octavo.serving.group_lag.rounds import GroupLagRounds
from octavo.serving.measuring.groups import add_groups
from octavo.serving.measuring.partitions import PartitionFigures
from octavo.serving.measuring.requests import RequestTimes
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.registry import PartitionRegistry
from octavo.serving.retention import UNLIMITED
from octavo.serving.services.streams import StreamService
from octavo.serving.tiering.rounds import TierRounds

PARTITIONS_IN_A_TURN = 200
"""Partitions that one look goes through between two turns of the event loop."""


@dataclass(frozen=True)
class BrokerParts:
    """Whom the page asks; each keeps its own numbers."""

    store: MeasuredStore
    ledgers: LedgerCounters
    registry: PartitionRegistry
    figures: PartitionFigures
    backlogs: BacklogRounds
    requests: RequestTimes
    streams: StreamService
    tail_cache: TailCache
    group_lag: GroupLagRounds
    tiering: TierRounds
    bookies: Callable[[], list[BookieRegistration]]
    bundles: Callable[[], int]
    """How many are held."""
    port: Callable[[], int]
    """Where clients connect; 0 before that."""


class BrokerMetrics:
    """Owns the page from `start` to `close`."""

    def __init__(self, config: BrokerConfig, parts: BrokerParts, clock: Clock) -> None:
        self._config = config
        self._parts = parts
        self.page = MetricsPage("broker", version=octavo.__version__, clock=clock)
        self.page.add(
            self._traffic,
            self._requests,
            self._partitions,
            self._series_of_partitions,
            self._groups,
            self._storage,
            self._tier,
            self._metadata,
            self._connections,
        )

    async def start(self) -> None:
        """Listen if the settings say so; raises ConfigError."""
        config = self._config
        await self.page.start(config.metrics_host or config.host, config.metrics_port)

    async def close(self) -> None:
        """Show nothing any more."""
        await self.page.close()

    # --- what the parts know ------------------------------------------------------------------

    async def _traffic(self, readings: Readings) -> None:
        total = self._parts.figures.total()
        readings.add(m.MESSAGES, total.records_in, "in")
        readings.add(m.MESSAGES, total.records_out, "out")
        readings.add(m.BYTES, total.bytes_in, "in")
        readings.add(m.BYTES, total.bytes_out, "out")
        readings.add(m.BUSIEST_PARTITION, self._parts.figures.shares.busiest)

    async def _requests(self, readings: Readings) -> None:
        for (method, code), seconds in self._parts.requests.seconds.items():
            readings.add_histogram(m.REQUEST_SECONDS_OF, seconds, method, code)
        streams = self._parts.streams
        readings.add_histogram(m.PUBLISH_ACK_SECONDS, streams.ack_seconds)
        for quota, count in streams.quotas.throttled.items():
            readings.add(m.THROTTLED, count, quota)
        readings.add(m.STREAMS, streams.producing, "produce")
        readings.add(m.STREAMS, streams.fetching, "fetch")

    async def _partitions(self, readings: Readings) -> None:
        parts = self._parts
        shells = parts.registry.shells()
        readings.add(m.PARTITIONS, len(shells))
        readings.add(m.BUNDLES, parts.bundles())
        readings.add(m.PENDING_BATCHES, sum(shell.pending for shell in shells))
        readings.add(m.TAIL_CACHE_BYTES, parts.tail_cache.used_bytes)
        over = parts.backlogs.over()
        for policy in BACKLOG_POLICIES:
            readings.add(m.OVER_BACKLOG_QUOTA, over.get(policy, 0), policy)
        readings.add(m.BACKLOG_EVICTED, parts.backlogs.evicted)
        readings.add_histogram(m.PARTITION_LOAD_SECONDS, parts.registry.loads.seconds)
        readings.add_histogram(m.TAKE_OVER_SECONDS, parts.figures.take_over_seconds)

    async def _series_of_partitions(self, readings: Readings) -> None:
        most = self._config.metrics_partitions_max
        if not most:
            return
        shells = [shell for shell in self._parts.registry.shells() if not shell.is_internal]
        for number, shell in enumerate(shells[:most], 1):
            if number % PARTITIONS_IN_A_TURN == 0:
                await asyncio.sleep(0)  # requests have their turn
            self._of_partition(readings, shell)

    def _of_partition(self, readings: Readings, shell: PartitionShell) -> None:
        topic, partition = shell.name.topic, str(shell.name.partition)
        readings.add(m.PARTITION_END, shell.high_watermark, topic, partition)
        readings.add(m.PARTITION_BEGIN, shell.log_start, topic, partition)
        total = shell.traffic.total
        readings.add(m.PARTITION_MESSAGES, total.records_in, topic, partition, "in")
        readings.add(m.PARTITION_MESSAGES, total.records_out, topic, partition, "out")
        share = self._parts.figures.shares.of.get((topic, shell.name.partition), 0.0)
        readings.add(m.PARTITION_LOAD, share, topic, partition)
        backlog = shell.backlog
        if backlog.known is not None:
            readings.add(m.PARTITION_BACKLOG, backlog.known.size_bytes, topic, partition)
        if backlog.quota.size_bytes != UNLIMITED:
            readings.add(m.PARTITION_BACKLOG_QUOTA, backlog.quota.size_bytes, topic, partition)

    async def _groups(self, readings: Readings) -> None:
        most = self._config.metrics_groups_max
        if most:
            await add_groups(readings, self._parts.group_lag.look(most))

    async def _storage(self, readings: Readings) -> None:
        ledgers = self._parts.ledgers
        readings.add(m.ENSEMBLE_CHANGES, ledgers.ensemble_changes)
        readings.add(m.DEGRADED_LEDGERS, ledgers.degraded_ledgers)
        for outcome, count in ledgers.recoveries.items():
            readings.add(m.LEDGER_RECOVERIES, count, outcome)
        readings.add_histogram(m.RECOVERY_SECONDS, ledgers.recovery_seconds)
        states = [bookie.state for bookie in self._parts.bookies()]
        for state in ("rw", "ro"):
            readings.add(m.BOOKIES, states.count(state), state)

    async def _tier(self, readings: Readings) -> None:
        rounds, reads = self._parts.tiering, self._parts.tiering.reads
        found = rounds.sizes()
        readings.add(t.LOCAL_BYTES, found.local_bytes)
        readings.add(t.TIERED_BYTES, found.tiered_bytes)
        readings.add(t.WAITING_BYTES, found.waiting_bytes)
        readings.add(t.UNUSABLE, int(reads.root.problem is not None))
        readings.add(t.COPIED_BYTES, rounds.copied_bytes)
        readings.add(t.FREED_LEDGERS, rounds.freed_ledgers)
        readings.add(t.REMOVED_FILES, rounds.removed_files)
        readings.add(t.FAILURES, rounds.failures)
        readings.add(t.READ_BYTES, reads.read_bytes)
        readings.add(t.READ_FAILURES, reads.failures)

    async def _metadata(self, readings: Readings) -> None:
        store = self._parts.store
        for operation, seconds in store.seconds.items():
            readings.add_histogram(m.METADATA_OP_SECONDS, seconds, operation)
            readings.add(m.METADATA_OP_FAILURES, store.failures[operation], operation)
        states = [state.value for state in SessionState]
        readings.add_state(m.METADATA_SESSION_STATE, states, store.session_state.value)
        readings.add(m.METADATA_SESSION_LOSSES, store.session_losses)

    async def _connections(self, readings: Readings) -> None:
        port = self._parts.port()
        if port:
            readings.add(m.CONNECTIONS, await asyncio.to_thread(established, port))
