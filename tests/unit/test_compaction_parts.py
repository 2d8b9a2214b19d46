"""The small parts of compaction: what is due, which segments, lists, the tail cache, the pace."""

from __future__ import annotations

import asyncio
import random
import uuid
from dataclasses import replace

import pyarrow as pa
import pytest

from octavo.metadata.partition_record import (
    FORMAT_VERSION,
    RESERVED,
    CleanMark,
    PartitionState,
    TrashedLedger,
)
from octavo.proto import batch as batches
from octavo.proto.batch import decode_rows, encode, stamp, verify
from octavo.proto.compacted import without_records
from octavo.proto.compression import Codec
from octavo.proto.opened_batches import first_without_key
from octavo.proto.segments import Segment
from octavo.runtime.clock import ManualClock
from octavo.runtime.errors import InvariantViolation, MetadataCorrupt, UnsupportedVersion
from octavo.runtime.ids import EntryId, LedgerId
from octavo.serving.cache import TailCache
from octavo.serving.compaction import lists
from octavo.serving.compaction.plan import CompactionRule, Listed, cleanable, dirtiness
from octavo.serving.pace import Pace

RULE = CompactionRule(0.5, 0, 1_000_000, 1_000, 1 << 20)


def segment(number: int, base: int, end: int | None, **more: object) -> Segment:
    fields: dict[str, object] = {
        "size_bytes": 100,
        "first_append_ms": 10 * number,
        "last_append_ms": 10 * number + 5,
        "last_entry": EntryId(3),
    }
    return Segment(LedgerId(number), base, end, **(fields | more))  # type: ignore[arg-type]


THREE = (segment(1, 0, 10), segment(2, 10, 20), segment(3, 20, 30))
OPEN = Segment(LedgerId(4), 30)


def listed(closed: tuple[Segment, ...] = THREE, follows: Segment | None = OPEN) -> Listed:
    return Listed(closed, follows, 0, 40, 0, ())


# --- K2, K3 -------------------------------------------------------------------------------------


def test_k2_the_active_segment_is_never_cleaned_nor_the_one_with_the_newest_snapshot() -> None:
    assert cleanable(listed(), RULE, 1_000) == THREE
    assert cleanable(listed(follows=None), RULE, 1_000) == THREE[:2]
    assert cleanable(listed((), None), RULE, 1_000) == ()


def test_k2_what_is_young_or_not_stable_ends_the_range() -> None:
    lagging = RULE._replace(min_lag_ms=100)
    assert cleanable(listed(), lagging, 125) == THREE[:2]
    assert cleanable(listed(), lagging, 124) == THREE[:1]
    unknown = (THREE[0], replace(THREE[1], last_append_ms=None), THREE[2])
    assert cleanable(listed(unknown), lagging, 10_000) == THREE[:1]
    assert cleanable(listed(unknown)._replace(cleaned_to=20), lagging, 10_000) == unknown
    assert cleanable(listed()._replace(stable_end=29), RULE, 1_000) == THREE[:2]


def test_k3_a_pass_is_due_by_how_much_is_dirty_or_how_old() -> None:
    half = dirtiness(THREE[:2], 10)
    assert (half.ratio, half.oldest_ms) == (0.5, 20)
    assert not half.is_due(RULE, 1_000)
    assert half.is_due(RULE._replace(min_dirty_ratio=0.4), 1_000)
    assert half.is_due(RULE._replace(max_lag_ms=500), 521)
    assert not half.is_due(RULE._replace(max_lag_ms=500), 520)
    clean = dirtiness(THREE, 30)
    assert not clean.is_due(RULE._replace(min_dirty_ratio=0, max_lag_ms=1), 1 << 40)
    assert dirtiness((), 0).ratio == 0
    assert dirtiness(THREE, 0).is_due(RULE._replace(min_dirty_ratio=0.99), 0)


# --- K7: the list -------------------------------------------------------------------------------


STATE = PartitionState(
    uuid.UUID(int=1), 0, segments=(*THREE, OPEN), owner_epoch=1, max_ledger_id_ever=4
)


def test_k7_a_reserved_ledger_takes_the_place_of_those_it_replaces() -> None:
    reserved = lists.reserved(STATE, LedgerId(9), 5)
    STATE.check_successor(reserved)
    assert reserved.trash == (TrashedLedger(LedgerId(9), RESERVED, 5),)
    assert lists.reserved(reserved, LedgerId(9), 6) is reserved
    later = replace(reserved, max_ledger_id_ever=12)  # rolled meanwhile
    new = segment(9, 0, 20, compacted=True)
    after = lists.replaced(later, [LedgerId(1), LedgerId(2)], new, 7)
    later.check_successor(after)
    assert after.segments == (new, THREE[2], OPEN)
    assert {(item.ledger_id, item.reason) for item in after.trash} == {
        (1, lists.COMPACTED),
        (2, lists.COMPACTED),
    }
    assert after.max_ledger_id_ever == 12
    assert lists.replaced(after, [LedgerId(1), LedgerId(2)], new, 8) is after
    stored = PartitionState.from_bytes(after.to_bytes())
    assert stored == after


def test_k7_what_is_not_there_any_more_is_not_replaced() -> None:
    new = segment(9, 0, 20, compacted=True)
    assert lists.replaced(STATE, [LedgerId(1), LedgerId(2)], new, 7) is STATE, "swept"
    trimmed = replace(lists.reserved(STATE, LedgerId(9), 5), segments=(*THREE[1:], OPEN))
    assert lists.replaced(trimmed, [LedgerId(1), LedgerId(2)], new, 7) is trimmed
    reserved = lists.reserved(STATE, LedgerId(9), 5)
    assert lists.replaced(reserved, [LedgerId(1), LedgerId(3)], new, 7) is reserved
    with pytest.raises(InvariantViolation):
        lists.replaced(reserved, [LedgerId(1)], new, 7)


