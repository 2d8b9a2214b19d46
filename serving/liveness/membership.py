"""One broker as a member of the cluster: registered, watched by others, watching them.

Owns the order: who is registered watches; who leaves watches nobody any more before it withdraws
its registration, and is certain of nothing afterwards.
"""

from __future__ import annotations

from octavo.metadata.brokers import BrokerDirectory, BrokerInfo, BrokerRegistrar
from octavo.metadata.bundles import BundleRegistry
from octavo.metadata.paths import Paths
from octavo.metadata.store import MetadataStore
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy
from octavo.serving.config import BrokerConfig
from octavo.serving.liveness.heartbeats import Cluster, Heartbeats
from octavo.serving.liveness.standing import Standing


class Membership:
    """The registration, the standing and the heartbeats of one broker process."""

    def __init__(
        self,
        me: BrokerInfo,
        *,
        store: MetadataStore,
        paths: Paths,
        brokers: BrokerDirectory,
        config: BrokerConfig,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._brokers = brokers
        self.bundles = BundleRegistry(store, paths, clock=clock)
        self.standing = Standing(
            me,
            store=store,
            clock=clock,
            entropy=entropy,
            session_timeout_s=config.session_timeout_s,
            pause_s=config.suspect_after_s,
        )
        self._registrar = BrokerRegistrar(
            store,
            paths,
            me,
            clock=clock,
            renewed=self.standing.renew,
            on_present=lambda: self.standing.registered(),
        )
        self._heartbeats = Heartbeats(
            self.standing,
            Cluster(store, paths, brokers, self.bundles),
            clock=clock,
            silence_s=config.suspect_after_s,
        )

    async def join(self) -> None:
        """Register; raises IllegalStateError when another process holds the id (B-28)."""
        await self.standing.begin(self._registrar)
        await self._brokers.refresh()
        self._heartbeats.start()

    def suspected(self) -> frozenset[str]:
        """Ids of brokers that do not answer, if this one is among those that ask (HB-1)."""
        return self._heartbeats.suspected()

    async def watch_nobody(self) -> None:
        """Send no more heartbeats, and replace nobody."""
        await self._heartbeats.close()

    async def leave(self) -> None:
        """Withdraw the registration: nothing is certain any more."""
        await self.standing.close()
        await self._registrar.close()

    async def close(self) -> None:
        """End what still runs; the registration goes with the session, and is not made again:
        so what others take meanwhile is not taken back either."""
        await self._heartbeats.close()
        await self.standing.close()
        await self._registrar.abandon()
