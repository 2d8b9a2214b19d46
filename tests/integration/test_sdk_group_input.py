"""What a newcomer to groups gets wrong: each is said at once, with a type and what to do."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from octavo import Client, GroupConsumer, TopicPartition
from octavo.errors import (
    CommitFailed,
    ConfigError,
    IllegalStateError,
    InvalidCommitOffset,
    InvalidPartition,
    InvalidRequest,
    InvalidTopic,
    OctavoError,
    OffsetMetadataTooLarge,
    UnknownTopic,
)
from tests.group_cluster import GroupCluster

WAIT_S = 30.0


@pytest.fixture(scope="module")
def found() -> Iterator[GroupCluster]:
    made = GroupCluster()
    made.topic("t", 2, records=5)
    yield made
    made.close()


@pytest.fixture
def client(found: GroupCluster) -> Client:
    return found.client


Making = Callable[[Client], object]
AT_ONCE: list[tuple[str, Making]] = [
    ("is no name of a group", lambda c: c.consumer("t", group="")),
    ("is no name of a group", lambda c: c.consumer("t", group=5)),  # type: ignore[call-overload]
    ("are no topics", lambda c: c.consumer(None, group="g")),  # type: ignore[call-overload]
    ("no topic name", lambda c: c.consumer("", group="g")),
    ("nothing to subscribe to", lambda c: c.consumer(group="g").subscribe([])),
    ("are no topics", lambda c: c.consumer(group="g").subscribe(None)),  # type: ignore[arg-type]
    ("no regular expression", lambda c: c.consumer(pattern="(", group="g")),
    ("is no text", lambda c: c.consumer(pattern="", group="g")),
    ("has flags", lambda c: c.consumer(re.compile("T", re.IGNORECASE), group="g")),
    ("topics and a pattern", lambda c: c.consumer("t", pattern="u", group="g")),
    ("need a group", lambda c: c.consumer("t", on_assign=print)),  # type: ignore[call-overload]
    ("cannot be called", lambda c: c.consumer("t", group="g", on_assign=5)),  # type: ignore[call-overload]
    ("cannot be called", lambda c: c.consumer(group="g").subscribe("t", on_lost="x")),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("number", range(len(AT_ONCE)))
def test_what_makes_no_sense_is_refused_before_anything_is_asked(
    client: Client, number: int
) -> None:
    said, making = AT_ONCE[number]
    with pytest.raises(ConfigError, match=said):
        making(client)


def polled(consumer: GroupConsumer, error: type[OctavoError]) -> OctavoError:
    """What polling comes to."""
    for _ in range(int(WAIT_S / 0.1)):
        try:
            consumer.poll(timeout=0.1)
        except error as raised:
            return raised
    raise AssertionError(f"no {error.__name__}")


def test_x07_a_pattern_that_brokers_do_not_take_is_raised_by_poll(client: Client) -> None:
    for pattern in ("(?=a)b", r"(a)\1", "a" * 2000):
        with client.consumer(pattern=pattern, group="g-pattern") as consumer:
            assert "pattern" in polled(consumer, InvalidRequest).cause


def test_f106_a_missing_topic_is_warned_of_or_an_error_and_read_when_it_comes(
    found: GroupCluster, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, "octavo.client"),
        client.consumer(["later", "t"], group="g-later", auto_offset_reset="earliest") as consumer,
        client.consumer("later", group="g-strict", allow_missing_topics=False) as strict,
    ):
        for _ in range(2):
            assert "'later'" in polled(strict, UnknownTopic).cause
        found.until(lambda: consumer.poll(timeout=0.1))
        warned = [one for one in caplog.messages if "does not exist yet" in one]
        assert len(warned) == 1
        found.topic("later", 1, records=1)
        found.until(lambda: any(one.topic == "later" for one in consumer.poll(timeout=0.1)))

        def settled() -> bool:
            try:
                strict.poll(timeout=0.1)
            except UnknownTopic:
                return False
            return bool(strict.assignment())

        found.until(settled)


def test_a_name_that_no_topic_can_have_is_raised_by_poll(client: Client) -> None:
    with client.consumer("a b", group="g-name") as consumer:
        assert "a b" in polled(consumer, InvalidTopic).cause


def test_o2_f109_f114_each_wrong_offset_is_named_and_the_others_are_stored(
    found: GroupCluster, client: Client
) -> None:
    zero, one = TopicPartition("t", 0), TopicPartition("t", 1)
    with client.consumer("t", group="g-commit", enable_auto_commit=False) as consumer:
        with pytest.raises(CommitFailed, match="no member"):
            consumer.commit({zero: 1})
        found.until(lambda: consumer.poll(timeout=0.1) or consumer.assignment())
        with pytest.raises(InvalidCommitOffset, match="t-0: ") as raised:
            consumer.commit({zero: -1, one: 2})
        assert raised.value.details == {"topic": "t", "partition": 0}
        assert (consumer.committed(one)[one] or (0,))[0] == 2
        with pytest.raises(OffsetMetadataTooLarge, match="t-1: "):
            consumer.commit({one: (3, "m" * 5000)})
        with pytest.raises(InvalidPartition, match="t-9"):
            consumer.commit({TopicPartition("t", 9): 1})
        wrong: list[Any] = [{zero: "x"}, {zero: (1, 5)}, {"t": 1}, [1], 7]
        for offsets in wrong:
            with pytest.raises(ConfigError):
                consumer.commit(offsets)


def test_f106_subscribing_and_assigning_exclude_each_other(client: Client) -> None:
    with client.consumer("t", group="g-both") as consumer:
        with pytest.raises(IllegalStateError, match="subscribes"):
            consumer.assign([("t", 0)])
        consumer.unsubscribe()
        consumer.assign([("t", 0)])
        with pytest.raises(IllegalStateError, match="by hand"):
            consumer.subscribe("t")
        with pytest.raises(InvalidPartition):
            consumer.assign([("t", 7)])
