"""A metadata store that may lie, and a bookie's garbage collection before it (G-1..G-6).

The world knows which ledgers were really deleted. Whatever the store answers, only those may go;
and as long as it is honest, all of them must. Its store can be emptied in part, put back from a
copy, replaced by another cluster's, or lose its session, at any action of a pass; the bookie can be
killed at any action.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from octavo.bookie.reclaim.collection_actions import (
    Action,
    Alarm,
    DeleteLedgers,
    ListLocal,
    Memory,
    RaiseAlarm,
    ReadFacts,
    ReadLedgers,
    Remember,
    StoreFacts,
    WalkLedgers,
)
from octavo.bookie.reclaim.collection_core import CollectionCore, CollectionLimits

INSTANCE = "cluster-1"
LIES = ("hide", "wipe", "empty", "other", "restore", "put back", "session", "truth", "truth")
LIMITS = CollectionLimits(interval_s=900.0, confirm_s=60.0, unexplained_ratio=0.2, reads_max=1000)
MakeCore = Callable[[Memory, float], CollectionCore]


class BrokenPromise(AssertionError):
    """A ledger was deleted that must not be, or stays that must go."""


def real_core(memory: Memory, first_s: float) -> CollectionCore:
    return CollectionCore(LIMITS, instance_id=INSTANCE, memory=memory, first_s=first_s)


@dataclass
class Store:
    """What the metadata store answers from."""

    instance_id: str = INSTANCE
    ledgers: set[int] = field(default_factory=set[int])
    deletions: int = 0
    last_id: int = 0
    cookie_version: int = 0
    restored: str = ""

    def copy(self) -> Store:
        return replace(self, ledgers=set(self.ledgers))


@dataclass
class Tally:
    """What the worlds did, so that a test sees that they did something."""

    deleted: int = 0
    alarms: dict[Alarm, int] = field(default_factory=dict[Alarm, int])
    lies: int = 0
    restarts: int = 0
    put_back: int = 0


class CollectionWorld:
    """One world, drawn from a seed."""

    def __init__(self, seed: int, make_core: MakeCore = real_core) -> None:
        self._rng = random.Random(seed)
        self._seed = seed
        self._make_core = make_core
        self.now_s = 1000.0
        self.store = Store()
        self._copies: list[Store] = []
        self._honest: Store | None = None  # set aside while another store answers
        self._hidden: set[int] = set()  # left out by the listing
        self._wiped: set[int] = set()  # left out by reads, too
        self._session = 1
        self._given_out = 0
        self._always_honest = False
        self._kills_in_passes = False
        self._went_back = ""
        self._dying: list[tuple[Store, int]] = []  # counted, not gone yet
        self.local: dict[int, bool] = {}
        self._deleted: set[int] = set()  # truly
        self._cookie_floor = 0
        self._remembered = Memory(-1, "")
        self._absent_s: dict[int, list[float]] = {}
        self._pass_sessions: list[int] = []
        self._contradicted = False
        self.tally = Tally()
        self.core = make_core(self._remembered, self.now_s)
        self._turn(honest=True)  # an empty bookie looks at once: what goes from now on is counted

    # --- a life -----------------------------------------------------------------------------

    def run(self, turns: int, *, honest: bool = False) -> Tally:
        """Draw what happens; raises BrokenPromise."""
        self._always_honest = self._kills_in_passes = honest
        for _ in range(turns):
            self._live()
            if not honest and self._rng.random() < 0.3:
                self._lie()
            self.now_s += self._rng.choice((1.0, 30.0, 61.0, 950.0))
            self._turn(honest=honest)
        return self.tally

    def settle(self) -> None:
        """An honest store, for as long as it takes: every deleted ledger goes (INV-14)."""
        self._tell_truth()
        self._bury()
        self._kills_in_passes = False
        for _ in range(12):
            self.now_s += 950.0
            self._turn(honest=True)
        left = (self._deleted - self.store.ledgers) & self.local.keys()
        left.update(one for one in self.local if one >= 1 << 50)
        if left and self.core.alarm is Alarm.NONE:
            raise BrokenPromise(f"seed {self._seed}: {sorted(left)} stay, without an alarm")

    def _live(self) -> None:
        rng, store = self._rng, self.store if self._honest is None else self._honest
        for _ in range(rng.randrange(4)):
            # No id is given twice, also after a copy was put back.
            store.last_id = self._given_out = max(store.last_id, self._given_out) + 1
            store.ledgers.add(store.last_id)
            self.local[store.last_id] = True
            self._publish(store)
        if rng.random() < 0.1:  # a fence of a ledger that never was
            self.local[(1 << 50) + rng.randrange(10)] = False
        living = sorted(store.ledgers)
        self._bury()
        for ledger_id in living:
            if rng.random() < 0.03:
                self._kill(store, ledger_id)
        if rng.random() < 0.5:
            self._bury()
        if rng.random() < 0.2:
            self._copies.append(store.copy())

    def _publish(self, store: Store) -> None:
        """The bookie brings its cookie forward, and sees if an older one was there."""
        if store.cookie_version < self._cookie_floor:
            self._went_back = "an older cookie was there"
            self.core.hurry(self.now_s)
        store.cookie_version += 1
        self._cookie_floor = store.cookie_version

    def _kill(self, store: Store, ledger_id: int) -> None:
        store.deletions += 1  # counted first, and gone a moment later
        self._dying.append((store, ledger_id))

    def _kill_some(self) -> None:
        """Ledgers go while a pass looks at them."""
        rng = self._rng
        if self._kills_in_passes and self.store.ledgers and rng.random() < 0.2:
            self._kill(self.store, rng.choice(sorted(self.store.ledgers)))
            if rng.random() < 0.7:
                self._bury()

    def _bury(self) -> None:
        for store, ledger_id in self._dying:
            if ledger_id in store.ledgers:
                store.ledgers.discard(ledger_id)
                self._deleted.add(ledger_id)
        self._dying = []

    def _lie(self) -> None:
        rng = self._rng
        self.tally.lies += 1
        lie = rng.choice(LIES)
        living = sorted(self.store.ledgers)
        if lie == "hide" and living:
            self._hidden = set(rng.sample(living, rng.randrange(1, len(living) + 1)))
        elif lie == "wipe" and living:  # records lost behind everybody's back
            self._wiped = set(rng.sample(living, rng.randrange(1, len(living) + 1)))
        elif lie == "empty":
            self._become(Store(instance_id=""))
        elif lie == "other":
            other = Store("cluster-2", {1, 2}, 10**6, 1 << 40, 10**6)
            self._become(other)
        elif lie == "restore" and self._copies and self._honest is None:
            last_id = self.store.last_id
            self.store = rng.choice(self._copies).copy()  # for good: nothing brings the rest back
            if rng.random() < 0.5:
                self.store.last_id = last_id  # its epoch was raised (INV-11)
            self._given_out = last_id
            self._copies = []
        elif lie == "put back" and self._copies and self._honest is None:
            self._put_back(rng.choice(self._copies).copy())
        elif lie == "session":
            self._session += 1
        elif lie == "truth":
            self._tell_truth()

    def _put_back(self, copy: Store) -> None:
        """As the tool does it: with a mark, a new epoch, no counts; bookies were stopped for it."""
        copy.restored = f"copy{self._rng.randrange(1 << 40)}"
        copy.deletions, copy.cookie_version = 0, 0
        copy.last_id = self._given_out = max(self._given_out, self.store.last_id) + 1000
        self.store, self._copies, self._dying = copy, [], []
        self._went_back, self._cookie_floor = "", 0
        self._restart()
        self.tally.put_back += 1

    def _become(self, store: Store) -> None:
        if self._honest is None:
            self._honest = self.store
        self.store = store

    def _tell_truth(self) -> None:
        self._hidden, self._wiped = set(), set()
        if self._honest is not None:
            self.store, self._honest = self._honest, None

    # --- passes -----------------------------------------------------------------------------

    def _turn(self, *, honest: bool) -> None:
        rng = self._rng
        if rng.random() < 0.1:
            self.core.hurry(self.now_s)
        actions = self.core.wake(self.now_s)
        while actions:
            following: list[Action] = []
            for action in actions:
                self.core.validate()
                if not honest and rng.random() < 0.05:
                    core = self.core
                    self._lie()
                    if self.core is not core:
                        return  # the bookie was stopped for it
                if not honest and rng.random() < 0.03 and not isinstance(action, Remember):
                    self._restart()
                    return
                following += self._act(action, honest=honest)
            actions = following
        self.core.validate()

    def _restart(self) -> None:
        self.tally.restarts += 1
        self.core = self._make_core(self._remembered, self.now_s + self._rng.choice((0.0, 500.0)))
        self._absent_s.clear()

    def _act(self, action: Action, *, honest: bool) -> list[Action]:
        core, rng = self.core, self._rng
        self.now_s += rng.choice((0.0, 0.1, 2.0))
        if rng.random() < 0.1:
            self._bury()
        self._kill_some()
        fails = not honest and rng.random() < 0.04
        if isinstance(action, RaiseAlarm):
            assert action.cause
            if self._always_honest:
                self._broken(f"an honest store raised an alarm: {action.cause}")
            count = self.tally.alarms.get(action.alarm, 0)
            self.tally.alarms[action.alarm] = count + 1
        elif isinstance(action, Remember):
            self._remembered = action.memory
        elif isinstance(action, ListLocal):
            self._pass_sessions, self._contradicted = [], False
            return core.locals_listed(list(self.local.items()))
        elif isinstance(action, ReadFacts):
            return core.failed(self.now_s) if fails else self._facts()
        elif isinstance(action, WalkLedgers):
            shown = sorted(self.store.ledgers - self._hidden - self._wiped)
            cut = rng.randrange(len(shown) + 1)
            core.listed(shown[:cut])
            if fails:
                return core.failed(self.now_s)
            core.listed(shown[cut:])
            return core.walk_ended(self.now_s)
        elif isinstance(action, ReadLedgers):
            return self._read(action.ledger_ids, fails)
        elif isinstance(action, DeleteLedgers):
            return self._delete(action.ledger_ids)
        return []

    def _facts(self) -> list[Action]:
        store = self.store
        self._pass_sessions.append(self._session)
        facts = StoreFacts(
            session_id=self._session,
            instance_id=store.instance_id,
            cookie_version=store.cookie_version if store.instance_id == INSTANCE else -1,
            cookie_is_ours=store.instance_id == INSTANCE,
            cookie_floor=self._cookie_floor,
            went_back=self._went_back,
            last_id=store.last_id,
            deletions=store.deletions,
            restored=store.restored,
            restored_words=f"restored as {store.restored}",
        )
        if store.instance_id == INSTANCE:
            self._publish(store)
        return self.core.facts_read(facts, self.now_s)

    def _read(self, ledger_ids: list[int], fails: bool) -> list[Action]:
        for number, ledger_id in enumerate(ledger_ids):
            if fails and number == len(ledger_ids) // 2:
                return self.core.failed(self.now_s)
            exists = ledger_id in self.store.ledgers - self._wiped
            self._contradicted |= exists
            self.core.ledger_read(ledger_id, exists=exists)
            if not exists:
                self._absent_s.setdefault(ledger_id, []).append(self.now_s)
        return self.core.reads_ended(self.now_s)

    def _delete(self, ledger_ids: list[int]) -> list[Action]:
        for ledger_id in ledger_ids:
            # A ledger without entries loses only flags, which admission replaces (B-F4, B-33).
            is_dying = any(ledger_id == one for _, one in self._dying)
            if self.local[ledger_id] and ledger_id not in self._deleted and not is_dying:
                self._broken(f"ledger {ledger_id} was deleted and is alive")
            absent = self._absent_s.get(ledger_id, [])
            if not absent or absent[-1] - absent[0] < LIMITS.confirm_s:
                self._broken(f"ledger {ledger_id} was deleted after {absent}")
        if len(set(self._pass_sessions)) != 1 or len(self._pass_sessions) not in (2, 3):
            self._broken(f"deleted over the sessions {self._pass_sessions}")
        if self._contradicted:
            self._broken("deleted though the listing was contradicted")
        gone = [one for one in ledger_ids if self._rng.random() < 0.8]
        for ledger_id in gone:
            del self.local[ledger_id]
        self.tally.deleted += len(gone)
        return self.core.deleted(gone, self.now_s)

    def _broken(self, what: str) -> None:
        raise BrokenPromise(f"seed {self._seed}: {what}; {self.core.step}")
