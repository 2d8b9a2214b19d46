"""What a write may look like, and which rows go where (spec spark §7)."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from octavo.errors import BrokerUnavailable, ConfigError, IllegalStateError, InvalidRecord
from octavo.spark import live_writing
from octavo.spark.sink import OctavoStreamWriter, OctavoWriter, Written
from octavo.spark.sink_options import SinkColumns, WriteOptions, sink_columns
from octavo.spark.sink_rows import portions
from octavo.spark.staging import Staged

SERVERS = {"octavo.bootstrap.servers": "host:7650"}
HEADERS = "array<struct<key:string,value:binary>>"


def options(**given: str) -> WriteOptions:
    return WriteOptions.parse({**SERVERS, **given})


def test_options_are_case_insensitive_and_sparks_own_are_not_ours() -> None:
    given = {"OCTAVO.bootstrap.SERVERS": " host:1 ", "TOPIC": "t", "checkpointlocation": "/c"}
    assert WriteOptions.parse(given) == WriteOptions("host:1", "t", True)
    assert options(includeHeaders="False") == WriteOptions("host:7650", None, False)


@pytest.mark.parametrize(
    ("given", "option", "says"),
    [
        ({"topic": "t"}, "octavo.bootstrap.servers", "is not given"),
        ({**SERVERS, "topic": " "}, "topic", "names no topic"),
        ({**SERVERS, "topics": "t"}, "topics", "unknown option of a write"),
        ({**SERVERS, "subscribe": "t"}, "subscribe", "unknown option of a write"),
        ({**SERVERS, "includeHeaders": "yes"}, "includeHeaders", "true, false"),
    ],
)
def test_wrong_options_are_named(given: dict[str, str], option: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        WriteOptions.parse(given)
    assert caught.value.details["option"] == option


def test_columns_are_found_by_name_whatever_the_case() -> None:
    fields = [("KEY", "string"), ("Value", "binary"), ("topic", "string"), ("headers", HEADERS)]
    assert sink_columns(fields, options()) == SinkColumns("Value", "KEY", "topic", None, "headers")
    # The option counts for all rows, as in Spark's Kafka sink.
    got = sink_columns([*fields, ("partition", "int")], options(topic="t", includeHeaders="false"))
    assert got == SinkColumns("Value", "KEY", None, "partition", None)


@pytest.mark.parametrize(
    ("fields", "says", "hint"),
    [
        ([("key", "binary")], "no column 'value'", "to_json"),
        ([("value", "int")], "column 'value' is int, not binary or string", 'cast("string")'),
        ([("value", "string"), ("partition", "bigint")], "is bigint, not int", 'cast("int")'),
        ([("value", "string"), ("headers", "map<string,binary>")], "map<", "list of names"),
        ([("value", "string"), ("id", "int")], "column 'id' cannot be written", "rename"),
        ([("value", "string"), ("VALUE", "string")], "are one column", "drop"),
    ],
)
def test_wrong_columns_are_refused_with_a_hint(
    fields: list[tuple[str, str]], says: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        sink_columns(fields, options(topic="t"))
    assert hint in caught.value.hint


def test_a_write_must_know_its_topic() -> None:
    with pytest.raises(ConfigError, match="neither the option topic nor a column topic"):
        sink_columns([("value", "string")], options())


def test_a_topic_is_not_overwritten() -> None:
    schema = StructType([StructField("value", StringType())])
    with pytest.raises(ConfigError, match="cannot be overwritten"):
        OctavoWriter(schema, options(topic="t"), overwrite=True)


def rows(**columns: list[object]) -> pa.RecordBatch:
    kinds = {"topic": pa.string(), "partition": pa.int32(), "value": pa.binary()}
    return pa.record_batch({name: pa.array(of, kinds[name]) for name, of in columns.items()})


def test_rows_are_cut_by_target_and_keep_their_order() -> None:
    batch = rows(
        value=[b"0", b"1", b"2", b"3", b"4"],
        topic=["a", "b", "a", "a", "b"],
        partition=[1, None, 1, None, None],
    )
    found = {
        (part.topic, part.partition): part.rows.column("value").to_pylist()
        for part in portions(batch, SinkColumns("value", None, "topic", "partition"), None)
    }
    assert found == {("a", 1): [b"0", b"2"], ("b", None): [b"1", b"4"], ("a", None): [b"3"]}


def test_rows_of_one_target_are_not_copied() -> None:
    batch = rows(value=[b"0", b"1"], partition=[2, 2])
    (part,) = portions(batch, SinkColumns("value", partition="partition"), "t")
    assert part == ("t", 2, batch)
    assert list(portions(batch.slice(0, 0), SinkColumns("value"), "t")) == []


def test_rows_without_a_target_are_refused_before_any_is_sent() -> None:
    batch = rows(value=[b"0", b"1"], topic=["a", None])
    with pytest.raises(InvalidRecord, match="1 of 2 rows have no topic"):
        next(portions(batch, SinkColumns("value", topic="topic"), None))
    batch = rows(value=[b"0", b"1"], partition=[0, -3])
    with pytest.raises(InvalidRecord, match="partition -3"):
        next(portions(batch, SinkColumns("value", partition="partition"), "t"))


def test_a_cluster_that_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    monkeypatch.setattr(live_writing, "CONNECT_TIMEOUT_S", 0.2)
    nowhere = WriteOptions(f"127.0.0.1:{unused_tcp_port}", "t", True)
    with pytest.raises(BrokerUnavailable, match=str(unused_tcp_port)):
        live_writing.check_topic(nowhere)
    with pytest.raises(BrokerUnavailable, match=str(unused_tcp_port)):
        live_writing.produce([rows(value=[b"0"])], nowhere, SinkColumns("value"))


def test_partitions_of_one_topic_are_told_apart_where_the_column_is_mixed() -> None:
    batch = rows(value=[b"0", b"1", b"2"], partition=[None, 0, None])
    found = list(portions(batch, SinkColumns("value", partition="partition"), "t"))
    assert [(part.partition, part.rows.num_rows) for part in found] == [(None, 2), (0, 1)]


# --- how often a row is added -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "streaming", "once"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"txnId": "job-1"}, False, True),
        ({"txnId": "job-1", "delivery": "at-least-once"}, False, False),
        ({"delivery": "at-least-once"}, True, False),
        ({"delivery": "exactly-once"}, True, True),
        ({"delivery": "exactly-once", "txnId": "job-1"}, False, True),
    ],
)
def test_what_is_added_once(given: dict[str, str], streaming: bool, once: bool) -> None:
    assert options(topic="t", **given).is_exactly_once(streaming=streaming) is once


@pytest.mark.parametrize(
    ("given", "streaming", "says"),
    [
        ({"delivery": "exactly-once"}, False, "needs a name"),
        ({"txnId": "job-1"}, True, "is for batch writes"),
        ({"txnId": "job-1", "delivery": "at-least-once"}, True, "is for batch writes"),
    ],
)
def test_what_cannot_be_added_once_is_refused(
    given: dict[str, str], streaming: bool, says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        options(topic="t", **given).is_exactly_once(streaming=streaming)
    assert caught.value.details["option"] == "txnId"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"delivery": "once"}, "is not one of exactly-once, at-least-once"),
        ({"txnId": ""}, "has 1 to 500 bytes"),
        ({"txnId": "x" * 501}, "has 1 to 500 bytes"),
    ],
)
def test_names_of_writes_have_bounds(given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        options(topic="t", **given)


SCHEMA = StructType([StructField("value", StringType())])


def test_a_task_that_does_not_know_its_batch_is_refused() -> None:
    """Outside of Spark, or under a Spark that tells no ids: never a guess."""
    writer = OctavoStreamWriter(SCHEMA, options(topic="t"))
    with pytest.raises(IllegalStateError, match="does not tell") as caught:
        writer.write(iter(()))
    assert "at-least-once" in caught.value.hint


def test_a_task_that_says_nothing_of_what_it_staged_is_not_committed() -> None:
    writer = OctavoStreamWriter(SCHEMA, options(topic="t"))
    for message in (None, Written(3, "query/1")):
        messages = [Written(1, "query/1", Staged(b"a", 1, 0, 1)), message]
        with pytest.raises(IllegalStateError, match="did not say what it staged"):
            writer.commit(messages, 0)


def test_a_batch_without_tasks_has_nothing_to_commit(unused_tcp_port: int) -> None:
    nowhere = WriteOptions(f"127.0.0.1:{unused_tcp_port}", "t", True)
    OctavoStreamWriter(SCHEMA, nowhere).commit([], 0)
    OctavoStreamWriter(SCHEMA, nowhere).abort([None], 0)


def test_at_least_once_a_commit_asks_nobody(unused_tcp_port: int) -> None:
    nowhere = WriteOptions(f"127.0.0.1:{unused_tcp_port}", "t", True, delivery="at-least-once")
    writer = OctavoStreamWriter(SCHEMA, nowhere)
    writer.commit([Written(5), None], 0)
    writer.abort([Written(5), None], 0)
