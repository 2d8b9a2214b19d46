"""Which broker should serve which bundle: rendezvous hashing under a capacity limit. Pure.

Every broker computes the same answer from the number of bundles, the set of live brokers and what
was moved by decision. Each bundle goes to the broker with the highest hash of (bundle, broker) that
still has room; nobody holds more than one bundle above the average (F145). When the set changes,
few bundles move. A bundle that was moved by decision is for the broker it was moved to, as long as
that one may own bundles; no other bundle moves for it.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache

REMEMBERED_BYTES_MAX = 16 << 20
"""52,000 topics of 10 partitions."""
HASH_BYTES = 8
TOPIC_BYTES, PARTITION_BYTES = 240, 8
"""What remembering takes, as measured."""


def stable_hash(text: str) -> int:
    """64 bits that are equal in every process (G1: never Python's own hash)."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=HASH_BYTES).digest(), "big")


def bundle_of(topic_id: uuid.UUID, partition: int, bundles: int) -> int:
    """The bundle a partition belongs to (O-1)."""
    return bundles_of(topic_id, (partition,), bundles)[0]


def bundles_of(topic_id: uuid.UUID, partitions: Iterable[int], bundles: int) -> tuple[int, ...]:
    """The bundles of several partitions: `stable_hash` of "id/number", of which the id is hashed
    once."""
    head = hashlib.blake2b(f"{topic_id.hex}/".encode(), digest_size=HASH_BYTES)
    found: list[int] = []
    for partition in partitions:
        one = head.copy()
        one.update(b"%d" % partition)
        found.append(int.from_bytes(one.digest(), "big") % bundles)
    return tuple(found)


class BundleNumbers:
    """The bundles of all partitions of topics, remembered: hashing is most of what a list costs.

    Which ones they are never changes, so nothing ends a memory but its bound: those of the topics
    that were asked for last, `REMEMBERED_BYTES_MAX` of them.
    """

    def __init__(self, bundles: int) -> None:
        self._bundles = bundles
        self._known: OrderedDict[uuid.UUID, tuple[int, ...]] = OrderedDict()
        self.size_bytes = 0
        """What all that is remembered takes."""

    def of(self, topic_id: uuid.UUID, partitions: int) -> tuple[int, ...]:
        """The bundle of each partition from 0 on."""
        known = self._known.pop(topic_id, ())
        if known:
            self.size_bytes -= _size_bytes(known)
        if len(known) < partitions:  # never asked for, or the topic grew
            known += bundles_of(topic_id, range(len(known), partitions), self._bundles)
        self._known[topic_id] = known
        self.size_bytes += _size_bytes(known)
        while self.size_bytes > REMEMBERED_BYTES_MAX and len(self._known) > 1:
            self.size_bytes -= _size_bytes(self._known.popitem(last=False)[1])
        return known[:partitions]


def _size_bytes(known: tuple[int, ...]) -> int:
    return TOPIC_BYTES + PARTITION_BYTES * len(known)


@lru_cache(maxsize=16)
def _assign(bundles: int, brokers: tuple[str, ...]) -> tuple[str, ...]:
    room = dict.fromkeys(brokers, bundles // len(brokers))
    spare = bundles % len(brokers)  # this many brokers may hold one more
    owners: list[str] = []
    for bundle in range(bundles):
        ranked = sorted(brokers, key=lambda broker: stable_hash(f"{bundle}|{broker}"), reverse=True)
        chosen = next((b for b in ranked if room[b] > 0 or (room[b] == 0 and spare > 0)), ranked[0])
        if room[chosen] == 0:
            spare -= 1
        room[chosen] -= 1
        owners.append(chosen)
    return tuple(owners)


def preferred_owners(
    bundles: int, brokers: Sequence[str], placed: Mapping[int, str] | None = None
) -> tuple[str, ...]:
    """The preferred broker of each bundle; empty when no broker lives.

    `placed`: the bundles that were moved by decision, and where to.
    """
    if not brokers:
        return ()
    hashed = _assign(bundles, tuple(sorted(set(brokers))))
    if not placed:
        return hashed
    wanted = ((placed.get(bundle, ""), owner) for bundle, owner in enumerate(hashed))
    return tuple(chosen if chosen in brokers else owner for chosen, owner in wanted)


def eligible(live: Iterable[str], excluded: Collection[str]) -> list[str]:
    """Who may be given bundles: whoever lives and is not excluded; all when nobody is left."""
    ids = sorted(set(live))
    return [broker for broker in ids if broker not in excluded] or ids
