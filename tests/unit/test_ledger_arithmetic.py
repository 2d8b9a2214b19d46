"""Quorum arithmetic by enumeration: the table of spec/ledger.md §4.8."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest

from octavo.client.ledger.tally import (
    ack_reachable,
    fence_covered,
    in_write_set,
    negatives_needed,
    windows,
    write_set,
)
from octavo.metadata.ledger_record import Quorum

# E,Qw,Qa | down while writing | fence replies worst, best | down while fencing | negatives | copies
TABLE = [
    ((1, 1, 1), 0, 1, 1, 0, 1, 1),
    ((2, 2, 1), 1, 2, 2, 0, 2, 1),
    ((2, 2, 2), 0, 1, 1, 1, 1, 2),
    ((3, 2, 2), 0, 2, 2, 1, 1, 2),
    ((3, 3, 1), 2, 3, 3, 0, 3, 1),
    ((3, 3, 2), 1, 2, 2, 1, 2, 2),
    ((3, 3, 3), 0, 1, 1, 2, 1, 3),
    ((4, 2, 2), 0, 3, 2, 1, 1, 2),
    ((4, 3, 2), 1, 3, 3, 1, 2, 2),
    ((5, 3, 2), 1, 4, 4, 1, 2, 2),
    ((5, 3, 3), 0, 3, 2, 2, 1, 3),
    ((5, 5, 3), 2, 3, 3, 2, 3, 3),
    ((6, 3, 2), 1, 5, 4, 1, 2, 2),
]


def largest_tolerated(size: int, ok: Callable[[set[int]], bool]) -> int:
    """The largest n such that `ok` holds for every set of n slots."""
    good = 0
    for n in range(size + 1):
        if not all(ok(set(down)) for down in combinations(range(size), n)):
            break
        good = n
    return good


@pytest.mark.parametrize("row", TABLE, ids=lambda row: "-".join(map(str, row[0])))
def test_table_4_8(row: tuple[tuple[int, int, int], int, int, int, int, int, int]) -> None:
    sizes, write_down, fence_worst, fence_best, fence_down, negatives, copies = row
    quorum = Quorum(*sizes)
    slots = set(range(quorum.ensemble))
    assert largest_tolerated(quorum.ensemble, lambda d: ack_reachable(d, quorum)) == write_down
    covered = {
        n: [fence_covered(set(c), quorum) for c in combinations(slots, n)]
        for n in range(quorum.ensemble + 1)
    }
    assert min(n for n in covered if all(covered[n])) == fence_worst
    assert min(n for n in covered if any(covered[n])) == fence_best
    assert (
        largest_tolerated(quorum.ensemble, lambda d: fence_covered(slots - d, quorum)) == fence_down
    )
    assert negatives_needed(quorum) == negatives
    assert quorum.ack == copies


@pytest.mark.parametrize("row", TABLE, ids=lambda row: "-".join(map(str, row[0])))
def test_coverage_means_no_write_set_can_still_be_acknowledged(
    row: tuple[tuple[int, int, int], int, int, int, int, int, int],
) -> None:
    """R-10 against its meaning, and R-11: (E - Qa) + 1 replies always suffice."""
    quorum = Quorum(*row[0])
    for n in range(quorum.ensemble + 1):
        for counted in combinations(range(quorum.ensemble), n):
            silent = set(range(quorum.ensemble)) - set(counted)
            possible = any(
                len(set(write_set(entry, quorum)) & silent) >= quorum.ack
                for entry in range(quorum.ensemble)
            )
            assert fence_covered(set(counted), quorum) is not possible
            if n >= quorum.ensemble - quorum.ack + 1:
                assert fence_covered(set(counted), quorum)


def test_write_sets() -> None:
    """3.2: slots (e + i) mod E."""
    quorum = Quorum(5, 3, 2)
    assert write_set(0, quorum) == (0, 1, 2)
    assert write_set(4, quorum) == (4, 0, 1)
    for entry in range(20):
        inside = {slot for slot in range(5) if in_write_set(slot, entry, quorum)}
        assert inside == set(write_set(entry, quorum))
    assert len(windows(quorum)) == 5
    assert windows(Quorum(3, 3, 2)) == [(0, 1, 2)]
