"""One slot's repair in a world of gaps, damage and silence; planted bugs are found (INV-7, A-5)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.client.autorecovery import slot_core as s
from octavo.client.autorecovery.slots import Run, without
from octavo.proto.bookie_wire import Status
from octavo.proto.entry import HEADER_BYTES, encode_header, payload_of
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import InvariantViolation
from octavo.runtime.ids import Member
from tests.slot_world import LEDGER, SlotWorld, Violation

SEEDS = 1500


def test_a_slot_is_repaired_or_left_as_it_is() -> None:
    ends = [type(SlotWorld(seed).run().ended) for seed in range(SEEDS)]
    assert min(ends.count(s.Finished), ends.count(s.GaveUp)) > SEEDS // 10  # neither is vacuous


def test_without_faults_and_with_a_copy_of_each_entry_it_always_succeeds() -> None:
    tried = 0
    for seed in range(SEEDS):
        world = SlotWorld(seed)
        sources = [b for m, b in world.bookies.items() if m != world.target]
        readable = all(
            any(b.holds(e) for b in sources) or world.bookies[world.target].holds(e)
            for e in world.wanted
        )
        if world.faults or not readable:
            continue
        tried += 1
        assert isinstance(world.run().ended, s.Finished), f"seed {seed}: {world.ended}"
    assert tried > 100


class _CommitsFirst(s.SlotCore):
    """The record is changed before the copies are made."""

    def start(self) -> list[s.SlotAction]:
        if self._replacing:
            return self._do(s.CommitMember(self.slot.start, self.slot.member, self.target))
        return super().start()

    def validate(self) -> None:
        return


class _BelievesAcknowledgements(s.SlotCore):
    """What the target had before is not read back."""

    def _prove(self) -> list[s.SlotAction]:
        self._to_prove.clear()
        return super()._prove()


class _JoinsUnproven(s.SlotCore):
    """Of a target that no record names only what was copied now is read back."""

    def listed(self, status: Status, through: int, runs: Sequence[Run]) -> list[s.SlotAction]:
        self._joins = False
        return super().listed(status, through, runs)


class _UnknownIsAbsent(s.SlotCore):
    """A target that does not answer is taken for empty; a source for one without the entry."""

    def source_read(
        self, member: Member, first: int, status: Status, entries: Sequence[Buffer]
    ) -> list[s.SlotAction]:
        if status is not Status.OK:
            self._answers(s.ReadSource)
            self._take_from(self._missing, 1)  # "it never existed"
            self._to_prove = [run for run in self._to_prove if run != (first, first)]
            return self._copy()
        return super().source_read(member, first, status, entries)


class _UnknownIsHeld(s.SlotCore):
    """A target that does not answer is believed to have everything."""

    def listed(self, status: Status, through: int, runs: Sequence[Run]) -> list[s.SlotAction]:
        if status is not Status.OK and status not in s.ABSENT:
            return super().listed(Status.OK, self.slot.last, [(self.slot.first, self.slot.last)])
        return super().listed(status, through, runs)


class _ShortRepliesAreWhole(s.SlotCore):
    """A source that gives less than was asked for is taken to have given all."""

    def written(self, statuses: Sequence[Status]) -> list[s.SlotAction]:
        first, last = self._missing[0]
        more = min(self._asked, last - first + 1) - len(self._batch)
        out = super().written(statuses)
        if more > 0 and self._missing and self._missing[0][0] == first + len(statuses):
            self._take_from(self._missing, more)
            return self._copy()
        return out

    def _prove(self) -> list[s.SlotAction]:
        self._to_prove.clear()  # or the proof would notice, and mend it
        return super()._prove()


class _IgnoresFailedWrites(s.SlotCore):
    """An add that was refused counts as stored."""

    def written(self, statuses: Sequence[Status]) -> list[s.SlotAction]:
        return super().written([Status.OK] * len(statuses))

    def _prove(self) -> list[s.SlotAction]:
        self._to_prove.clear()
        return super()._prove()


class _EncodesAnew(s.SlotCore):
    """INV-5: the header is written again, with another LAC."""

    def source_read(
        self, member: Member, first: int, status: Status, entries: Sequence[Buffer]
    ) -> list[s.SlotAction]:
        out = super().source_read(member, first, status, entries)
        if not isinstance(out[0], s.WriteTarget):
            return out
        fresh = [
            encode_header(LEDGER, first + n, -1, 1, payload_of(e)) + payload_of(e)
            for n, e in enumerate(out[0].entries)
        ]
        assert all(len(e) >= HEADER_BYTES for e in fresh)
        return [out[0]._replace(entries=tuple(fresh))]


class _TrustsTheWire(s.SlotCore):
    """Digest and ids of what a source gives are not looked at."""

    def _intact(self, first: int, entries: Sequence[Buffer]) -> tuple[Buffer, ...]:
        return tuple(entries[: self._asked])


class _CopiesTheWholeFragment(s.SlotCore):
    """Entries that the slot does not store are copied, too."""

    def start(self) -> list[s.SlotAction]:
        if self.slot.first <= self.slot.last:
            self._wanted = [(self.slot.first, self.slot.last)]
        return super().start()


class _StopsAtTheFirstGap(s.SlotCore):
    """Only the listing's first page counts."""

    def listed(self, status: Status, through: int, runs: Sequence[Run]) -> list[s.SlotAction]:
        last = self._wanted[-1][1]
        if status is Status.OK and through < last:
            return super().listed(status, last, [*runs, (through + 1, last)])
        return super().listed(status, through, runs)


PLANTED = (
    _CommitsFirst,
    _BelievesAcknowledgements,
    _JoinsUnproven,
    _UnknownIsAbsent,
    _UnknownIsHeld,
    _ShortRepliesAreWhole,
    _IgnoresFailedWrites,
    _EncodesAnew,
    _TrustsTheWire,
    _CopiesTheWholeFragment,
    _StopsAtTheFirstGap,
)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda cls: cls.__name__)
def test_planted_bugs_are_found(planted: type[s.SlotCore]) -> None:
    for seed in range(SEEDS):
        try:
            SlotWorld(seed, planted).run()
        except (Violation, InvariantViolation):
            return
    pytest.fail("nothing noticed it")


@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
def test_what_is_missing_is_the_difference(wanted: set[int], held: set[int]) -> None:
    def runs(entries: set[int]) -> list[Run]:
        return [(e, e) for e in sorted(entries)]

    left = {e for a, b in without(runs(wanted), runs(held)) for e in range(a, b + 1)}
    assert left == wanted - held


@given(st.integers(0, 20), st.integers(0, 20), st.sets(st.integers(0, 25)))
def test_a_run_without_what_is_held(first: int, length: int, held: set[int]) -> None:
    joined: list[Run] = []
    for entry in sorted(held):
        if joined and joined[-1][1] + 1 == entry:
            joined[-1] = (joined[-1][0], entry)
        else:
            joined.append((entry, entry))
    left = [e for a, b in without([(first, first + length)], joined) for e in range(a, b + 1)]
    assert left == [e for e in range(first, first + length + 1) if e not in held]
