"""One ledger in a hostile world: simulated bookies, network and metadata around the real cores.

Fault model. Messages are reordered, delayed without bound or lost; a requester may give up
(TIMEOUT) on a request that is delivered later. Bookies crash and restart (unsynced records are
lost, or kept without their replies having left); at most Qa-1 of them lose their disk and come back
under a new incarnation (B-25). The old writer never learns that it is old. Several recoverers run.

After every step `check()` judges the whole world against INV-1..INV-7 and INV-10.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from octavo.client.ledger import recovery as r
from octavo.client.ledger.quorum import QuorumCore
from octavo.client.ledger.quorum_actions import (
    Action,
    ChooseReplacements,
    CommitEnsemble,
    HandleState,
    QuorumLimits,
    Resend,
    RetrySlot,
)
from octavo.client.ledger.tally import in_write_set
from octavo.metadata.ledger_record import LedgerMetadata, LedgerState, Quorum
from octavo.proto.bookie_wire import Status
from octavo.proto.entry import HEADER_BYTES, encode_header
from octavo.runtime.ids import EntryId, LedgerId, Member
from tests.sim_bookie import Reply, SimBookie

LEDGER = LedgerId(7)


class Violation(AssertionError):
    """The world broke an invariant."""


class Message(NamedTuple):
    """Something on its way; `kind` names the route, so that a world can make one route slow."""

    kind: str
    deliver: Callable[[], None]


@dataclass
class Request:
    """A request that may be delivered, answered, given up, or all of these."""

    bookie: SimBookie
    deliver: Callable[[Reply], None]
    on_reply: Reply
    settled: bool = False

    def answer(self, status: Status, value: object) -> None:
        if not self.settled:
            self.settled = True
            self.on_reply(status, value)


@dataclass
class World:
    """Everything there is; `step()` lets one random thing happen."""

    rng: random.Random
    quorum: Quorum
    bookie_count: int
    wipes_left: int = 0
    hole_h3: bool = False
    core_type: type[QuorumCore] = QuorumCore
    recovery_type: type[r.RecoveryCore] = r.RecoveryCore
    adds_max: int = 6
    slow_routes: float = 0.15
    recoverer_count: int = 2
    calm: bool = False  # only messages move: no faults, no new events
    bookies: dict[str, SimBookie] = field(default_factory=dict[str, SimBookie])
    net: list[Message] = field(default_factory=list["Message"])
    lag: dict[str, float] = field(default_factory=dict[str, float])
    open_requests: list[Request] = field(default_factory=list[Request])
    copies: dict[int, set[Member]] = field(default_factory=dict[int, set[Member]])
    created: dict[int, bytes] = field(default_factory=dict[int, bytes])
    log: list[str] = field(default_factory=list[str])
    lost: set[Member] = field(default_factory=set[Member])

    def __post_init__(self) -> None:
        for index in range(self.bookie_count):
            self.bookies[f"b{index}"] = SimBookie(
                f"b{index}", new_uuid=self.uuid, on_copy=self._note_copy, hole_h3=self.hole_h3
            )
        members = tuple(b.member for b in list(self.bookies.values())[: self.quorum.ensemble])
        self.metadata = LedgerMetadata(
            LEDGER, self.quorum, LedgerState.OPEN, ((EntryId(0), members),)
        )
        self.version = 0
        self.now = 0.0
        self.writer = SimWriter(self, members)
        self.recoverers = [SimRecoverer(self, i) for i in range(self.recoverer_count)]
        self.final: LedgerMetadata | None = None

    def _note_copy(self, entry: int, member: Member) -> None:
        self.copies.setdefault(entry, set()).add(member)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self.rng.getrandbits(128), version=4)

    # --- network ---

    def send(
        self,
        kind: str,
        member: Member,
        deliver: Callable[[SimBookie, Reply], None],
        on_reply: Reply,
    ) -> None:
        bookie = self.bookies[member.bookie_id]
        request = Request(bookie, partial(deliver, bookie), on_reply)
        self.open_requests.append(request)
        kind = f"{kind} {bookie.name}"
        self.net.append(Message(kind, partial(self._arrive, kind, request)))

    def _arrive(self, kind: str, request: Request) -> None:
        def back(status: Status, value: object) -> None:
            self.net.append(Message(f"{kind} reply", partial(request.answer, status, value)))

        if request.bookie.alive:
            request.deliver(back)
        else:
            back(Status.DISCONNECTED, None)

    def cas(self, expected: int, new: LedgerMetadata, done: Callable[[bool], None]) -> None:
        """The store applies it some time later; its answer is true but may take long (M-3)."""

        def apply() -> None:
            won = self.version == expected
            if won:
                self.log.append(f"cas {new.state.name} {new.fragments} {new.last_entry}")
                self._judge_change(new)
                self.metadata, self.version = new, self.version + 1
            self.net.append(Message("cas reply", partial(done, won)))

        self.net.append(Message("cas", apply))

    # --- schedule ---

    def step(self) -> None:
        self.now += 0.05
        choice = self.rng.random() * (0.80 if self.calm else 1.0)
        if choice < 0.62 and self.net:
            self._deliver_one()
        elif choice < 0.80:
            self.rng.choice(list(self.bookies.values())).sync(self.rng.choice([1, None]))
        elif choice < 0.87:
            self.writer.add()
        elif choice < 0.90:
            self._give_up()
        elif choice < 0.915:
            self._bookie_fault()
        elif choice < 0.93:
            self.rng.choice(self.recoverers).start()
        elif choice < 0.935:
            self.writer.close()
        else:
            self.writer.run(self.writer.core.tick(self.now))
        self.check()

    def _deliver_one(self) -> None:
        for _ in range(4):
            index = self.rng.randrange(len(self.net))
            kind = self.net[index].kind
            if kind not in self.lag:  # each world has its own slow routes ("swarm testing")
                slow = self.rng.random() < self.slow_routes
                self.lag[kind] = self.rng.choice([0.9, 0.99, 1.0]) if slow else 0.0
            if self.rng.random() >= self.lag[kind]:
                self.net.pop(index).deliver()
                return

    def _give_up(self) -> None:
        self.open_requests = [q for q in self.open_requests if not q.settled]
        if self.open_requests:
            self.rng.choice(self.open_requests).answer(Status.TIMEOUT, None)

    def _bookie_fault(self) -> None:
        bookie = self.rng.choice(list(self.bookies.values()))
        if not bookie.alive:
            bookie.alive = True
        elif self.wipes_left and self.rng.random() < 0.4:
            self.wipes_left -= 1
            self.lost.add(bookie.member)
            self.log.append(f"wipe {bookie.name}")
            bookie.wipe()
            bookie.alive = True
        else:
            self.log.append(f"crash {bookie.name}")
            bookie.crash(self.rng.randint(0, len(bookie.queue)))

    def settle(self, steps_max: int = 4000) -> None:
        """Heal everything and recover: INV-14, the ledger must become CLOSED."""
        self.net = [m for m in self.net if self.lag.get(m.kind) != 1.0]  # these are lost
        for _ in range(steps_max):
            for bookie in self.bookies.values():
                bookie.alive = True
                bookie.sync()
            if self.net:
                self.net.pop(self.rng.randrange(len(self.net))).deliver()
            elif self.metadata.state is LedgerState.CLOSED:
                return self.check()
            else:
                self._give_up_all()
                self.recoverers[0].start()
            self.check()
        raise Violation("INV-14: the ledger was not closed after all faults ended")

    def _give_up_all(self) -> None:
        requests, self.open_requests = self.open_requests, []
        for request in requests:
            request.answer(Status.TIMEOUT, None)

    # --- judgement ---

    def on_members(self, entry: int, metadata: LedgerMetadata) -> int:
        """Copies that were durable on members the record lists for the entry."""
        return len(self.copies.get(entry, set()) & set(metadata.members_for(entry)))

    def _judge_change(self, new: LedgerMetadata) -> None:
        if self.final is not None:
            raise Violation("INV-7: a closed ledger changed")
        if new.state is not LedgerState.CLOSED:
            return
        assert new.last_entry is not None
        self.final = new
        length = 0
        for entry in range(new.last_entry + 1):
            if self.on_members(entry, new) < self.quorum.ack:
                raise Violation(f"INV-6: entry {entry} closed with too few copies")
            length += len(self.created[entry]) - HEADER_BYTES
        if length != new.length:
            raise Violation(f"E-1: closed with length {new.length}, entries sum to {length}")

    def check(self) -> None:
        core = self.writer.core
        core.validate()
        for bookie in self.bookies.values():
            for entry, data in bookie.store.items():
                if data != self.created.get(entry):
                    raise Violation(f"INV-5: {bookie.name} stores foreign bytes for {entry}")
        for entry in range(core.lac + 1):
            if self.on_members(entry, self.metadata) < self.quorum.ack:
                raise Violation(f"INV-10: entry {entry} acknowledged without Qa listed copies")
            if not any(entry in b.store for b in self.bookies.values()):
                raise Violation(f"INV-1: acknowledged entry {entry} is gone")
        if self.final is not None:
            assert self.final.last_entry is not None
            if core.lac > self.final.last_entry:
                raise Violation(
                    f"INV-2/INV-3: writer confirmed {core.lac}, closed at {self.final.last_entry}"
                )
            self._check_readable(self.final)

    def _check_readable(self, final: LedgerMetadata) -> None:
        assert final.last_entry is not None
        for entry in range(final.last_entry + 1):
            holders = [
                b for b in self.bookies.values()
                if entry in b.store and b.name in {m.bookie_id for m in final.members_for(entry)}
            ]  # fmt: skip
            if not holders:
                raise Violation(f"INV-1: entry {entry} of the closed ledger cannot be read")


class SimWriter:
    """A shell around QuorumCore, as thin as writer.py's."""

    def __init__(self, world: World, members: tuple[Member, ...]) -> None:
        self.world = world
        limits = QuorumLimits(change_retry_s=1.0)
        self.core = world.core_type(world.quorum, members, now=world.now, limits=limits)
        self.version = world.version
        self.metadata = world.metadata
        self.payloads: dict[int, bytes] = {}
        self.refused: dict[tuple[int, int], list[int]] = {}
        self.closing = False

    def add(self) -> None:
        core = self.core
        if core.state is not HandleState.OPEN or core.lap + 1 >= self.world.adds_max:
            return
        payload = self.world.rng.randbytes(self.world.rng.randint(0, 4))
        lac = core.lac
        entry = core.add(len(payload), self.world.now)
        data = encode_header(LEDGER, entry, lac, core.length, payload) + payload
        self.world.created[entry] = data
        for slot in core.slots.of(entry):
            self._send(slot, core.slots.generation(slot), entry)

    def close(self) -> None:
        core = self.core
        core.begin_close()
        ready = core.state is HandleState.STOPPED or core.pending == 0
        if self.closing or core.changing or not ready:
            return
        self.closing = True
        last_entry, length = core.close_point()
        new = self.metadata.closed(last_entry, length)
        self.world.cas(self.version, new, lambda won: None)

    def run(self, actions: object) -> None:
        todo: list[Action] = list(actions)  # type: ignore[call-overload]
        while todo:
            action = todo.pop(0)
            if isinstance(action, Resend):
                for entry in range(action.first, action.last + 1):
                    if in_write_set(action.slot, entry, self.core.quorum):
                        self._send(action.slot, action.generation, entry)
            elif isinstance(action, RetrySlot):
                for entry in self.refused.pop((action.slot, action.generation), []):
                    self._send(action.slot, action.generation, entry)
            elif isinstance(action, ChooseReplacements):
                todo = [*self._choose(action), *todo]
            elif isinstance(action, CommitEnsemble):
                self._commit(action)

    def _send(self, slot: int, generation: int, entry: int) -> None:
        member = self.core.slots.members[slot]
        data = self.world.created[entry]

        def done(status: Status, _: object) -> None:
            if status is Status.OK:
                self.run(self.core.acked(slot, generation, entry, entry))
                return
            now = self.world.now
            self.run(self.core.refused(slot, generation, entry, entry, status, now))
            if self.core.state is not HandleState.STOPPED and self.core.slots.takes(
                slot, generation
            ):
                self.refused.setdefault((slot, generation), []).append(entry)

        self.world.send(
            "add", member, lambda b, reply: b.add(member, entry, data, False, reply), done
        )

    def _choose(self, action: ChooseReplacements) -> list[Action]:
        world, core = self.world, self.core
        used = {member.bookie_id for member in core.slots.members}
        spares = [b for b in world.bookies.values() if b.name not in used]
        world.rng.shuffle(spares)
        chosen: dict[int, Member] = {}
        revived: list[int] = []
        for failed in action.failed:
            same = world.bookies[failed.member.bookie_id]
            if failed.status is Status.WRONG_INCARNATION and same.member != failed.member:
                chosen[failed.slot] = same.member
            elif spares and world.rng.random() < 0.9:
                chosen[failed.slot] = spares.pop().member
            elif same.alive and same.member == failed.member:
                revived.append(failed.slot)
        return list(core.replacements(chosen, world.now, revived=revived))

    def _commit(self, action: CommitEnsemble) -> None:
        new = self.metadata.with_ensemble_change(action.start, action.members)

        def done(won: bool) -> None:
            if not won:
                self.run(self.core.change_conflicted("CAS failed"))
                return
            self.metadata, self.version = new, self.version + 1
            self.run(self.core.change_committed(self.world.now))

        self.world.cas(self.version, new, done)


