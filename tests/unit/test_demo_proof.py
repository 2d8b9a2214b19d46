"""The demo's judge finds each kind of damage it promises to find."""

from __future__ import annotations

from tools.demo.proof import Position, Verdict, judge

KEYS: list[str | None] = ["a", "a", None, "b"]
VALUES = [b"0", b"1", b"2", b"3"]
ACKED: dict[int, Position | None] = {0: (0, 0), 1: (0, 1), 2: (1, 0), 3: (1, 1)}
READ: list[tuple[int, int, bytes | None, bytes | None]] = [
    (0, 0, b"a", b"0"),
    (0, 1, b"a", b"1"),
    (1, 0, None, b"2"),
    (1, 1, b"b", b"3"),
]


def test_a_faithful_run_is_ok() -> None:
    assert judge(KEYS, VALUES, ACKED, READ) == Verdict(4, 4, 0, 0, 0, 0)
    assert judge(KEYS, VALUES, ACKED, READ).ok


def test_a_missing_record_is_lost() -> None:
    verdict = judge(KEYS, VALUES, ACKED, READ[:-1])
    assert (verdict.lost, verdict.ok) == (1, False)


def test_a_record_acknowledged_without_an_offset_must_still_be_there() -> None:
    unplaced: dict[int, Position | None] = {**ACKED, 3: None}
    assert judge(KEYS, VALUES, unplaced, READ).ok
    assert judge(KEYS, VALUES, unplaced, READ[:-1]).lost == 1


def test_a_record_read_twice_is_a_duplicate() -> None:
    verdict = judge(KEYS, VALUES, ACKED, [*READ, (1, 2, b"b", b"3")])
    assert (verdict.duplicated, verdict.ok) == (1, False)


def test_two_records_of_one_key_out_of_order_are_reordered() -> None:
    acked: dict[int, Position | None] = {**ACKED, 0: (0, 1), 1: (0, 0)}
    read = [(0, 0, b"a", b"1"), (0, 1, b"a", b"0"), *READ[2:]]
    verdict = judge(KEYS, VALUES, acked, read)
    assert (verdict.reordered, verdict.lost, verdict.ok) == (1, 0, False)


def test_other_bytes_or_another_key_at_a_position_are_misplaced() -> None:
    assert judge(KEYS, VALUES, ACKED, [*READ[:3], (1, 1, b"x", b"3")]).misplaced == 1
    assert judge(KEYS, VALUES, ACKED, [*READ[:3], (1, 1, b"b", b"other")]).misplaced == 1
    swapped = [READ[0], READ[1], (1, 1, None, b"2"), (1, 0, b"b", b"3")]
    assert judge(KEYS, VALUES, ACKED, swapped).misplaced == 2
