"""What is sent, made again by every process from a few numbers, and how a reader proves it.

A payload is an endless repetition of a pool of distinct records. Producer and reader build the same
pool, so a reader knows which multiset of bytes must come back. `Digest` sums a 64-bit hash of each
record: independent of order, because several partitions interleave.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

KIB = 1024
POOL_BYTES = 4 * KIB * KIB
"""Distinct bytes before a payload repeats: far above the 64 KiB that LZ4 can look back."""
POOL_RECORDS_MIN = 16
_MASK = (1 << 64) - 1


class PayloadSpec(NamedTuple):
    """A payload as it travels to a worker: random bytes of a seed, or the lines of a file."""

    record_bytes: int
    seed: int = 0
    lines_file: str = ""

    @classmethod
    def of(cls, given: Mapping[str, object]) -> PayloadSpec:
        """From JSON."""
        return cls(
            int(str(given["record_bytes"])), int(str(given["seed"])), str(given["lines_file"])
        )


class Payload:
    """An endless stream of records over a pool."""

    def __init__(self, pool: Sequence[bytes]) -> None:
        if not pool:
            raise ValueError("an empty payload")
        self.pool = pool
        self._ends = list(itertools.accumulate(map(len, pool)))

    def stream(self) -> Iterator[bytes]:
        """The pool over and over."""
        return itertools.cycle(self.pool)

    @property
    def pool_bytes(self) -> int:
        """Bytes of all records of the pool."""
        return self._ends[-1]

    def size_bytes(self, start: int, stop: int) -> int:
        """Bytes of the records number `start` up to, not including, `stop`."""
        return self._first(stop) - self._first(start)

    def _first(self, count: int) -> int:
        rounds, rest = divmod(count, len(self.pool))
        return rounds * self.pool_bytes + (self._ends[rest - 1] if rest else 0)


def load(spec: PayloadSpec) -> Payload:
    """Build the pool that `spec` names."""
    if spec.lines_file:
        text = pathlib.Path(spec.lines_file).read_bytes()
        return Payload(text.rstrip(b"\n").split(b"\n"))
    source = random.Random(spec.seed)
    count = max(POOL_BYTES // spec.record_bytes, POOL_RECORDS_MIN)
    return Payload([source.randbytes(spec.record_bytes) for _ in range(count)])


class Digest:
    """Count and sum of hashes of a multiset of records, within one process."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0

    def add(self, records: Iterable[bytes | None]) -> None:
        """Account for records that came back; a missing value counts as itself."""
        hashes = list(map(hash, records))
        self.count += len(hashes)
        self.total = (self.total + sum(hashes)) & _MASK

    def expect(self, payload: Payload, count: int) -> None:
        """Account for the first `count` records of a payload."""
        rounds, rest = divmod(count, len(payload.pool))
        self.count += count
        whole = sum(map(hash, payload.pool)) if rounds else 0
        self.total = (self.total + rounds * whole + sum(map(hash, payload.pool[:rest]))) & _MASK

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Digest) and self._pair() == other._pair()

    def __hash__(self) -> int:
        return hash(self._pair())

    def _pair(self) -> tuple[int, int]:
        return self.count, self.total


def write_lines(path: pathlib.Path, values: Sequence[bytes]) -> PayloadSpec:
    """Keep JSON records in a file for all workers; raises ValueError for one with a line break."""
    for value in values:
        if b"\n" in value:
            raise ValueError("a record contains a line break")
        json.loads(value)
    path.write_bytes(b"\n".join(values) + b"\n")
    return PayloadSpec(sum(map(len, values)) // len(values), 0, str(path))