class SimRecoverer:
    """A shell around RecoveryCore: one attempt at a time, restarted at R-1."""

    def __init__(self, world: World, index: int) -> None:
        self.world = world
        self.index = index
        self.core: r.RecoveryCore | None = None
        self.busy = False

    def start(self) -> None:
        world = self.world
        if (self.busy and world.rng.random() < 0.9) or world.metadata.state is LedgerState.CLOSED:
            return
        self.busy = True
        if world.metadata.state is LedgerState.OPEN:
            base = world.metadata.in_recovery()
            version = world.version

            def done(won: bool) -> None:
                self.busy = won
                if won:
                    self._attempt(base, version + 1)

            world.cas(version, base, done)
        else:
            self._attempt(world.metadata, world.version)

    def _attempt(self, base: LedgerMetadata, version: int) -> None:
        core = self.core = self.world.recovery_type(base.quorum, base.fragments, window=3)
        self._run(core, base, version, core.start())

    def _run(
        self,
        core: r.RecoveryCore,
        base: LedgerMetadata,
        version: int,
        actions: list[r.RecoveryAction],
    ) -> None:
        if core is not self.core:
            return  # a newer attempt replaced this one; its replies mean nothing

        def feed(event: Callable[[], list[r.RecoveryAction]]) -> None:
            if core is self.core:
                self._run(core, base, version, event())

        for action in actions:
            if isinstance(action, r.SendFence | r.SendRead | r.SendWrite):
                self._send(core, action, feed)
            elif isinstance(action, r.ChooseSpares):
                chosen = self._spares(action)
                feed(partial(core.replacements, chosen))
            elif isinstance(action, r.CloseLedger):
                new = base.closed(action.last_entry, action.length, action.fragments)
                self.world.cas(version, new, self._ended)
            else:
                if action.conflict:
                    raise Violation(f"INV-5: recovery met a conflict: {action.cause}")
                self.busy = False

    def _ended(self, _won: bool) -> None:
        self.busy = False

    def _send(
        self,
        core: r.RecoveryCore,
        action: r.SendFence | r.SendRead | r.SendWrite,
        feed: Callable[[Callable[[], list[r.RecoveryAction]]], None],
    ) -> None:
        member = action.member
        if isinstance(action, r.SendFence):
            self.world.send(
                "fence",
                member,
                lambda b, reply: b.fence(member, reply),
                lambda status, lac: feed(
                    lambda: core.fence_reply(
                        action.slot, status, lac if isinstance(lac, int) else -1
                    )
                ),
            )
        elif isinstance(action, r.SendRead):
            self.world.send(
                "read",
                member,
                lambda b, reply: b.read(member, action.entry, action.fence, reply),
                lambda status, data: feed(
                    lambda: core.read_reply(
                        action.entry, action.slot, status, data if isinstance(data, bytes) else None
                    )
                ),
            )
        else:
            self.world.send(
                "write",
                member,
                lambda b, reply: b.add(member, action.entry, action.data, True, reply),
                lambda status, _: feed(
                    lambda: core.write_reply(action.entry, action.slot, action.generation, status)
                ),
            )

    def _spares(self, action: r.ChooseSpares) -> dict[int, Member]:
        used = {member.bookie_id for member in action.ensemble}
        spares = [b for b in self.world.bookies.values() if b.name not in used]
        self.world.rng.shuffle(spares)
        chosen: dict[int, Member] = {}
        for slot, member in action.failed:
            same = self.world.bookies[member.bookie_id].member
            if same != member:
                chosen[slot] = same
            elif spares:
                chosen[slot] = spares.pop().member
        return chosen


def run_world(world: World, steps: int) -> World:
    """Let `steps` random things happen, then heal and close; raises Violation."""
    for _ in range(steps):
        world.step()
        if world.final is not None and world.rng.random() < 0.05:
            break
    world.settle()
    return world
