"""Passes of the cleaner against a dictionary of all records, and bugs it finds (K4, K5, K8)."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from octavo.metadata.partition_record import CleanMark
from octavo.proto import batch as batches
from octavo.proto.batch_arrow import KeyColumns, join_keys
from octavo.proto.compacted import without_records
from octavo.proto.offset_map import OffsetMap
from octavo.runtime.checksum import Buffer
from octavo.serving.compaction import cleaning as cleaning_module
from octavo.serving.compaction.cleaning import Cleaning, Left, Scope, Verified
from octavo.serving.compaction.marks import after_pass, tombstones_below
from tests.cleaning_world import AfterPass, BrokenPromise, CleanedLog, run, run_often

SEEDS = 60
STEPS = 50


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_cleaned_log_says_what_the_whole_log_said(seed: int) -> None:
    log = CleanedLog(seed)
    run(log, STEPS)
    assert log.passes > 2
    run_often(CleanedLog(seed))


def test_the_stories_have_what_they_are_about() -> None:
    """Passes that end early for memory, trims, and tombstones that go."""
    logs = [CleanedLog(seed) for seed in range(20)]
    for log in logs:
        run(log, STEPS)
    assert sum(log.short_passes for log in logs) > 20
    assert sum(log.log_start > 0 for log in logs) > 5


class KeepsTheFirst(Cleaning):
    def _keep(self, columns: KeyColumns) -> pa.Array:
        last = self._map.last_offsets(columns.keys)
        return pc.fill_null(pc.equal(columns.offsets, pc.min(last)), True)


class DropsTheLastToo(Cleaning):
    def _keep(self, columns: KeyColumns) -> pa.Array:
        last = self._map.last_offsets(columns.keys)
        return pc.fill_null(pc.greater(columns.offsets, last), True)


class ForgetsTombstonesAtOnce(Cleaning):
    """K5: readers who are on their way must see them."""

    def __init__(self, scope: Scope, memory_bytes: int) -> None:
        super().__init__(scope, memory_bytes)
        self.scope = scope._replace(tombstones_below=scope.end)


class KeepsTombstonesForEver(Cleaning):
    def __init__(self, scope: Scope, memory_bytes: int) -> None:
        super().__init__(scope._replace(tombstones_below=0), memory_bytes)


class TakesEmptyForDeleted(Cleaning):
    """G6: b"" is a value."""

    def clean(self, batches: Sequence[Verified]) -> list[Left]:
        return super().clean([one for one in batches if b"".join(_values(one[0]))])


class DropsWhatHasNoKey(Cleaning):
    def _keep(self, columns: KeyColumns) -> pa.Array:
        return pc.and_(super()._keep(columns), columns.keys.is_valid())


class SaysItReachedTheEnd(Cleaning):
    """What did not fit its memory is not clean."""

    def learn(self, batches: Sequence[Verified]) -> bool:
        taken = super().learn(batches)
        self.end = self.scope.end
        return taken


class DecidesForWholeBatches(Cleaning):
    """K8: per record, never per batch."""

    def clean(self, batches: Sequence[Verified]) -> list[Left]:
        left = super().clean(batches)
        whole = {one[1].base_offset: Left(*one) for one in batches}
        return [whole[one.header.base_offset] for one in left]


class LearnsOnlyKeys(Cleaning):
    """What is dirty and behind the end of a pass may not be lost."""

    def learn(self, batches: Sequence[Verified]) -> bool:
        wanted = join_keys(batches)
        newest = pc.add(pc.multiply(wanted.offsets, 0), self.scope.end)
        valid = wanted.keys.is_valid()
        return self._map.offer(wanted.keys.filter(valid), newest.filter(valid))


def _values(batch: Buffer) -> list[bytes]:
    return [value or b"" for value in batches.decode_rows(batch).values]


def forgets_marks(marks: Sequence[CleanMark], **told: int) -> tuple[CleanMark, ...]:
    """The newest pass is when everything became clean: then nothing ever gets old enough."""
    made = after_pass(marks, **told)
    return made[-1:]


def back_dates(marks: Sequence[CleanMark], **told: int) -> tuple[CleanMark, ...]:
    """The time of the first mark for all that follows."""
    made = after_pass(marks, **told)
    return tuple(mark._replace(since_ms=made[0].since_ms) for mark in made)


BUGS: list[type[Cleaning]] = [
    KeepsTheFirst,
    DropsTheLastToo,
    ForgetsTombstonesAtOnce,
    KeepsTombstonesForEver,
    TakesEmptyForDeleted,
    DropsWhatHasNoKey,
    SaysItReachedTheEnd,
    DecidesForWholeBatches,
    LearnsOnlyKeys,
]


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: type[Cleaning]) -> None:
    assert _is_found(bug, after_pass), f"{bug.__name__} was not found"


@pytest.mark.parametrize("bug", [forgets_marks, back_dates])
def test_planted_bugs_of_marks_are_found(bug: AfterPass) -> None:
    assert _is_found(Cleaning, bug), f"{bug.__name__} was not found"


def test_offsets_that_close_up_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """K4: all offsets stay."""
    real = without_records

    def renumbered(batch: Buffer, header: batches.BatchHeader, keep: pa.Array) -> list[bytes]:
        rows = batches.decode_rows(real(batch, header, keep)[0])
        made = batches.encode(rows.timestamps_ms, rows.keys, rows.values, rows.headers)
        return [
            batches.stamp(made, base_offset=header.base_offset, owner_epoch=3, append_time_ms=0)
        ]

    monkeypatch.setattr(cleaning_module, "without_records", renumbered)
    assert _is_found(Cleaning, after_pass)


def _is_found(cleaning: type[Cleaning], marking: AfterPass) -> bool:
    for seed in range(SEEDS):
        try:
            run(CleanedLog(seed, cleaning=cleaning, marking=marking), STEPS)
            run_often(CleanedLog(seed, cleaning=cleaning, marking=marking))
        except BrokenPromise:
            return True
    return False


@pytest.mark.parametrize("retention_ms", [0, 1_000, 86_400_000])
def test_marks_stay_few_however_often_a_log_is_cleaned(retention_ms: int) -> None:
    marks: tuple[CleanMark, ...] = ()
    most = 0
    for now_ms in range(0, 3_000_000_000, 15_000 * 100):
        below = tombstones_below(marks, retention_ms, now_ms)
        marks = after_pass(
            marks,
            removed_below=below,
            end_offset=now_ms + 1,
            retention_ms=retention_ms,
            now_ms=now_ms,
        )
        most = max(most, len(marks))
    assert most <= 2 * 64 + 4


def test_a_map_takes_one_offer_however_small_it_is_and_says_when_it_is_full() -> None:
    small = OffsetMap(1)
    keys = pa.array([b"a", b"b", b"a"], pa.binary())
    assert small.offer(keys, pa.array([1, 2, 3], pa.int64()))
    assert not small.offer(pa.array([b"c"], pa.binary()), pa.array([4], pa.int64()))
    asked = pa.array([b"a", b"c", None, b"b"], pa.binary())
    assert small.last_offsets(asked).to_pylist() == [3, None, None, 2]
    assert len(small) == 2


def test_a_map_stays_within_its_memory() -> None:
    limit = 200_000
    bounded = OffsetMap(limit)
    taken = 0
    for first in range(0, 1_000_000, 500):
        keys = pa.array([b"key-%07d" % i for i in range(first, first + 500)], pa.binary())
        if not bounded.offer(keys, pa.array(range(first, first + 500), pa.int64())):
            break
        taken += 500
        assert bounded.size_bytes <= limit
    assert limit // 40 < taken < limit // 20
    assert len(bounded) == taken


def test_a_map_that_sees_its_keys_again_does_not_fill_up() -> None:
    bounded = OffsetMap(50_000)
    keys = pa.array([b"key-%04d" % i for i in range(500)], pa.binary())
    for turn in range(300):
        assert bounded.offer(keys, pa.array(range(turn * 500, turn * 500 + 500), pa.int64()))
    assert bounded.last_offsets(keys.slice(0, 1)).to_pylist() == [299 * 500]
