"""Which bundles this broker serves: acquire on lookup, redirect, release in excess (ledger §8.4).

Ownership is an optimisation; safety is in ledgers and segment lists (§8.3). What matters here is
that clients find one broker, and that answers that do not append need a live session (G3): after
LOST `owns` is false for everything at once, until each bundle is acquired again and its
partitions were compared with the list (O-5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from octavo.metadata.brokers import BrokerDirectory, BrokerInfo
from octavo.metadata.bundles import BundleOwner, BundleRegistry
from octavo.metadata.store import MetadataStore, SessionState
from octavo.runtime.clock import Clock
from octavo.runtime.errors import MetadataUnavailable, NotLeader, OctavoError
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger
from octavo.serving.config import BrokerConfig
from octavo.serving.placement import excess, preferred_owners

REFRESH_PAUSE_S = 0.1
"""Watch events within this time are answered by one refresh of the owner hints (F143)."""
REACQUIRE_RETRY_S = 0.5
BALANCE_STEP_S = 1.0
PULSE_S = 0.25
"""How often the process proves to itself that it was not paused (F148)."""
CERTAIN_SHARE = 3
"""The session is in doubt after this part of its timeout without contact. The stores notice a cut
after two thirds of it at the latest, so that doubt begins before the session can have ended.
"""
CONFIRM_S = 1.0
"""How long the metadata store has to confirm the session."""

_log = get_logger("octavo.serving.ownership")


class Located(NamedTuple):
    """Where a partition is served."""

    broker_id: str
    address: str
    redirect: bool
    """True: this broker should be asked, it has not taken the bundle yet."""


class BundleEvents(NamedTuple):
    """What the owner of partitions does when bundles come and go."""

    unload: Callable[[int], Awaitable[None]]
    """Close the bundle's partitions in good order (O-3)."""
    abandon: Callable[[int], Awaitable[None]]
    """Drop them at once: another broker owns the bundle."""
    revalidate: Callable[[int], Awaitable[None]]
    """The bundle is ours again after a lost session: drop what another owner had meanwhile."""
    suspended: Callable[[], None]
    """The session is lost: whoever waits must look again."""


