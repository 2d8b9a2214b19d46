"""Administration of brokers: who lives, who may serve, which bundle is served where."""

from __future__ import annotations

from octavo.client.messaging.api.changes import Change, ask_any
from octavo.client.messaging.api.descriptions import BrokerLoad, BundleDescription, FleetBroker
from octavo.client.messaging.api.group_admin import AsyncGroupAdmin
from octavo.client.messaging.api.replies import check_reply
from octavo.client.messaging.reading.limits import INT32_MAX, check_topic, check_whole
from octavo.proto import broker_pb2 as pb
from octavo.runtime.deadline import Deadline
from octavo.runtime.errors import RequestTimedOut

DEFAULT_TIMEOUT_S = 30.0
LOOK_S = 0.2
"""Between two looks at what was asked to move."""


class AsyncFleetAdmin(AsyncGroupAdmin):
    """The part of `client.admin` that knows of brokers and their bundles."""

    async def list_brokers(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> list[FleetBroker]:
        """Every broker that lives, and those that are drained and do not, by id."""
        request = pb.ListBrokersRequest()
        cluster = self._binding.cluster()

        async def attempt() -> pb.ListBrokersReply:
            reply = await ask_any(
                cluster, lambda stub, limit: stub.ListBrokers(request, timeout=limit), timeout
            )
            check_reply(reply)
            return reply

        reply = await cluster.calls.retrying(attempt, timeout)
        return [_broker_of(one) for one in reply.brokers]

    async def drain_broker(
        self, broker_id: str, *, wait: bool = True, timeout: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """Have a broker give away everything it serves and take nothing, over its restarts too.

        `wait`: return when it serves nothing any more; else when that is noted. Raises
        InvalidRequest for an unknown id and for the last broker that may serve, RequestTimedOut
        when it still serves something after `timeout` seconds: it goes on.
        """
        deadline = Deadline(self._binding.cluster().clock, timeout)
        await self._mark_broker(broker_id, drain=True, deadline=deadline)
        while wait:
            brokers = await self.list_brokers(timeout=deadline.left_s())
            left = sum(one.bundles for one in brokers if one.broker_id == broker_id)
            if not left:
                return
            if deadline.left_s() <= LOOK_S:
                raise RequestTimedOut(
                    f"{broker_id} still serves {left} bundles after {timeout:g} s",
                    hint="it goes on to give them away; look again with list_brokers",
                )
            await self._binding.cluster().clock.sleep(LOOK_S)

    async def undrain_broker(self, broker_id: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """Let a drained broker serve again; it gets its share after a while."""
        deadline = Deadline(self._binding.cluster().clock, timeout)
        await self._mark_broker(broker_id, drain=False, deadline=deadline)

    async def _mark_broker(self, broker_id: str, *, drain: bool, deadline: Deadline) -> None:
        request = pb.DrainBrokerRequest(broker_id=broker_id, drain=drain)
        change = Change(self._binding.cluster(), f"draining {broker_id!r}", deadline.left_s())

        async def attempt() -> None:
            check_reply(
                await change.ask(lambda stub, limit: stub.DrainBroker(request, timeout=limit))
            )

        await change.settle(attempt)

    async def list_bundles(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> list[BundleDescription]:
        """The bundles of partitions that somebody serves, or that were moved by decision."""
        return await self._bundles(pb.ListBundlesRequest(), timeout)

    async def find_bundle(
        self, topic: str, partition: int, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> BundleDescription:
        """The bundle that a partition lies in. Raises UnknownTopic, InvalidPartition."""
        check_whole("partition", partition, INT32_MAX)
        name = pb.PartitionName(topic=check_topic(topic), partition=partition)
        (found,) = await self._bundles(pb.ListBundlesRequest(partition=name), timeout)
        return found

    async def unload_bundle(
        self,
        bundle: int,
        to: str = "",
        *,
        wait: bool = True,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> BundleDescription:
        """Have a bundle, with every partition in it, served by another broker; returns who has it.

        `to`: the id of that broker; empty: the one with the least to do. The bundle stays there as
        long as that broker lives and may serve, or until it is moved again. Producers and consumers
        go on. `wait`: return when it is served there; else, or if nobody serves it, when that is
        noted. Raises InvalidRequest for a bundle or broker that does not exist, or that may not
        serve, RequestTimedOut when it was not handed over within `timeout` seconds: it goes on.
        """
        check_whole("bundle", bundle, INT32_MAX)
        deadline = Deadline(self._binding.cluster().clock, timeout)
        look = pb.ListBundlesRequest(bundle=bundle)
        (before,) = await self._bundles(look, timeout)
        request = pb.UnloadBundleRequest(bundle=bundle, away_from=before.owner_id, to_broker=to)
        change = Change(self._binding.cluster(), f"unloading bundle {bundle}", deadline.left_s())

        async def attempt() -> BundleDescription:
            reply = await change.ask(lambda stub, limit: stub.UnloadBundle(request, timeout=limit))
            check_reply(reply)
            return _bundle_of(reply.bundle)

        found = await change.settle(attempt)
        while wait and before.owner_id and found.owner_id != found.placed_on:
            if deadline.left_s() <= LOOK_S:
                raise RequestTimedOut(
                    f"bundle {bundle} is not served by {found.placed_on} after {timeout:g} s",
                    hint="it is handed over when both brokers can; look with list_bundles",
                )
            await self._binding.cluster().clock.sleep(LOOK_S)
            (found,) = await self._bundles(look, deadline.left_s())
        return found

    async def _bundles(
        self, request: pb.ListBundlesRequest, timeout_s: float
    ) -> list[BundleDescription]:
        cluster = self._binding.cluster()

        async def attempt() -> pb.ListBundlesReply:
            reply = await ask_any(
                cluster, lambda stub, limit: stub.ListBundles(request, timeout=limit), timeout_s
            )
            check_reply(reply)
            return reply

        reply = await cluster.calls.retrying(attempt, timeout_s)
        return [_bundle_of(one) for one in reply.bundles]


def _broker_of(one: pb.FleetBroker) -> FleetBroker:
    load = one.load
    return FleetBroker(
        one.broker_id,
        one.address,
        one.started_ms,
        one.bundles,
        one.drained,
        one.leaving,
        None
        if not one.HasField("load")
        else BrokerLoad(
            load.usage,
            load.loop_share,
            load.cpu_share,
            load.bytes_in_per_s,
            load.bytes_out_per_s,
            load.records_in_per_s,
            load.partitions,
            load.hottest,
            load.partition_load_ratio,
        ),
    )


def _bundle_of(view: pb.BundleView) -> BundleDescription:
    usage = view.usage if view.HasField("usage") else None
    return BundleDescription(view.bundle, view.owner_id, view.placed_on, usage)
