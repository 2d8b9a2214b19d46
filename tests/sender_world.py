"""A world around the producer's delivery core: connections, owners that move, and time.

Requests wait in connections; connections end with requests unread, or with requests that are
processed much later (zombies); owners move; answers are refused, lost or late; time passes. After
the hostile part everything heals. `judge` checks: nothing twice, nothing acknowledged and missing,
order, every batch resolved once (I4, I5, I6, W4-W6).
"""

from __future__ import annotations

import copy
import random
from collections import deque
from dataclasses import dataclass, field

from hypothesis import strategies as st

from octavo.client.messaging.producing.actions import (
    Action,
    Complete,
    Fail,
    FindOwner,
    RequestIdentity,
    Send,
    Stop,
)
from octavo.client.messaging.producing.in_flight import (
    SenderSettings,
)
from octavo.client.messaging.producing.sender_core import SenderCore
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.errors import (
    BrokerUnavailable,
    InvalidRecord,
    NotEnoughReplicas,
    NotLeader,
    OctavoError,
    OutOfOrderSequence,
)
from tests.broker_model import Appended, Sequences

OWNERS = ("a", "b")
TOPIC = "t"


@dataclass(eq=False)
class FakeBatch:
    number: int
    partition: int
    count: int
    created_s: float
    bad: bool = False
    acks: int = -1
    is_numbered: bool = True


@dataclass
class Reply:
    correlation: int
    appended: Appended | None
    error: OctavoError | None


@dataclass
class Connection:
    requests: deque[Send] = field(default_factory=lambda: deque[Send]())
    replies: deque[Reply] = field(default_factory=lambda: deque[Reply]())


