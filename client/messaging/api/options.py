"""The types of what users hand over: options, keys, values, headers, as type checkers see them.

One TypedDict per settings class of `config`, with the same names (a test compares them), for
`Unpack` in the signatures of both flavours; what a name means stands in `config`. Options that come
from a file or a command line, and the dotted spelling, are a `dict[str, Any]`: `**options`.
Nothing here is looked at while records are sent; values are checked by `config` and `serializers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal, TypedDict

from octavo.client.messaging.config import Deserializer, PartitionChooser

Plain = bytes | bytearray | memoryview | str | None
"""What needs no serializer: bytes, text (sent as UTF-8), None (no key, a tombstone)."""

HeaderValue = bytes | str | None
UserHeaders = Iterable[tuple[str, HeaderValue]] | Mapping[str, HeaderValue]
"""Pairs, names may repeat, or a mapping; text is sent as UTF-8."""

if (
    TYPE_CHECKING
):  # `Producer` alone is a producer without a serializer; typing knows that from 3.13
    from typing_extensions import TypeVar

    V = TypeVar("V", default=Plain)
else:
    from typing import TypeVar

    V = TypeVar("V")
"""What a producer's serializer takes: of `Producer[V]`."""


Acks = Literal["all", "-1", "0", "1", -1, 0, 1]
"""Whose promise an acknowledgement is."""


class ClientOptions(TypedDict, total=False):
    """Names and types of `ClientConfig`."""

    client_id: str
    request_timeout_ms: int
    metadata_max_age_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    use_http_proxy: bool
    tracing: bool


class ProducerOptions(TypedDict, total=False):
    """Names and types of `ProducerConfig`, without the serializers.

    `serializer` and `key_serializer` are parameters of their own in `producer()`: they decide what
    the producer takes.
    """

    acks: Acks
    enable_idempotence: bool | None
    linger_ms: int
    batch_size: int
    compression_type: Literal["lz4", "none", "zstd", "snappy", "gzip"]
    max_request_size: int
    delivery_timeout_ms: int
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    buffer_memory: int
    max_block_ms: int
    max_in_flight_requests_per_connection: int
    partitioner: Literal["murmur2", "default", "round_robin"] | PartitionChooser
    partitioner_adaptive: bool
    metadata_max_age_ms: int
    access_mode: Literal["shared", "exclusive", "wait_for_exclusive", "exclusive_with_fencing"]
    profile: Literal["latency", "throughput"] | None


class ConsumerOptions(TypedDict, total=False):
    """Names and types of `ConsumerConfig`."""

    auto_offset_reset: str
    max_poll_records: int
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    prefetch_max_bytes: int
    prefetch_max_partition_bytes: int
    isolation_level: Literal["read_uncommitted"]
    check_crcs: Literal[True]
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    metadata_max_age_ms: int
    key_deserializer: Literal["json", "str"] | Deserializer | None
    value_deserializer: Literal["json", "str"] | Deserializer | None
    interceptors: Iterable[object]


class GroupOptions(ConsumerOptions, total=False):
    """Names and types of `GroupConfig`."""

    group_instance_id: str | None
    enable_auto_commit: bool
    allow_missing_topics: bool
    auto_commit_interval_ms: int
    max_poll_interval_ms: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    partition_assignment_strategy: str | Iterable[str]
    client_rack: str | None
