"""How the cluster and its ledgers are."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.metadata.brokers import BrokerDirectory
from octavo.metadata.repairs import RepairCatalog
from octavo.metadata.store import MetadataStore, SessionState
from octavo.metadata.topics import PartitionCatalog, TopicCatalog
from octavo.proto import broker_pb2 as pb
from octavo.proto.errors import to_wire
from octavo.runtime.errors import InvalidRequest, MetadataUnavailable, OctavoError
from octavo.runtime.ids import LedgerId
from octavo.runtime.telemetry import get_logger
from octavo.serving.config import BrokerConfig
from octavo.serving.copy_census import take_census
from octavo.serving.services.caller import Caller
from octavo.serving.services.rpc import Handlers, unary
from octavo.serving.services.views import bookie_infos, broker_infos
from octavo.serving.storage import Storage
from octavo.serving.store_answers import StoreAnswers

MARKS_COUNTED_MAX = 1000
"""Ledgers without all copies that an answer counts; more are told as so many."""

_log = get_logger("octavo.serving.health")


class ClusterService:
    """The requests about the cluster as a whole, and about one ledger."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        cluster_id: str,
        store: MetadataStore,
        storage: Storage,
        brokers: BrokerDirectory,
        topic_catalog: TopicCatalog,
        partitions: PartitionCatalog,
        store_answers: StoreAnswers,
        repairs: RepairCatalog,
    ) -> None:
        self._config = config
        self._repairs = repairs
        self._cluster_id = cluster_id
        self._store = store
        self._storage = storage
        self._brokers = brokers
        self._topic_catalog = topic_catalog
        self._partitions = partitions
        self._during = store_answers.during
        self._store_answers = store_answers

    def handlers(self) -> Handlers:
        """See `Service`."""
        return {
            "ClusterHealth": unary(pb.ClusterHealthRequest, self.cluster_health),
            "ShowLedger": unary(pb.ShowLedgerRequest, self.show_ledger),
        }

    async def cluster_health(
        self, _request: pb.ClusterHealthRequest, _caller: Caller
    ) -> pb.ClusterHealthReply:
        """Who is there, and what is known of copies."""
        connected = self._store.session_state is SessionState.CONNECTED
        reply = pb.ClusterHealthReply(
            cluster_id=self._cluster_id,
            brokers=broker_infos(self._brokers),
            bookies=bookie_infos(self._storage.bookies()),
            metadata_connected=connected,
            write_quorum=self._config.write_quorum,
            ack_quorum=self._config.ack_quorum,
        )
        if not connected:
            reply.metadata_error = self._store_answers.silent().cause
        try:
            census = await self._during(
                take_census(self._topic_catalog, self._partitions, self._storage)
            )
        except OctavoError as error:  # not known is not none
            _log.info("copies-not-counted", cause=error.cause)
            if isinstance(error, MetadataUnavailable):
                reply.metadata_connected = False
                reply.metadata_error = error.cause
            return reply
        reply.degraded_ledgers = census.degraded_ledgers
        reply.short_segments = census.short_segments
        reply.segments = census.segments
        reply.census_complete = census.complete
        try:
            await self._during(self._tell_repairs(reply, census.returned))
        except OctavoError as error:
            _log.info("repairs-not-known", cause=error.cause)
        return reply

    async def _tell_repairs(
        self, reply: pb.ClusterHealthReply, returned: Mapping[str, bytes]
    ) -> None:
        """7.3: how many ledgers wait for copies, and when all were looked at.

        In this order: a pass marks what lacks copies before it is reported. Of a bookie that came
        back no marks prove nothing until a pass that began after its return is reported.
        """
        report = await self._repairs.report()
        looked_at = frozenset[bytes]() if report is None else report.processes
        reply.returned_bookies.extend(
            sorted(bookie for bookie, nonce in returned.items() if nonce not in looked_at)
        )
        reply.marked_ledgers = len(await self._repairs.marked(MARKS_COUNTED_MAX))
        if report is not None:
            reply.audited_ms = report.ended_ms
            reply.unchecked_ledgers = report.unchecked + report.unreadable

    async def show_ledger(
        self, request: pb.ShowLedgerRequest, _caller: Caller
    ) -> pb.ShowLedgerReply:
        """A ledger's record, and what each of its bookies says."""
        try:
            if request.ledger_id < 0:
                raise InvalidRequest(f"{request.ledger_id} is not a ledger id")
            record = await self._during(self._storage.read_record(LedgerId(request.ledger_id)))
            holders = await self._storage.holders(record)
        except OctavoError as error:
            return pb.ShowLedgerReply(error=to_wire(error))
        return pb.ShowLedgerReply(
            ledger_record=record.to_bytes(),
            holders=[
                pb.HeldBy(
                    bookie_id=held.member.bookie_id,
                    incarnation=str(held.member.incarnation),
                    reachable=held.reachable,
                    last_add_confirmed=held.last_add_confirmed,
                    fenced=held.fenced,
                    error=held.error,
                )
                for held in holders
            ],
        )
