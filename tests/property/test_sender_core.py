"""The producer's delivery core against a model owner (I2 table) in a hostile world.

Requests wait in connections; connections end with requests unread, or with requests that are
processed much later (zombies); owners move; answers are refused, lost or late; time passes. After
the hostile part everything heals. Checked: nothing twice, nothing acknowledged and missing, order,
every batch resolved once, and the core's own invariants after every event (I4, I5, I6, W4-W6).
"""

from __future__ import annotations

import copy
import itertools
import random
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.client.messaging.producing.actions import (
    Action,
    Complete,
    Fail,
    FindOwner,
    RequestIdentity,
    Send,
    SenderSettings,
    Stop,
)
from octavo.client.messaging.producing.sender_core import SenderCore
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.errors import (
    BrokerUnavailable,
    InvalidProducerEpoch,
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

    def submit(self, partition: int, count: int, bad: bool = False) -> FakeBatch | None:
        state = self.core.partition(TOPIC, partition)
        if not self.core.room(state):
            return None
        batch = FakeBatch(len(self.batches), partition, count, self.now, bad)
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
            if not self.core.unresolved() and not self.zombies:
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
        assert self.core.unresolved() == 0

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
RARE = ["zombie", "move", "tick", "transient", "bad"]
NAMES = [*COMMON, *RARE, "submit", "process", "deliver", "tick_long"]
CALM_NAMES = [*COMMON, *RARE, *["submit"] * 3, "bad", *["process", "deliver"] * 2]
OPS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 1), st.integers(1, 3)),
    min_size=5,
    max_size=80,
)


def script(seed: int, names: list[str]) -> list[tuple[str, int, int]]:
    """A long script; Hypothesis' own lists stay short, so deep states need these."""
    rng = random.Random(seed)
    return [
        (rng.choice(names), rng.randint(0, 1), rng.randint(1, 3))
        for _ in range(rng.randint(20, 150))
    ]


def run(world: World, ops: list[tuple[str, int, int]]) -> None:
    for name, which, size in ops:
        owner = OWNERS[which]
        if name == "submit":
            world.submit(which, size)
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
        elif name == "transient":
            world.transient += size
        else:
            world.tick(size * (2.0 if name == "tick_long" else 0.15))


@settings(max_examples=400, deadline=None)
@given(OPS)
def test_nothing_lost_twice_or_out_of_order_in_a_hostile_world(
    ops: list[tuple[str, int, int]],
) -> None:
    world = World()
    run(world, ops)
    world.heal()
    world.judge()
    assert world.stopped is None


@settings(max_examples=600, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from([NAMES, CALM_NAMES]))
def test_the_same_with_long_scripts(seed: int, names: list[str]) -> None:
    world = World()
    run(world, script(seed, names))
    world.heal()
    world.judge()
    assert world.stopped is None  # nobody fences it (I6): it goes on


@settings(max_examples=100, deadline=None)
@given(OPS)
def test_without_idempotence_nothing_acknowledged_is_missing(  # F044: duplicates are allowed
    ops: list[tuple[str, int, int]],
) -> None:
    world = World(idempotent=False)
    run(world, ops)
    world.heal()
    for batch in world.completed:
        assert batch in world.logs[batch.partition]
    assert world.stopped is None


def ready_world(partitions: int = 1) -> World:
    world = World(partitions=partitions)
    for partition in range(partitions):
        world.submit(partition, 1)
    world.identify()
    while world.finding:
        world.find()
    for owner in OWNERS:
        while world.connections[owner].requests:
            world.process(owner)
        while world.connections[owner].replies:
            world.deliver(owner)
    assert len(world.completed) == partitions
    return world


def test_w4_lost_reply_is_proved_by_higher_sequences() -> None:
    world = ready_world()
    batches = [world.submit(0, 1) for _ in range(5)]
    for _ in range(5):
        world.process("a")
    world.connections["a"].replies.popleft()  # the reply of the first one is lost
    for _ in range(4):
        world.deliver("a")
    assert all(batch in world.completed for batch in batches)
    first = batches[0]
    assert first is not None
    assert world.completed[first].base_offset == -1
    assert len(world.logs[0]) == 6


