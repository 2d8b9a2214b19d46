"""The ends of a log: one pair of words, and everything that takes them takes these."""

from __future__ import annotations

import typing

import pytest

from octavo.cli.positions import parse_start
from octavo.client.messaging.api.reader import Start
from octavo.client.messaging.config import ConsumerConfig, parse_reset
from octavo.proto.edges import EARLIEST, EDGE_WORDS, LATEST, Edge
from octavo.runtime.errors import ConfigError
from octavo.spark.options import ReadOptions

SOURCE = {"octavo.bootstrap.servers": "host:1", "subscribe": "t"}


def test_words_and_numbers() -> None:
    assert EDGE_WORDS == ("earliest", "latest")
    assert [edge.kafka_offset for edge in Edge] == [-2, -1]  # as in Kafka's JSON


@pytest.mark.parametrize("edge", Edge)
def test_policies_of_consumers(edge: Edge) -> None:
    assert ConsumerConfig(auto_offset_reset=edge.value).auto_offset_reset == edge.value
    assert parse_reset(edge.value) == edge.value
    with pytest.raises(ConfigError):
        parse_reset(edge.value.upper())


def test_starts_of_readers_name_them() -> None:
    (words, *_) = typing.get_args(Start)
    assert typing.get_args(words) == EDGE_WORDS


def test_positions_of_the_command_line() -> None:
    assert parse_start(EARLIEST.value, 0) == parse_start("start", 0)
    assert parse_start(LATEST.value, 0) == parse_start("end", 0)


@pytest.mark.parametrize(
    ("option", "edge", "other"),
    [("startingOffsets", EARLIEST, LATEST), ("endingOffsets", LATEST, EARLIEST)],
)
def test_bounds_of_spark(option: str, edge: Edge, other: Edge) -> None:
    for text in (edge.value, edge.value.upper()):
        read = ReadOptions.parse({**SOURCE, option: text})
        bound = read.start if edge is EARLIEST else read.end
        assert bound.of("t", 0) is None  # nothing is said of any topic: the option's own end
    of_topic = ReadOptions.parse({**SOURCE, option: f'{{"t": "{edge.value}"}}'})
    bound = of_topic.start if edge is EARLIEST else of_topic.end
    assert bound.of("t", 0) == edge.kafka_offset
    by_number = ReadOptions.parse({**SOURCE, option: f'{{"t": {{"0": {edge.kafka_offset}}}}}'})
    bound = by_number.start if edge is EARLIEST else by_number.end
    assert bound.of("t", 0) == edge.kafka_offset
    for refused in (other.value, f'{{"t": "{other.value}"}}', f'{{"t": {{"0": "{other.value}"}}}}'):
        with pytest.raises(ConfigError) as told:
            ReadOptions.parse({**SOURCE, option: refused})
        assert told.value.details["option"] == option
