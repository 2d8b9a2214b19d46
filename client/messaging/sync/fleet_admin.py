"""The blocking admin of brokers.

Written by `tools/gen_sync.py` from `api/fleet_admin.py`: change that, then run `make sync`.
"""

from __future__ import annotations

from octavo.client.messaging.api.descriptions import BundleDescription, FleetBroker
from octavo.client.messaging.api.fleet_admin import DEFAULT_TIMEOUT_S
from octavo.client.messaging.sync.group_admin import GroupAdmin


class FleetAdmin(GroupAdmin):
    """The part of `client.admin` that knows of brokers and their bundles."""

    def list_brokers(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> list[FleetBroker]:
        """Every broker that lives, and those that are drained and do not, by id."""
        return self._thread.run(self._async.list_brokers(timeout=timeout))

    def drain_broker(
        self, broker_id: str, *, wait: bool = True, timeout: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """Have a broker give away everything it serves and take nothing, over its restarts too.

        `wait`: return when it serves nothing any more; else when that is noted. Raises
        InvalidRequest for an unknown id and for the last broker that may serve, RequestTimedOut
        when it still serves something after `timeout` seconds: it goes on.
        """
        self._thread.run(self._async.drain_broker(broker_id, wait=wait, timeout=timeout))

    def undrain_broker(self, broker_id: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """Let a drained broker serve again; it gets its share after a while."""
        self._thread.run(self._async.undrain_broker(broker_id, timeout=timeout))

    def list_bundles(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> list[BundleDescription]:
        """The bundles of partitions that somebody serves, or that were moved by decision."""
        return self._thread.run(self._async.list_bundles(timeout=timeout))

    def find_bundle(
        self, topic: str, partition: int, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> BundleDescription:
        """The bundle that a partition lies in. Raises UnknownTopic, InvalidPartition."""
        return self._thread.run(self._async.find_bundle(topic, partition, timeout=timeout))

    def unload_bundle(
        self, bundle: int, to: str = "", *, wait: bool = True, timeout: float = DEFAULT_TIMEOUT_S
    ) -> BundleDescription:
        """Have a bundle, with every partition in it, served by another broker; returns who has it.

        `to`: the id of that broker; empty: the one with the least to do. The bundle stays there as
        long as that broker lives and may serve, or until it is moved again. Producers and consumers
        go on. `wait`: return when it is served there; else, or if nobody serves it, when that is
        noted. Raises InvalidRequest for a bundle or broker that does not exist, or that may not
        serve, RequestTimedOut when it was not handed over within `timeout` seconds: it goes on.
        """
        return self._thread.run(self._async.unload_bundle(bundle, to, wait=wait, timeout=timeout))
