"""Settings of the SDK: names, ranges, relations (U4, F041, F043, I4, A5)."""

from __future__ import annotations

import logging
import re
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import pytest

from octavo.client.messaging.api.client import AsyncClient, group_of, producer_config
from octavo.client.messaging.api.options import (
    ClientOptions,
    ConsumerOptions,
    GroupOptions,
    ProducerOptions,
)
from octavo.client.messaging.config import (
    ClientConfig,
    ConsumerConfig,
    GroupConfig,
    ProducerConfig,
    load,
    parse_reset,
    parse_servers,
)
from octavo.client.messaging.producing.futures import Completion, SendFuture
from octavo.client.messaging.reading.limits import epoch_ms
from octavo.client.messaging.records import Record
from octavo.client.messaging.sync.client import Client
from octavo.runtime.errors import ConfigError

CLIENT = ClientConfig()


def loaded(options: dict[str, object]) -> ConsumerConfig:
    return load(ConsumerConfig, options, inherited=CLIENT.shared())


def of_group(**options: Any) -> GroupConfig:
    return load(GroupConfig, options, inherited=CLIENT.shared())


def test_defaults_are_those_of_the_interface() -> None:
    config = producer_config(CLIENT, {})
    assert (config.linger_ms, config.batch_size, config.compression_type) == (5, 65536, "lz4")
    assert (config.acks_number, config.idempotent) == (-1, True)
    assert config.delivery_timeout_ms == 120_000
    assert loaded({}).auto_offset_reset == "latest"


def test_f043_dotted_and_snake_case_names_are_the_same() -> None:
    assert producer_config(CLIENT, {"linger.ms": 7}) == producer_config(CLIENT, {"linger_ms": 7})
    with pytest.raises(ConfigError, match="given twice"):
        producer_config(CLIENT, {"linger.ms": 7, "linger_ms": 7})


def test_f043_unknown_key_names_the_closest() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'linger_msec'") as caught:
        producer_config(CLIENT, {"linger_msec": 7})
    assert "did you mean 'linger_ms'?" in caught.value.hint


