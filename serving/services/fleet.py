"""The brokers of the cluster: who lives, who is drained, who serves which bundle (ledger §8.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from octavo.metadata.bundles import BundleRegistry
from octavo.metadata.load_reports import Load
from octavo.proto import broker_pb2 as pb
from octavo.proto.errors import to_wire
from octavo.runtime.clock import Clock
from octavo.runtime.errors import InvalidRequest, OctavoError
from octavo.runtime.suggestion import did_you_mean
from octavo.serving.fleet import Fleet
from octavo.serving.placement import bundle_of
from octavo.serving.services.caller import Caller
from octavo.serving.services.rpc import Handlers, unary
from octavo.serving.shedding.board import LoadBoard
from octavo.serving.store_answers import StoreAnswers
from octavo.serving.topic_directory import TopicDirectory
from octavo.serving.unloads import Unloads


class FleetService:
    """The requests about brokers and their bundles."""

    def __init__(
        self,
        fleet: Fleet,
        registry: BundleRegistry,
        topics: TopicDirectory,
        store_answers: StoreAnswers,
        *,
        board: LoadBoard,
        clock: Clock,
    ) -> None:
        self._fleet = fleet
        self._registry = registry
        self._topics = topics
        self._board = board
        self._clock = clock
        self._unloads = Unloads(fleet, registry, board, clock)
        self._during = store_answers.during

    def handlers(self) -> Handlers:
        """See `Service`."""
        return {
            "ListBrokers": unary(pb.ListBrokersRequest, self.list_brokers),
            "DrainBroker": unary(pb.DrainBrokerRequest, self.drain_broker),
            "ListBundles": unary(pb.ListBundlesRequest, self.list_bundles),
            "UnloadBundle": unary(pb.UnloadBundleRequest, self.unload_bundle),
        }

    async def list_brokers(
        self, _request: pb.ListBrokersRequest, _caller: Caller
    ) -> pb.ListBrokersReply:
        """Everybody who is registered, and those that are drained and do not live."""
        try:
            owners = await self._during(self._registry.owners())
        except OctavoError as error:
            return pb.ListBrokersReply(error=to_wire(error))
        counts = Counter(owner.broker_id for owner in owners.values())
        live = {broker.broker_id: broker for broker in self._fleet.brokers.live()}
        drained, leaving = self._fleet.drains.drained(), self._fleet.drains.leaving()
        loads = self._loads()
        reply = pb.ListBrokersReply(bundles=self._fleet.bundles)
        for name in sorted(live.keys() | drained):
            broker = live.get(name)
            reply.brokers.add(
                broker_id=name,
                address=broker.address if broker is not None else "",
                started_ms=broker.started_ms if broker is not None else 0,
                bundles=counts[name],
                drained=name in drained,
                leaving=name in leaving,
                load=_load(loads[name]) if name in loads else None,
            )
        return reply

    async def drain_broker(
        self, request: pb.DrainBrokerRequest, _caller: Caller
    ) -> pb.DrainBrokerReply:
        """Set or take back the mark; returns at once, the bundles move meanwhile."""
        try:
            await self._during(self._mark(request.broker_id, drain=request.drain))
        except OctavoError as error:
            return pb.DrainBrokerReply(error=to_wire(error))
        return pb.DrainBrokerReply()

    async def _mark(self, broker_id: str, *, drain: bool) -> None:
        live = {broker.broker_id for broker in self._fleet.brokers.live()}
        drained = self._fleet.drains.drained()
        if broker_id not in live | drained:
            raise InvalidRequest(
                f"no broker is called {broker_id!r}",
                hint=did_you_mean(broker_id, sorted(live | drained)),
            )
        if not drain:
            await self._fleet.drains.undrain(broker_id)
            return
        if not live - drained - self._fleet.drains.leaving() - {broker_id}:
            raise InvalidRequest(
                f"{broker_id} is the last broker that may serve partitions",
                hint="start or undrain another one first",
            )
        await self._fleet.drains.drain(broker_id)

    async def list_bundles(
        self, request: pb.ListBundlesRequest, _caller: Caller
    ) -> pb.ListBundlesReply:
        """Who has each bundle, or the one that is asked for."""
        try:
            return pb.ListBundlesReply(bundles=await self._during(self._views(request)))
        except OctavoError as error:
            return pb.ListBundlesReply(error=to_wire(error))

    async def _views(self, request: pb.ListBundlesRequest) -> list[pb.BundleView]:
        if request.WhichOneof("only") is None:
            owners = await self._registry.owners()
            named = sorted(owners.keys() | self._fleet.placements.brokers().keys())
            return [
                self._view(bundle, owners[bundle].broker_id if bundle in owners else "")
                for bundle in named
            ]
        bundle = request.bundle
        if request.HasField("partition"):
            name = request.partition
            topic = await self._topics.get_partition(name.topic, name.partition)
            bundle = bundle_of(topic.topic_id, name.partition, self._fleet.bundles)
        return [await self._one(bundle)]

    async def _one(self, bundle: int) -> pb.BundleView:
        self._unloads.check(bundle)
        owner = await self._registry.owner(bundle)
        return self._view(bundle, owner.broker_id if owner is not None else "")

    def _view(self, bundle: int, owner_id: str) -> pb.BundleView:
        load = self._loads().get(owner_id)
        return pb.BundleView(
            bundle=bundle,
            owner_id=owner_id,
            placed_on=self._fleet.placements.brokers().get(bundle, ""),
            usage=load.usage_of(bundle) if load is not None else None,
        )

    def _loads(self) -> Mapping[str, Load]:
        return self._board.fresh(self._clock.monotonic())

    async def unload_bundle(
        self, request: pb.UnloadBundleRequest, _caller: Caller
    ) -> pb.UnloadBundleReply:
        """O-3: note where a bundle is to be; its owner hands it over meanwhile."""
        try:
            view = await self._during(self._unload(request))
        except OctavoError as error:
            return pb.UnloadBundleReply(error=to_wire(error))
        return pb.UnloadBundleReply(bundle=view)

    async def _unload(self, request: pb.UnloadBundleRequest) -> pb.BundleView:
        await self._unloads.unload(request.bundle, request.away_from, request.to_broker)
        return await self._one(request.bundle)


def _load(load: Load) -> pb.BrokerLoad:
    return pb.BrokerLoad(
        usage=load.usage,
        loop_share=load.loop_share,
        cpu_share=load.cpu_share,
        bytes_in_per_s=load.bytes_in_per_s,
        bytes_out_per_s=load.bytes_out_per_s,
        records_in_per_s=load.records_in_per_s,
        partitions=load.partitions,
        hottest=load.hottest,
        partition_load_ratio=load.partition_load_ratio,
    )
