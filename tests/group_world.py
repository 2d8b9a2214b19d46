"""A consumer group in a small world: members, a coordinator that moves, a network that loses.

`Client` is a member as the SDK will be (RB10 to RB12): one heartbeat at a time, full content after
an unknown outcome, deliveries of what goes stop when the assignment arrives, a revocation is
acknowledged when it was carried out, everything is lost by its own clock before the coordinator
gives it away. `World` plays events and judges after each of them what must hold (GP-1 to GP-7).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.proto.group_records import Record, Slot, Subscription
from octavo.serving.groups.assignors import SubscribedTopic, assign
from octavo.serving.groups.core import Action, Append, Compute, GroupCore, GroupLimits
from octavo.serving.groups.held import Answer
from octavo.serving.groups.member import MemberState
from octavo.serving.groups.topics import TopicDirectory
from octavo.serving.groups.values import (
    JOIN_EPOCH,
    Committer,
    Heartbeat,
    HeartbeatReply,
    Refusal,
)

TOPIC_ID = "id-t"
SESSION_S, INTERVAL_S, REBALANCE_S = 45.0, 3.0, 70.0
LIMITS = GroupLimits(session_timeout_s=SESSION_S, heartbeat_interval_s=INTERVAL_S, members_max=10)
CLIENT_LIMIT_S = SESSION_S - 2 * INTERVAL_S
CALLBACKS_S = 20.0
"""How long callbacks take at most. A revocation is told within CLIENT_LIMIT_S, or all is lost."""
READS_T = Subscription(frozenset({"t"}), rebalance_timeout_s=REBALANCE_S)


def directory(partitions: int) -> TopicDirectory:
    return TopicDirectory({"t": (TOPIC_ID, SubscribedTopic("t", partitions))})


def slots(*partitions: int) -> frozenset[Slot]:
    return frozenset(Slot(TOPIC_ID, number) for number in partitions)


class Client:
    def __init__(self, world: World, name: str, instance_id: str | None = None) -> None:
        self.world = world
        self.name = name
        self.instance_id = instance_id
        self.epoch = JOIN_EPOCH
        self.sequence = self.seen = self.applied = 0
        self.owned: frozenset[Slot] = frozenset()
        """What it may commit; what goes is its until its callbacks are done."""
        self.reading: frozenset[Slot] = frozenset()
        """What it delivers."""
        self.newest: frozenset[Slot] = frozenset()
        self.later: dict[str, int] = {}
        """What was said of the newest: which partitions came behind the subscription (F6)."""
        self.waiting: int | None = None
        """Token of the heartbeat under way."""
        self.full = True
        self.alive = True
        self.stuck = False
        """Its callbacks do not come back."""
        self.replaced = False
        """Somebody took its instance id while it lived; it will hear of it."""
        self.life = 0
        self.heard_s = world.now_s
        """When the last heartbeat was sent that was answered."""
        self.told_s: float | None = None
        """Since when an assignment is being carried out."""

    def heartbeat(self) -> None:
        """Send, unless one is under way."""
        if self.waiting is not None or not self.alive:
            return
        full = self.full or self.epoch == JOIN_EPOCH
        self.sequence += 1
        beat = Heartbeat(
            self.name,
            self.epoch,
            self.instance_id,
            READS_T if full else None,
            self.owned if full else None,
            self.sequence,
            self.seen,
            self.applied,
        )
        self.waiting = self.world.send(self, beat)
        self.full = False

    def goodbye(self, epoch: int) -> None:
        """The process ends in good order."""
        self.sequence += 1
        beat = Heartbeat(self.name, epoch, self.instance_id, sequence=self.sequence)
        self.world.send(self, beat)
        self.die()

    def die(self) -> None:
        """The process ends."""
        self.alive = False
        self.owned = self.reading = self.newest = frozenset()

    def give_up_waiting(self) -> None:
        """The request's time is over: its outcome is unknown."""
        self.waiting = None
        self.full = True

    def carry_out(self) -> None:
        """The callbacks of the newest assignment are done."""
        if self.applied == self.seen or not self.alive or self.stuck:
            return
        self.owned = self.reading = self.newest
        self.applied = self.seen
        self.told_s = None
        self.full = True

    def answered(self, token: int, reply: HeartbeatReply) -> None:
        """A reply arrived, perhaps of a heartbeat that was given up."""
        if token != self.waiting or not self.alive:
            return
        self.waiting = None
        self.heard_s = self.world.sent_s[token]
        if reply.refusal is not None:
            assert self.name in self.world.removed, f"{self.name} is refused: {reply.refusal}"
            self.lose()
            if reply.refusal is Refusal.FENCED_INSTANCE_ID:
                self.die()
            return
        assert reply.epoch >= self.epoch, "GP-2: a member's epoch falls"
        self.epoch = reply.epoch
        if reply.assigned is not None:
            self.seen = reply.number
            self.newest = frozenset(reply.assigned)
            self.later = dict(reply.later)
            self.reading &= self.newest
            if self.told_s is None:
                self.told_s = self.world.now_s
        if self.seen == self.applied:
            self.told_s = None

    def lose(self) -> None:
        """RB12: everything is lost; it joins again under its id."""
        self.owned = self.reading = self.newest = frozenset()
        self.epoch = JOIN_EPOCH
        self.applied = self.seen
        self.told_s = None
        self.life += 1
        self.give_up_waiting()
        self.heard_s = self.world.now_s


