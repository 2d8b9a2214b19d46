"""A bookie that gives up copies while workers copy to it (G-4), one step of somebody at a time.

One ledger, one bookie `X`, others. Workers do what `LedgerRepairer` and `SlotCore` do: lock, read
the record, ask X what it holds, copy, read everything back, change the record by the version that
was read. Locks get lost without their holders' knowing; the store is distrusted at times; sessions
change. What must hold: whenever the record names X, X has every entry.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator

from octavo.bookie.reclaim import surplus_actions as a
from octavo.bookie.reclaim.surplus_core import Step, SurplusCore, SurplusLimits

LIMITS = SurplusLimits(interval_s=500.0, quiet_s=60.0, reads_max=10)
LEDGER = 7
ENTRIES = frozenset(range(6))
MakeCore = Callable[[float], SurplusCore]


class BrokenPromise(AssertionError):
    """A record names copies that are gone, or copies stay that nobody wants."""


def real_core(first_s: float) -> SurplusCore:
    return SurplusCore(LIMITS, first_s=first_s)


class SurplusWorld:
    """One world, drawn from a seed.

    Args:
        any_version: workers change whatever version the record has: the bug that G-4 must not meet.
    """

    def __init__(
        self, seed: int, make_core: MakeCore = real_core, *, any_version: bool = False
    ) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.any_version = any_version
        self.now_s = 100.0
        self.version = 1
        self.closed = self.rng.random() < 0.8
        self.members = self.rng.choice([{"A", "B", "C"}, {"A", "B", "X"}])
        some = set(range(self.rng.randrange(1, len(ENTRIES))))  # of an attempt that was given up
        self.entries = set(ENTRIES) if "X" in self.members else some
        self.condemned = self.doomed = False
        self.lock = ""
        self.trusted, self.session = True, 1
        self.known_lost = False
        self.added_s = self.now_s
        self.read_version = 0
        self.facts: list[tuple[int, bool]] = []
        self.deleted = self.commits = 0
        self.core = make_core(self.now_s)
        self.todo: list[a.Action] = []
        self.workers = [self._worker(f"w{i}") for i in range(2)]

    # --- who does what ----------------------------------------------------------------------

    def run(self, steps: int) -> SurplusWorld:
        for _ in range(steps):
            if self.rng.random() < 0.1:
                self._happens()
            if self.rng.random() < 0.5:
                next(self.rng.choice(self.workers))
            else:
                self._collect()
            self._judge()
        return self

    def settle(self) -> None:
        """INV-14: nobody works, the store is sound: what no record asks for goes."""
        self.trusted, self.known_lost, self.lock, self.workers = True, False, "", []
        self.closed = True
        for _ in range(60):
            self.now_s += 100.0
            self._collect()
            while self.todo:
                self._collect()
            self._judge()
        if "X" not in self.members and self.entries:
            raise BrokenPromise(f"seed {self.seed}: surplus copies stay")

    def _happens(self) -> None:
        rng = self.rng
        event = rng.choice(("time", "time", "lock", "trust", "session", "close"))
        if event == "time":
            self.now_s += rng.choice((5.0, 70.0, 600.0))
        elif event == "lock":
            self.lock, self.known_lost = "", rng.random() < 0.5
        elif event == "trust":
            self.trusted = not self.trusted
        elif event == "session":
            self.session += 1
        elif event == "close" and not self.closed:
            self.closed = True
            self.version += 1

    def _worker(self, name: str) -> Generator[None]:
        rng = self.rng
        while True:
            yield
            if rng.random() < 0.85 or self.lock:
                continue
            self.lock = name
            yield
            version, members = self.version, set(self.members)
            yield
            if "X" in members:
                self._commit(
                    version, members - {"X"} | {rng.choice(sorted({"A", "B", "C"} - members))}
                )
            else:
                yield from self._copy_to_x(version, members)
            if self.lock == name:
                self.lock = ""

    def _copy_to_x(self, version: int, members: set[str]) -> Generator[None]:
        if self.condemned or self.doomed:
            return  # X does not tell what it holds
        missing = sorted(ENTRIES - self.entries)
        for entry in missing:
            yield
            if self.doomed or self.rng.random() < 0.1:
                return  # X does not take it now (G-5), or the source is gone
            self.entries.add(entry)
            self.added_s = self.now_s
        for entry in sorted(ENTRIES):
            if entry % 3 == 0:
                yield
            if entry not in self.entries:
                return
        yield
        self._commit(version, members - {self.rng.choice(sorted(members))} | {"X"})

    def _commit(self, version: int, members: set[str]) -> None:
        if version == self.version or self.any_version:
            self.version += 1
            self.commits += 1
            self.members = members

    # --- the bookie -------------------------------------------------------------------------

    def _collect(self) -> None:
        core = self.core
        if not self.todo:
            if self.doomed and core.step is not Step.DELETE:
                raise BrokenPromise("a deletion that nobody waits for")
            self.facts = self.facts if core.step is not Step.IDLE else []
            self.todo = core.wake(self.now_s)
            return
        self.todo = self.todo[1:] + self._act(self.todo[0]) if not self._erase() else self.todo
        core.validate()
        if core.step is Step.IDLE and not self.todo and (self.condemned or self.lock == "gc"):
            raise BrokenPromise(f"seed {self.seed}: condemned or locked, and nobody is at work")

    def _erase(self) -> bool:
        """The deletion's record is in the stream; its entries go a moment later."""
        if not self.doomed:
            return False
        self.entries.clear()
        self.doomed = self.condemned = False
        self.deleted += 1
        self.todo = self.core.deleted(self.now_s, done=True)
        return True

    def _act(self, action: a.Action) -> list[a.Action]:
        match action:
            case a.Condemn() | a.DeleteCopies():
                return self._change(action)
            case a.Spare():
                self.condemned = False
            case a.Unlock():
                self.lock = "" if self.lock == "gc" else self.lock
            case a.PassEnded():
                self.facts = []
            case _:
                if self.rng.random() < 0.02 and not isinstance(action, a.ListLocal):
                    return self.core.failed(self.now_s)
                return self._ask(action)
        return []

    def _change(self, action: a.Condemn | a.DeleteCopies) -> list[a.Action]:
        done = self.rng.random() < 0.9
        if isinstance(action, a.Condemn):
            self.condemned = done
            return self.core.condemned(self.now_s, done=done)
        if not done:
            self.condemned = False
            return self.core.deleted(self.now_s, done=False)
        self._judge_deletion()
        self.doomed = True
        return [action]  # answered by `_erase`

    def _ask(self, action: a.Action) -> list[a.Action]:
        core, now_s = self.core, self.now_s
        match action:
            case a.ReadFacts():
                self.facts.append((self.session, self.trusted))
                return core.facts_read(self.session, now_s, trusted=self.trusted)
            case a.ReadRecords():
                for ledger_id in action.ledger_ids:
                    core.record_read(ledger_id, *self._look(), now_s)
                return core.reads_ended(now_s)
            case a.ReadRecord():
                self.read_version = self.version
                return core.record_read(LEDGER, *self._look(), now_s)
            case a.TakeLock():
                ours = not self.lock
                if ours:
                    self.lock, self.known_lost = "gc", False
                return core.locked(now_s, ours=ours)
            case a.TouchRecord():
                done = self.read_version == self.version and not self.known_lost
                self.version += int(done)
                return core.touched(now_s, done=done)
            case _:
                self.facts = []
                return core.locals_listed([(LEDGER, bool(self.entries))])

    def _look(self) -> tuple[a.RecordFacts, a.Held | None]:
        facts = a.RecordFacts(self.closed, "X" in self.members)
        held = a.Held(len(self.entries), len(self.entries), max(self.entries, default=-1))
        return facts, held if self.entries else None

    # --- judgement --------------------------------------------------------------------------

    def _judge(self) -> None:
        if "X" in self.members and (self.doomed or not self.entries >= ENTRIES):
            raise BrokenPromise(f"seed {self.seed}: the record names copies that are gone")

    def _judge_deletion(self) -> None:
        if not self.closed:
            raise BrokenPromise("an open ledger's copies go")
        if self.now_s - self.added_s < LIMITS.quiet_s:
            raise BrokenPromise("copies go that were added to a moment ago")
        if len({session for session, _ in self.facts}) != 1 or len(self.facts) < 2:
            raise BrokenPromise(f"copies go over the sessions {self.facts}")
        if not all(trusted for _, trusted in self.facts):
            raise BrokenPromise("copies go by the word of a store that is not trusted")
