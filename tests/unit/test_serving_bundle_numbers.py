"""Bundles of partitions, remembered: the same ones as hashed, and no more than the bound."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.serving import placement
from octavo.serving.placement import BundleNumbers, bundle_of, bundles_of, stable_hash

BUNDLES = 64
TWO_TOPICS = 2 * (placement.TOPIC_BYTES + 10 * placement.PARTITION_BYTES)


def hashed(topic: int, partitions: int) -> tuple[int, ...]:
    return tuple(bundle_of(uuid.UUID(int=topic), p, BUNDLES) for p in range(partitions))


@given(st.uuids(), st.lists(st.integers(0, 10_000), max_size=5), st.integers(1, 1_000))
def test_o1_a_bundle_is_the_stable_hash_of_id_and_number(
    topic_id: uuid.UUID, partitions: list[int], bundles: int
) -> None:
    """Brokers of two builds must agree on it: it decides who serves what."""
    assert bundles_of(topic_id, partitions, bundles) == tuple(
        stable_hash(f"{topic_id.hex}/{number}") % bundles for number in partitions
    )


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)), max_size=30))
def test_f028_a_topic_that_grows_or_is_asked_for_as_it_was_has_the_bundles_that_are_hashed(
    asked: list[tuple[int, int]],
) -> None:
    numbers = BundleNumbers(BUNDLES)
    for topic, partitions in asked:
        assert numbers.of(uuid.UUID(int=topic), partitions) == hashed(topic, partitions)


def test_f028_what_was_asked_for_last_is_remembered_up_to_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted: a topic that was asked for twice counted twice, and others were forgotten early."""
    monkeypatch.setattr(placement, "REMEMBERED_BYTES_MAX", TWO_TOPICS)
    numbers = BundleNumbers(BUNDLES)
    for topic in (1, 2, 1, 2, 1):
        numbers.of(uuid.UUID(int=topic), 10)
    assert numbers.size_bytes == TWO_TOPICS

    hashes: list[int] = []

    def counted(topic_id: uuid.UUID, partitions: range, bundles: int) -> tuple[int, ...]:
        hashes.extend(partitions)
        return bundles_of(topic_id, partitions, bundles)

    monkeypatch.setattr(placement, "bundles_of", counted)
    numbers.of(uuid.UUID(int=2), 10)
    numbers.of(uuid.UUID(int=1), 10)
    assert not hashes
    numbers.of(uuid.UUID(int=3), 10)
    assert (numbers.size_bytes, len(hashes)) == (TWO_TOPICS, 10)
    numbers.of(uuid.UUID(int=1), 10)  # asked for after 2, which had to go
    assert len(hashes) == 10
    numbers.of(uuid.UUID(int=2), 10)
    assert len(hashes) == 20


def test_f028_a_topic_above_the_bound_is_answered_and_the_next_one_takes_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placement, "REMEMBERED_BYTES_MAX", TWO_TOPICS)
    numbers = BundleNumbers(BUNDLES)
    assert numbers.of(uuid.UUID(int=1), 100) == hashed(1, 100)
    assert numbers.of(uuid.UUID(int=2), 3) == hashed(2, 3)
    assert numbers.size_bytes == placement.TOPIC_BYTES + 3 * placement.PARTITION_BYTES
