"""The producer's delivery core in its hostile world, and rule by rule (I4, I5, I6, W4-W6)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.client.messaging.producing.actions import Send
from octavo.runtime.errors import (
    InvalidProducerEpoch,
    NotEnoughReplicas,
    OutOfOrderSequence,
)
from tests.sender_world import (
    LONG_NAMES,
    OPS,
    OWNERS,
    TOPIC,
    Reply,
    World,
    run,
    script,
)


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
@given(st.integers(0, 1 << 32))
def test_the_same_with_long_scripts(seed: int) -> None:
    world = World()
    run(world, script(seed, LONG_NAMES[seed % 4]))
    world.heal()
    world.goes_on()
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


def test_f032_of_a_lost_connection_only_what_asked_for_an_answer_is_sent_again() -> None:
    world = World(partitions=1, idempotent=False)
    for acks in (-1, 0, 1, 0):
        world.submit(0, 1, acks=acks)
        world.find()
    unanswered = world.batches[1]
    correlation = [send.correlation for send in world.connections["a"].requests][1]
    world.act(world.core.written([correlation]))
    assert world.completed.keys() == {unanswered}
    world.cut("a", zombies=False)
    assert world.completed.keys() == {world.batches[1], world.batches[3]}, "nobody tells (A4)"
    world.heal()
    assert world.logs[0] == [world.batches[0], world.batches[2]], "in their order"


def test_f032_only_what_is_owed_an_answer_is_overdue() -> None:
    world = World(partitions=1, idempotent=False)
    for acks in (0, 1):
        world.submit(0, 1, acks=acks)
        world.find()
    world.tick(3.0)  # beyond the request timeout
    requests = world.connections["a"].requests
    unanswered, again = world.batches
    assert [send.batch for send in requests] == [unanswered, again]
    world.act(world.core.written([requests[0].correlation]))  # a slow connection, not a silent one
    world.tick(1.0)
    world.find()
    assert [send.batch for send in requests] == [unanswered, again, again]
    assert world.completed.keys() == {unanswered}


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


class Full(World):
    """Owners turn away what would be next; what comes behind it is out of order (I2)."""

    def append(self, send: Send, owner: str) -> Reply:
        identity = (send.producer_id, send.producer_epoch, send.base_sequence)
        if self.sequences[send.partition].decide(*identity, send.batch.count) is None:
            return Reply(send.correlation, None, NotEnoughReplicas("too few"))
        return super().append(send, owner)


def test_what_waits_behind_refused_batches_fails_with_their_reason() -> None:
    """Whoever was not stored because of them is told why, and can send it again (A6, F162)."""
    world = ready_world()
    world.__class__ = Full
    while world.now < 160.0:
        world.submit(0, 1)
        world.submit(0, 1)
        for _ in range(6):
            world.process("a")
            world.deliver("a")
        world.find()
        world.tick(0.1)
    assert len(world.failed) > 5
    for error in world.failed.values():
        assert isinstance(error, NotEnoughReplicas), error
        assert "was not stored" in str(error)