class World:
    def __init__(self, *, partitions: int = 2, idempotent: bool = True) -> None:
        self.core = SenderCore(
            SenderSettings(
                idempotent=idempotent,
                delivery_timeout_s=10.0,
                request_timeout_s=2.0,
                backoff_initial_s=0.1,
                backoff_max_s=1.0,
            ),
            SeededEntropy(1),
        )
        self.now = 100.0
        self.logs: list[list[FakeBatch]] = [[] for _ in range(partitions)]
        self.offsets: list[int] = [0] * partitions
        self.first_offset: dict[FakeBatch, int] = {}
        self.sequences = [Sequences() for _ in range(partitions)]
        self.owner = [OWNERS[p % 2] for p in range(partitions)]
        self.stale = [Sequences() for _ in range(partitions)]
        """What the last former owner of each partition remembers."""
        self.connections = {owner: Connection() for owner in OWNERS}
        self.zombies: deque[Send] = deque()
        self.batches: list[FakeBatch] = []
        self.completed: dict[FakeBatch, Complete] = {}
        self.failed: dict[FakeBatch, OctavoError] = {}
        self.finding: deque[FindOwner] = deque()
        self.identities_wanted = 0
        self.next_pid = 0
        self.stopped: OctavoError | None = None
        self.transient = 0

    # --- the core's side ---

    def act(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self.connections[action.owner].requests.append(action)
            elif isinstance(action, Complete):
                assert isinstance(action.batch, FakeBatch)
                self.resolve(action.batch)
                self.completed[action.batch] = action
            elif isinstance(action, Fail):
                assert isinstance(action.batch, FakeBatch)
                self.resolve(action.batch)
                self.failed[action.batch] = action.error
            elif isinstance(action, FindOwner):
                self.finding.append(action)
            elif isinstance(action, RequestIdentity):
                self.identities_wanted += 1
            else:
                assert isinstance(action, Stop)
                self.stopped = action.error
        self.core.validate()

    def resolve(self, batch: FakeBatch) -> None:
        assert batch not in self.completed
        assert batch not in self.failed

    def submit(
        self,
        partition: int,
        count: int,
        bad: bool = False,
        acks: int = -1,
        once: bool = False,
    ) -> FakeBatch | None:
        state = self.core.partition(TOPIC, partition)
        if not self.core.room(state):
            return None
        batch = FakeBatch(len(self.batches), partition, count, self.now, bad, acks, not once)
        self.batches.append(batch)
        self.act(self.core.add(state, batch, self.now))
        return batch

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.act(self.core.tick(self.now))

    def find(self) -> None:
        if self.finding:
            action = self.finding.popleft()
            owner = self.owner[action.partition.partition]
            self.act(self.core.owner_found(action.partition, owner, self.now))

    def identify(self) -> None:
        if self.identities_wanted:
            self.identities_wanted -= 1
            self.next_pid += 1
            self.act(self.core.identity_granted(self.next_pid, 0, self.now))

    # --- the owner's side ---

    def append(self, send: Send, owner: str) -> Reply:
        batch = send.batch
        assert isinstance(batch, FakeBatch)
        if self.owner[send.partition] != owner:
            return self.answer_of_former_owner(send, batch)
        if self.transient:
            self.transient -= 1
            return Reply(send.correlation, None, NotEnoughReplicas("too few"))
        if batch.bad:
            return Reply(send.correlation, None, InvalidRecord("bad"))
        identity = (send.producer_id, send.producer_epoch, send.base_sequence)
        verdict = self.sequences[send.partition].decide(*identity, batch.count)
        if not batch.is_numbered:
            assert identity == (-1, -1, -1)
            if batch in self.first_offset:  # its id is known (X14)
                verdict = Appended(self.first_offset[batch], duplicate=True)
        if isinstance(verdict, Appended):
            return Reply(send.correlation, verdict, None)
        if verdict is not None:
            return Reply(send.correlation, None, verdict)
        offset = self.offsets[send.partition]
        self.offsets[send.partition] += batch.count
        self.logs[send.partition].append(batch)
        self.first_offset.setdefault(batch, offset)
        self.sequences[send.partition].note(*identity, batch.count, offset)
        return Reply(send.correlation, Appended(offset, duplicate=False), None)

    def answer_of_former_owner(self, send: Send, batch: FakeBatch) -> Reply:
        """It judges by what it remembers; an append would show it that it is fenced."""
        identity = (send.producer_id, send.producer_epoch, send.base_sequence)
        verdict = self.stale[send.partition].decide(*identity, batch.count)
        if isinstance(verdict, OutOfOrderSequence):
            return Reply(send.correlation, None, verdict)
        return Reply(send.correlation, None, NotLeader("moved"))

    def process(self, owner: str) -> None:
        connection = self.connections[owner]
        if connection.requests:
            connection.replies.append(self.append(connection.requests.popleft(), owner))

    def process_zombie(self) -> None:
        if self.zombies:
            send = self.zombies.popleft()
            self.append(send, self.owner[send.partition])

    def deliver(self, owner: str) -> None:
        connection = self.connections[owner]
        if not connection.replies:
            return
        reply = connection.replies.popleft()
        if reply.error is not None:
            self.act(self.core.refused(reply.correlation, reply.error, self.now))
        else:
            assert reply.appended is not None
            done = reply.appended
            self.act(
                self.core.acknowledged(
                    reply.correlation, done.base_offset, done.duplicate, self.now
                )
            )

    def lose_reply(self, owner: str) -> None:
        """Later ones arrive."""
        replies = self.connections[owner].replies
        if len(replies) > 1:
            replies.popleft()

    def cut(self, owner: str, *, zombies: bool) -> None:
        connection = self.connections[owner]
        if zombies:
            self.zombies.extend(connection.requests)
        self.connections[owner] = Connection()
        self.act(self.core.connection_lost(owner, BrokerUnavailable("cut"), self.now))

    def move(self, partition: int) -> None:
        self.stale[partition] = copy.deepcopy(self.sequences[partition])
        self.owner[partition] = OWNERS[1 - OWNERS.index(self.owner[partition])]

    # --- the end ---

    def heal(self) -> None:
        self.transient = 0
        for _ in range(400):
            if self.core.oldest() is None and not self.zombies:
                break
            while self.finding:
                self.find()
            while self.identities_wanted:
                self.identify()
            for owner in OWNERS:
                connection = self.connections[owner]
                while connection.requests or connection.replies:
                    self.process(owner)
                    self.deliver(owner)
            self.process_zombie()
            self.tick(0.3)
        assert self.core.oldest() is None

    def goes_on(self) -> None:
        """Whatever happened: what is sent now is stored."""
        for partition in range(len(self.logs)):
            batch = self.submit(partition, 1)
            self.heal()
            assert batch in self.completed

    def judge(self) -> None:
        for partition, log in enumerate(self.logs):
            assert len(log) == len(set(log)), f"stored twice: {log}"
            done = [batch for batch in log if batch in self.completed]
            assert done == sorted(done, key=lambda batch: batch.number), "order broken (I4)"
            wanted = {b for b in self.completed if b.partition == partition}
            assert wanted == set(done), "acknowledged and missing"
        for batch, outcome in self.completed.items():
            if outcome.base_offset >= 0:
                assert outcome.base_offset == self.first_offset[batch]
        for batch, error in self.failed.items():
            if isinstance(error, InvalidRecord) or "was not stored" in str(error):
                assert all(batch not in log for log in self.logs)
        assert set(self.batches) == self.completed.keys() | self.failed.keys()


COMMON = ["submit", "submit", "process", "deliver", "find", "identify", "cut", "cut_zombie"]
RARE = ["once", "zombie", "move", "tick", "transient", "bad", "lose_reply"]
NAMES = [*COMMON, *RARE, "submit", "process", "deliver", "tick_long"]
CALM_NAMES = [*COMMON, *RARE, *["submit"] * 3, "bad", *["process", "deliver"] * 2]
BUSY_NAMES = [
    *["submit", "process"] * 8,
    *["deliver"] * 5,
    *["find", "identify", "tick"] * 4,
    *["cut", "cut_zombie", "tick_long", *RARE],
]
"""Batches get through, so that windows are full when something happens."""
LONG_NAMES = (NAMES, CALM_NAMES, BUSY_NAMES, BUSY_NAMES)
OPS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 1), st.integers(1, 3)),
    min_size=5,
    max_size=80,
)


def script(seed: int, names: list[str]) -> list[tuple[str, int, int]]:
    """A long script; Hypothesis' own lists stay short, so deep states need these."""
    rng = random.Random(seed)
    steps = rng.randint(20, 150) if names is not BUSY_NAMES else rng.randint(100, 400)
    return [(rng.choice(names), rng.randint(0, 1), rng.randint(1, 3)) for _ in range(steps)]


def run(world: World, ops: list[tuple[str, int, int]]) -> None:  # noqa: C901  one per name
    """Let the events of a script happen."""
    for name, which, size in ops:
        owner = OWNERS[which]
        if name == "submit":
            world.submit(which, size)
        elif name == "once":
            world.submit(which, 1, once=True)
        elif name == "bad":
            world.submit(which, size, bad=True)
        elif name == "process":
            world.process(owner)
        elif name == "deliver":
            world.deliver(owner)
        elif name == "find":
            world.find()
        elif name == "identify":
            world.identify()
        elif name in ("cut", "cut_zombie"):
            world.cut(owner, zombies=name == "cut_zombie")
        elif name == "zombie":
            world.process_zombie()
        elif name == "move":
            world.move(which)
        elif name == "lose_reply":
            world.lose_reply(owner)
        elif name == "transient":
            world.transient += size
        else:
            world.tick(size * (2.0 if name == "tick_long" else 0.15))
