"""The broker: gRPC service over the partitions it owns (design.md §6).

Composes registration, ownership, topics, partitions, storage and services; owns their order of
start and stop.
"""

from __future__ import annotations

import asyncio

import grpc

from octavo.client.ledger.counters import LedgerCounters
from octavo.metadata.bookies import CookieCatalog
from octavo.metadata.brokers import BrokerDirectory, BrokerInfo
from octavo.metadata.bundles import BundleRegistry
from octavo.metadata.connect import root_of
from octavo.metadata.drains import Drains
from octavo.metadata.load_reports import LoadReports
from octavo.metadata.measured import MeasuredStore
from octavo.metadata.paths import Paths
from octavo.metadata.placements import Placements
from octavo.metadata.producer_ids import ProducerIdAllocator
from octavo.metadata.repairs import RepairCatalog
from octavo.metadata.sinks import SinkCatalog
from octavo.metadata.store import MetadataStore, SessionState
from octavo.metadata.tier import TierCatalog
from octavo.metadata.topics import PartitionCatalog, TopicCatalog
from octavo.proto.endpoints import bind, connection_bound, grpc_server
from octavo.runtime.address import join_address
from octavo.runtime.clock import Clock
from octavo.runtime.descriptors import descriptor_limit
from octavo.runtime.entropy import Entropy
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger
from octavo.runtime.unexpected import report_broken
from octavo.serving.administration import Administration
from octavo.serving.backlog_rounds import BacklogRounds
from octavo.serving.cache import TailCache
from octavo.serving.cold import ColdReader
from octavo.serving.config import BrokerConfig
from octavo.serving.connections import connections_allowed
from octavo.serving.consumption import Consumption
from octavo.serving.coordinating.coordinator import GroupCoordinator
from octavo.serving.fleet import Fleet
from octavo.serving.group_lag.rounds import GroupLagRounds
from octavo.serving.ledger_storage import LedgerStorage
from octavo.serving.liveness.membership import Membership
from octavo.serving.load_ahead import LoadAhead
from octavo.serving.measuring.metrics import BrokerMetrics, BrokerParts
from octavo.serving.measuring.partitions import PartitionFigures
from octavo.serving.measuring.requests import RequestTimes
from octavo.serving.ownership import BundleEvents, Ownership
from octavo.serving.partition.deps import PartitionDeps
from octavo.serving.quotas.changes import QuotaChanges
from octavo.serving.quotas.settings import quotas_of
from octavo.serving.readiness import Readiness
from octavo.serving.registry import PartitionRegistry
from octavo.serving.retention_rounds import RetentionRounds
from octavo.serving.rewriting import Rewriting
from octavo.serving.services.cluster import ClusterService
from octavo.serving.services.counted import CountedCalls
from octavo.serving.services.finding import FindingService
from octavo.serving.services.fleet import FleetService
from octavo.serving.services.groups import GroupService
from octavo.serving.services.log import LogService
from octavo.serving.services.peers import PeerService
from octavo.serving.services.quotas import QuotaService
from octavo.serving.services.rpc import Service
from octavo.serving.services.sinks import SinkService
from octavo.serving.services.streams import StreamService
from octavo.serving.services.topics import TopicService
from octavo.serving.services.views import TopicViews
from octavo.serving.services.writers import WriterService
from octavo.serving.shedding.board import LoadBoard
from octavo.serving.shedding.reporter import Counted, LoadReporter
from octavo.serving.shedding.shedder import Known, Shedder
from octavo.serving.storage import Storage
from octavo.serving.store_answers import StoreAnswers
from octavo.serving.tiering.reads import TierReads
from octavo.serving.topic_directory import TopicDirectory
from octavo.serving.tracing import RequestTracing

SERVICE = "octavo.broker.Broker"
GROUP_SERVICE = "octavo.coordinator.Groups"
PEERS = "octavo.peers.Peers"
STALE_INTERVALS = 10
"""A load report that did not change in so many intervals is not trusted any more."""

_log = get_logger("octavo.serving.server")


