"""Options of `format("octavo")`: names and meaning of Spark's Kafka source (spec/spark.md §7).

Pure parsing: strings in, one frozen value out. Keys are case-insensitive. An unknown key, a value
that does not parse or two options that exclude each other raise ConfigError, whose
`details["option"]` names the culprit.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NoReturn, cast

from octavo.proto.edges import EARLIEST, EDGE_WORDS, LATEST, Edge
from octavo.runtime.errors import ConfigError
from octavo.runtime.suggestion import did_you_mean

_log = logging.getLogger("octavo.spark")

BATCH_OPTIONS = (
    "octavo.bootstrap.servers",
    "path",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "maxRecordsPerPartition",
    "compacted",
    "dropTombstones",
    "includeHeaders",
    "includeMetadata",
    "failOnDataLoss",
    "isolation.level",
)
STREAM_OPTIONS = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "groupId",
)
"""Streams only; a batch read logs a warning and goes on, as the Kafka source does."""
ENDINGS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
"""A stream has no end: it refuses them, as the Kafka source does."""
MAX_TRIGGER_DELAY = "15m"
"""How long `minOffsetsPerTrigger` may hold records back unless `maxTriggerDelay` says otherwise."""
TOPIC_IDS = "@topicIds"
"""Beside the topics in the JSON of a stream's offsets: which topics they are. No topic may have
such a name."""

PerPartition = Mapping[str, Mapping[int, int]]
_NAMES = {name.lower(): name for name in (*BATCH_OPTIONS, *STREAM_OPTIONS)}
_HINT = 'give JSON like {"topic":{"0":23,"1":-2}}'
_DURATION = re.compile(r"(\d+)\s*(us|ms|s|m|min|h|d)?")
_UNIT_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class Bound:
    """One end of what is read."""

    option: str
    kind: str
    """earliest, latest, offsets or time."""
    values: PerPartition = field(default_factory=dict[str, dict[int, int]])
    """Offsets, or milliseconds (kind time); a missing partition takes the default end."""
    everywhere_ms: int | None = None
    """Kind time with one value for all partitions."""
    whole: Mapping[str, int] = field(default_factory=dict[str, int])
    """Kind offsets: topics that have one end of the log, as a number, for all partitions."""
    topic_ids: Mapping[str, str] = field(default_factory=dict[str, str])
    """Which topics the offsets are of, where they came from a stream that said so."""

    def of(self, topic: str, partition: int) -> int | None:
        """The value given for one partition, None when the default end applies."""
        if self.everywhere_ms is not None:
            return self.everywhere_ms
        return self.values.get(topic, {}).get(partition, self.whole.get(topic))


@dataclass(frozen=True)
class ReadOptions:
    """What one batch read, or each batch of a stream, was asked for."""

    bootstrap: str | None
    path: str | None
    topics: tuple[str, ...]
    pattern: str | None
    assign: Mapping[str, tuple[int, ...]]
    start: Bound
    end: Bound
    missing_time: Literal["error", "latest"]
    min_partitions: int | None
    max_records_per_partition: int | None
    compacted: bool
    """Only the last record of each key of a partition, within what is read of it."""
    drop_tombstones: bool
    """Nor that one where it says that its key is gone."""
    include_headers: bool
    include_metadata: bool
    fail_on_data_loss: bool

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ReadOptions:
        """Read the options of a batch read; raises ConfigError."""
        options = _canonical(given)
        for name in STREAM_OPTIONS:
            if options.pop(name, None) is not None:
                _log.warning("option %s applies to streams only, a batch read ignores it", name)
        return cls.of_options(
            options,
            start=_bound(options, "starting", EARLIEST, allowed=(EARLIEST,)),
            end=_bound(options, "ending", LATEST, allowed=(LATEST,)),
        )

    @classmethod
    def of_options(cls, options: Mapping[str, str], *, start: Bound, end: Bound) -> ReadOptions:
        """From options by their proper names, and bounds that were read before."""
        topics, pattern, assign = _subscription(options)
        bootstrap = options.get("octavo.bootstrap.servers")
        path = options.get("path")
        if not bootstrap and not path:
            _refuse(
                "octavo.bootstrap.servers",
                "neither octavo.bootstrap.servers nor path is given",
                'add .option("octavo.bootstrap.servers", "host:7650") or .option("path", "./lake")',
            )
        include_metadata = _flag(options, "includeMetadata", False)
        if include_metadata and path:
            _refuse(
                "includeMetadata",
                "exported files do not hold ledger and entry ids",
                "read them from the cluster: drop the option path",
            )
        level = options.get("isolation.level", "read_committed").lower()
        _choice("isolation.level", level, ("read_committed", "read_uncommitted"))
        compacted = _compaction(options)
        strategy = options.get("startingOffsetsByTimestampStrategy", "error").lower()
        _choice("startingOffsetsByTimestampStrategy", strategy, ("error", LATEST.value))
        return cls(
            bootstrap=bootstrap,
            path=path,
            topics=topics,
            pattern=pattern,
            assign=assign,
            start=start,
            end=end,
            missing_time=cast("Literal['error', 'latest']", strategy),
            min_partitions=_positive(options, "minPartitions"),
            max_records_per_partition=_positive(options, "maxRecordsPerPartition"),
            compacted=compacted,
            drop_tombstones=_flag(options, "dropTombstones", False),
            include_headers=_flag(options, "includeHeaders", False),
            include_metadata=include_metadata,
            fail_on_data_loss=_flag(options, "failOnDataLoss", True),
        )

    def wants(self, topic: str) -> bool:
        """Whether the subscription covers a topic."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics or topic in self.assign


