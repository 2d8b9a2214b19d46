"""Payloads are the same in every process; a digest finds what is missing, doubled or changed."""

from __future__ import annotations

import itertools
import pathlib
import random
import zlib

import pytest

from bench import payloads


def small(count: int = 7) -> payloads.Payload:
    source = random.Random(3)
    return payloads.Payload([source.randbytes(10 + number) for number in range(count)])


def test_the_same_spec_gives_the_same_records_and_another_seed_others() -> None:
    spec = payloads.PayloadSpec(64 * payloads.KIB, 5)
    assert payloads.load(spec).pool == payloads.load(spec).pool
    assert payloads.load(spec).pool[0] not in payloads.load(spec._replace(seed=6)).pool


def test_random_records_have_their_size_are_distinct_and_do_not_shrink() -> None:
    pool = payloads.load(payloads.PayloadSpec(payloads.KIB, 1)).pool
    assert {len(record) for record in pool} == {payloads.KIB}
    assert len(set(pool)) == len(pool)
    sample = b"".join(pool[:64])
    assert len(zlib.compress(sample)) >= len(sample)


def test_a_large_record_still_has_a_pool() -> None:
    assert len(payloads.load(payloads.PayloadSpec(1 << 20, 1)).pool) >= payloads.POOL_RECORDS_MIN


def test_a_spec_survives_json() -> None:
    spec = payloads.PayloadSpec(300, 4, "x.jsonl")
    assert payloads.PayloadSpec.of(spec._asdict()) == spec


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (0, 7), (3, 5), (6, 22), (14, 14), (0, 100)])
def test_size_of_a_stretch(start: int, stop: int) -> None:
    payload = small()
    taken = list(itertools.islice(payload.stream(), stop))[start:]
    assert payload.size_bytes(start, stop) == sum(map(len, taken))


@pytest.mark.parametrize("count", [0, 1, 6, 7, 8, 14, 33])
def test_what_was_sent_is_what_is_expected_in_any_order(count: int) -> None:
    payload = small()
    sent = list(itertools.islice(payload.stream(), count))
    random.Random(1).shuffle(sent)
    found, expected = payloads.Digest(), payloads.Digest()
    found.add(sent[: count // 2])
    found.add(sent[count // 2 :])
    expected.expect(payload, count)
    assert found == expected


@pytest.mark.parametrize("damage", ["lost", "doubled", "changed", "emptied", "swapped"])
def test_damage_is_found(damage: str) -> None:
    payload = small()
    sent: list[bytes | None] = list(itertools.islice(payload.stream(), 20))
    first = sent[0]
    assert first is not None
    if damage == "lost":
        sent.pop()
    elif damage == "doubled":
        sent.append(first)
    elif damage == "changed":
        sent[0] = bytes([first[0] ^ 1]) + first[1:]
    elif damage == "emptied":
        sent[0] = None
    else:
        sent[0] = sent[1]
    found, expected = payloads.Digest(), payloads.Digest()
    found.add(sent)
    expected.expect(payload, 20)
    assert found != expected


def test_json_lines_come_back(tmp_path: pathlib.Path) -> None:
    values = [b'{"a":1}', b'{"b":"xyz"}']
    spec = payloads.write_lines(tmp_path / "records.jsonl", values)
    assert list(payloads.load(spec).pool) == values


def test_a_line_break_in_a_record_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="line break"):
        payloads.write_lines(tmp_path / "records.jsonl", [b'{"a":\n1}'])


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        payloads.Payload([])