def test_client_settings_are_inherited_and_overridable() -> None:
    client = ClientConfig(request_timeout_ms=1000)
    assert producer_config(client, {}).request_timeout_ms == 1000
    assert producer_config(client, {"request_timeout_ms": 2000}).request_timeout_ms == 2000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("linger_ms", -1),
        ("linger_ms", "5"),
        ("linger_ms", True),
        ("batch_size", 5 << 20),
        ("compression_type", "zip"),
        ("acks", 2),
        ("acks", True),
        ("partitioner", "random"),
        ("serializer", "pickle"),
        ("max_request_size", (4 << 20) + 1),
        ("buffer_memory", 1000),
        ("enable_idempotence", "yes"),
    ],
)
def test_bad_producer_values_name_the_setting(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        producer_config(CLIENT, {name: value})


def test_i4_delivery_timeout_must_cover_linger_and_request() -> None:
    with pytest.raises(ConfigError, match="delivery_timeout_ms=30000 is less than"):
        ProducerConfig(delivery_timeout_ms=30_000, request_timeout_ms=30_000, linger_ms=1)


def test_a5_idempotence_needs_all_acks(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match="acks='all'"):
        producer_config(CLIENT, {"enable_idempotence": True, "acks": 1})
    with caplog.at_level(logging.INFO, "octavo.client"):
        assert not producer_config(CLIENT, {"acks": 1}).idempotent
    assert len(caplog.records) == 1
    assert producer_config(CLIENT, {"acks": "-1"}).idempotent


def test_f041_more_than_five_in_flight_needs_idempotence_off() -> None:
    with pytest.raises(ConfigError, match="at most 5"):
        producer_config(CLIENT, {"max_in_flight_requests_per_connection": 6})
    config = producer_config(
        CLIENT, {"max_in_flight_requests_per_connection": 6, "enable_idempotence": False}
    )
    assert not config.idempotent


def later(**options: Any) -> dict[str, Any]:
    """Options that a type checker would refuse."""
    return options


def test_what_comes_later_is_said_clearly() -> None:
    client = AsyncClient("localhost")
    with pytest.raises(ConfigError, match="transactions are not part of this version"):
        client.producer(**later(transactional_id="t"))
    with pytest.raises(ConfigError, match="isolation_level"):
        client.consumer("orders", **later(isolation_level="read_committed"))
    with pytest.raises(ConfigError, match="check_crcs"):
        client.consumer("orders", **later(check_crcs=False))


@pytest.mark.parametrize("policy", ["earliest", "latest", "none", "by_time:1700000000000"])
def test_f6_reset_policies(policy: str) -> None:
    assert loaded({"auto_offset_reset": policy})


@pytest.mark.parametrize("policy", ["first", "by_time:x", 5])
def test_f6_other_reset_policies_are_refused(policy: object) -> None:
    with pytest.raises(ConfigError, match="auto_offset_reset"):
        loaded({"auto_offset_reset": policy})


@pytest.mark.parametrize(
    ("policy", "ago_ms"),
    [
        ("PT1H", 3_600_000),
        ("P1DT2H3M4.5S", 86_400_000 + 7_200_000 + 180_000 + 4_500),
        ("P2W", 2 * 7 * 86_400_000),
        ("by_duration:PT0.25S", 250),
    ],
)
def test_f6_an_iso_duration_is_a_while_ago(policy: str, ago_ms: int) -> None:
    assert parse_reset(policy, 1_700_000_000_000) == 1_700_000_000_000 - ago_ms
    assert loaded({"auto_offset_reset": policy})


@pytest.mark.parametrize("policy", ["P", "PT", "PT1", "P1Y", "P1M", "-PT1H", "PT1H ", "P1DT"])
def test_f6_what_is_no_such_duration_is_refused(policy: str) -> None:
    with pytest.raises(ConfigError, match="auto_offset_reset"):
        loaded({"auto_offset_reset": policy})


def test_settings_of_groups_have_defaults_and_bounds(caplog: pytest.LogCaptureFixture) -> None:
    config = of_group()
    assert (config.enable_auto_commit, config.auto_commit_interval_ms) == (True, 5_000)
    assert config.max_poll_interval_ms == 300_000
    assert config.assignors == ()
    assert of_group(partition_assignment_strategy=["range", "sticky"]).assignors[0] == "range"
    with caplog.at_level(logging.INFO, "octavo.client"):
        of_group(session_timeout_ms=10_000)
    assert "the brokers' to decide" in caplog.text
    wrong: list[dict[str, Any]] = [
        {"partition_assignment_strategy": "best"},
        {"partition_assignment_strategy": 5},
        {"group_instance_id": ""},
        {"client_rack": 7},
        {"enable_auto_commit": "yes"},
        {"max_poll_interval_ms": 0},
    ]
    for options in wrong:
        with pytest.raises(ConfigError, match=next(iter(options))):
            of_group(**options)


def test_a_group_is_named_in_two_ways_and_its_settings_need_it() -> None:
    client = AsyncClient("localhost")
    assert group_of(None, {"group.id": "billing"}) == ("billing", {})
    with pytest.raises(ConfigError, match="keep one of them"):
        client.consumer("orders", group="a", **later(group_id="b"))
    for bad in ("", 5):
        with pytest.raises(ConfigError, match="no name of a group"):
            client.consumer("orders", **later(group=bad))
    with pytest.raises(ConfigError, match="enable_auto_commit needs a group"):
        client.consumer("orders", **later(enable_auto_commit=False))
    with pytest.raises(ConfigError, match="need a group"):
        client.consumer(**later(pattern="o.*"))


def test_patterns_are_checked_at_once() -> None:
    client = AsyncClient("localhost")
    assert client.consumer(re.compile("orders-.*"), group="g").group_opening.pattern == "orders-.*"
    wrong: list[dict[str, Any]] = [
        {"pattern": "("},
        {"pattern": ""},
        {"pattern": re.compile("a", re.IGNORECASE)},
        {"topics": "a", "pattern": "b"},
        {"topics": re.compile("a"), "pattern": "b"},
    ]
    for options in wrong:
        with pytest.raises(ConfigError):
            client.consumer(**later(group="g", **options))


def test_deserializers_and_interceptors_are_checked_at_once() -> None:
    assert loaded({"value_deserializer": "json", "interceptors": []}).interceptors == ()
    for name, value in (("value_deserializer", "avro"), ("interceptors", [object()])):
        with pytest.raises(ConfigError, match=name):
            loaded({name: value})


def test_servers() -> None:
    assert parse_servers("a:1, b") == ("a:1", "b:7650")
    assert parse_servers(["[::1]", "[::1]:9", "a:1", "a:1"]) == ("[::1]:7650", "[::1]:9", "a:1")
    for bad in ("", " , ", "a:b", ":1", "a:70000"):
        with pytest.raises(ConfigError):
            parse_servers(bad)


def test_times_need_a_zone() -> None:
    assert epoch_ms(datetime(2026, 1, 1, tzinfo=UTC)) == 1767225600000
    assert epoch_ms(5) == 5
    for bad in (datetime(2026, 1, 1), -1, True, "now"):
        with pytest.raises(ConfigError):
            epoch_ms(bad)


def test_reader_start_is_checked_at_once() -> None:
    client = AsyncClient("localhost")
    wrong: list[Any] = ["first", -1, True]
    for bad in wrong:
        with pytest.raises(ConfigError, match="start"):
            client.reader("orders", start=bad)


@pytest.mark.parametrize(
    ("options", "settings", "apart"),
    [
        (ClientOptions, ClientConfig, set[str]()),
        (ProducerOptions, ProducerConfig, {"serializer", "key_serializer"}),
        (ConsumerOptions, ConsumerConfig, set[str]()),
        (GroupOptions, GroupConfig, set[str]()),
    ],
)
def test_type_checkers_know_each_setting(
    options: type, settings: type[ClientConfig], apart: set[str]
) -> None:
    assert options.__annotations__.keys() | apart == {field.name for field in fields(settings)}


def test_what_a_repr_says() -> None:
    client = Client("a:1,b", client_id="me")
    assert repr(client) == "<Client 'me' at a:1,b:7650: open>"
    assert repr(client.producer()) == "<Producer 'me' at a:1,b:7650: open>"
    assert repr(client.consumer()) == "<Consumer 'me' at a:1,b:7650: open, nothing assigned>"
    assert repr(client.reader("t")) == "<Reader 'me' at a:1,b:7650: open, reads t>"
    assert repr(AsyncClient("a:1")) == "<AsyncClient 'octavo-python' at a:1: open>"
    client.close()


def test_the_repr_of_a_large_record_is_short() -> None:
    record = Record("t", 0, 5, b"k", b"x" * 1_000_000, (), 7)
    assert len(repr(record)) < 400
    assert "(1000000 bytes)" in repr(record)
    assert repr(record._replace(value=b"v")) == (
        "Record(topic='t', partition=0, offset=5, key=b'k', value=b'v', headers=(), timestamp_ms=7)"
    )


def test_the_repr_of_a_future_says_where_the_record_is() -> None:
    completion = Completion("t", 3)
    completion.timestamps_ms = [1, 2]
    future = SendFuture(completion, 1)
    assert repr(future) == "<SendFuture t-3 pending>"
    completion.succeed(41)
    assert repr(future) == "<SendFuture t-3 acknowledged at offset 42>"


def test_f013_a_profile_stands_for_settings_and_those_given_win() -> None:
    latency = producer_config(CLIENT, {"profile": "latency"})
    assert (latency.linger_ms, latency.batch_size) == (0, 16_384)
    wide = producer_config(CLIENT, {"profile": "throughput"})
    assert (wide.linger_ms, wide.batch_size, wide.compression_type) == (5, 65_536, "lz4")
    mixed = producer_config(CLIENT, {"profile": "latency", "linger.ms": 3})
    assert (mixed.linger_ms, mixed.batch_size) == (3, 16_384)
    assert producer_config(CLIENT, {"profile": None}) == producer_config(CLIENT, {})
    for wrong in ("fast", 1, ["latency"]):
        with pytest.raises(ConfigError, match="profile"):
            producer_config(CLIENT, {"profile": wrong})
