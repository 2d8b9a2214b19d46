"""The window of ids (X14) against a model that only looks at the whole log.

Sends, acknowledgements, failures, clocks that jump, snapshots at any moment, and owners that end
and load again from the newest snapshot and what was stored behind it. Planted bugs are found.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from octavo.proto.dedup_ids import digest_of
from octavo.runtime.errors import InvariantViolation
from octavo.serving.dedup_rule import DedupRule
from octavo.serving.partition.dedup import DedupWindow, Seen

WINDOW_MS = 100
IDS = [digest_of(b"%d" % number) for number in range(6)]
IDS_MAX = 4
STEPS = 80
STEP_NAMES = [
    *["send"] * 6, *["acknowledge"] * 3, "write_queued", "give_up_newest", "wait", "tick",
    "write_snapshot", "owner_ends",
]  # fmt: skip


@dataclass(eq=False)
class Sent:
    digest: bytes
    offset: int
    time_ms: int
    is_sent: bool = True
    """It is an entry of the ledger, so that a snapshot counts with it."""


class World:
    """One partition and its owners."""

    def __init__(self, make: type[DedupWindow[Sent]]) -> None:
        self.make = make
        self.now_ms = 1_000
        self.end = 0
        self.log: list[Sent] = []
        """What is durable."""
        self.pending: list[Sent] = []
        self.window = self.make(DedupRule(WINDOW_MS, IDS_MAX))
        self.snapshot: tuple[bytes, int] = (b"", 0)

    def counting(self) -> dict[bytes, Sent]:
        """The durable records whose ids count now, by digest."""
        return {one.digest: one for one in self.log if self.now_ms - one.time_ms < WINDOW_MS}

    def send(self, digest: bytes, is_sent: bool) -> None:
        verdict = self.window.decide(digest, self.now_ms)
        waiting = [one for one in self.pending if one.digest == digest]
        counting = self.counting()
        if waiting:
            assert (verdict.seen, verdict.pending) == (Seen.PENDING, waiting[0])
        elif digest in counting:
            first = counting[digest]
            assert (verdict.seen, verdict.offset, verdict.append_time_ms) == (
                Seen.STORED,
                first.offset,
                first.time_ms,
            )
        elif len(counting) + len(self.pending) >= IDS_MAX:
            assert verdict.seen is Seen.FULL
            oldest = min((one.time_ms for one in counting.values()), default=None)
            left_ms = 0 if oldest is None else oldest + WINDOW_MS - self.now_ms
            assert verdict.room_in_ms == left_ms
        else:
            assert verdict.seen is Seen.NEW
            is_sent = is_sent and all(one.is_sent for one in self.pending)
            one = Sent(digest, self.end, self.now_ms, is_sent)
            self.end += 1
            self.window.begin(digest, one.offset, one.time_ms, one)
            self.pending.append(one)

    def acknowledge(self) -> None:
        if self.pending and self.pending[0].is_sent:
            one = self.pending.pop(0)
            self.window.confirm(one.digest)
            self.log.append(one)

    def write_queued(self) -> None:
        for one in self.pending:
            one.is_sent = True

    def give_up_newest(self, count: int) -> None:
        for _ in range(min(count, len(self.pending))):
            one = self.pending.pop()
            self.window.fail(one.digest)
            self.end = one.offset

    def wait(self, by_ms: int) -> None:
        self.now_ms += by_ms

    def tick(self) -> None:
        self.window.expire(self.now_ms)

    def write_snapshot(self) -> None:
        """It lies behind everything sent so far: if it survives, so do they (I8)."""
        end = max([0, *(o.offset + 1 for o in (*self.log, *self.pending) if o.is_sent)])
        self.snapshot = (self.window.packed(lambda one: one.is_sent), end)
        while self.pending and self.pending[0].is_sent:
            self.acknowledge()

    def owner_ends(self, survive: int) -> None:
        """Of what was sent and not acknowledged, the next owner finds some, or nothing."""
        found = [one for one in self.pending if one.is_sent][:survive]
        self.log += found
        self.pending.clear()
        self.end = self.log[-1].offset + 1 if self.log else 0
        self.window = self.make(DedupRule(WINDOW_MS, IDS_MAX))
        packed, end = self.snapshot
        self.window.restore(packed)
        for one in self.log:
            if one.offset >= end:
                self.window.replay(one.digest, one.offset, one.time_ms)

    def memory_is_bounded(self) -> None:
        assert len(self.window) <= IDS_MAX


def run(make: type[DedupWindow[Sent]], seeds: range) -> None:
    """Random lives; the first promise that is broken raises."""
    for seed in seeds:
        rng = random.Random(seed)
        world = World(make)
        for _ in range(STEPS):
            name = rng.choice(STEP_NAMES)
            if name == "send":
                world.send(rng.choice(IDS), rng.random() < 0.7)
            elif name == "wait":
                world.wait(rng.choice((1, 10, 30, WINDOW_MS)))
            elif name == "give_up_newest":
                world.give_up_newest(rng.randint(1, 3))
            elif name == "owner_ends":
                world.owner_ends(rng.randint(0, 4))
            else:
                getattr(world, name)()
            world.memory_is_bounded()


def test_x14_every_id_counts_for_its_window_over_all_owners() -> None:
    run(DedupWindow, range(400))


class ForgetsPendingIds(DedupWindow[Sent]):
    """Two sends at a time would both be stored."""

    def begin(self, digest: bytes, offset: int, append_time_ms: int, token: Sent) -> None:
        super().begin(digest, offset, append_time_ms, token)
        self.hidden = self._pending.pop(digest)
        self._pending[b"hidden" + digest] = self.hidden


class RemembersWhatWasNotWritten(DedupWindow[Sent]):
    """The second send would be told of a record that nobody has."""

    def fail(self, digest: bytes) -> None:
        self.confirm(digest)


class ForgetsTheOldestWhenFull(DedupWindow[Sent]):
    """A full window would silently let duplicates in."""

    def _room_in_ms(self, now_ms: int) -> int:
        if self._stored:
            self._stored.popitem(last=False)
        return super()._room_in_ms(now_ms)


class SnapshotsOnlyWhatIsDurable(DedupWindow[Sent]):
    """What is in front of the snapshot is not read again."""

    def packed(self, counts: object) -> bytes:
        return super().packed(lambda _: False)


class NeverForgets(DedupWindow[Sent]):
    def expire(self, now_ms: int) -> int:
        return 0


class StartsEmpty(DedupWindow[Sent]):
    def restore(self, packed: bytes) -> None:
        return


@pytest.mark.parametrize(
    "bug",
    [
        ForgetsPendingIds,
        RemembersWhatWasNotWritten,
        ForgetsTheOldestWhenFull,
        SnapshotsOnlyWhatIsDurable,
        NeverForgets,
        StartsEmpty,
    ],
)
def test_planted_bugs_are_found(bug: type[DedupWindow[Sent]]) -> None:
    with pytest.raises((AssertionError, KeyError, InvariantViolation)):
        run(bug, range(400))
