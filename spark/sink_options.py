"""Options and columns of `df.write.format("octavo")`: those of Spark's Kafka sink (spec §7).

Pure: strings and column types in, frozen values out. All that is wrong with a write before its
first row is told here, as ConfigError, whose `details["option"]` names the culprit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octavo.proto.kafka_schema import HEADERS, SQL_TYPES
from octavo.runtime.errors import ConfigError
from octavo.runtime.suggestion import did_you_mean

BOOTSTRAP = "octavo.bootstrap.servers"
TOPIC = "topic"
INCLUDE_HEADERS = "includeHeaders"
TXN_ID = "txnId"
DELIVERY = "delivery"
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
WRITE_OPTIONS = (BOOTSTRAP, TOPIC, INCLUDE_HEADERS, TXN_ID, DELIVERY)
TXN_ID_BYTES_MAX = 500
SPARKS_OWN = ("checkpointLocation",)
"""What Spark hands on to each sink and uses itself."""
COLUMN_TYPES: Mapping[str, tuple[str, ...]] = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    HEADERS: (SQL_TYPES[HEADERS],),
}
"""The columns that are written, and the SQL types that each may have."""

_NAMES = {name.lower(): name for name in (*WRITE_OPTIONS, *SPARKS_OWN)}


@dataclass(frozen=True)
class WriteOptions:
    """What one write was asked for."""

    bootstrap: str
    topic: str | None
    """Where all rows go; None: each row says so in its column `topic`."""
    include_headers: bool
    """False leaves a column `headers` out."""
    txn_id: str | None = None
    """Names a batch write: of all writes that have it, one adds its rows."""
    delivery: str | None = None
    """None: exactly once where that is possible, for streams and where there is a `txnId`."""

    def is_exactly_once(self, *, streaming: bool) -> bool:
        """Whether each batch is added once; raises ConfigError for what cannot be."""
        if streaming and self.txn_id is not None:
            raise _refusal(TXN_ID, "is for batch writes", "a stream is known by its checkpoint")
        if self.delivery == EXACTLY_ONCE and not streaming and self.txn_id is None:
            raise _refusal(
                TXN_ID,
                "a batch write that adds its rows once needs a name",
                'add .option("txnId", "orders-2026-11-30"): run again under it, it adds nothing',
            )
        if self.delivery == AT_LEAST_ONCE:
            return False
        return streaming or self.txn_id is not None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> WriteOptions:
        """Read the options of a write; raises ConfigError."""
        options: dict[str, str] = {}
        for key, value in given.items():
            name = _NAMES.get(key.lower())
            if name is None:
                raise _refusal(key, "unknown option of a write", did_you_mean(key, WRITE_OPTIONS))
            options[name] = value.strip()
        bootstrap = options.get(BOOTSTRAP)
        if not bootstrap:
            raise _refusal(BOOTSTRAP, "is not given", f'add .option("{BOOTSTRAP}", "host:7650")')
        if TOPIC in options and not options[TOPIC]:
            raise _refusal(TOPIC, "names no topic", 'add .option("topic", "orders")')
        headers = options.get(INCLUDE_HEADERS, "true").lower()
        if headers not in ("true", "false"):
            raise _refusal(INCLUDE_HEADERS, f"{headers!r} is not one of true, false", "")
        txn_id = options.get(TXN_ID)
        if txn_id is not None and not 0 < len(txn_id.encode()) <= TXN_ID_BYTES_MAX:
            raise _refusal(TXN_ID, f"has 1 to {TXN_ID_BYTES_MAX} bytes", "")
        delivery = options.get(DELIVERY)
        if delivery not in (None, EXACTLY_ONCE, AT_LEAST_ONCE):
            raise _refusal(
                DELIVERY, f"{delivery!r} is not one of {EXACTLY_ONCE}, {AT_LEAST_ONCE}", ""
            )
        return cls(bootstrap, options.get(TOPIC), headers == "true", txn_id, delivery)


@dataclass(frozen=True)
class SinkColumns:
    """The DataFrame's own names of what is written; None: it has no such column."""

    value: str
    key: str | None = None
    topic: str | None = None
    partition: str | None = None
    headers: str | None = None


def sink_columns(fields: Sequence[tuple[str, str]], options: WriteOptions) -> SinkColumns:
    """The columns of a DataFrame, given as names and SQL types; raises ConfigError."""
    hint = "columns are value and, if you like, key, topic, partition, headers; drop or rename it"
    found: dict[str, str] = {}
    for name, kind in fields:
        column = name.lower()
        if column not in COLUMN_TYPES:
            raise _refusal("columns", f"a column {name!r} cannot be written", hint)
        if column in found:
            raise _refusal("columns", f"{found[column]!r} and {name!r} are one column", hint)
        allowed = COLUMN_TYPES[column]
        if kind not in allowed:
            raise _refusal(
                "columns",
                f"column {name!r} is {kind}, not {' or '.join(allowed)}",
                f'cast it: df.withColumn("{name}", df["{name}"].cast("{allowed[-1]}"))'
                if column != HEADERS
                else "headers are a list of names (string) with values (binary)",
            )
        found[column] = name
    value = found.get("value")
    if value is None:
        raise _refusal(
            "columns",
            "there is no column 'value'",
            'name one: df.selectExpr("to_json(struct(*)) AS value")',
        )
    if options.topic is None and "topic" not in found:
        raise _refusal(
            TOPIC,
            "neither the option topic nor a column topic is given",
            'add .option("topic", "orders")',
        )
    return SinkColumns(
        value=value,
        key=found.get("key"),
        topic=found.get("topic") if options.topic is None else None,
        partition=found.get("partition"),
        headers=found.get(HEADERS) if options.include_headers else None,
    )


def _refusal(option: str, cause: str, hint: str) -> ConfigError:
    return ConfigError(f"{option}: {cause}", hint=hint, option=option)
