"""Which bundles this broker serves: acquire on lookup, redirect, release in excess (ledger §8.4).

Ownership is an optimisation; safety is in ledgers and segment lists (§8.3). What matters here is
that clients find one broker, and that answers that do not append need a live session (G3): after
LOST `owns` is false for everything at once, until each bundle is acquired again and its
partitions were compared with the list (O-5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from octavo.metadata.brokers import BrokerInfo
from octavo.metadata.bundles import BundleOwner, BundleRegistry
from octavo.metadata.store import MetadataStore, SessionState
from octavo.runtime.clock import Clock
from octavo.runtime.errors import MetadataUnavailable, NotLeader, OctavoError
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger
from octavo.serving.balance import Balance, Held
from octavo.serving.config import BrokerConfig
from octavo.serving.fleet import Fleet
from octavo.serving.handover import Giving, HandOvers
from octavo.serving.liveness.standing import Standing
from octavo.serving.owner_hints import OwnerHints
from octavo.serving.partition.name import PartitionName

REACQUIRE_RETRY_S = 0.5
MOVE_WAIT_S = 3.0
"""How long a lookup waits for a bundle that is handed over to arrive."""
_log = get_logger("octavo.serving.ownership")


class Located(NamedTuple):
    """Where a partition is served."""

    broker_id: str
    address: str
    redirect: bool
    """True: this broker should be asked, it has not taken the bundle yet."""


class BundleEvents(NamedTuple):
    """What the owner of partitions does when bundles come and go."""

    partitions: Callable[[int], Sequence[PartitionName]]
    """What is served of the bundle."""
    unload: Callable[[int], Awaitable[None]]
    """Close the bundle's partitions in good order (O-3)."""
    taken: Callable[[int], None]
    """The bundle was taken because its owner is gone: load what is in it."""
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
        standing: Standing,
        *,
        store: MetadataStore,
        registry: BundleRegistry,
        fleet: Fleet,
        config: BrokerConfig,
        clock: Clock,
        events: BundleEvents,
    ) -> None:
        self._standing = standing
        self._store = store
        self._registry = registry
        self._fleet = fleet
        self._config = config
        self._clock = clock
        self._events = events
        self._tasks = TaskOwner("ownership")
        self._held: set[int] = set()
        self.lost: set[int] = set()
        """Held when the session ended, and not acquired again yet (O-5); written here only."""
        self.hints = OwnerHints(registry, clock, self._take_orphans)
        """Who has each bundle, as last seen."""
        giving = Giving(
            events.partitions,
            events.unload,
            self._held.__contains__,
            self._held.discard,
            lambda: self._mine,
        )
        self._leaving = HandOvers(registry, self.hints, clock, giving)
        self._acquiring: dict[int, asyncio.Task[bool | OctavoError]] = {}
        self._session_changed = asyncio.Event()
        self._takes = True
        self._stopping = False
        self._unsubscribe: list[Callable[[], None]] = []

    # --- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Follow owners, brokers and the session."""
        self._unsubscribe = [self._store.on_session(self._on_session)]
        self._standing.replaced = self._replaced
        self._standing.registered = self._session_changed.set
        await self.hints.start()
        self._tasks.spawn(self._follow_session(), name="session")
        held = Held(lambda: self._held, self.certain, lambda: self._takes, self._give_away)
        balance = Balance(self._me.broker_id, self._fleet, self._config, self._clock, held)
        self._tasks.spawn(balance.run(), name="balance")
        self._tasks.spawn(self._follow(self._fleet.brokers.wait_changed), name="brokers")
        self._tasks.spawn(self._follow(self._fleet.drains.wait_changed), name="drains")
        self._tasks.spawn(self._follow(self._fleet.placements.wait_changed), name="placements")

    async def leave(self) -> None:
        """Take nothing any more, and give every bundle to the broker it is for.

        Also what is on its way here or away at this moment: nobody is left to look for it. Whether
        others know that this broker leaves does not matter.
        """
        self._takes = False
        given: set[int] = set()
        while True:
            if self._acquiring:  # never cancelled from here, and never raises
                await asyncio.wait(set(self._acquiring.values()))
            others = self._fleet.wanted_owners(without=self._me.broker_id)
            held = sorted((self._held - given) & others.keys())
            if not held and not self._leaving.moving:
                return
            given.update(held)
            moving = set(self._leaving.moving.values())
            await asyncio.gather(*(self._leaving.give(b, others[b], leaving=True) for b in held))
            if moving:
                await asyncio.wait(moving)

    async def close(self) -> None:
        """Release what is left; its partitions were unloaded before."""
        self._stopping, self._takes = True, False
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        await self.hints.close()
        await self._tasks.close()
        held = sorted(self._held | self._leaving.moving.keys())
        self._held.clear()
        results = await asyncio.gather(
            *(self._registry.release(bundle, self._mine) for bundle in held),
            return_exceptions=True,
        )
        for bundle, error in zip(held, results, strict=True):
            if isinstance(error, OctavoError):
                _log.info("bundle-left-to-session", bundle=bundle, cause=error.cause)
            elif error is not None:
                raise error

    # --- questions ----------------------------------------------------------------------------

    @property
    def _me(self) -> BrokerInfo:
        return self._standing.me

    @property
    def _mine(self) -> BundleOwner:
        """What is stored for a bundle of ours."""
        me = self._standing.me
        return BundleOwner(me.broker_id, me.address, me.process_nonce)

    def owns(self, bundle: int) -> bool:
        """Whether partitions of the bundle may be served right now (G3).

        Not after a pause in which this broker may have been replaced, until the store said that it
        was not (F148).
        """
        return bundle in self._held and not self._standing.is_paused()

    def certain(self) -> bool:
        """Whether nobody else can own what is held here; see `Standing`.

        False while the metadata store is away, and after a pause of this process; then answers
        about the end of a log need a proof of their own (design.md §12).
        """
        return self._standing.certain()

    async def confirm(self) -> bool:
        """Ask the metadata store; True when this broker was not replaced before the call."""
        return not self._stopping and await self._standing.confirm()

    @property
    def takes(self) -> bool:
        """Whether bundles can still be taken: False once this broker leaves."""
        return self._takes

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
        owner = self.hints.get(bundle)
        if owner is None or owner.process_nonce == self._mine.process_nonce:
            return None
        return Located(owner.broker_id, owner.address, redirect=False)

    def preferred(self, bundle: int) -> BrokerInfo:
        """The broker that should take the bundle."""
        return self._fleet.preferred(bundle) or self._me

    def moving(self, bundle: int) -> asyncio.Future[None] | None:
        """While the bundle is on its way to a successor: done when that one can be asked."""
        return self._leaving.moving.get(bundle)

    async def locate(self, bundle: int) -> Located:
        """Answer a lookup (O-2): the owner, or the broker to ask; takes the bundle if it is for us.

        Raises MetadataUnavailable, or NotLeader while the bundle is on the move.
        """
        if self.owns(bundle):
            return Located(self._me.broker_id, self._me.address, redirect=False)
        moving = self.moving(bundle)
        if moving is not None:
            await asyncio.wait({moving}, timeout=MOVE_WAIT_S)
        if bundle in self._leaving.moving or bundle in self.lost or bundle in self._held:
            raise NotLeader(f"bundle {bundle} is moving, ask again")
        owner = await self._registry.owner(bundle)
        if owner is not None and owner != self._mine:
            self.hints.seen(bundle, owner)
            return Located(owner.broker_id, owner.address, redirect=False)
        chosen = self.preferred(bundle)
        if owner is None and chosen.broker_id != self._me.broker_id:
            return Located(chosen.broker_id, chosen.address, redirect=True)
        if await self.acquire(bundle):
            return Located(self._me.broker_id, self._me.address, redirect=False)
        raise NotLeader(f"bundle {bundle} was taken by another broker, ask again")

    async def acquire(self, bundle: int) -> bool:
        """Take the bundle; simultaneous callers share the attempt."""
        if not self._takes:
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
        session, mine = self._store.session_id, self._mine
        try:
            if not await self._registry.acquire(bundle, mine):
                return False
            # A session that ended meanwhile took the key with it.
            changed = self._store.session_id != session or self._mine != mine
            if changed or bundle in self._leaving.moving:
                return False
            self._held.add(bundle)
            self.hints.seen(bundle, mine)
            return True
        except OctavoError as error:
            return error
        finally:
            del self._acquiring[bundle]

    # --- following ----------------------------------------------------------------------------

    async def _follow(self, wait_changed: Callable[[], Awaitable[None]]) -> None:
        while True:
            await wait_changed()
            self._take_orphans()

    def _take_orphans(self) -> None:
        """Take at once what lost its owner and is for this broker: no lookup is waited for."""
        moving = self._leaving.moving
        busy = self._held | moving.keys() | self.lost | self._acquiring.keys()
        for bundle in sorted(self.hints.orphans - busy):
            if self._takes and self.preferred(bundle).broker_id == self._me.broker_id:
                self._tasks.spawn(self._take(bundle), name=f"take {bundle}")

    async def _take(self, bundle: int) -> None:
        try:
            if await self.acquire(bundle):
                _log.info("bundle-taken", bundle=bundle)
                self._events.taken(bundle)
        except OctavoError as error:  # a lookup tries again
            _log.info("bundle-not-taken", bundle=bundle, cause=error.cause)

    def _replaced(self) -> None:
        """Another broker may own everything by now; what it does not have is taken back (O-5)."""
        self.lost |= self._held
        self._held.clear()
        self._events.suspended()

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self.lost |= self._held
            self._held.clear()
            _log.warning("session-lost", bundles=len(self.lost))
            self._events.suspended()
        self._session_changed.set()

    async def _follow_session(self) -> None:
        while True:
            await self._session_changed.wait()
            self._session_changed.clear()
            while (
                self.lost
                and self._store.session_state is SessionState.CONNECTED
                and self._standing.is_registered
            ):
                try:
                    await self._take_back(min(self.lost))
                except OctavoError as error:
                    _log.info("bundle-not-taken-back", cause=error.cause)
                    await self._clock.sleep(REACQUIRE_RETRY_S)

    async def _take_back(self, bundle: int) -> None:
        """O-5: create the key again; held by another: unload at once."""
        session, mine = self._store.session_id, self._mine
        for nonce in tuple(self._standing.former):  # earlier lives that nobody took away yet
            await self._registry.evict(bundle, replace(mine, process_nonce=nonce))
        if await self._registry.acquire(bundle, mine):
            await self._events.revalidate(bundle)
            if self._store.session_id != session or self._mine != mine:
                raise MetadataUnavailable("the session changed again")
            self._held.add(bundle)
        else:
            await self._events.abandon(bundle)
        self.lost.discard(bundle)

    async def _give_away(self, bundle: int) -> None:
        to = self._fleet.preferred(bundle)
        await self._leaving.give(bundle, None if to == self._me else to)


def is_for(broker_id: str, bundle: int, ownership: Ownership) -> bool:
    """Whether this broker, `broker_id`, holds it, or nobody as far as is known and it should."""
    if ownership.owns(bundle):
        return True
    nobody = ownership.hint(bundle) is None
    return nobody and ownership.preferred(bundle).broker_id == broker_id
