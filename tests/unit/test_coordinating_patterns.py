"""Patterns of subscriptions: whole names, no internal topics, no pattern that holds up the loop."""

from __future__ import annotations

import asyncio

import pytest

from octavo.runtime.errors import InvalidRequest
from octavo.serving.coordinating import patterns as patterns_module
from octavo.serving.coordinating.patterns import PatternMatches, compile_pattern


def test_whole_names_match_and_internal_topics_never() -> None:
    matches = PatternMatches()
    matches.know(["orders", "orders.eu", "my.orders", "__consumer_offsets"])
    assert matches.matching("orders") == {"orders"}
    assert matches.matching(r"orders.*") == {"orders", "orders.eu"}
    assert matches.matching(r"a|orders|b") == {"orders"}
    assert matches.matching(".*") == {"orders", "orders.eu", "my.orders"}
    assert matches.matching("__consumer_offsets") == set()
    assert matches.matching(r"\Aorders\z") == {"orders"}


def test_topics_that_come_are_found_and_each_is_looked_at_once() -> None:
    matches = PatternMatches()
    matches.know(["a1"])
    assert matches.matching("a.") == {"a1"}
    matches.know(["a1", "a2", "b1"])
    assert matches.matching("a.") == {"a1", "a2"}
    assert matches.matching("b.") == {"b1"}


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(a", "missing )"),
        ("*", "no argument for repetition"),
        (r"(a)\1", "invalid escape"),
        ("(?=a)", "invalid perl operator"),
        ("(?<!a)b", "invalid"),
        ("a" * 1_001, "at most 1000"),
        ("((a{100}){100}){100}", "invalid repetition size"),
        (r"\pL{999}\pL{999}", "too large"),
        ("\ud800", "surrogates"),
    ],
)
def test_what_is_no_pattern_is_said(pattern: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match="subscription pattern") as caught:
        compile_pattern(pattern)
    assert reason in caught.value.cause, caught.value.cause
    assert PatternMatches().matching(pattern) == set(), "of a record that is stored already"


def test_a_pattern_that_would_never_end_ends() -> None:
    """Python's own matcher would need 2**200 steps."""
    matches = PatternMatches()
    matches.know(["a" * 200 + "!" for _ in range(1)])
    assert matches.matching("(a+)+b") == set()
    assert matches.matching("(a|a)*b|(a*)*c") == set()


async def test_a_new_pattern_is_prepared_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns_module, "NAMES_IN_A_TURN", 10)
    matches = PatternMatches()
    matches.know([f"t{number}" for number in range(95)])
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await matches.prepare("t.*")
    counting.cancel()
    assert turns >= 8
    assert len(matches.matching("t.*")) == 95


def test_memory_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns_module, "PATTERNS_MAX", 5)
    monkeypatch.setattr(patterns_module, "NAMES_IN_A_TURN", 10)
    matches = PatternMatches()
    for number in range(20):
        matches.know([f"t{number}.{part}" for part in range(5)])
        assert matches.matching(f"t{number}.*") == {f"t{number}.{part}" for part in range(5)}
    assert len(matches._of) <= 5  # pyright: ignore[reportPrivateUsage]
    assert len(matches._order) <= 25  # pyright: ignore[reportPrivateUsage]