def test_w5_owner_dies_before_any_reply_and_five_duplicates_come_back() -> None:
    world = ready_world()
    batches = [world.submit(0, 2) for _ in range(5)]
    for _ in range(5):
        world.process("a")
    world.move(0)
    world.cut("a", zombies=False)
    world.heal()
    assert len(world.logs[0]) == 6
    outcomes = [world.completed[b] for b in batches if b is not None]
    assert [o.base_offset for o in outcomes] == [1, 3, 5, 7, 9]
    assert all(o.duplicate for o in outcomes)


def test_a_new_identity_has_one_batch_in_flight_until_the_first_acknowledgement() -> None:
    """I2's last row: an owner without state accepts any sequence, also one behind a failed one."""
    world = World(partitions=1)
    world.submit(0, 1)
    world.identify()
    world.find()
    assert world.submit(0, 1) is None
    world.process("a")
    world.deliver("a")
    assert world.submit(0, 1) is not None
    assert world.submit(0, 1) is not None


def test_i4_at_most_five_in_flight_and_more_only_after_an_answer() -> None:
    world = ready_world()
    assert [world.submit(0, 1) is not None for _ in range(6)] == [True] * 5 + [False]
    world.process("a")
    world.deliver("a")
    assert world.submit(0, 1) is not None


def test_i4_retries_go_oldest_first_with_the_same_sequences() -> None:
    world = ready_world()
    for _ in range(3):
        world.submit(0, 1)
    before = [send.base_sequence for send in world.connections["a"].requests]
    world.cut("a", zombies=False)
    world.find()
    world.tick(1.0)
    after = [send.base_sequence for send in world.connections["a"].requests]
    assert before == after == [1, 2, 3]


def test_rejected_batch_gives_its_sequence_to_the_next() -> None:
    world = ready_world()
    bad = world.submit(0, 3, bad=True)
    world.process("a")
    world.deliver("a")
    assert bad in world.failed
    world.submit(0, 2)
    assert world.connections["a"].requests[-1].base_sequence == 1
    world.heal()
    world.judge()


def test_rejected_batch_with_others_behind_renumbers_them_in_place() -> None:
    world = ready_world()
    world.submit(0, 3, bad=True)
    good = [world.submit(0, 1), world.submit(0, 2)]
    world.heal()
    assert world.next_pid == 1
    assert all(batch in world.completed for batch in good)
    world.judge()


def test_i6_new_identity_only_after_every_fate_is_known() -> None:
    world = ready_world(partitions=2)
    first = world.submit(0, 1)
    world.cut("a", zombies=True)  # a copy of `first` may still arrive
    elsewhere = world.submit(1, 1)  # unknown fate at the other partition
    world.tick(9.0)
    later = world.submit(0, 1)
    world.tick(1.0)  # `first` expires; its sequence is a hole
    assert first in world.failed
    later = later or world.submit(0, 1)
    assert later is not None
    while world.finding:
        world.find()
    world.tick(1.5)
    world.process("a")
    world.deliver("a")  # out of order: `later` is proved absent
    assert elsewhere not in world.completed
    world.heal()
    world.judge()
    assert later in world.completed


def test_an_owner_without_what_another_acknowledged_is_not_believed() -> None:
    world = ready_world()
    batch = world.submit(0, 1)
    send = world.connections["a"].requests.popleft()
    error = OutOfOrderSequence("gap", last_sequence=-1)
    world.act(world.core.refused(send.correlation, error, world.now))
    assert world.finding[-1].avoid == "a"  # it may have lost its office
    world.heal()
    assert batch in world.completed


def test_it_ends_when_it_is_fenced() -> None:
    world = ready_world()
    batch = world.submit(0, 1)
    send = world.connections["a"].requests.popleft()
    world.act(world.core.refused(send.correlation, InvalidProducerEpoch("fenced"), world.now))
    assert isinstance(world.stopped, InvalidProducerEpoch)
    assert batch in world.failed


