"""Options and splits: the tables of spec spark §7, without Spark and without files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest

from octavo.client.exports.log_view import PartitionLog
from octavo.client.exports.manifest import Change, FileEntry, ManifestState
from octavo.client.exports.plan import SMALL_LEDGER_BYTES, plan_partition
from octavo.proto.segments import Segment
from octavo.runtime.errors import ConfigError, OctavoError, OffsetOutOfRange
from octavo.runtime.ids import LedgerId
from octavo.spark.options import ReadOptions
from octavo.spark.plan import FileSplit, LedgerSplit, PartitionView, Split, plan, view_of
from tests.unit.test_spark_manifest import entry

BASE = {"octavo.bootstrap.servers": "h:1", "subscribe": "orders"}


def options(**given: str) -> ReadOptions:
    return ReadOptions.parse({**BASE, **given})


def segment(first: int, end: int, *, closed: bool = True) -> Segment:
    return Segment(
        LedgerId(first),
        first,
        end if closed else None,
        100,
        last_append_ms=1,
        max_timestamp_ms=end * 10,
    )


def log(
    *borders: int, start: int = 0, partition: int = 0, open_end: int | None = None
) -> PartitionLog:
    segments = [segment(a, b) for a, b in pairwise(borders)]
    if open_end is not None:
        segments.append(segment(borders[-1], open_end, closed=False))
    end = open_end or max(borders, default=start)
    return PartitionLog(partition, start, end, tuple(segments))


def state(*entries: FileEntry) -> ManifestState:
    return ManifestState().apply(Change(add=entries), 1)


def never(view: PartitionView, time_ms: int) -> int | None:
    raise AssertionError("no time was asked for")


def spans(splits: Sequence[Split]) -> list[tuple[str, int, int]]:
    return [("F" if isinstance(s, FileSplit) else "L", s.first, s.end) for s in splits]


# --- options -------------------------------------------------------------------------------------


def test_defaults() -> None:
    got = options()
    assert (got.start.kind, got.end.kind) == ("earliest", "latest")
    assert not got.include_headers
    assert not got.include_metadata
    assert got.fail_on_data_loss
    assert got.topics == ("orders",)


def test_keys_are_case_insensitive() -> None:
    got = ReadOptions.parse(
        {
            "PATH": "/lake",
            "SubScribe": " a , b,a ",
            "STARTINGOFFSETS": "EARLIEST",
            "minpartitions": "7",
        }
    )
    assert (got.path, got.topics, got.min_partitions) == ("/lake", ("a", "b"), 7)


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"subscribe": "a"}, "octavo.bootstrap.servers"),
        ({"path": "/lake"}, "subscribe"),
        ({**BASE, "assign": '{"a":[0]}'}, "assign"),
        ({**BASE, "subscribePattern": "a.*"}, "subscribePattern"),
        ({"path": "/lake", "subscribe": " , "}, "subscribe"),
        ({"path": "/lake", "subscribePattern": "("}, "subscribePattern"),
        ({"path": "/lake", "assign": "orders"}, "assign"),
        ({"path": "/lake", "assign": "{}"}, "assign"),
        ({"path": "/lake", "assign": '{"a":[]}'}, "assign"),
        ({"path": "/lake", "assign": '{"a":["0"]}'}, "assign"),
        ({"path": "/lake", "assign": '{"a":0}'}, "assign"),
        ({**BASE, "startingOffsets": "latest"}, "startingOffsets"),
        ({**BASE, "startingOffsets": "soon"}, "startingOffsets"),
        ({**BASE, "startingOffsets": "[]"}, "startingOffsets"),
        ({**BASE, "startingOffsets": '{"orders":5}'}, "startingOffsets"),
        ({**BASE, "startingOffsets": '{"orders":"latest"}'}, "startingOffsets"),
        ({**BASE, "startingOffsets": '{"orders":-1}'}, "startingOffsets"),
        ({**BASE, "startingOffsets": '{"orders":true}'}, "startingOffsets"),
        ({**BASE, "startingOffsets": '{"orders":{"0":"latest"}}'}, "startingOffsets"),
        ({**BASE, "endingOffsets": '{"orders":"earliest"}'}, "endingOffsets"),
        ({**BASE, "endingOffsets": '{"orders":-2}'}, "endingOffsets"),
        ({**BASE, "startingOffsetsByTimestamp": '{"orders":-2}'}, "startingOffsetsByTimestamp"),
        ({**BASE, "startingOffsets": '{"orders":{"x":5}}'}, "startingOffsets"),
        ({**BASE, "startingOffsets": '{"orders":{"0":"5"}}'}, "startingOffsets"),
        ({**BASE, "startingOffsets": '{"orders":{"0":true}}'}, "startingOffsets"),
        ({**BASE, "startingOffsets": '{"orders":{"0":-1}}'}, "startingOffsets"),
        ({**BASE, "startingOffsets": '{"orders":{"0":-3}}'}, "startingOffsets"),
        ({**BASE, "endingOffsets": "earliest"}, "endingOffsets"),
        ({**BASE, "endingOffsets": '{"orders":{"0":-2}}'}, "endingOffsets"),
        ({**BASE, "startingTimestamp": "yesterday"}, "startingTimestamp"),
        ({**BASE, "endingOffsetsByTimestamp": "17"}, "endingOffsetsByTimestamp"),
        (
            {**BASE, "startingOffsetsByTimestampStrategy": "guess"},
            "startingOffsetsByTimestampStrategy",
        ),
        ({**BASE, "minPartitions": "0"}, "minPartitions"),
        ({**BASE, "maxRecordsPerPartition": "many"}, "maxRecordsPerPartition"),
        ({**BASE, "includeHeaders": "yes"}, "includeHeaders"),
        ({**BASE, "isolation.level": "serializable"}, "isolation.level"),
        ({**BASE, "path": "/lake", "includeMetadata": "true"}, "includeMetadata"),
        ({**BASE, "startingOffset": "earliest"}, "startingOffset"),
        ({**BASE, "kafka.bootstrap.servers": "h:1"}, "kafka.bootstrap.servers"),
    ],
)
def test_every_bad_option_is_named(given: dict[str, str], option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ReadOptions.parse(given)
    assert caught.value.details["option"] == option
    assert option in caught.value.cause


def test_a_misspelt_end_is_answered_with_the_word_that_was_meant() -> None:
    with pytest.raises(ConfigError, match="'earlyest' is neither earliest nor a JSON") as caught:
        options(startingOffsets="earlyest")
    assert "did you mean 'earliest'?" in caught.value.hint
    with pytest.raises(ConfigError, match="is not JSON"):
        options(startingOffsets='{"orders":')


@pytest.mark.parametrize("all_of_it", ['"earliest"', "-2", '{"0":"earliest"}'])
def test_a_word_of_a_whole_topic_and_of_a_partition(all_of_it: str) -> None:
    got = options(startingOffsets=f'{{"orders":{all_of_it}}}', endingOffsets='{"orders":"latest"}')
    view = view_of("orders", 0, log=log(0, 100, 250, open_end=260), addresses={"b": "h:1"})
    assert spans(plan(got, [view], never)) == [("L", 0, 100), ("L", 100, 250), ("L", 250, 260)]


def test_a_topic_in_offsets_that_is_not_read_is_refused() -> None:
    view = view_of("orders", 0, log=log(0, 100, open_end=None), addresses={"b": "h:1"})
    for value in ('"earliest"', "{}"):
        with pytest.raises(ConfigError, match="'ordrs', which is not read"):
            plan(options(startingOffsets=f'{{"ordrs":{value}}}'), [view], never)


def test_misspelt_option_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean 'startingOffsets'"):
        options(startingOfsets="earliest")


def test_stream_options_are_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    options(maxOffsetsPerTrigger="5")
    assert "maxOffsetsPerTrigger" in caplog.text


def test_timestamp_takes_precedence_as_in_the_kafka_source() -> None:
    got = options(
        startingTimestamp="7",
        startingOffsetsByTimestamp='{"orders":{"0":8}}',
        startingOffsets="earliest",
    )
    assert (got.start.kind, got.start.of("orders", 3)) == ("time", 7)


def test_pattern_covers_whole_names() -> None:
    got = ReadOptions.parse({"path": "/lake", "subscribePattern": "or.*s"})
    assert [got.wants(t) for t in ("orders", "ors", "reorders", "orders2")] == [
        True,
        True,
        False,
        False,
    ]


# --- splits --------------------------------------------------------------------------------------


def test_closed_and_open_segments() -> None:
    view = view_of("orders", 0, log=log(0, 100, 250, open_end=260), addresses={"b": "h:1"})
    got = plan(options(), [view], never)
    assert spans(got) == [("L", 0, 100), ("L", 100, 250), ("L", 250, 260)]
    assert all(isinstance(s, LedgerSplit) and s.addresses == {"b": "h:1"} for s in got)


def test_trimmed_start_cuts_the_first_segment() -> None:
    view = view_of("orders", 0, log=log(0, 100, 200, start=150))
    assert spans(plan(options(), [view], never)) == [("L", 150, 200)]


def test_exported_offsets_come_from_files_and_the_rest_from_ledgers() -> None:
    exported = state(entry(0, 99), entry(103, 199))  # 100..102 were control records
    view = view_of(
        "orders", 0, root="/lake", exported=exported, log=log(0, 100, 200, 300, open_end=310)
    )
    got = plan(options(path="/lake"), [view], never)
    assert spans(got) == [("F", 0, 100), ("F", 103, 200), ("L", 200, 300), ("L", 300, 310)]
    assert isinstance(got[0], FileSplit)
    assert got[0].path.startswith("/lake/orders/p00000-")


def test_exported_offsets_outlive_retention() -> None:
    view = view_of("orders", 0, exported=state(entry(0, 99)), log=log(100, 200, start=100))
    assert spans(plan(options(), [view], never)) == [("F", 0, 100), ("L", 100, 200)]


def test_export_that_began_late() -> None:
    view = view_of("orders", 0, exported=state(entry(100, 199)), log=log(0, 100, 200, 300))
    assert spans(plan(options(), [view], never)) == [
        ("L", 0, 100),
        ("F", 100, 200),
        ("L", 200, 300),
    ]


def test_offsets_cut_only_the_border_files() -> None:
    view = view_of("orders", 0, exported=state(entry(0, 99), entry(100, 199), entry(200, 299)))
    got = plan(
        options(startingOffsets='{"orders":{"0":50}}', endingOffsets='{"orders":{"0":250}}'),
        [view],
        never,
    )
    assert spans(got) == [("F", 50, 100), ("F", 100, 200), ("F", 200, 250)]
    assert [isinstance(s, FileSplit) and s.whole for s in got] == [False, True, False]


def test_missing_partitions_and_special_offsets_take_the_default_end() -> None:
    views = [view_of("orders", p, log=log(0, 100, partition=p)) for p in range(3)]
    got = plan(
        options(
            startingOffsets='{"orders":{"0":-2,"1":40}}', endingOffsets='{"orders":{"0":10,"1":-1}}'
        ),
        views,
        never,
    )
    assert spans(got) == [("L", 0, 10), ("L", 40, 100), ("L", 0, 100)]


def test_order_is_topic_partition_offset() -> None:
    views = [view_of(t, p, log=log(0, 5, 9)) for t, p in (("b", 0), ("a", 10), ("a", 2))]
    got = plan(options(), views, never)
    assert [(s.topic, s.partition, s.first) for s in got] == [
        ("a", 2, 0), ("a", 2, 5), ("a", 10, 0), ("a", 10, 5), ("b", 0, 0), ("b", 0, 5),
    ]  # fmt: skip


def test_empty_topic_and_empty_range_give_no_splits() -> None:
    assert plan(options(), [view_of("orders", 0, log=log(0))], never) == []
    view = view_of("orders", 0, log=log(0, 100))
    same = '{"orders":{"0":40}}'
    assert plan(options(startingOffsets=same, endingOffsets=same), [view], never) == []
    assert plan(options(), [], never) == []


@pytest.mark.parametrize(
    ("given", "error", "details"),
    [
        (
            {"startingOffsets": '{"orders":{"0":49}}'},
            OffsetOutOfRange,
            {"option": "startingOffsets", "offset": 49, "earliest": 50, "latest": 100},
        ),
        (
            {"startingOffsets": '{"orders":{"0":101}}'},
            OffsetOutOfRange,
            {"option": "startingOffsets", "offset": 101},
        ),
        (
            {"endingOffsets": '{"orders":{"0":101}}'},
            OffsetOutOfRange,
            {"option": "endingOffsets", "offset": 101},
        ),
        (
            {"startingOffsets": '{"orders":{"0":80}}', "endingOffsets": '{"orders":{"0":70}}'},
            ConfigError,
            {"option": "startingOffsets", "offset": 80},
        ),
        (
            {"startingOffsets": '{"orders":{"7":80}}'},
            ConfigError,
            {"option": "startingOffsets", "partition": 7},
        ),
        ({"endingOffsets": '{"other":{"0":80}}'}, ConfigError, {"topic": "other"}),
    ],
)
def test_typed_errors_name_the_offending_offset(
    given: dict[str, str], error: type[OctavoError], details: dict[str, object]
) -> None:
    view = view_of("orders", 0, log=log(50, 100, start=50))
    with pytest.raises(error) as caught:
        plan(options(**given), [view], never)
    assert details.items() <= caught.value.details.items()


def test_without_fail_on_data_loss_offsets_are_clamped() -> None:
    view = view_of("orders", 0, log=log(50, 100, start=50))
    got = plan(
        options(
            startingOffsets='{"orders":{"0":3}}',
            endingOffsets='{"orders":{"0":900}}',
            failOnDataLoss="false",
        ),
        [view],
        never,
    )
    assert spans(got) == [("L", 50, 100)]


def test_offsets_lost_between_export_and_cluster_are_data_loss() -> None:
    view = view_of("orders", 0, exported=state(entry(0, 99)), log=log(150, 200, start=150))
    with pytest.raises(OffsetOutOfRange, match="100 to 149"):
        plan(options(), [view], never)
    assert spans(plan(options(failOnDataLoss="false"), [view], never)) == [
        ("F", 0, 100),
        ("L", 150, 200),
    ]
    above = options(startingOffsets='{"orders":{"0":150}}')
    assert spans(plan(above, [view], never)) == [("L", 150, 200)]


@pytest.mark.parametrize(
    ("limit", "want"),
    [
        (1000, [(0, 100), (100, 110)]),
        (100, [(0, 100), (100, 110)]),
        (60, [(0, 50), (50, 100), (100, 110)]),
        (33, [(0, 25), (25, 50), (50, 75), (75, 100), (100, 110)]),
    ],
)
def test_max_records_per_partition(limit: int, want: list[tuple[int, int]]) -> None:
    view = view_of("orders", 0, exported=state(entry(0, 99), entry(100, 109)))
    got = plan(options(maxRecordsPerPartition=str(limit)), [view], never)
    assert [(s.first, s.end) for s in got] == want


@pytest.mark.parametrize(
    ("least", "want"),
    [
        (1, [(0, 100), (100, 110)]),
        (3, [(0, 50), (50, 100), (100, 110)]),
        (5, [(0, 25), (25, 50), (50, 75), (75, 100), (100, 110)]),
    ],
)
def test_min_partitions_cuts_the_largest(least: int, want: list[tuple[int, int]]) -> None:
    view = view_of("orders", 0, exported=state(entry(0, 99), entry(100, 109)))
    got = plan(options(minPartitions=str(least)), [view], never)
    assert [(s.first, s.end) for s in got] == want


def test_min_partitions_ends_at_single_offsets() -> None:
    view = view_of("orders", 0, log=log(0, 3))
    assert len(plan(options(minPartitions="50"), [view], never)) == 3


def test_timestamps_are_looked_up() -> None:
    views = [view_of("orders", p, log=log(0, 100, partition=p)) for p in range(2)]

    def find(view: PartitionView, time_ms: int) -> int | None:
        return {(0, 5): 20, (0, 9): 70, (1, 5): 30, (1, 9): None}[view.partition, time_ms]

    got = plan(options(startingTimestamp="5", endingTimestamp="9"), views, find)
    assert [(s.partition, s.first, s.end) for s in got] == [(0, 20, 70), (1, 30, 100)]


def test_start_after_the_last_record_is_an_error_or_nothing() -> None:
    view = view_of("orders", 0, log=log(0, 100))
    by_time = json.dumps({"orders": {"0": 12345}})
    with pytest.raises(OffsetOutOfRange) as caught:
        plan(options(startingOffsetsByTimestamp=by_time), [view], lambda _, __: None)
    assert caught.value.details["timestamp_ms"] == 12345
    got = plan(
        options(startingOffsetsByTimestamp=by_time, startingOffsetsByTimestampStrategy="latest"),
        [view],
        lambda _, __: None,
    )
    assert got == []


# --- what an export run copies -------------------------------------------------------------------


def test_export_takes_closed_ledgers_before_the_first_open_one() -> None:
    segments = (segment(0, 10), segment(10, 20, closed=False), segment(20, 30))
    got = plan_partition(PartitionLog(0, 0, 30, segments), ManifestState())
    assert [s.ledger_id for g in got.groups for s in g.segments] == [0]
    assert got.open_ledgers == 1


def test_export_resumes_where_the_manifest_ends() -> None:
    got = plan_partition(log(0, 100, 200, 300), state(entry(0, 199)))
    assert [s.base_offset for g in got.groups for s in g.segments] == [200]
    assert got.resume_at == 200
    assert got.lost is None


def test_empty_ledgers_are_not_work() -> None:
    got = plan_partition(log(0, 0, 10, 10), ManifestState())
    assert [s.end_offset for g in got.groups for s in g.segments] == [10]


def test_limit_of_joining() -> None:
    sized = [Segment(LedgerId(n), n * 10, n * 10 + 10, SMALL_LEDGER_BYTES // 2) for n in range(5)]
    got = plan_partition(PartitionLog(0, 0, 50, tuple(sized)), ManifestState())
    assert [len(g.segments) for g in got.groups] == [2, 2, 1]
