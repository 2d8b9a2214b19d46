"""A world for `SlotCore`: bookies with gaps, damage, silence and other people's bytes.

It performs the core's actions one by one, misbehaves as real bookies and stores may, and judges:
the record is changed only when the target durably holds every entry of the slot (INV-7), copies are
the stored bytes (INV-5), one slot changes at a time, and "finished" is only said when it is true.
"""

from __future__ import annotations

import random
import uuid

from octavo.client.autorecovery import slot_core as s
from octavo.client.autorecovery.slots import Slot, stored_runs
from octavo.metadata.ledger_record import Quorum
from octavo.proto.bookie_wire import Status
from octavo.proto.entry import encode_header
from octavo.runtime.ids import EntryId, LedgerId, Member

LEDGER = LedgerId(7)
STEPS_MAX = 3000


class Violation(AssertionError):
    """The core broke a promise."""


def the_entry(entry_id: int) -> bytes:
    """The one byte string of an entry (INV-5)."""
    payload = b"entry %d" % entry_id * (1 + entry_id % 3)
    return encode_header(LEDGER, entry_id, entry_id - 1, 10 * (entry_id + 1), payload) + payload


class SlotBookie:
    """One bookie of the world; `store` is what is durable."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.store: dict[int, bytes] = {}
        self.acknowledged: set[int] = set()

    def holds(self, entry: int) -> bool:
        return self.store.get(entry) == the_entry(entry)


class SlotWorld:
    """One slot of one ledger, a target, and the core under test."""

    def __init__(self, seed: int, core_type: type[s.SlotCore] = s.SlotCore) -> None:
        rng = self.rng = random.Random(seed)
        write = rng.choice([1, 2, 3])
        size = write + rng.choice([0, 0, 1])
        self.quorum = Quorum(size, write, rng.randint(1, write))
        members = tuple(Member(f"b{i}", uuid.UUID(int=i + 1)) for i in range(size + 1))
        self.bookies = {member: SlotBookie(member) for member in members}
        first = rng.choice([0, 0, 5])
        last = first + rng.choice([-1, 0, 3, 9, 150])
        self.settled = rng.random() < 0.8
        self.slot = Slot(
            EntryId(first), first, last, rng.randrange(size), members[:size], self.settled
        )
        self.replacing = self.settled and rng.random() < 0.6
        self.target = members[size] if self.replacing else self.slot.member
        self.joins = self.replacing and size == write and rng.random() < 0.3
        if self.joins:  # one more copy than the record asks for so far (ADR 47)
            self.quorum = Quorum(size + 1, write + 1, self.quorum.ack)
            self.slot = Slot(EntryId(first), first, last, size, members, True)
        self.faults = rng.choice([0.0, 0.0, 0.05, 0.3])
        self.wanted = [
            entry
            for a, b in stored_runs(self.quorum, self.slot.number, first, last)
            for entry in range(a, b + 1)
        ]
        self._fill(first, last)
        self.replacing = self.replacing and not self.joins
        self.record = list(self.slot.ensemble)
        self.ended: s.Finished | s.GaveUp | None = None
        self.core = core_type(LEDGER, self.quorum, self.slot, self.target, joins=self.joins)

    def _fill(self, first: int, last: int) -> None:
        """Each entry lies on its write set, with gaps; now and then nowhere, or damaged."""
        rng = self.rng
        gaps = rng.choice([0.0, 0.1, 0.5])
        for number, member in enumerate(self.slot.ensemble):
            if self.joins and member == self.target:
                continue
            for a, b in stored_runs(self.quorum, number, first, last):
                for entry in range(a, b + 1):
                    if rng.random() >= gaps:
                        self.bookies[member].store[entry] = the_entry(entry)
                        if rng.random() < 0.03:
                            self.bookies[member].store[entry] = the_entry(entry)[:-1] + b"?"
        for entry in self.wanted:  # an earlier attempt's copies
            if self.replacing and rng.random() < 0.2:
                bad = b"!" if rng.random() < 0.2 else b""
                self.bookies[self.target].store[entry] = the_entry(entry) + bad

    def run(self) -> SlotWorld:
        actions = self.core.start()
        for _ in range(STEPS_MAX):
            self.core.validate()
            if len(actions) != 1:
                raise Violation(f"{len(actions)} actions at once")
            actions = self._perform(actions[0])
            if self.ended is not None:
                self._judge_end()
                return self
        raise Violation("it does not end")

    def _fault(self) -> Status | None:
        if self.rng.random() < self.faults:
            return self.rng.choice(
                [Status.TIMEOUT, Status.DISCONNECTED, Status.EIO, Status.UNKNOWN, Status.OVERLOADED]
            )
        return None

    def _perform(self, action: s.SlotAction) -> list[s.SlotAction]:
        core = self.core
        match action:
            case s.ListHeld():
                return self._list(action)
            case s.ReadSource():
                return core.source_read(action.member, action.first, *self._read(action))
            case s.ProveHeld():
                return core.proof_read(action.first, *self._read(action))
            case s.WriteTarget():
                return core.written([self._write(bytes(entry)) for entry in action.entries])
            case s.CommitMember():
                return self._commit(action)
            case s.Finished() | s.GaveUp():
                self.ended = action
                return []

    def _list(self, action: s.ListHeld) -> list[s.SlotAction]:
        status = self._fault()
        if status is not None:
            return self.core.listed(status, -1, ())
        through = min(action.last, action.first + self.rng.choice([0, 5, 400]))
        held = [e for e in self.bookies[action.member].store if action.first <= e <= through]
        runs: list[tuple[int, int]] = []
        for entry in sorted(held):
            if runs and runs[-1][1] + 1 == entry:
                runs[-1] = (runs[-1][0], entry)
            else:
                runs.append((entry, entry))
        if not self.bookies[action.member].store:
            return self.core.listed(Status.NO_SUCH_LEDGER, -1, ())
        return self.core.listed(Status.OK, through, runs)

    def _read(self, action: s.ReadSource | s.ProveHeld) -> tuple[Status, list[bytes]]:
        status = self._fault()
        if status is not None:
            return status, []
        out: list[bytes] = []
        store = self.bookies[action.member].store
        most = min(action.most, self.rng.choice([1, 4, 64]))
        for entry in range(action.first, action.first + most):
            if entry not in store:
                break
            out.append(store[entry])
        return (Status.OK, out) if out else (Status.NO_SUCH_ENTRY, [])

    def _write(self, entry: bytes) -> Status:
        entry_id = int.from_bytes(entry[8:16], "big")
        target = self.bookies[self.target]
        if entry != the_entry(entry_id):
            raise Violation(f"INV-5: other bytes are written for entry {entry_id}")
        if entry_id not in self.wanted:
            raise Violation(f"entry {entry_id} does not belong into the slot")
        status = self._fault()
        if status is not None:  # it may have been stored all the same
            if self.rng.random() < 0.5:
                target.store.setdefault(entry_id, entry)
            return status
        target.store[entry_id] = entry  # damaged bytes are replaced (6.15)
        return Status.OK

    def _commit(self, action: s.CommitMember) -> list[s.SlotAction]:
        if not self.settled:
            raise Violation("A-6: a member of a fragment that is not settled is replaced")
        if action.old != self.slot.member or action.new != self.target:
            raise Violation("another member than the slot's is replaced")
        missing = [entry for entry in self.wanted if not self.bookies[self.target].holds(entry)]
        if missing:
            raise Violation(f"INV-7: the record names {self.target}, which lacks {missing[:5]}")
        if self._fault() is not None:
            return self.core.committed("the record was changed by somebody else")
        self.record[self.slot.number] = action.new
        return self.core.committed()

    def _judge_end(self) -> None:
        """Whatever happened, nothing is worse than before; and "finished" is true."""
        target = self.bookies[self.target]
        changed = self.record != list(self.slot.ensemble)
        if isinstance(self.ended, s.Finished):
            if changed != self.replacing:
                raise Violation("it finished, and the record is not as it should be")
            absent = [entry for entry in self.wanted if entry not in target.store]
            if absent:
                raise Violation(f"it finished, and {self.target} lacks {absent[:5]}")
            if self.joins and not all(map(target.holds, self.wanted)):
                raise Violation(f"it finished, and {self.target} joins with damaged copies")
        elif changed:
            raise Violation("it gave up after the record was changed")
        else:
            assert self.ended is not None
            self._judge_unreadable(self.ended.unreadable)

    def _judge_unreadable(self, unreadable: tuple[tuple[int, int], ...]) -> None:
        """A-7: what is named as lost has no readable copy, unless a fault hid it."""
        if self.faults:
            return
        for first, last in unreadable:
            for entry in range(first, last + 1):
                holders = [
                    b for m, b in self.bookies.items() if m != self.target and b.holds(entry)
                ]
                if holders:
                    raise Violation(f"entry {entry} is called unreadable, {holders} has it")
