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

PerPartition = Mapping[str, Mapping[int, int]]
_NAMES = {name.lower(): name for name in (*BATCH_OPTIONS, *STREAM_OPTIONS)}
_FORM = '{"topic":{"0":23,"1":-2}}'


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

    def of(self, topic: str, partition: int) -> int | None:
        """The value given for one partition, None when the default end applies."""
        if self.everywhere_ms is not None:
            return self.everywhere_ms
        return self.values.get(topic, {}).get(partition)


@dataclass(frozen=True)
class ReadOptions:
    """What one batch read was asked for."""

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
    include_headers: bool
    include_metadata: bool
    fail_on_data_loss: bool

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ReadOptions:
        """Read the options of a batch read; raises ConfigError."""
        options = _canonical(given)
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
        strategy = options.get("startingOffsetsByTimestampStrategy", "error").lower()
        _choice("startingOffsetsByTimestampStrategy", strategy, ("error", LATEST.value))
        return cls(
            bootstrap=bootstrap,
            path=path,
            topics=topics,
            pattern=pattern,
            assign=assign,
            start=_bound(options, "starting", EARLIEST, forbidden=LATEST),
            end=_bound(options, "ending", LATEST, forbidden=EARLIEST),
            missing_time=cast("Literal['error', 'latest']", strategy),
            min_partitions=_positive(options, "minPartitions"),
            max_records_per_partition=_positive(options, "maxRecordsPerPartition"),
            include_headers=_flag(options, "includeHeaders", False),
            include_metadata=include_metadata,
            fail_on_data_loss=_flag(options, "failOnDataLoss", True),
        )

    def wants(self, topic: str) -> bool:
        """Whether the subscription covers a topic."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics or topic in self.assign


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
        if name in STREAM_OPTIONS:
            _log.warning("option %s applies to streams only and is ignored in a batch read", name)
            continue
        options[name] = value.strip()
    return options


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
    forbidden: Edge,
) -> Bound:
    """Precedence as in the Kafka source: one timestamp, then timestamps, then offsets."""
    name = f"{prefix}Timestamp"
    if name in options:
        return Bound(name, "time", everywhere_ms=_whole(name, options[name]))
    name = f"{prefix}OffsetsByTimestamp"
    if name in options:
        return Bound(name, "time", _per_partition(name, options[name]))
    name = f"{prefix}Offsets"
    text = options.get(name, default.value)
    if text.lower() == default.value:
        return Bound(name, default.value)
    if text.lower() in EDGE_WORDS:
        hint = f"the default is {default.value}"
        _refuse(name, f"a batch read cannot use {text.lower()!r} here", hint)
    values = _per_partition(name, text, default=default)
    for topic, offsets in values.items():
        for partition, offset in offsets.items():
            if offset == forbidden.kafka_offset or offset < EARLIEST.kafka_offset:
                _refuse(
                    name,
                    f"offset {offset} of {topic}-{partition} is not allowed in a batch read",
                    f"use an offset, or {default.kafka_offset}",
                )
    return Bound(name, "offsets", values)


def _per_partition(name: str, text: str, *, default: Edge | None = None) -> PerPartition:
    """Numbers of partitions.

    With a `default` end (earliest, latest) a topic or a partition may have that word, or its
    number, instead: a topic without partitions here takes it for all.
    """
    hint = f"give JSON like {_FORM}"
    words: dict[object, int] = {edge.value: edge.kafka_offset for edge in Edge}
    found: dict[str, dict[int, int]] = {}
    for topic, inner in _object(name, text, hint).items():
        if default is not None and type(inner) in (str, int):
            if words.get(inner, inner) != default.kafka_offset:
                _refuse(
                    name,
                    f"{topic!r} has {inner!r} for all its partitions",
                    f"that can only be {default.value!r} ({default.kafka_offset}) in a batch read; "
                    f"{hint}",
                )
            found[topic] = {}
            continue
        if not isinstance(inner, dict):
            _refuse(name, f"{topic!r} needs an object of partitions", hint)
        numbers = found.setdefault(topic, {})
        for partition, value in cast("dict[str, object]", inner).items():
            if not partition.isascii() or not partition.isdigit():
                _refuse(name, f"{topic!r} has partition {partition!r}, not a number", hint)
            if default is not None and isinstance(value, str):
                value = words.get(value, value)
            if type(value) is not int:
                _refuse(name, f"{topic}-{partition} has {value!r}, not a whole number", hint)
            numbers[int(partition)] = value
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


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    _choice(name, text, ("true", "false"))
    return text == "true"


def _choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        _refuse(name, f"{value!r} is not one of {', '.join(allowed)}")