@dataclass
class Request:
    token: int
    beat: Heartbeat


@dataclass
class Commit:
    client: Client
    life: int
    epoch: int
    slot: Slot


@dataclass
class Network:
    """Whatever is under way."""

    requests: list[Request] = field(default_factory=lambda: list[Request]())
    replies: list[tuple[int, HeartbeatReply]] = field(
        default_factory=lambda: list[tuple[int, HeartbeatReply]]()
    )
    commits: list[Commit] = field(default_factory=lambda: list[Commit]())
    astray: list[Request] = field(default_factory=lambda: list[Request]())
    """Requests that arrive when nobody thinks of them any more."""


class World:
    core_type: type[GroupCore] = GroupCore
    early_answers = False
    """Planted: an answer leaves before what it tells is durable."""

    def __init__(self, partitions: int = 3) -> None:
        self.now_s = 1000.0
        self.directory = directory(partitions)
        self.log: list[Record] = []
        self.appending: list[Append | Answer] = []
        """Records and answers in order: an answer leaves when all records in front are stored."""
        self.network = Network()
        self.computing: list[Compute] = []
        self.owner_of: dict[int, Client] = {}
        self.sent_s: dict[int, float] = {}
        self.clients: list[Client] = []
        self.tokens = 0
        self.removed: set[str] = set()
        """Members that the coordinator has rightly taken out."""
        self.arrived_s: dict[str, float] = {}
        self.revoking_s: dict[str, float] = {}
        self.core = self.core_type(LIMITS, self.directory)
        self.changed = True
        """Something happened since GP-7 was judged."""
        self.reader = self.core_type(LIMITS, self.directory)
        """What somebody knows who reads the log."""

    def join(self, instance_id: str | None = None) -> Client:
        client = Client(self, f"m{len(self.clients)}", instance_id)
        self.clients.append(client)
        return client

    @property
    def alive(self) -> list[Client]:
        return [client for client in self.clients if client.alive]

    # -- the network

    def send(self, client: Client, beat: Heartbeat) -> int:
        self.tokens += 1
        self.owner_of[self.tokens] = client
        self.sent_s[self.tokens] = self.now_s
        self.network.requests.append(Request(self.tokens, beat))
        return self.tokens

    def copy_of(self, token: int) -> int:
        """A request arrives twice; each has an answer of its own."""
        self.tokens += 1
        self.owner_of[self.tokens] = self.owner_of[token]
        self.sent_s[self.tokens] = self.now_s
        return self.tokens

    def deliver(self, request: Request) -> None:
        beat = request.beat
        state = self.core.state
        name = beat.member_id
        before = state.instance_of(beat.instance_id)
        known = state.members.get(name)
        sequence = -1 if known is None else known.sequence
        self.perform(self.core.heartbeat(request.token, beat, self.now_s))
        member = state.members.get(name)
        if member is None or member.sequence <= sequence:
            return
        self.arrived_s[name] = self.now_s
        sender = self.owner_of[request.token]
        if sender.epoch != JOIN_EPOCH or beat.epoch != JOIN_EPOCH:
            return  # or a join that is late: its sender will hear that it is not what it was
        self.removed.discard(name)
        sender.replaced = False
        if before is not None and before.member_id != name:
            self.removed.add(before.member_id)
            for client in self.clients:
                client.replaced |= client.name == before.member_id

    def deliver_commit(self, commit: Commit) -> None:
        """GP-6, and that a commit of what a member owns is never refused (RB7)."""
        client, slot = commit.client, commit.slot
        who = Committer(client.name, commit.epoch, client.instance_id)
        refusal = self.core.commit(who, [slot], self.now_s)
        same_life = client.life == commit.life
        if refusal is not None:
            rightly = not same_life or client.name in self.removed or slot not in client.owned
            assert rightly, f"RB7: {client.name} owns {slot} and may not commit: {refusal}"
            return
        self.arrived_s[client.name] = self.now_s
        readers = [one for one in self.clients if slot in one.reading and not one.replaced]
        assert not client.replaced, f"GP-6: {client.name} was replaced"
        assert same_life or client not in readers, (
            f"GP-6: a commit of an earlier life {client.name}"
        )
        assert readers in ([], [client]), f"GP-6: {client.name} commits what others read"

    def answer(self, token: int, reply: HeartbeatReply) -> None:
        if (client := self.owner_of.get(token)) is not None:
            client.answered(token, reply)

    # -- the coordinator

    def perform(self, actions: list[Action]) -> None:
        """What an event made."""
        for action in actions:
            if isinstance(action, Compute):
                self.computing.append(action)
            elif isinstance(action, Answer) and (self.early_answers or not self.appending):
                self.network.replies.append((int(str(action.token)), action.reply))
            else:
                self.appending.append(action)
        self.changed = True
        self.core.validate()
        for name, member in self.core.state.members.items():
            if member.pending:
                self.revoking_s.setdefault(name, self.now_s)
            else:
                self.revoking_s.pop(name, None)

    def tick(self) -> None:
        before = set(self.core.state.members)
        self.perform(self.core.tick(self.now_s))
        for name in before - self.core.state.members.keys():
            silent_s = self.now_s - self.arrived_s[name]
            revoking_s = self.now_s - self.revoking_s.pop(name, self.now_s)
            assert silent_s >= SESSION_S or revoking_s >= REBALANCE_S, f"RB5: {name} was alive"
            self.removed.add(name)

    def store(self) -> None:
        """The log stores one batch, and answers leave that waited for it."""
        for place, action in enumerate(self.appending):
            if isinstance(action, Append):
                self.log.extend(action.records)
                for record in action.records:
                    self.reader.state.replay(record)
                del self.appending[place]
                break
        while self.appending and isinstance(answer := self.appending[0], Answer):
            self.network.replies.append((int(str(answer.token)), answer.reply))
            del self.appending[0]

    def compute(self) -> None:
        order = self.computing.pop(0)
        target = assign(order.assignor, order.members, order.topics, order.previous)
        state = self.core.state
        kept = {
            (name, slot, member.joined_epoch)
            for name, member in state.members.items()
            for slot in member.owned
            if slot in state.target.get(name, {}) and slot in target.get(name, ())
        }
        self.perform(self.core.computed(order.epoch, target, self.now_s))
        for name, slot, joined in kept:
            member = state.members[name]
            assert member.joined_epoch != joined or slot in member.owned, f"GP-4: {name} {slot}"

    def replayed(self) -> GroupCore:
        core = self.core_type(LIMITS, self.directory)
        for record in self.log:
            core.state.replay(record)
        return core

    def move(self) -> None:
        """Another broker takes over: what was not stored never was."""
        self.appending.clear()
        self.computing.clear()
        self.network.requests.clear()
        self.core, self.reader = self.replayed(), self.replayed()
        epoch, topics_hash = self.core.state.epoch, self.core.state.topics_hash
        actions = self.core.loaded(self.now_s)
        self.arrived_s = dict.fromkeys(self.core.state.members, self.now_s)
        self.revoking_s.clear()
        self.removed -= self.core.state.members.keys()
        for client in self.clients:
            client.replaced &= client.name not in self.core.state.members
        self.perform(actions)
        moved = self.core.state
        assert moved.epoch == epoch or moved.topics_hash != topics_hash, "RB8: a move is no event"

    def change_partitions(self, partitions: int) -> None:
        self.directory = directory(partitions)
        self.perform(self.core.topics_changed(self.directory, self.now_s))

    def pass_time(self, seconds: float) -> None:
        """A member that was not answered for its limit has stopped by itself (RB12)."""
        self.now_s += seconds
        for client in self.clients:
            if client.epoch != JOIN_EPOCH and self.now_s - client.heard_s >= CLIENT_LIMIT_S:
                client.lose()
            if client.told_s is not None and self.now_s - client.told_s >= CALLBACKS_S:
                client.carry_out()
        self.tick()

    # -- what must hold

    def judge(self) -> None:
        """GP-1 and GP-5: no two members believe that they have one slot.

        A member whose callbacks do not come back is fenced at last while it is in them; it does not
        deliver meanwhile. One whose instance id was taken while it lives hears of it later.
        """
        readers: dict[Slot, str] = {}
        owners: dict[Slot, str] = {}
        for client in self.clients:
            if client.replaced:
                continue
            for slot in client.reading:
                assert slot not in readers, f"{slot} read by {readers[slot]} and {client.name}"
                readers[slot] = client.name
            for slot in client.owned if not client.stuck else ():
                assert slot not in owners, f"{slot} at {owners[slot]} and {client.name}"
                owners[slot] = client.name
        if self.changed and not self.appending:
            self.changed = False
            assert durable(self.reader) == durable(self.core), "GP-7"

    def exchange(self) -> None:
        """Everything that is under way arrives, in order."""
        network = self.network
        while True:
            if network.requests:
                self.deliver(network.requests.pop(0))
            elif network.commits:
                self.deliver_commit(network.commits.pop(0))
            elif self.appending:
                self.store()
            elif network.replies:
                self.answer(*network.replies.pop(0))
            elif self.computing:
                self.compute()
            else:
                return

    def round(self) -> None:
        """Every member is served once."""
        for client in self.alive:
            client.heartbeat()
        self.exchange()
        for client in self.alive:
            client.carry_out()
        self.judge()

    def settle(self) -> None:
        """GP-3: with no more faults every member reaches its target, and soon."""
        for client in self.clients:
            client.stuck = False
            if client.waiting is not None:
                client.give_up_waiting()
        self.network.astray.clear()
        for _ in range(6):
            self.pass_time(SESSION_S / 5)
            self.round()
        for _ in range(4):
            self.pass_time(INTERVAL_S)
            self.round()
        state = self.core.state
        assert state.members.keys() == {client.name for client in self.alive}
        given: set[Slot] = set()
        for client in self.alive:
            assert state.state_of(client.name) is MemberState.STABLE, client.name
            assert client.reading == client.owned == set(state.target[client.name])
            given |= client.owned
        partitions = self.directory.topics["t"][1].partitions
        assert state.stable
        assert given == (slots(*range(partitions)) if self.alive else set())
        self.judge()


def durable(core: GroupCore) -> tuple[object, ...]:
    """Everything of the group that its records hold; a heartbeat alone leaves none (sequence)."""
    state = core.state
    members = {
        name: (member.declared(), member.assignment()._replace(sequence=0))
        for name, member in state.members.items()
    }
    targets = {name: tuple(target) for name, target in state.target.items()}
    return state.epoch, state.target_epoch, state.topics_hash, state.later, members, targets
