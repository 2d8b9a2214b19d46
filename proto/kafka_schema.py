"""Names and SQL types of the eight columns of a record, those of Spark's Kafka source.

Import-light: Spark's workers load it without pyarrow. What each column holds, and its Arrow type,
is in `octavo.proto.kafka_columns`, which makes them from stored batches.
"""

from __future__ import annotations

from collections.abc import Mapping

HEADERS = "headers"
SQL_TYPES: Mapping[str, str] = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    HEADERS: "array<struct<key:string,value:binary>>",
}
"""In the order of the schema."""