@dataclass(frozen=True)
class StreamOptions:
    """What one stream was asked for."""

    read: ReadOptions
    max_offsets: int | None
    min_offsets: int | None
    max_bytes: int | None
    max_delay_s: float
    group: str | None
    """Consumer group whose committed offsets show how far the query is."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> StreamOptions:
        """Read the options of a stream; raises ConfigError."""
        options = _canonical(given)
        for name in ENDINGS:
            if name in options:
                _refuse(name, "a stream has no end", "read a batch, or use Trigger.AvailableNow")
        start = _bound(options, "starting", LATEST, allowed=(EARLIEST, LATEST))
        read = ReadOptions.of_options(
            options, start=start, end=Bound("endingOffsets", LATEST.value)
        )
        if read.compacted:
            _refuse(
                "compacted",
                "a stream does not know which record of a key is its last",
                "compact each batch: compact(df) of octavo.spark, in foreachBatch",
            )
        group = options.get("groupId")
        if group is not None and (not group or read.bootstrap is None):
            _refuse(
                "groupId",
                "is empty" if not group else "a group lives in a cluster, and none is given",
                'add .option("octavo.bootstrap.servers", "host:7650")' if group else "name a group",
            )
        most = _positive(options, "maxOffsetsPerTrigger")
        least = _positive(options, "minOffsetsPerTrigger")
        if most is not None and least is not None and least > most:
            _refuse("minOffsetsPerTrigger", f"{least} is more than maxOffsetsPerTrigger, {most}")
        return cls(
            read=read,
            max_offsets=most,
            min_offsets=least,
            max_bytes=_positive(options, "maxBytesPerTrigger"),
            max_delay_s=_duration_s(options, "maxTriggerDelay", MAX_TRIGGER_DELAY),
            group=group,
        )


def wants_headers(given: Mapping[str, str]) -> bool:
    """Only `includeHeaders`: decides the schema before anything else is looked at."""
    return _flag(_canonical(given), "includeHeaders", False)


def wants_metadata(given: Mapping[str, str]) -> bool:
    """Only `includeMetadata`, likewise."""
    return _flag(_canonical(given), "includeMetadata", False)


def _refuse(option: str, cause: str, hint: str = "") -> NoReturn:
    raise ConfigError(f"option {option}: {cause}", hint=hint, option=option)


def _canonical(given: Mapping[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for key, value in given.items():
        name = _NAMES.get(key.lower())
        if name is None:
            _refuse(key, "unknown option", did_you_mean(key, _NAMES.values()))
        options[name] = value.strip()
    return options


def _compaction(options: Mapping[str, str]) -> bool:
    """Whether the read is compacted; raises ConfigError for options that do not go with that."""
    if not _flag(options, "compacted", False):
        if _flag(options, "dropTombstones", False):
            _refuse("dropTombstones", "goes with compacted=true only")
        return False
    for name in ("minPartitions", "maxRecordsPerPartition"):
        if name in options:
            _refuse(
                name,
                "with compacted=true one task reads a whole partition",
                "leave it out, or use compact(df) of octavo.spark, which Spark distributes by key",
            )
    return True


def _subscription(
    options: Mapping[str, str],
) -> tuple[tuple[str, ...], str | None, Mapping[str, tuple[int, ...]]]:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if name in options]
    if len(given) != 1:
        _refuse(
            given[1] if given else "subscribe",
            f"exactly one of subscribe, subscribePattern, assign is needed, not {len(given)}",
            'add .option("subscribe", "orders")',
        )
    value = options[given[0]]
    if given[0] == "subscribe":
        topics = tuple(dict.fromkeys(t.strip() for t in value.split(",") if t.strip()))
        if not topics:
            _refuse("subscribe", "names no topic")
        return topics, None, {}
    if given[0] == "subscribePattern":
        try:
            re.compile(value)
        except re.error as error:
            _refuse("subscribePattern", f"is no regular expression: {error}")
        return (), value, {}
    return (), None, _assignment(value)


def _assignment(text: str) -> Mapping[str, tuple[int, ...]]:
    hint = 'give JSON like {"orders":[0,1]}'
    assign: dict[str, tuple[int, ...]] = {}
    for topic, partitions in _object("assign", text, hint).items():
        if not isinstance(partitions, list):
            _refuse("assign", f"{topic!r} needs a list of partitions", hint)
        numbers = cast("list[object]", partitions)
        if not numbers or not all(type(p) is int and p >= 0 for p in numbers):
            _refuse("assign", f"{topic!r} needs a list of partition numbers", hint)
        assign[topic] = tuple(sorted(set(cast("list[int]", numbers))))
    if not assign:
        _refuse("assign", "names no topic", hint)
    return assign


def _bound(
    options: Mapping[str, str],
    prefix: Literal["starting", "ending"],
    default: Edge,
    *,
    allowed: tuple[Edge, ...],
) -> Bound:
    """Precedence as in the Kafka source: one timestamp, then timestamps, then offsets."""
    name = f"{prefix}Timestamp"
    if name in options:
        return Bound(name, "time", everywhere_ms=_whole(name, options[name]))
    name = f"{prefix}OffsetsByTimestamp"
    if name in options:
        return Bound(name, "time", _per_partition(name, _object(name, options[name], _HINT)))
    name = f"{prefix}Offsets"
    text = options.get(name, default.value)
    if text.lower() in (edge.value for edge in allowed):
        return Bound(name, text.lower())
    if text.lower() in EDGE_WORDS:
        hint = f"the default is {default.value}"
        _refuse(name, f"a batch read cannot use {text.lower()!r} here", hint)
    if not text.lstrip().startswith("{"):
        words = [edge.value for edge in allowed]
        cause = f"{text!r} is neither {' nor '.join(words)} nor a JSON object"
        _refuse(name, cause, f"{did_you_mean(text, words)}; or {_HINT}")
    body = _object(name, text, _HINT)
    topic_ids = _topic_ids(name, body.pop(TOPIC_IDS, {}))
    whole = _whole_topics(name, body, allowed)
    values = _per_partition(name, body, allowed=allowed)
    return Bound(name, "offsets", values, whole=whole, topic_ids=topic_ids)


def _topic_ids(name: str, told: object) -> Mapping[str, str]:
    ids = cast("dict[str, object]", told) if isinstance(told, dict) else None
    if ids is None or not all(isinstance(one, str) for one in ids.values()):
        _refuse(name, f"{TOPIC_IDS!r} is no object of topic ids", _HINT)
    return cast("dict[str, str]", ids)


def _numbers_of(allowed: tuple[Edge, ...]) -> dict[object, int]:
    """What each end may be called, as the number that stands for it."""
    numbers: dict[object, int] = {edge.value: edge.kafka_offset for edge in allowed}
    return numbers | {number: number for number in numbers.values()}


def _whole_topics(
    name: str, body: dict[str, object], allowed: tuple[Edge, ...]
) -> Mapping[str, int]:
    """Topics with one word, or its number, for all partitions; taken out of `body`."""
    found: dict[str, int] = {}
    numbers = _numbers_of(allowed)
    for topic, inner in list(body.items()):
        if type(inner) not in (str, int):
            continue
        if inner not in numbers:
            ends = " or ".join(f"{edge.value!r} ({edge.kafka_offset})" for edge in allowed)
            cause = f"{topic!r} has {inner!r} for all its partitions"
            _refuse(name, cause, f"that can only be {ends} here; {_HINT}")
        found[topic] = numbers[inner]
        del body[topic]
    return found


def _per_partition(
    name: str, body: dict[str, object], *, allowed: tuple[Edge, ...] | None = None
) -> PerPartition:
    """Numbers of partitions: times, or with `allowed` offsets and those ends of the log."""
    found: dict[str, dict[int, int]] = {}
    numbers = _numbers_of(allowed or ())
    for topic, inner in body.items():
        if not isinstance(inner, dict):
            _refuse(name, f"{topic!r} needs an object of partitions", _HINT)
        mine = found.setdefault(topic, {})
        for partition, value in cast("dict[str, object]", inner).items():
            if not partition.isascii() or not partition.isdigit():
                _refuse(name, f"{topic!r} has partition {partition!r}, not a number", _HINT)
            if isinstance(value, str):
                value = numbers.get(value, value)
            if type(value) is not int:
                _refuse(name, f"{topic}-{partition} has {value!r}, not a whole number", _HINT)
            if allowed is not None and value < 0 and value not in numbers:
                hint = f"use an offset, or {', '.join(str(e.kafka_offset) for e in allowed)}"
                _refuse(name, f"offset {value} of {topic}-{partition} is not allowed here", hint)
            mine[int(partition)] = value
    return found


def _object(name: str, text: str, hint: str) -> dict[str, object]:
    try:
        body: object = json.loads(text)
    except ValueError as error:
        _refuse(name, f"{text!r} is not JSON: {error}", hint)
    if not isinstance(body, dict):
        _refuse(name, f"{text!r} is not a JSON object", hint)
    return cast("dict[str, object]", body)


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        _refuse(name, f"{text!r} is not a whole number")


def _positive(options: Mapping[str, str], name: str) -> int | None:
    if name not in options:
        return None
    value = _whole(name, options[name])
    if value < 1:
        _refuse(name, f"{value} is not positive")
    return value


def _duration_s(options: Mapping[str, str], name: str, default: str) -> float:
    """Spark's way of writing a time: 30s, 15m, 500ms; a bare number is milliseconds."""
    text = options.get(name, default)
    found = _DURATION.fullmatch(text.lower())
    if found is None:
        _refuse(name, f"{text!r} is no duration", "give one like 30s or 15m")
    return int(found[1]) * _UNIT_S[found[2] or "ms"]


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    _choice(name, text, ("true", "false"))
    return text == "true"


def _choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        _refuse(name, f"{value!r} is not one of {', '.join(allowed)}")