WINDOW_STEPS = ("process", "deliver", "cut", "cut_zombie", "move", "transient", "find", "zombie")


@pytest.mark.parametrize("first", WINDOW_STEPS)
def test_k4_expiry_at_every_step_of_the_window(first: str) -> None:
    """Five batches under way, each combination of three events, and the delivery timeout before,
    between and after them: fates told are true, nothing is doubled, and the producer goes on."""
    for second, third, at, oldest in itertools.product(
        WINDOW_STEPS, WINDOW_STEPS, range(4), (1, 3, 5)
    ):
        world = ready_world()
        for number in range(5):
            world.submit(0, 1 + number % 2)
            if number + 1 == oldest:
                world.tick(1.0)  # so many expire first
        steps = [first, second, third]
        steps[at:at] = ["expire"]
        for name in steps:
            if name == "expire":
                world.tick(9.0)
            else:
                run(world, [(name, 0, 1)])
                world.tick(0.2)
        later = world.submit(0, 2)
        world.heal()
        again = world.submit(0, 1)
        world.heal()
        world.judge()
        assert world.stopped is None
        assert later is None or later in world.completed or later in world.failed
        assert again in world.completed  # the producer went on, and the window is open again


def test_k4_after_an_expiry_the_partition_takes_a_new_epoch_and_the_copy_is_fenced() -> None:
    world = ready_world(partitions=2)
    late = world.submit(0, 1)
    world.cut("a", zombies=True)
    world.tick(10.0)
    assert "may or may not be stored" in str(world.failed[late]) if late else False
    world.find()
    after = world.submit(0, 1)
    world.heal()
    world.judge()
    assert after in world.completed
    assert late not in world.logs[0]  # the copy came after the first batch of the new epoch
    assert world.next_pid == 1  # no broker was asked for a new identity
    other = world.submit(1, 1)
    assert world.connections["b"].requests[-1].producer_epoch == 0  # nor another partition moved
    world.heal()
    assert other in world.completed


def test_epochs_that_are_used_up_give_a_new_id_once_no_fate_is_unknown() -> None:
    world = ready_world(partitions=2)
    world.core.partition(TOPIC, 0).epoch = 32_766
    world.sequences[0].known[1].epoch = 32_766
    late = world.submit(0, 1)
    world.cut("a", zombies=False)
    world.tick(5.0)
    elsewhere = world.submit(1, 1)
    world.tick(5.0)
    assert late in world.failed
    assert world.identities_wanted == 0  # the fate of `elsewhere` is unknown (I6)
    assert world.submit(0, 1) is None
    world.heal()
    assert elsewhere in world.completed
    world.identify()
    after = world.submit(0, 1)
    world.heal()
    world.judge()
    assert after in world.completed
    assert world.next_pid == 2


def test_i5_out_of_order_with_a_last_sequence_at_or_after_mine_is_success() -> None:
    world = ready_world()
    batch = world.submit(0, 2)
    send = world.connections["a"].requests.popleft()
    error = OutOfOrderSequence("late", last_sequence=2)
    world.act(world.core.refused(send.correlation, error, world.now))
    assert batch in world.completed


def test_sequences_wrap_to_zero_after_int32() -> None:
    world = ready_world()
    state = world.core.partition(TOPIC, 0)
    state.next_sequence = 2147483646
    world.sequences[0].known[1].last = 2147483645
    for count in (3, 1):
        world.submit(0, count)
    bases = [send.base_sequence for send in world.connections["a"].requests]
    assert bases == [2147483646, 1]
    world.heal()
    world.judge()


def test_delivery_timeout_fails_with_the_last_error_in_the_text() -> None:
    world = ready_world()
    batch = world.submit(0, 4)
    world.cut("a", zombies=False)
    world.tick(10.1)
    assert batch in world.failed
    assert "4 records to t-0" in str(world.failed[batch])
    assert "may or may not be stored" in str(world.failed[batch])
