"""Which partition a record goes to (spec groups §1, P1-P7).

Keys are hashed with Kafka's murmur2, so the same key lands in the same partition from every
client and process; Python's salted `hash()` is never used (G1). Keyless records follow a sticky
choice (P5) or an exact counter (P6).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import NamedTuple, cast

from octavo.client.messaging.config import PartitionChooser
from octavo.proto.murmur2 import POSITIVE, murmur2, partition_of
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import InvalidPartition

__all__ = [
    "BULK_MIN_KEYS",
    "KEY_CACHE_ENTRIES",
    "KEY_CACHE_MAX_KEY_BYTES",
    "POSITIVE",
    "KeyHashes",
    "StickyChoice",
    "check_partition",
    "checked_choice",
    "murmur2",
    "partition_of",
]

KEY_CACHE_ENTRIES = 65_536
"""Keys whose hash is remembered; the cache is emptied when it is full."""
KEY_CACHE_MAX_KEY_BYTES = 256
BULK_MIN_KEYS = 256
"""From here on vectorised hashing beats the loop (measured 0.4-0.8 against 1.9 µs a key)."""


class KeyHashes:
    """Remembers the hashes of recent keys; bounded in entries and key size.

    A reader may race a writer: both compute the same value, so no lock is needed.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: bytes) -> int:
        """The positive hash of `key`."""
        found = self._known.get(key)
        if found is None:
            found = murmur2(key) & POSITIVE
            self._remember(key, found)
        return found

    def _remember(self, key: bytes, value: int) -> None:
        if len(key) > KEY_CACHE_MAX_KEY_BYTES:
            return
        if len(self._known) >= KEY_CACHE_ENTRIES:
            self._known = {}
        self._known[key] = value

    def get_many(self, keys: Sequence[bytes]) -> list[int]:
        """Positive hashes of many keys; unknown ones together when that is faster."""
        known = self._known
        missing = list({key for key in keys if key not in known})
        if len(missing) >= BULK_MIN_KEYS and "pyarrow" in sys.modules:
            fresh = dict(zip(missing, _bulk_hash(missing), strict=True))
        else:
            fresh = {key: murmur2(key) & POSITIVE for key in missing}
        out = [fresh[key] if key in fresh else known[key] for key in keys]
        for key, value in fresh.items():
            self._remember(key, value)
        return out


def _bulk_hash(keys: list[bytes]) -> list[int]:
    """Vectorised hashing; its module needs pyarrow, so it is loaded only where that is present."""
    module = import_module("octavo.client.messaging.partitioner.bulk_hash")
    hash_many = cast("Callable[[list[bytes]], list[int]]", module.positive_hashes)
    return hash_many(keys)


PARTITIONS_PER_LOOK = 8
"""Queue lengths are looked at once in so many choices as there are partitions, over this."""


class _Seen(NamedTuple):
    """The candidates and how long their queues were when last looked at."""

    live: Sequence[int]
    partitions: int
    lengths: Mapping[int, int]
    longest: int
    shortest: int


class StickyChoice:
    """The keyless partition of one topic (P5).

    Partitions are drawn without replacement, round by round in a fresh random order: uniform, and
    even within one batch per round. With `adaptive`, a partition is passed over the more likely the
    longer its queue is, by the weight max_queue + 1 - queue_length.

    Signal handlers, finalisers and other threads may choose between any two steps of a choice: what
    was seen is replaced whole and never changed, and a partition leaves the bag in a single step.
    """

    def __init__(self, batch_size: int, entropy: Entropy, *, adaptive: bool = True) -> None:
        self._batch_size = batch_size
        self._entropy = entropy
        self._adaptive = adaptive
        self._bag: list[int] = []
        self.current = -1
        self._bytes = 0
        self._seen = _Seen((), 0, {}, 0, 0)
        self._looks = 0  # choices until the next look

    def added(self, size_bytes: int, *, batch_closed: bool) -> bool:
        """Account for a keyless record of the current partition; True when a new choice is due."""
        self._bytes += size_bytes
        if self._bytes >= self._batch_size and (
            batch_closed or self._bytes >= 2 * self._batch_size
        ):
            self.current = -1
            return True
        return False

    def renew(self) -> None:
        """The current partition got its share: a new choice is due."""
        self.current = -1

    def choose(self, partitions: int, queues: Callable[[int], int], live: Sequence[int]) -> int:
        """Make `current` a partition out of `live` (all partitions when it is empty).

        Returns it; `current` may be another one already, or due again.
        """
        seen = self._seen
        if self._looks <= 0 or live is not seen.live or partitions != seen.partitions:
            seen = self._look(partitions, queues, live)
        self._looks -= 1
        lengths, most = seen.lengths, seen.longest + 1
        best = most - seen.shortest
        bag = self._bag
        for _ in range(2):
            for candidate in bag:
                length = lengths.get(candidate)
                if length is None:
                    continue
                weight = most - length
                if weight >= best or self._entropy.below(best) < weight:
                    try:
                        bag.remove(candidate)
                    except ValueError:  # whoever interrupted this took it
                        continue
                    return self._take(candidate)
            bag = self._entropy.shuffled(list(lengths))
            self._bag = bag
        fresh = self._entropy.shuffled(list(lengths))
        last = fresh.pop()
        self._bag = fresh
        return self._take(last)

    def _look(self, partitions: int, queues: Callable[[int], int], live: Sequence[int]) -> _Seen:
        """See how long the queues are; of many partitions only now and then, for it takes long."""
        lengths = {p: queues(p) if self._adaptive else 0 for p in live or range(partitions)}
        longest, shortest = max(lengths.values()), min(lengths.values())
        self._seen = seen = _Seen(live, partitions, lengths, longest, shortest)
        self._looks = max(1, len(lengths) // PARTITIONS_PER_LOOK)
        return seen

    def _take(self, partition: int) -> int:
        self.current = partition
        self._bytes = 0
        return partition


def checked_choice(
    chooser: PartitionChooser,
    topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: object,
    partitions: int,
) -> int:
    """The result of a custom partitioner; InvalidPartition when it is no partition (P6, F033)."""
    chosen = chooser(topic, key, value, headers, partitions)
    check_partition(topic, chosen, partitions)
    return chosen


def check_partition(topic: str, partition: object, partitions: int) -> None:
    """P1: raise InvalidPartition unless `partition` is a number from 0 to partitions - 1."""
    if isinstance(partition, bool) or not isinstance(partition, int):
        raise InvalidPartition(
            f"partition {partition!r} of topic {topic!r} is no number",
            hint="use an int from 0 to partitions - 1",
        )
    if not 0 <= partition < partitions:
        raise InvalidPartition(
            f"partition {partition} of topic {topic!r} does not exist",
            hint=f"it has partitions 0 to {partitions - 1}",
            partitions=partitions,
        )
