"""How fast backlogs are read while records come in (F078)."""

from __future__ import annotations

import pytest

from octavo.serving.cold_pace import (
    CATCH_UP_RATIO,
    PAUSE_MAX_S,
    PIECE_BYTES,
    QUIET_S,
    UNBOUNDED,
    ColdPace,
)

MIB = 1 << 20


def busy(bytes_per_s: int = MIB, now_s: float = 100.0) -> ColdPace:
    """A little comes in."""
    pace = ColdPace(bytes_per_s)
    pace.wrote(100, now_s)
    return pace


def given(
    pace: ColdPace, readers: list[str], inflow: int, seconds: float, made_in_s: float = 0.0
) -> dict[str, int]:
    """Bytes that greedy readers were given while so much came in a second, and each reply took its
    time to make."""
    next_s = dict.fromkeys(readers, 100.0)
    found = dict.fromkeys(readers, 0)
    step_s, now_s = 0.002, 100.0
    while now_s < 100.0 + seconds:
        pace.wrote(int(inflow * step_s), now_s)
        for reader in readers:
            if next_s[reader] <= now_s:
                size = pace.piece_bytes(2 * MIB, now_s)
                found[reader] += size
                next_s[reader] = now_s + pace.read(reader, size, now_s) + made_in_s
        now_s += step_s
    return found


def test_f078_while_nothing_comes_in_there_is_no_pace() -> None:
    pace = ColdPace(MIB)
    assert pace.read("a", 100 * MIB, 100.0) == 0
    assert pace.piece_bytes(2 * MIB, 100.0) == 2 * MIB
    pace.wrote(1, 100.0)
    assert pace.read("a", MIB, 100.0) == 1.0
    assert pace.piece_bytes(2 * MIB, 100.0) == PIECE_BYTES
    assert pace.piece_bytes(1_000, 100.0) == 1_000
    busy_before = busy(MIB)
    busy_before.wrote(100 * MIB, 101.0)
    busy_before.wrote(1, 105.0)
    assert busy_before.read("a", MIB, 105.0) == 1.0, "what came in before a pause is over"
    later_s = 100.0 + QUIET_S
    assert pace.read("a", MIB, later_s) == 0
    assert pace.piece_bytes(2 * MIB, later_s) == 2 * MIB


def test_f078_without_a_bound_there_is_none() -> None:
    pace = busy(UNBOUNDED)
    assert pace.read("a", 100 * MIB, 100.0) == 0
    assert pace.piece_bytes(2 * MIB, 100.0) == 2 * MIB


def test_f078_readers_share_the_pace_and_none_is_left_out() -> None:
    found = given(busy(8 * MIB), ["a", "b", "c"], inflow=10_000, seconds=20.0)
    assert sum(found.values()) == pytest.approx(20 * 8 * MIB, rel=0.1)
    assert max(found.values()) <= 1.2 * min(found.values())


def test_f078_each_reader_takes_more_than_what_comes_in() -> None:
    """However much that is: a backlog that is read becomes smaller."""
    for readers in (["a"], ["a", "b", "c", "d"]):
        for made_in_s in (0.0, 0.02):
            found = given(busy(MIB), readers, 20 * MIB, 20.0, made_in_s)
            for one in found.values():
                assert one > 0.8 * CATCH_UP_RATIO * 20 * 20 * MIB


def test_f078_a_reader_takes_less_of_a_crowded_machine() -> None:
    """The pace is what it takes at most; the time that a reply took to make is no credit."""
    quick = given(busy(8 * MIB), ["a"], inflow=10_000, seconds=20.0)
    slow = given(
        busy(8 * MIB), ["a"], inflow=10_000, seconds=20.0, made_in_s=PIECE_BYTES / (8 * MIB)
    )
    assert slow["a"] == pytest.approx(quick["a"] / 2, rel=0.1)


def test_f078_a_pause_is_bounded_and_a_reader_that_left_counts_no_more() -> None:
    pace = busy(MIB)
    assert pace.read("a", 1_000 * MIB, 100.0) == PAUSE_MAX_S
    assert pace.read("b", 0, 100.0) == 0, "who was given nothing from storage waits for nothing"
    crowd = [f"r{number}" for number in range(50)]
    alone, with_others = busy(MIB), busy(MIB)
    for pace in (alone, with_others):
        pace.wrote(1, 100.9)
        pace.wrote(40 * MIB, 101.0)  # the inflow of the second before
    for name in crowd:
        with_others.read(name, 1, 101.0)
    crowded_s = with_others.read("a", 100 * MIB, 101.0)
    for name in [*crowd, "a"]:
        with_others.left(name)
    alone_s = alone.read("a", 100 * MIB, 101.0)
    assert crowded_s < alone_s / 40, "each of them may catch up"
    later_s = with_others.read("a", 100 * MIB, 101.0) - crowded_s
    assert later_s == pytest.approx(alone_s, rel=0.05)
