"""What tiering does to a list, what it may not do, and which topics may have it (F088, ADR 70)."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.metadata.partition_record import (
    FORMAT_VERSION,
    PartitionState,
    TrashedLedger,
)
from octavo.proto import records_pb2
from octavo.proto.segment_codecs import from_record, to_record
from octavo.proto.segments import Segment
from octavo.runtime.errors import InvalidConfig, InvariantViolation, MetadataCorrupt
from octavo.runtime.ids import NO_ENTRY, EntryId, LedgerId
from octavo.serving.compaction.plan import CompactionRule, Listed, cleanable
from octavo.serving.retention import KEEP_ALL, RetentionRule
from octavo.serving.segments import (
    claimed,
    due_trash,
    emptied,
    newest_snapshot,
    to_recover,
    trimmed,
    without_trash,
)
from octavo.serving.tiering.lists import (
    TIERED,
    copied,
    due_objects,
    freed,
    may_go,
    without_objects,
)
from octavo.serving.tiering.plan import TieredSizes, sizes, to_copy, to_free, wants_an_owner
from octavo.serving.topic_config import check_tier_root, parse_topic_config, settings_of
from tests.serving_rig import make_config

NOW_MS = 10_000


def listed(closed: int, *, is_open: bool = True) -> PartitionState:
    """So many segments of 10 offsets and 100 bytes, appended 1 s one after the other."""
    segments = [
        Segment(
            LedgerId(n + 1), n * 10, n * 10 + 10, 100, n * 1_000 + 1, n * 1_000 + 500, EntryId(4)
        )
        for n in range(closed)
    ]
    if is_open:
        segments.append(Segment(LedgerId(closed + 1), closed * 10))
    return PartitionState(
        uuid.UUID(int=7), 0, tuple(segments), owner_epoch=1, max_ledger_id_ever=closed + 1
    )


def all_copied(state: PartitionState, version: int = 3) -> PartitionState:
    return copied(state, {one.ledger_id for one in state.segments}, version)


def places(state: PartitionState) -> str:
    return "".join(
        "f" if not one.in_ledger else "l" if one.object_version is None else "b"
        for one in state.segments
    )


def free(state: PartitionState, *ids: int, snapshot: int | None = None) -> PartitionState:
    wanted = {LedgerId(one) for one in ids}
    opened = LedgerId(snapshot) if snapshot is not None else None
    return freed(state, wanted, now_ms=NOW_MS, open_snapshot=opened)


# --- the list ----------------------------------------------------------------------------------


def test_8_9_files_are_named_first_and_the_ledger_goes_by_a_later_list() -> None:
    state = listed(4)
    named = all_copied(state)
    assert places(named) == "bbbbl"
    assert all_copied(named, 9) == named  # named once
    gone = free(named, 1, 2)
    assert places(gone) == "ffbbl"
    assert gone.trash == tuple(TrashedLedger(LedgerId(n), TIERED, NOW_MS) for n in (1, 2))
    state.check_successor(named)
    named.check_successor(gone)
    with pytest.raises(InvariantViolation, match="before a list named its files"):
        state.check_successor(gone)
    with pytest.raises(InvariantViolation, match="went and came back"):
        gone.check_successor(named)
    with pytest.raises(InvariantViolation, match="moved back"):
        named.check_successor(state)
    assert free(gone, 1, 2) == gone  # nothing is left to do
    assert free(state, 1) == state  # no file holds it


def test_i10_ml4_what_an_opener_needs_stays_in_ledgers() -> None:
    named = all_copied(listed(4))
    every = [one.ledger_id for one in named.segments]
    # Without a durable snapshot in the open ledger the last closed one has the newest.
    assert places(free(named, *every)) == "fffbl"
    assert places(free(named, *every, snapshot=5)) == "fffbl"  # ML-4: the last two are looked at
    ended = all_copied(listed(4, is_open=False))
    assert places(free(ended, 1, 2, 3, 4)) == "ffbb"
    empty_last = replace(
        ended, segments=(*ended.segments[:3], replace(ended.segments[3], last_entry=NO_ENTRY))
    )
    assert places(free(empty_last, 1, 2, 3)) == "ffbb"
    assert [one.ledger_id for one in to_recover(free(ended, 1, 2))] == [3, 4]
    assert may_go(listed(1), None) == ()


def test_a_list_that_lost_its_last_ledger_or_both_places_is_refused() -> None:
    named = all_copied(listed(2, is_open=False))
    last = replace(named, segments=(named.segments[0], replace(named.segments[1], in_ledger=False)))
    assert "is not there" in str(last.problem())
    nowhere = replace(listed(2), segments=(replace(listed(2).segments[0], in_ledger=False),))
    assert "neither" in str(nowhere.problem())
    opened = replace(listed(0).segments[0], object_version=2)
    assert "lies in files" in str(replace(listed(0), segments=(opened,)).problem())
    with pytest.raises(MetadataCorrupt, match="is not there"):
        PartitionState.from_bytes(last.to_bytes())
    appended = replace(named.segments[1], ledger_id=LedgerId(9), base_offset=20, end_offset=30)
    born = replace(
        named,
        segments=(*named.segments, replace(appended, in_ledger=False), listed(3).segments[3]),
        max_ledger_id_ever=10,
    )
    with pytest.raises(InvariantViolation):
        named.check_successor(born)


def test_earlier_builds_refuse_such_lists_and_other_lists_stay_as_they_were() -> None:
    def version(state: PartitionState) -> int:
        stored = state.to_bytes()
        assert PartitionState.from_bytes(stored) == state
        return records_pb2.PartitionRecord.FromString(stored).format_version

    plain = listed(3)
    assert version(plain) == 1
    named = all_copied(plain)
    assert version(named) == FORMAT_VERSION
    gone = free(named, 1)
    assert version(gone) == FORMAT_VERSION
    emptied_list = emptied(gone, "topic deleted", NOW_MS)
    assert version(emptied_list) == FORMAT_VERSION  # its trash has files
    for one in gone.segments:
        assert from_record(to_record(one)) == one


def test_a_trim_takes_files_along_and_each_ledger_is_in_the_trash_once() -> None:
    gone = free(all_copied(listed(4)), 1, 2)
    cut = trimmed(gone, 20, reason="retention", now_ms=NOW_MS + 5)
    assert places(cut) == "bbl"
    assert cut.trash == tuple(
        TrashedLedger(LedgerId(n), "retention", NOW_MS + 5, has_objects=True) for n in (1, 2)
    )
    # A sweep that began before the trim does not make it forgotten that there are files.
    assert without_trash(cut, gone.trash) == cut
    assert due_trash(cut, NOW_MS + 100, 0) == []  # files first
    assert due_objects(cut, NOW_MS + 4, 0) == []
    assert [one.ledger_id for one in due_objects(cut, NOW_MS + 15, 10)] == [1, 2]
    cleared = without_objects(cut, {LedgerId(1), LedgerId(2)})
    assert [one.ledger_id for one in due_trash(cleared, NOW_MS + 100, 0)] == [1, 2]
    assert without_objects(cleared, {LedgerId(1)}) == cleared
    plain = trimmed(listed(4), 20, reason="retention", now_ms=NOW_MS)
    assert not any(one.has_objects for one in plain.trash)
    assert all(
        one.has_objects for one in trimmed(all_copied(listed(4)), 20, reason="", now_ms=1).trash
    )


def test_a_ledger_whose_segment_is_in_files_is_swept_although_it_is_listed() -> None:
    gone = free(all_copied(listed(4)), 1)
    assert [one.ledger_id for one in due_trash(gone, NOW_MS, 0)] == [1]
    swept = without_trash(gone, gone.trash)
    gone.check_successor(swept)
    assert places(swept) == "fbbbl"


@given(st.lists(st.tuples(st.sampled_from("ncftso"), st.integers(0, 60)), max_size=40))
def test_no_order_of_changes_loses_a_place_or_makes_a_list_that_is_refused(
    steps: list[tuple[str, int]],
) -> None:
    """Of each retained offset there is a ledger, or files that were named before it went."""
    state, named = listed(5), set[int]()
    for what, number in steps:
        before = state
        if what == "c":
            state = copied(state, {LedgerId(number % 7)}, 3)
        elif what == "f":
            state = free(state, *range(number % 8), snapshot=6)
        elif what == "t":
            cut = min(number, 50)
            state = trimmed(state, cut, reason="t", now_ms=NOW_MS, open_snapshot=LedgerId(6))
        elif what == "s":
            state = without_trash(state, due_trash(state, NOW_MS, 0))
        elif what == "o":
            state = without_objects(state, {LedgerId(number % 7)})
        before.check_successor(state)
        assert PartitionState.from_bytes(state.to_bytes()) == state
        for one in state.segments:
            assert one.in_ledger or one.ledger_id in named
        named |= {one.ledger_id for one in state.segments if one.object_version is not None}
        ids = [one.ledger_id for one in state.trash]
        assert len(ids) == len(set(ids))
        here = {one.ledger_id for one in state.segments if one.in_ledger}
        assert not here & set(ids), "a ledger that is read lies in the trash"
        assert newest_snapshot(state, LedgerId(6)) == len(state.segments) - 1
        end = claimed(state, {LedgerId(6): replace(state.segments[-1], end_offset=50)}, NOW_MS)
        assert end.problem() is None


# --- what is due -------------------------------------------------------------------------------


def test_closed_segments_are_copied_whatever_their_age_and_go_by_local_retention() -> None:
    state = listed(5)
    assert [one.ledger_id for one in to_copy(state)] == [1, 2, 3, 4, 5]
    assert to_copy(replace(state, log_start_offset=30))[0].ledger_id == 4
    named = all_copied(state)
    assert to_copy(named) == ()

    def due(rule: RetentionRule, now_ms: int = NOW_MS, open_bytes: int = 0) -> list[int]:
        found = to_free(
            named, rule, open_bytes=open_bytes, open_snapshot=LedgerId(6), now_ms=now_ms
        )
        return [one.ledger_id for one in found]

    assert due(KEEP_ALL) == []
    assert due(RetentionRule(-1, 250)) == [1, 2]
    assert due(RetentionRule(-1, 250), open_bytes=100) == [1, 2, 3]
    assert due(RetentionRule(-1, 0)) == [1, 2, 3, 4]  # the last two stay
    assert due(RetentionRule(8_000, -1)) == [1, 2]
    assert due(RetentionRule(8_000, -1), now_ms=1) == []
    below = to_free(
        replace(named, log_start_offset=20),
        RetentionRule(-1, 0),
        open_bytes=0,
        open_snapshot=LedgerId(6),
        now_ms=NOW_MS,
    )
    assert [one.ledger_id for one in below] == [3, 4]  # the files of the others are gone
    half = copied(state, {LedgerId(1), LedgerId(3)}, 2)
    found = to_free(
        half, RetentionRule(-1, 0), open_bytes=0, open_snapshot=LedgerId(6), now_ms=NOW_MS
    )
    assert [one.ledger_id for one in found] == [1, 3]  # no file holds the second


def test_a_partition_nobody_serves_is_opened_for_what_is_due() -> None:
    rule, keep = RetentionRule(-1, 0), KEEP_ALL
    ended = listed(3, is_open=False)
    named = all_copied(ended)

    def wants(state: PartitionState, rule: RetentionRule | None) -> bool:
        return wants_an_owner(state, rule, now_ms=NOW_MS, trash_delay_ms=0)

    assert wants(ended, keep)
    assert not wants(ended, None)  # no tiering
    assert not wants(named, keep)
    assert wants(named, rule)
    gone = free(named, 1)
    assert not wants(gone, rule)
    cut = trimmed(gone, 10, reason="t", now_ms=NOW_MS)
    assert wants(cut, None)  # files are to be removed, whatever the topic says now


def test_sizes_say_where_the_bytes_are_and_what_waits() -> None:
    state = free(copied(listed(4), {LedgerId(1), LedgerId(2)}, 1), 1)
    assert sizes(state.segments, 0) == TieredSizes(300, 200, 200)
    assert sizes(state.segments, 40) == TieredSizes(300, 200, 0)


def test_a_log_with_files_is_not_cleaned() -> None:
    """A tombstone that goes would let older records come back that lie in files."""
    state = listed(4)
    rule = CompactionRule(0.0, 0, 1, 0, 1 << 20)

    def found(state: PartitionState) -> int:
        closed = tuple(one for one in state.segments if one.closed)
        return len(cleanable(Listed(closed, state.segments[-1], 0, 40, 0, ()), rule, NOW_MS))

    assert found(state) == 4
    assert found(copied(state, {LedgerId(1)}, 1)) == 0


# --- settings ----------------------------------------------------------------------------------


def test_local_retention_is_that_of_the_topic_unless_it_says_less() -> None:
    config = make_config()
    plain = parse_topic_config({"tiering": "true", "retention.ms": "5000"}, config)
    assert plain.is_tiered
    assert plain.local_retention == RetentionRule(5_000, -1)
    local = {"retention.local.ms": "1000", "retention.local.bytes": "70"}
    less = parse_topic_config({"tiering": "true", **local}, config)
    assert less.local_retention == RetentionRule(1_000, 70)
    assert not parse_topic_config({}, config).is_tiered


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tiering": "yes"}, "must be one of false, true"),
        ({"tiering": "true", "cleanup.policy": "compact"}, "replaces them"),
        ({"tiering": "true", "cleanup.policy": "compact,delete"}, "replaces them"),
        ({"tiering": "true", "retention.ms": "10", "retention.local.ms": "11"}, "is more than"),
        ({"tiering": "true", "retention.ms": "10", "retention.local.ms": "-1"}, "is more than"),
        (
            {"tiering": "true", "retention.bytes": "10", "retention.local.bytes": "11"},
            "is more than",
        ),
        ({"retention.local.ms": "-3"}, "between -2"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        parse_topic_config(given, make_config())


def test_tiering_needs_a_place_to_copy_to() -> None:
    tiered = parse_topic_config({"tiering": "true"}, make_config())
    with pytest.raises(InvalidConfig, match="not told where") as refused:
        check_tier_root(tiered, make_config())
    assert "OCTAVO_BROKER_TIER_ROOT" in str(refused.value)
    check_tier_root(tiered, make_config(tier_root="/somewhere"))
    check_tier_root(parse_topic_config({}, make_config()), make_config())


def test_a_stored_setting_that_this_build_cannot_read_frees_nothing() -> None:
    stored = {"tiering": "true", "retention.local.bytes": "much"}
    assert not settings_of(stored, make_config()).is_tiered