class BrokerServer:
    """One broker process.

    Args:
        storage: where ledgers live; None builds the real quorum client.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        store: MetadataStore,
        clock: Clock,
        entropy: Entropy,
        storage: Storage | None = None,
    ) -> None:
        self.config = config
        self.address, self._port = "", 0
        store = self._store = MeasuredStore(store, clock)
        self._clock, self._entropy = clock, entropy
        self._paths = Paths(root_of(config.metadata_url))
        self._ledger_counters = LedgerCounters()
        self._storage: Storage = storage or self._ledger_storage()
        self._topic_catalog = TopicCatalog(store, self._paths, clock=clock, entropy=entropy)
        self._partitions = PartitionCatalog(store, self._paths, clock=clock, entropy=entropy)
        self._brokers = BrokerDirectory(store, self._paths, clock=clock)
        drains = Drains(store, self._paths, clock=clock)
        placements = Placements(store, self._paths, clock=clock, entropy=entropy)
        self._fleet = Fleet(self._brokers, drains, placements, config.bundles)
        self._board = LoadBoard(STALE_INTERVALS * config.load_report_interval_s)
        self._topics = TopicDirectory(self._topic_catalog, self._topic_changed)
        self._cold = ColdReader(self._storage.backend, config, clock)
        self._tiered = TierReads(config)
        self._tail_cache = TailCache(config.tail_cache_bytes)
        self._store_answers = StoreAnswers(store, config.metadata_url, clock)
        deps = self._deps()
        self.registry = PartitionRegistry(
            deps, self._topics, lambda: self.ownership, self._store_answers
        )
        self._rewriting = Rewriting(self.registry, deps)
        self._groups = self._group_coordinator()
        self._backlogs = BacklogRounds(self.registry, Consumption(self._groups), clock)
        self._group_service = GroupService(self._groups, config, clock)
        self._ahead = LoadAhead(self.registry, self._topics, self._topic_catalog, clock)
        self._administration = self._topic_administration()
        self._tasks = TaskOwner("broker", report_broken)
        self._check_topics = asyncio.Event()
        self._changed_topics: set[str] = set()
        """Names to look at; at most the cached ones and the served ones."""
        self._readiness = Readiness(
            config.broker_id, self._fleet, (SERVICE, GROUP_SERVICE), always=(PEERS,)
        )
        self._quotas, quotas = quotas_of(config, store, self._paths, clock, entropy)
        self._streams = StreamService(self.registry, quotas, config, clock, self._cold.pace)
        self._group_lag = self._group_lag_rounds()
        self._figures = PartitionFigures(self.registry, clock, config.metrics_partitions_max)
        self._request_times = RequestTimes(clock, RequestTracing(config))
        self.metrics = BrokerMetrics(config, self._measured_parts(), clock)
        self._server: grpc.aio.Server | None = None
        self._member: Membership | None = None
        self._ownership: Ownership | None = None

    def _topic_administration(self) -> Administration:
        return Administration(
            self._topic_catalog,
            self._partitions,
            self._storage.backend,
            topics=self._topics,
            registry=self.registry,
            delete_files=self._rewriting.tiering.delete_tree,
            live_bookies=self._live_bookies,
            is_first=lambda: self._fleet.is_first(self.config.broker_id),
            config=self.config,
            clock=self._clock,
            store_answers=self._store_answers,
        )

    def _ledger_storage(self) -> LedgerStorage:
        return LedgerStorage(
            self._store,
            self._paths,
            self.config,
            counters=self._ledger_counters,
            clock=self._clock,
            entropy=self._entropy,
        )

    def _deps(self) -> PartitionDeps:
        return PartitionDeps(
            backend=self._storage.backend,
            catalog=self._partitions,
            config=self.config,
            clock=self._clock,
            entropy=self._entropy,
            tail_cache=self._tail_cache,
            cold=self._cold,
            tiered=self._tiered,
            live_bookies=self._live_bookies,
            metadata_connected=lambda: self._store.session_state is SessionState.CONNECTED,
            certain=lambda: self.ownership.certain(),
            confirm=lambda: self.ownership.confirm(),
        )

    def _group_coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(
            config=self.config,
            clock=self._clock,
            store=self._store,
            paths=self._paths,
            catalog=self._topic_catalog,
            topics=self._topics,
            registry=self.registry,
            ownership=lambda: self.ownership,
            store_answers=self._store_answers,
        )

    def _measured_parts(self) -> BrokerParts:
        return BrokerParts(
            store=self._store,
            ledgers=self._ledger_counters,
            registry=self.registry,
            figures=self._figures,
            backlogs=self._backlogs,
            requests=self._request_times,
            streams=self._streams,
            tail_cache=self._tail_cache,
            group_lag=self._group_lag,
            tiering=self._rewriting.tiering,
            bookies=self._storage.bookies,
            bundles=lambda: 0 if self._ownership is None else len(self._ownership.held),
            port=lambda: self._port,
        )

    def _live_bookies(self) -> int:
        return sum(bookie.state == "rw" for bookie in self._storage.bookies())

    def _topic_changed(self, name: str) -> None:
        self._changed_topics.add(name)
        self._check_topics.set()

    @property
    def ownership(self) -> Ownership:
        """The bundles of this broker; exists once started."""
        if self._ownership is None:
            raise RuntimeError("the broker is not started")
        return self._ownership

    # --- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen, connect to storage, register; `address` is set afterwards."""
        config = self.config
        server = grpc_server(
            *connection_bound(connections_allowed(config.connections_max, descriptor_limit())),
            ("grpc.max_receive_message_length", config.max_receive_bytes),
            ("grpc.max_send_message_length", config.max_send_bytes),
        )
        self._server = server
        await self.metrics.start()
        self._port = port = bind(server, config.host, config.port)
        self.address = config.advertised_address or join_address(config.host, port)
        me = BrokerInfo(
            config.broker_id, self.address, self._entropy.token(), self._clock.wall_ms()
        )
        cookies = CookieCatalog(self._store, self._paths, clock=self._clock, entropy=self._entropy)
        cluster_id = await cookies.cluster_id()
        await self._storage.start()
        tier = TierCatalog(self._store, self._paths, self._clock)
        await self._tiered.root.begin(cluster_id, tier, self._entropy)
        await self._fleet.drains.came_back(config.broker_id)
        await self._fleet.start()
        await self._quotas.start()
        member = self._member = Membership(
            me,
            store=self._store,
            paths=self._paths,
            brokers=self._brokers,
            config=config,
            clock=self._clock,
            entropy=self._entropy,
        )
        self._ownership = Ownership(
            member.standing,
            store=self._store,
            registry=member.bundles,
            fleet=self._fleet,
            config=config,
            clock=self._clock,
            events=BundleEvents(
                partitions=self._ahead.partitions_of,
                taken=self._taken,
                unload=self.registry.unload_bundle,
                abandon=self.registry.abandon_bundle,
                revalidate=self.registry.revalidate_bundle,
                suspended=self.registry.suspended,
            ),
        )
        await self._ownership.start()
        measured = self._request_times.measured
        counted = CountedCalls(self._streams.quotas, self._clock).of
        handlers = measured(SERVICE, counted(*self._services(self._ownership, cluster_id)))
        peers = PeerService(
            member.standing, self._ownership, self._ahead, self._group_lag.ends, self._clock
        )
        groups = measured(GROUP_SERVICE, counted(self._group_service))
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, handlers),
                grpc.method_handlers_generic_handler(GROUP_SERVICE, groups),
                grpc.method_handlers_generic_handler(PEERS, peers.handlers()),
            )
        )
        self._readiness.board.add_to(server)
        await self._readiness.board.begin()
        await server.start()
        await member.join()
        self._start_rounds(member, self._ownership)
        await self._readiness.tell(member.standing, self._ownership)
        _log.info("broker-started", broker=config.broker_id, address=self.address)

    def _group_lag_rounds(self) -> GroupLagRounds:
        return GroupLagRounds(
            self._groups,
            self.registry,
            lambda: self.ownership,
            here=lambda: self.address,
            config=self.config,
            clock=self._clock,
        )

    def _start_rounds(self, member: Membership, ownership: Ownership) -> None:
        """What is done again and again for as long as the broker lives."""
        self._tasks.spawn(self._keep_house(), name="housekeeping")
        self._tasks.spawn(self._readiness.follow(member.standing, ownership), name="health")
        self._tasks.spawn(self._follow_topics(), name="topics")
        self._tasks.spawn(self._retention_rounds(ownership).run(), name="retention")
        self._tasks.spawn(self._backlogs.run(), name="backlogs")
        self._rewriting.start(self._tasks)
        self._tasks.spawn(self._load_reporter(member, ownership).run(), name="load")
        self._tasks.spawn(self._group_lag.run(), name="group lag")
        if self.config.shedding_enabled:
            self._tasks.spawn(self._shedder(member, ownership).run(), name="shedding")

    def _retention_rounds(self, ownership: Ownership) -> RetentionRounds:
        return RetentionRounds(
            self._topic_catalog,
            self._partitions,
            self.registry,
            ownership,
            changes=self._administration.changes,
            sinks=self._sink_catalog(),
            topic_admin=self._administration.admin,
            consumption=Consumption(self._groups),
            config=self.config,
            clock=self._clock,
            entropy=self._entropy,
        )

    def _sink_catalog(self) -> SinkCatalog:
        ids = ProducerIdAllocator(self._store, self._paths, self._clock)
        return SinkCatalog(self._store, self._paths, ids, clock=self._clock, entropy=self._entropy)

    def _load_reporter(self, member: Membership, ownership: Ownership) -> LoadReporter:
        return LoadReporter(
            LoadReports(self._store, self._paths),
            self._board,
            Counted(
                me=lambda: member.standing.me,
                take_traffic=self._figures.take,
                bundles=lambda: len(ownership.held),
            ),
            clock=self._clock,
            interval_s=self.config.load_report_interval_s,
        )

    def _taken(self, bundle: int) -> None:
        """A bundle was taken whose owner is gone."""
        self._figures.taken(bundle)
        self._ahead.taken(bundle)

    def _shedder(self, member: Membership, ownership: Ownership) -> Shedder:
        known = Known(
            me=self.config.broker_id,
            confirm=member.standing.confirm,
            certain=member.standing.certain,
            owners=ownership.hints.ids,
            suspected=member.suspected,
        )
        return Shedder(self._fleet, self._board, known, self.config, self._clock)

    def _services(self, ownership: Ownership, cluster_id: str) -> list[Service]:
        config, answers = self.config, self._store_answers
        return [
            FindingService(
                config=config,
                cluster_id=cluster_id,
                brokers=self._brokers,
                topics=self._topics,
                producer_ids=ProducerIdAllocator(self._store, self._paths, self._clock),
                registry=self.registry,
                ownership=ownership,
                store_answers=answers,
            ),
            TopicService(
                self._administration.admin,
                self._administration.changes,
                TopicViews(ownership, config),
                answers,
            ),
            LogService(
                config=config,
                storage=self._storage,
                registry=self.registry,
                compaction=self._rewriting.compaction,
                store_answers=answers,
            ),
            WriterService(config=config, registry=self.registry, store_answers=answers),
            ClusterService(
                config=config,
                cluster_id=cluster_id,
                store=self._store,
                storage=self._storage,
                brokers=self._brokers,
                topic_catalog=self._topic_catalog,
                partitions=self._partitions,
                store_answers=answers,
                repairs=RepairCatalog(self._store, self._paths, clock=self._clock),
            ),
            FleetService(
                self._fleet,
                BundleRegistry(self._store, self._paths, clock=self._clock),
                self._topics,
                answers,
                board=self._board,
                clock=self._clock,
            ),
            QuotaService(QuotaChanges(self._quotas), self._streams.quotas.default, answers),
            SinkService(self._sink_catalog(), answers),
            self._streams,
        ]

    async def stop(self) -> None:
        """Unload in good order, release bundles, unregister; bounded by `stop_deadline_s`."""
        await self._readiness.board.leave()
        await self._tasks.close()
        await self._group_lag.close()
        await self._rewriting.close()
        try:
            async with asyncio.timeout(self.config.stop_deadline_s):
                if self._ownership is not None and self._member is not None:
                    await self._member.watch_nobody()
                    await self._fleet.announce_leaving(self.config.broker_id)
                    await self._ownership.leave()
                await self._ahead.close()
                await self.registry.close()
                if self._ownership is not None:
                    await self._ownership.close()
                if self._member is not None:
                    await self._member.leave()
        except TimeoutError:
            _log.warning("broker-stops-late", broker=self.config.broker_id)
        await self._groups.close()
        if self._member is not None:
            await self._member.close()
        await self._readiness.board.end()
        if self._server is not None:
            await self._server.stop(grace=0.5)
        await self._streams.close()
        await self._store_answers.close()
        self._topics.close()
        await self._quotas.close()
        await self._fleet.close()
        await self._cold.close()
        await self._tiered.close()
        await self._storage.close()
        await self.metrics.close()

    async def _keep_house(self) -> None:
        while True:
            await self._clock.sleep(self.config.housekeeping_interval_s)
            self.registry.tick()
            await self._administration.tick()

    async def _follow_topics(self) -> None:
        while True:
            await self._check_topics.wait()
            self._check_topics.clear()
            names, self._changed_topics = self._changed_topics, set()
            failed = await self.registry.check_topics(names)
            if failed:  # the store is away: nothing watches them until they were read
                await self._clock.sleep(self.config.housekeeping_interval_s)
                self._changed_topics |= failed
                self._check_topics.set()