def test_only_reserved_ledgers_come_back_out_of_the_trash() -> None:
    trashed = replace(STATE, trash=(TrashedLedger(LedgerId(3), "trimmed", 1),), segments=(OPEN,))
    back = replace(STATE, segments=(segment(3, 20, 30), OPEN))
    with pytest.raises(InvariantViolation, match="ML-3"):
        trashed.check_successor(back)


def test_records_without_compaction_are_stored_as_before() -> None:
    """Builds before this one read them; the others they refuse instead of serving them wrong."""
    assert STATE.to_bytes()[:2] == b"\x08\x01"
    cleaned = lists.cleaned(STATE, 20, (CleanMark(20, 7),))
    assert cleaned.to_bytes()[:2] == b"\x08\x02"
    assert PartitionState.from_bytes(cleaned.to_bytes()) == cleaned
    with pytest.raises(UnsupportedVersion):
        PartitionState.from_bytes(bytes((8, FORMAT_VERSION + 1)) + cleaned.to_bytes()[2:])
    assert lists.cleaned(cleaned, 10, ()) is cleaned
    with pytest.raises(InvariantViolation, match="moved back"):
        cleaned.check_successor(replace(cleaned, cleaned_to=10))
    crowded = replace(cleaned, clean_marks=(CleanMark(1, 1),) * 300)
    with pytest.raises(MetadataCorrupt, match="impossible"):
        PartitionState.from_bytes(crowded.to_bytes())


def test_ids_grow_along_the_list_but_for_compacted_segments() -> None:
    disorder = replace(STATE, segments=(segment(3, 0, 10), segment(1, 10, 20)))
    assert disorder.problem() == "ledger ids do not increase"
    fine = replace(STATE, segments=(segment(4, 0, 10, compacted=True), segment(1, 10, 20)))
    assert fine.problem() is None


# --- batches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("count", [1, 7, 8, 9, 300])
def test_k1_the_first_record_without_a_key_is_named(codec: Codec, count: int) -> None:
    keys: list[bytes | None] = [b"" if i % 2 else b"key" for i in range(count)]
    whole = encode([1] * count, keys, [None] * count, codec=codec)
    assert first_without_key(whole, verify(whole)) is None
    for at in {0, count // 2, count - 1}:
        missing = [None if i >= at else key for i, key in enumerate(keys)]
        found = encode([1] * count, missing, [b"v"] * count, codec=codec)
        assert first_without_key(found, verify(found)) == at


def test_k8_a_batch_that_would_get_too_large_divides_its_place() -> None:
    chance = random.Random(1)
    count = 40_000
    keys = [chance.randbytes(60) for _ in range(count)]
    room = batches.MAX_BATCH_BYTES - 80 - 2 * (4 * count + 6_000) - 8 * count - 60 * count
    values = [chance.randbytes(room // count) for _ in range(count)]
    made = encode([1] * count, keys, values, codec=Codec.NONE, producer_id=3, base_sequence=50)
    whole = stamp(made, base_offset=1_000, owner_epoch=2, append_time_ms=9)
    keep = pa.array([i != 5 for i in range(count)], pa.bool_())
    pieces = without_records(whole, verify(whole), keep)
    assert len(pieces) == 2
    rows = [decode_rows(piece) for piece in pieces]
    assert [offset for row in rows for offset in row.offsets] == [
        *range(1_000, 1_005),
        *range(1_006, 1_000 + count),
    ]
    assert rows[0].header.base_offset == 1_000
    assert rows[0].header.next_offset == rows[1].header.base_offset
    assert rows[1].header.next_offset == 1_000 + count
    assert rows[1].header.base_sequence - 50 == rows[1].header.base_offset - 1_000
    assert [key for row in rows for key in row.keys] == keys[:5] + keys[6:]


# --- the tail, the pace -------------------------------------------------------------------------


def test_a_tail_forgets_what_lies_below_and_the_budget_stays_right() -> None:
    cache = TailCache(10_000)
    mine, other = cache.tail(), cache.tail()
    for i in range(10):
        mine.append(i, i + 1, b"x" * 10)
        other.append(i, i + 1, b"y" * 10)
    used = cache.used_bytes
    mine.drop_below(4)
    assert (mine.start_offset, other.start_offset) == (4, 0)
    assert cache.used_bytes == used * 16 // 20
    mine.drop_below(4)
    for i in range(10, 200):
        mine.append(i, i + 1, b"x" * 10)
        other.append(i, i + 1, b"y" * 10)
        assert cache.used_bytes <= 10_000
    assert len(mine) + len(other) == cache.used_bytes // 130
    assert mine.read(199, 100, at_least_one=True).batches == [b"x" * 10]
    mine.drop_below(1_000)
    assert len(mine) == 0
    mine.close()
    other.close()
    assert cache.used_bytes == 0


async def test_a_pace_lets_bytes_through_at_its_rate() -> None:
    clock = ManualClock()
    pace = Pace(1_000, clock)
    await pace.spend(500)
    second, third = (asyncio.ensure_future(pace.spend(500)) for _ in range(2))
    await asyncio.sleep(0)
    assert not second.done()
    clock.advance(0.5)
    await second
    assert not third.done()
    clock.advance(0.5)
    await third
    await Pace(0, clock).spend(1 << 40)
