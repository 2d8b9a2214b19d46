"""Partition choice, exact (spec groups §1, F033-F036)."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from types import FrameType
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.client.messaging import partitioner
from octavo.client.messaging.cluster.topic_lives import TopicView
from octavo.client.messaging.config import PartitionChooser, ProducerConfig
from octavo.client.messaging.partitioner import (
    POSITIVE,
    KeyHashes,
    StickyChoice,
    checked_choice,
    murmur2,
    partition_of,
)
from octavo.client.messaging.partitioner.bulk_hash import positive_hashes
from octavo.client.messaging.producing import routing
from octavo.client.messaging.producing.accumulator import Slot
from octavo.client.messaging.producing.batches import Batch
from octavo.client.messaging.producing.in_flight import Partition
from octavo.client.messaging.producing.routing import Router, TopicState
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.errors import InvalidPartition, PartitionDecommissioned

if TYPE_CHECKING:
    from _typeshed import TraceFunction

VECTORS: list[tuple[bytes, int, tuple[int, int, int, int, int]]] = [
    (b"", 275646681, (0, 3, 1, 9, 31)),
    (b"a", -1563381124, (1, 4, 4, 4, 24)),
    (b"21", -973932308, (0, 0, 0, 0, 40)),
    (b"abc", 479470107, (0, 3, 7, 3, 7)),
    (b"foobar", -790332482, (0, 0, 6, 6, 16)),
    (b"a-little-bit-long-string", -985981536, (2, 2, 2, 8, 12)),
    (b"user-123", -1468255980, (2, 2, 8, 8, 18)),
    (b"user_123", -1159050033, (2, 5, 5, 11, 15)),
    (b"\xff\xfe\xfd", 998637092, (2, 2, 2, 8, 42)),
    ("größe".encode(), 588164084, (2, 2, 4, 8, 34)),
    ("日本".encode(), -700811021, (0, 3, 7, 3, 27)),
]


@pytest.mark.parametrize(("key", "signed", "partitions"), VECTORS)
def test_p3_vectors(key: bytes, signed: int, partitions: tuple[int, ...]) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF
    assert tuple(partition_of(key, n) for n in (3, 6, 10, 12, 50)) == partitions
    assert positive_hashes([key]) == [signed & POSITIVE]


@given(st.lists(st.binary(max_size=40), max_size=60))
def test_bulk_hashing_equals_the_loop(keys: list[bytes]) -> None:
    assert positive_hashes(keys) == [murmur2(key) & POSITIVE for key in keys]


def test_murmur2_of_a_long_key_uses_the_same_rules() -> None:
    key = bytes(range(256)) * 3
    assert positive_hashes([key]) == [murmur2(key) & POSITIVE]


def test_key_cache_is_bounded_and_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioner, "KEY_CACHE_ENTRIES", 10)
    hashes = KeyHashes()
    keys = [b"k%d" % i for i in range(25)]
    assert hashes.get_many([*keys, *keys]) == [murmur2(key) & POSITIVE for key in keys] * 2
    assert [hashes.get(key) for key in keys] == [murmur2(key) & POSITIVE for key in keys]
    assert len(hashes) <= 10
    before = len(hashes)
    hashes.get(b"x" * 1000)
    assert len(hashes) == before


def test_many_new_keys_go_through_the_vectorised_path() -> None:
    keys = [b"key-%d" % i for i in range(partitioner.BULK_MIN_KEYS * 2)]
    assert KeyHashes().get_many(keys) == [murmur2(key) & POSITIVE for key in keys]


def state_of(partitions: int, *, batch_size: int = 65536) -> TopicState:
    state = TopicState("t", StickyChoice(batch_size, SeededEntropy(3)))
    state.slots.extend(Slot(Partition("t", number)) for number in range(partitions))
    return state


def test_f036_sticky_is_even_within_ten_percent() -> None:
    state = state_of(8)
    router = Router(ProducerConfig())
    counts: Counter[int] = Counter()
    filled = 0
    for _ in range(100_000):
        where = router.choose(state, None, None).partition
        counts[where] += 1
        filled += 124
        if state.sticky.added(124, batch_closed=filled >= 65536):
            filled = 0
    assert len(counts) == 8
    assert max(counts.values()) <= 12_500 * 1.1
    assert min(counts.values()) >= 12_500 * 0.9


def decommission(state: TopicState, *numbers: int) -> None:
    count = len(state.slots)
    view = TopicView("t", count, (*"abcdef"[:count],), decommissioned=frozenset(numbers))
    state.adopt_owners(view)


def test_f027_p2_a_key_is_an_index_into_the_partitions_that_take_records() -> None:
    router, state = Router(ProducerConfig()), state_of(6)
    decommission(state, 1, 4)
    writable = [0, 2, 3, 5]
    keys = [b"key-%d" % number for number in range(300)]
    expected = [writable[partition_of(key, 4)] for key in keys]
    assert [router.choose(state, None, key).partition for key in keys] == expected
    assert router.choose_many(state, None, keys, keys, None) == expected
    chosen = router.choose_many(state, None, keys, keys, None)
    rows = {
        slot.partition: list(rows) for slot, rows in router.group(state, chosen, keys, [1] * 300)
    }
    assert rows == {p: [n for n, where in enumerate(expected) if where == p] for p in writable}


@pytest.mark.parametrize("mode", ["default", "round_robin"])
def test_f027_records_without_a_key_pass_a_decommissioned_partition_over(mode: str) -> None:
    router, state = (
        Router(ProducerConfig(partitioner=mode, batch_size=80)),
        state_of(4, batch_size=10),
    )
    state.sticky.current = 2
    decommission(state, 2)
    one_by_one: Counter[int] = Counter()
    for _ in range(300):
        one_by_one[router.choose(state, None, None).partition] += 1
        state.sticky.added(10, batch_closed=True)
    assert one_by_one == {0: 100, 1: 100, 3: 100}
    together: Counter[int] = Counter()
    for slot, rows in router.group(state, None, None, [40] * 300):
        together[slot.partition] += len(rows)
    assert set(together) == {0, 1, 3}


def test_f027_nobody_known_to_own_a_partition_is_no_reason_to_take_a_decommissioned_one() -> None:
    router, state = Router(ProducerConfig()), state_of(3, batch_size=10)
    state.adopt_owners(TopicView("t", 3, ("a", "", ""), decommissioned=frozenset({0})))
    chosen: set[int] = set()
    for _ in range(50):
        chosen.add(router.choose(state, None, None).partition)
        state.sticky.added(10, batch_closed=True)
    assert chosen == {1, 2}


def always_one(*_: object) -> int:
    return 1


def test_f027_a_decommissioned_partition_that_is_named_is_refused_before_anything_is_sent() -> None:
    router, state = Router(ProducerConfig()), state_of(3)
    custom = Router(ProducerConfig(partitioner=always_one))
    assert router.choose(state, 1, b"k").partition == 1
    decommission(state, 1)
    for call in (
        lambda: router.choose(state, 1, b"k"),
        lambda: router.choose_many(state, 1, None, [b"v"], None),
        lambda: custom.custom_choice(state, b"k", b"v", ()),
    ):
        with pytest.raises(PartitionDecommissioned, match="partition 1 of topic 't'"):
            call()
    assert router.choose(state, 2, b"k").partition == 2


def test_p7_f027_partitions_added_afterwards_take_records() -> None:
    router, state = Router(ProducerConfig()), state_of(2)
    decommission(state, 0)
    state.slots.append(Slot(Partition("t", 2)))
    decommission(state, 0)
    chosen = {router.choose(state, None, b"%d" % number).partition for number in range(50)}
    assert chosen == {1, 2}


def test_p5_sticky_moves_on_a_closed_full_batch_or_at_twice_the_size() -> None:
    sticky = StickyChoice(100, SeededEntropy(1))
    sticky.choose(4, lambda _: 0, [])
    assert not sticky.added(99, batch_closed=True)
    assert not sticky.added(50, batch_closed=False)
    assert sticky.added(51, batch_closed=False)
    sticky.choose(4, lambda _: 0, [])
    assert sticky.added(100, batch_closed=True)


def test_p5_only_partitions_with_a_live_owner_are_chosen() -> None:
    sticky = StickyChoice(1, SeededEntropy(1))
    chosen = {sticky.choose(6, lambda _: 0, [1, 4]) for _ in range(20)}
    assert chosen == {1, 4}


def test_p5_long_queues_get_less() -> None:
    sticky = StickyChoice(1, SeededEntropy(1))
    counts = Counter(sticky.choose(2, lambda p: 9 if p == 0 else 0, []) for _ in range(1000))
    assert counts[1] > 4 * counts[0] > 0


@given(st.integers(1, 5), st.lists(st.integers(0, 400), max_size=12), st.integers(0, 9))
def test_p5_a_choice_may_be_interrupted_by_others_between_any_two_steps(
    partitions: int, strikes: list[int], seed: int
) -> None:
    """A tracer chooses, and counts records, before the given lines of the choice under way."""
    state = state_of(partitions, batch_size=100)
    state.sticky = StickyChoice(100, SeededEntropy(seed))
    at, lines = set(strikes), itertools.count()

    def interrupt() -> None:
        for _ in range(partitions + 1):
            assert 0 <= Router.sticky_partition(state) < partitions
            state.sticky.renew()

    def trace(frame: FrameType, event: str, _: object) -> TraceFunction | None:
        if frame.f_code.co_filename not in (partitioner.__file__, routing.__file__):
            return None
        if event == "line" and next(lines) in at:
            sys.settrace(None)
            interrupt()
            sys.settrace(trace)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for _ in range(12):
            assert 0 <= Router.sticky_partition(state) < partitions
            state.sticky.renew()
    finally:
        sys.settrace(before)


def test_keyed_records_never_move_the_sticky_choice() -> None:
    state = state_of(6)
    router = Router(ProducerConfig())
    first = router.choose(state, None, None)
    for number in range(50):
        key = b"k%d" % number
        assert router.choose(state, None, key).partition == partition_of(key, 6)
    assert router.choose(state, None, None) is first


def test_p6_round_robin_is_exact() -> None:
    state = state_of(5)
    router = Router(ProducerConfig(partitioner="round_robin"))
    chosen = [router.choose(state, None, None).partition for _ in range(10)]
    assert chosen == [0, 1, 2, 3, 4] * 2
    groups = {
        slot.partition: list(rows) for slot, rows in router.group(state, None, None, [30] * 7)
    }
    assert groups == {0: [0, 5], 1: [1, 6], 2: [2], 3: [3], 4: [4]}
    assert router.choose(state, None, None).partition == 2


def test_p1_explicit_partition_wins_and_is_checked() -> None:
    state = state_of(3)
    router = Router(ProducerConfig())
    assert router.choose(state, 2, b"a").partition == 2
    for bad in (3, -1, True, "1"):
        with pytest.raises(InvalidPartition):
            router.choose(state, bad, b"a")  # type: ignore[arg-type]


def chooser(result: object) -> PartitionChooser:
    return lambda topic, key, value, headers, partitions: cast("int", result)


def test_p6_callable_is_validated() -> None:
    assert checked_choice(chooser(1), "t", None, b"", (), 2) == 1
    for bad in (2, -1, True, None, "0"):
        with pytest.raises(InvalidPartition):
            checked_choice(chooser(bad), "t", None, b"", (), 2)


def test_grouped_rows_equal_single_choices() -> None:
    keys: list[bytes | None] = [b"k%d" % (i % 13) for i in range(300)]
    router = Router(ProducerConfig())
    state = state_of(4)
    chosen = router.choose_many(state, None, keys, [b""] * 300, None)
    groups = router.group(state, chosen, keys, [30] * 300)
    for slot, rows in groups:
        assert list(rows) == sorted(rows)
        for row in rows:
            key = keys[row]
            assert key is not None
            assert partition_of(key, 4) == slot.partition


def test_grouped_keyless_rows_fill_one_batch_after_the_other() -> None:
    state = state_of(4, batch_size=100)
    router = Router(ProducerConfig(batch_size=100))
    groups = [
        (slot.partition, list(rows)) for slot, rows in router.group(state, None, None, [30] * 10)
    ]
    # Never one more than fits: it would open a batch and travel alone.
    assert [rows for _, rows in groups] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert len({where for where, _ in groups}) == 4


def test_a_keyless_row_larger_than_a_batch_goes_alone() -> None:
    router = Router(ProducerConfig(batch_size=100))
    groups = [list(rows) for _, rows in router.group(state_of(2), None, None, [30, 400, 30])]
    assert groups == [[0], [1], [2]]


def test_rows_are_grouped_once_whatever_the_open_batches_hold() -> None:
    """An open batch that grew while others waited may be above what it may hold now."""
    state = state_of(3, batch_size=100)
    for slot, size in zip(state.slots, (500, 100, 90), strict=True):
        slot.open = Batch("t", slot.partition, 0.0)
        slot.open.size_bytes = size
    router = Router(ProducerConfig(batch_size=100))
    rows = [row for _, part in router.group(state, None, None, [30] * 20) for row in part]
    assert rows == list(range(20))


def test_queues_of_many_partitions_are_looked_at_now_and_then() -> None:
    looks: list[int] = []

    def queue(partition: int) -> int:
        looks.append(partition)
        return 0

    sticky, live = StickyChoice(100, SeededEntropy(1)), list[int]()
    chosen = [sticky.choose(800, queue, live) for _ in range(800)]
    assert sorted(chosen) == list(range(800))
    assert len(looks) <= 8 * 800 + 800