class Ownership:
    """The bundles of one broker process."""

    def __init__(
        self,
        me: BrokerInfo,
        *,
        store: MetadataStore,
        registry: BundleRegistry,
        brokers: BrokerDirectory,
        config: BrokerConfig,
        clock: Clock,
        events: BundleEvents,
    ) -> None:
        self._me = me
        self._mine = BundleOwner(me.broker_id, me.address, me.process_nonce)
        self._store = store
        self._registry = registry
        self._brokers = brokers
        self._config = config
        self._clock = clock
        self._events = events
        self._tasks = TaskOwner("ownership")
        self._held: set[int] = set()
        self._lost: set[int] = set()  # held when the session ended, not acquired again yet
        self._closing: set[int] = set()
        self._hints: dict[int, BundleOwner] = {}
        self._acquiring: dict[int, asyncio.Task[bool | OctavoError]] = {}
        self._hints_dirty = asyncio.Event()
        self._session_changed = asyncio.Event()
        self._pulse_s = clock.monotonic()
        """When this process ran last, and could have noticed that its session ended."""
        self._confirmed_s = self._pulse_s
        """When the session surely lived."""
        self._confirming: asyncio.Task[bool] | None = None
        self._stopping = False
        self._unsubscribe: list[Callable[[], None]] = []

    # --- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Follow owners, brokers and the session."""
        self._unsubscribe = [
            self._registry.watch(self._hints_dirty.set),
            self._store.on_session(self._on_session),
        ]
        self._hints = await self._registry.owners()
        self._tasks.spawn(self._follow_hints(), name="hints")
        self._tasks.spawn(self._follow_session(), name="session")
        self._tasks.spawn(self._balance(), name="balance")
        self._tasks.spawn(self._pulse(), name="pulse")

    async def close(self) -> None:
        """Release every bundle; their partitions were unloaded before."""
        self._stopping = True  # nothing is acquired any more
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        await self._tasks.close()
        held, self._held = sorted(self._held | self._closing), set()
        for bundle in held:
            try:
                await self._registry.release(bundle, self._mine)
            except OctavoError as error:
                _log.info("bundle-left-to-session", bundle=bundle, cause=error.cause)
                return

    # --- questions ----------------------------------------------------------------------------

    def owns(self, bundle: int) -> bool:
        """Whether partitions of the bundle may be served right now (G3).

        Not after a pause as long as the session, until the store confirmed it: somebody else may
        own the bundle since (F148).
        """
        paused_s = self._clock.monotonic() - self._pulse_s
        return bundle in self._held and paused_s < self._config.session_timeout_s

    def certain(self) -> bool:
        """Whether the session surely lives: nobody else can own what is held here.

        False while the metadata store is away, and after a pause of this process; then answers
        about the end of a log need a proof of their own (design.md §12).
        """
        doubt_s = self._config.session_timeout_s / CERTAIN_SHARE
        return self._clock.monotonic() - self._confirmed_s < doubt_s

    async def confirm(self) -> bool:
        """Ask the metadata store; True when the session lived at some moment during the call."""
        if self._stopping or self._store.session_state is not SessionState.CONNECTED:
            return False
        if self._confirming is None:
            self._confirming = self._tasks.spawn(self._ask_store(), name="confirm")
        task = self._confirming
        await asyncio.wait({task})
        return not task.cancelled() and task.result()

    async def _ask_store(self) -> bool:
        asked_s, session = self._clock.monotonic(), self._store.session_id
        try:
            async with asyncio.timeout(CONFIRM_S):
                await self._store.barrier()
        except (OctavoError, TimeoutError):
            return False
        finally:
            self._confirming = None
        if self._store.session_id != session:
            return False
        self._confirmed_s = max(self._confirmed_s, asked_s)
        self._pulse_s = max(self._pulse_s, asked_s)
        return self._store.session_state is SessionState.CONNECTED

    @property
    def held(self) -> frozenset[int]:
        """The bundles served here."""
        return frozenset(self._held)

    def hint(self, bundle: int) -> Located | None:
        """The owner as last seen; None when nobody is known to own the bundle."""
        if bundle in self._held:
            if not self.certain():
                return None  # a lookup proves it, or finds the successor
            return Located(self._me.broker_id, self._me.address, redirect=False)
        owner = self._hints.get(bundle)
        if owner is None or owner.process_nonce == self._mine.process_nonce:
            return None
        return Located(owner.broker_id, owner.address, redirect=False)

    def preferred(self, bundle: int) -> BrokerInfo:
        """The broker that should take the bundle."""
        live = {broker.broker_id: broker for broker in self._brokers.live()}
        owners = preferred_owners(self._config.bundles, sorted(live))
        return live[owners[bundle]] if owners else self._me

    async def locate(self, bundle: int) -> Located:
        """Answer a lookup (O-2): the owner, or the broker to ask; takes the bundle if it is for us.

        Raises MetadataUnavailable, or NotLeader while the bundle is on the move.
        """
        if self.owns(bundle):
            return Located(self._me.broker_id, self._me.address, redirect=False)
        if bundle in self._closing or bundle in self._lost or bundle in self._held:
            raise NotLeader(f"bundle {bundle} is moving, ask again")
        owner = await self._registry.owner(bundle)
        if owner is not None and owner != self._mine:
            self._hints[bundle] = owner
            return Located(owner.broker_id, owner.address, redirect=False)
        chosen = self.preferred(bundle)
        if owner is None and chosen.broker_id != self._me.broker_id:
            return Located(chosen.broker_id, chosen.address, redirect=True)
        if await self.acquire(bundle):
            return Located(self._me.broker_id, self._me.address, redirect=False)
        raise NotLeader(f"bundle {bundle} was taken by another broker, ask again")

    async def acquire(self, bundle: int) -> bool:
        """Take the bundle; simultaneous callers share the attempt."""
        if self._stopping:
            raise NotLeader(f"bundle {bundle} moves: this broker stops")
        task = self._acquiring.get(bundle)
        if task is None:
            task = self._tasks.spawn(self._acquire(bundle), name=f"acquire {bundle}")
            self._acquiring[bundle] = task
        result = await asyncio.shield(task)
        if isinstance(result, OctavoError):
            raise result
        return result

    async def _acquire(self, bundle: int) -> bool | OctavoError:
        session = self._store.session_id
        try:
            if not await self._registry.acquire(bundle, self._mine):
                return False
            # A session that ended meanwhile took the key with it.
            if self._store.session_id != session or self._closing & {bundle}:
                return False
            self._held.add(bundle)
            self._hints[bundle] = self._mine
            return True
        except OctavoError as error:
            return error
        finally:
            del self._acquiring[bundle]

    # --- following ----------------------------------------------------------------------------

    async def _follow_hints(self) -> None:
        while True:
            await self._hints_dirty.wait()
            self._hints_dirty.clear()
            try:
                self._hints = await self._registry.owners()
            except OctavoError as error:
                _log.info("owner-hints-not-refreshed", cause=error.cause)
                self._hints_dirty.set()
            await self._clock.sleep(REFRESH_PAUSE_S)

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._lost |= self._held
            self._held.clear()
            _log.warning("session-lost", bundles=len(self._lost))
            self._events.suspended()
        self._session_changed.set()

    async def _follow_session(self) -> None:
        while True:
            await self._session_changed.wait()
            self._session_changed.clear()
            while self._lost and self._store.session_state is SessionState.CONNECTED:
                try:
                    await self._take_back(min(self._lost))
                except OctavoError as error:
                    _log.info("bundle-not-taken-back", cause=error.cause)
                    await self._clock.sleep(REACQUIRE_RETRY_S)

    async def _pulse(self) -> None:
        timeout_s = self._config.session_timeout_s
        while True:
            await self._clock.sleep(min(PULSE_S, timeout_s / 12))
            now_s = self._clock.monotonic()
            paused_s = now_s - self._pulse_s
            paused = paused_s >= timeout_s
            if not paused:
                self._pulse_s = now_s
            if self._store.session_state is not SessionState.CONNECTED:
                continue
            if self.certain() and not paused:
                self._confirmed_s = now_s
            elif self._confirming is None:
                _log.info("session-in-doubt", silent_s=round(now_s - self._confirmed_s, 1))
                self._confirming = self._tasks.spawn(self._ask_store(), name="confirm")

    async def _take_back(self, bundle: int) -> None:
        """O-5: create the key again; held by another: unload at once."""
        session = self._store.session_id
        if await self._registry.acquire(bundle, self._mine):
            await self._events.revalidate(bundle)
            if self._store.session_id != session:
                raise MetadataUnavailable("the session changed again")
            self._held.add(bundle)
        else:
            await self._events.abandon(bundle)
        self._lost.discard(bundle)

    # --- balance ------------------------------------------------------------------------------

    async def _balance(self) -> None:
        """Give bundles in excess away once the set of brokers has been stable (O-3, F145)."""
        seen: list[str] = []
        stable_since_s = self._clock.monotonic()
        while True:
            await self._clock.sleep(min(BALANCE_STEP_S, self._config.ownership_settle_s or 0.01))
            live = [broker.broker_id for broker in self._brokers.live()]
            now_s = self._clock.monotonic()
            # After a pause what is known of brokers and bundles is old, whatever the state says.
            if live != seen or not self.certain():
                seen, stable_since_s = live, now_s
                continue
            if now_s - stable_since_s < self._config.ownership_settle_s:
                continue
            surplus = excess(sorted(self._held), self._me.broker_id, self._config.bundles, live)
            step = surplus[: self._config.ownership_moves_per_step]
            if step:
                await asyncio.gather(*(self._give_away(bundle) for bundle in step))

    async def _give_away(self, bundle: int) -> None:
        _log.info("bundle-unloads", bundle=bundle, to=self.preferred(bundle).broker_id)
        self._closing.add(bundle)  # before the unload: no lookup lands on a closing owner (O-1)
        self._held.discard(bundle)
        try:
            await self._events.unload(bundle)
            await self._registry.release(bundle, self._mine)
            if self._hints.get(bundle) == self._mine:  # else its next owner was seen meanwhile
                del self._hints[bundle]
        except OctavoError as error:
            _log.warning("bundle-not-released", bundle=bundle, cause=error.cause)
        finally:
            self._closing.discard(bundle)
