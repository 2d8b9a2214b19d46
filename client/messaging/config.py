"""Settings of the client, producer, consumer and reader: frozen dataclasses, no dependency.

Names are Kafka's in snake_case; the dotted form is accepted too (U4, F043). An unknown name is a
ConfigError naming the closest known one, never ignored. Relations between settings (I4, A5) are
checked when the object is built, before anything is sent.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, fields
from typing import ClassVar, Literal, Protocol, TypeVar, cast

from octavo.proto.batch import DEFAULT_RECORD_BYTES, MAX_RECORD_BYTES, RECORD_ENVELOPE_BYTES
from octavo.proto.client_ids import CLIENT_ID_BYTES_MAX
from octavo.proto.compression import CODECS
from octavo.proto.edges import EDGE_WORDS
from octavo.runtime.address import join_address, split_address
from octavo.runtime.errors import ConfigError
from octavo.runtime.suggestion import did_you_mean

_log = logging.getLogger("octavo.client")

DEFAULT_PORT = 7650
MIN_BUFFER_BYTES = 4 << 20
"""Smallest `buffer_memory` and `prefetch_max_bytes`."""
MAX_BATCH_SIZE = 3 << 20
"""Largest `batch_size`; leaves room below the 4 MiB of a batch for its buffers and header."""
SHARED = "shared"
ACCESS_MODES = (SHARED, "exclusive", "wait_for_exclusive", "exclusive_with_fencing")
MAX_IN_FLIGHT = 5
"""A partition remembers 5 batches of a producer (spec groups §3): more cannot be deduplicated."""

RecordHeaders = Iterable[tuple[str, bytes | None]]
PartitionChooser = Callable[[str, bytes | None, bytes | None, object, int], int]
"""`chooser(topic, key, value, headers, partitions) -> partition` (P6)."""
Serializer = Callable[[object], bytes]
Deserializer = Callable[[bytes], object]

T = TypeVar("T", bound="_Settings")


class _Settings(Protocol):
    """Any of the settings classes below."""

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]


def _fail(name: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(f"{name}={value!r} is not allowed", hint=f"{name} must be {allowed}")


def _check_int(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _fail(name, value, f"a whole number from {low} to {high}")


def _check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        raise _fail(name, value, "one of " + ", ".join(map(repr, choices)))


def _check_client_id(client_id: object) -> None:
    """Also a text of the wrong encoding, such as a file name that is none, is refused here."""
    try:
        size = len(client_id.encode()) if isinstance(client_id, str) else -1
    except UnicodeEncodeError:
        size = -1
    if not 0 <= size <= CLIENT_ID_BYTES_MAX:
        raise _fail("client_id", client_id, f"a text of at most {CLIENT_ID_BYTES_MAX} bytes")


_ACKS: dict[object, int] = {"all": -1, "-1": -1, "0": 0, "1": 1, -1: -1, 0: 0, 1: 1}


def acks_number(acks: object) -> int:
    """-1 for all, else 0 or 1, as on the wire; ConfigError for anything else."""
    number = _ACKS.get(acks) if type(acks) in (str, int) else None
    if number is None:
        raise _fail("acks", acks, "'all', 1 or 0")
    return number


_LATER = {"transactional_id": "transactions are not part of this version"}


def normalise(options: Mapping[str, object]) -> dict[str, object]:
    """Dotted names to snake_case; the same name given twice is a ConfigError."""
    out: dict[str, object] = {}
    for given, value in options.items():
        name = given.replace(".", "_")
        if name in out:
            raise ConfigError(f"{name} is given twice", hint="keep one spelling")
        out[name] = value
    return out


def load(cls: type[T], options: Mapping[str, object], *, inherited: Mapping[str, object]) -> T:
    """Build `cls` from user options over `inherited` ones; raises ConfigError."""
    given = normalise(options)
    known = {field.name for field in fields(cast("type[ClientConfig]", cls))}
    for name in given:
        if name in _LATER and name not in known:
            raise ConfigError(f"{name} is set, but {_LATER[name]}", hint="leave it out")
        if name in _OF_GROUPS and name not in known:
            raise ConfigError(f"{name} needs a group", hint='for example group="billing"')
        if name not in known:
            raise ConfigError(f"unknown setting {name!r}", hint=did_you_mean(name, known))
    merged = {name: value for name, value in inherited.items() if name in known}
    if cls is ProducerConfig and given.get("profile") is not None:
        merged |= _profile(given["profile"])
    merged.update(given)
    return cls(**merged)


def parse_servers(servers: str | Iterable[str]) -> tuple[str, ...]:
    """`"host:port,host:port"` or a list of them; a missing port is 7650."""
    parts = servers.split(",") if isinstance(servers, str) else list(servers)
    out: list[str] = []
    for part in parts:
        text = part.strip()
        if not text:
            continue
        host, port = split_address(text, default_port=DEFAULT_PORT, what="bootstrap server")
        out.append(join_address(host, port))
    if not out:
        raise ConfigError("no bootstrap server given", hint='for example Client("localhost:7650")')
    return tuple(dict.fromkeys(out))


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """What all parts of one client share."""

    client_id: str = "octavo-python"
    """Whose quota counts at a broker (X24); shown as the client of a group's member."""
    request_timeout_ms: int = 30_000
    """How long one request waits for its answer."""
    metadata_max_age_ms: int = 300_000
    """What is known of partitions and owners is asked for again after so long."""
    retry_backoff_ms: int = 100
    """Pause before the first repetition; it doubles with each."""
    retry_backoff_max_ms: int = 1_000
    """Longest such pause."""
    use_http_proxy: bool = False
    """Whether `http_proxy`, `https_proxy` and `grpc_proxy` of the environment count."""
    tracing: bool = False
    """Whether OpenTelemetry gets spans, and records carry their context; needs `octavo[otel]`."""

    def __post_init__(self) -> None:
        _check_client_id(self.client_id)
        _check_choice("use_http_proxy", self.use_http_proxy, (True, False))
        _check_choice("tracing", self.tracing, (True, False))
        _check_int("request_timeout_ms", self.request_timeout_ms, 1, 3_600_000)
        _check_int("metadata_max_age_ms", self.metadata_max_age_ms, 100, 86_400_000)
        _check_int("retry_backoff_ms", self.retry_backoff_ms, 1, 60_000)
        _check_int(
            "retry_backoff_max_ms", self.retry_backoff_max_ms, self.retry_backoff_ms, 600_000
        )

    def shared(self) -> dict[str, object]:
        """Values that producers and consumers inherit."""
        return {
            "request_timeout_ms": self.request_timeout_ms,
            "retry_backoff_ms": self.retry_backoff_ms,
            "retry_backoff_max_ms": self.retry_backoff_max_ms,
        }


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """Settings of a producer; see spec/interface.md §1 for the names kept from Kafka."""

    acks: Literal["all"] | int | str = "all"
    """What an acknowledgement means: `all`: durable on Qa bookies; 1: the first bookie has it,
    so that it may be lost with the broker; 0: none is waited for, and nothing is sent again.
    Without idempotence `send(..., acks=)` says so for one record (F032)."""
    enable_idempotence: bool | None = None
    """None: on when `acks` is all."""
    linger_ms: int = 5
    """How long a batch that is not full waits for more records."""
    batch_size: int = 65_536
    """0 turns batching off: one record, one batch (F038)."""
    compression_type: str = "lz4"
    """Codec of batches; a batch that it does not shrink is sent as it is."""
    max_request_size: int = DEFAULT_RECORD_BYTES
    """Largest record: key, value and headers together; the topic's `max.message.bytes` counts
    too."""
    delivery_timeout_ms: int = 120_000
    """A record that is not acknowledged by then fails; it may be stored."""
    request_timeout_ms: int = 30_000
    """How long one request waits for its answer."""
    retry_backoff_ms: int = 100
    """Pause before the first repetition; it doubles with each."""
    retry_backoff_max_ms: int = 1_000
    """Longest such pause."""
    buffer_memory: int = 32 << 20
    """Bytes of records that wait; above it a send waits for room."""
    max_block_ms: int = 60_000
    """Longest that a send waits for room or for the topic's partitions, then BufferFull."""
    max_in_flight_requests_per_connection: int = MAX_IN_FLIGHT
    """Batches of one partition that are under way."""
    partitioner: str | PartitionChooser = "murmur2"
    """By key: murmur2 as Kafka's, or a function; without a key batch by batch, or round robin."""
    partitioner_adaptive: bool = True
    """Keyless batches avoid partitions that are slow."""
    serializer: Literal["json"] | Serializer | None = None
    """How values become bytes; None: bytes and str only."""
    key_serializer: Literal["json"] | Serializer | None = None
    """The same for keys."""
    metadata_max_age_ms: int = 300_000
    """What is known of partitions and owners is asked for again after so long."""
    access_mode: Literal["shared", "exclusive", "wait_for_exclusive", "exclusive_with_fencing"] = (
        "shared"
    )
    """Of topics with `exclusive.writer=true`: `exclusive` is the only writer, or raises
    ExclusiveWriterBusy while another one lives; `wait_for_exclusive` waits for its turn;
    `exclusive_with_fencing` takes the place of whoever has it (X32)."""
    profile: Literal["latency", "throughput"] | None = None
    """Stands for settings, each of which may still be given: `latency` for linger_ms=0 and
    batch_size=16384, `throughput` for linger_ms=5, batch_size=65536 and compression_type=lz4
    (F013)."""

    def __post_init__(self) -> None:
        _check_int("linger_ms", self.linger_ms, 0, 3_600_000)
        _check_int("batch_size", self.batch_size, 0, MAX_BATCH_SIZE)
        _check_choice("compression_type", self.compression_type, tuple(CODECS))
        _check_int("max_request_size", self.max_request_size, 1, MAX_RECORD_BYTES)
        _check_int("request_timeout_ms", self.request_timeout_ms, 1, 3_600_000)
        _check_int("delivery_timeout_ms", self.delivery_timeout_ms, 1, 86_400_000)
        _check_int("retry_backoff_ms", self.retry_backoff_ms, 1, 60_000)
        _check_int(
            "retry_backoff_max_ms", self.retry_backoff_max_ms, self.retry_backoff_ms, 600_000
        )
        _check_int("buffer_memory", self.buffer_memory, MIN_BUFFER_BYTES, 1 << 40)
        _check_int("max_block_ms", self.max_block_ms, 0, 86_400_000)
        _check_int(
            "max_in_flight_requests_per_connection",
            self.max_in_flight_requests_per_connection,
            1,
            1_000,
        )
        self._check_choices()
        self._check_relations()

    def _check_choices(self) -> None:
        _check_choice("access_mode", self.access_mode, ACCESS_MODES)
        acks_number(self.acks)
        if self.enable_idempotence not in (None, True, False):
            raise _fail("enable_idempotence", self.enable_idempotence, "True or False")
        if not callable(self.partitioner):
            _check_choice("partitioner", self.partitioner, ("murmur2", "default", "round_robin"))
        for name in ("serializer", "key_serializer"):
            value = getattr(self, name)
            if value is not None and value != "json" and not callable(value):
                raise _fail(name, value, "'json', a callable or None")

    def _check_relations(self) -> None:
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:  # I4
            raise ConfigError(
                f"delivery_timeout_ms={self.delivery_timeout_ms} is less than linger_ms + "
                f"request_timeout_ms = {self.linger_ms + self.request_timeout_ms}",
                hint="raise delivery_timeout_ms or lower request_timeout_ms",
            )
        if self.buffer_memory < self.max_request_size + RECORD_ENVELOPE_BYTES:
            raise ConfigError(
                f"max_request_size={self.max_request_size} does not fit buffer_memory="
                f"{self.buffer_memory}",
                hint="raise buffer_memory or lower max_request_size",
            )
        if self.enable_idempotence and self.acks_number != -1:  # A5
            raise ConfigError(
                f"enable_idempotence needs acks='all', but acks={self.acks!r}",
                hint="drop acks, or set enable_idempotence=False",
            )
        if self.idempotent and self.max_in_flight_requests_per_connection > MAX_IN_FLIGHT:  # F041
            raise ConfigError(
                f"enable_idempotence allows at most {MAX_IN_FLIGHT} batches in flight, not "
                f"{self.max_in_flight_requests_per_connection}",
                hint="lower max_in_flight_requests_per_connection",
            )
        if self.enable_idempotence is None and self.acks_number != -1:
            _log.info("idempotence is off because acks=%r", self.acks)  # A5: one line

    @property
    def acks_number(self) -> int:
        """-1 for all, else 0 or 1, as on the wire."""
        return acks_number(self.acks)

    @property
    def idempotent(self) -> bool:
        """Whether batches carry a producer id and sequence."""
        if self.enable_idempotence is None:
            return self.acks_number == -1
        return self.enable_idempotence


PROFILES: dict[str, dict[str, object]] = {
    "latency": {"linger_ms": 0, "batch_size": 16_384},
    "throughput": {"linger_ms": 5, "batch_size": 65_536, "compression_type": "lz4"},
}
"""What `profile` of a producer stands for (F013)."""


def _profile(name: object) -> dict[str, object]:
    if not isinstance(name, str) or name not in PROFILES:
        raise _fail("profile", name, "one of " + ", ".join(map(repr, PROFILES)))
    return PROFILES[name]


_RESETS = (*EDGE_WORDS, "none")


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """Settings of a consumer or reader."""

    auto_offset_reset: str = "latest"
    """Where nothing is committed: earliest, latest, none, `by_time:<epoch ms>`, or how long ago: an
    ISO duration as `PT1H` (F6). With latest a group reads partitions and topics that came to be
    since it has members from their first record (ADR 63)."""
    max_poll_records: int = 500
    """Most that one `poll` gives."""
    fetch_min_bytes: int = 1
    """A broker waits until there is so much."""
    fetch_max_wait_ms: int = 500
    """Longest that it waits for that."""
    fetch_max_bytes: int = 52_428_800
    """Most that it sends in one reply."""
    max_partition_fetch_bytes: int = 1 << 20
    """The same for one partition."""
    prefetch_max_bytes: int = 64 << 20
    """Fetched and not yet handed out, over all partitions."""
    prefetch_max_partition_bytes: int = 2 << 20
    """The same for one partition; a partition above it is not asked for more."""
    isolation_level: str = "read_uncommitted"
    """Which records of transactions are seen."""
    check_crcs: bool = True
    """Checksums are always verified (F9)."""
    request_timeout_ms: int = 30_000
    """How long one request waits for its answer."""
    retry_backoff_ms: int = 100
    """Pause before the first repetition; it doubles with each."""
    retry_backoff_max_ms: int = 1_000
    """Longest such pause."""
    metadata_max_age_ms: int = 300_000
    """What is known of partitions and owners is asked for again after so long."""
    key_deserializer: Literal["json", "str"] | Deserializer | None = None
    """What becomes of keys; None: they stay bytes. A function gets bytes, never None."""
    value_deserializer: Literal["json", "str"] | Deserializer | None = None
    """The same for values."""
    interceptors: tuple[object, ...] = ()
    """Objects with `on_consume(records)`, `on_commit(offsets)` or both: they are told, and change
    nothing."""

    def __post_init__(self) -> None:
        parse_reset(self.auto_offset_reset)
        for name in ("key_deserializer", "value_deserializer"):
            value = getattr(self, name)
            if value not in (None, "json", "str") and not callable(value):
                raise _fail(name, value, "'json', 'str', a callable or None")
        self._check_interceptors()
        _check_int("max_poll_records", self.max_poll_records, 1, 1_000_000)
        _check_int("fetch_min_bytes", self.fetch_min_bytes, 1, 1 << 30)
        _check_int("fetch_max_wait_ms", self.fetch_max_wait_ms, 0, 30_000)
        _check_int("fetch_max_bytes", self.fetch_max_bytes, 1, 52_428_800)
        _check_int("max_partition_fetch_bytes", self.max_partition_fetch_bytes, 1, 52_428_800)
        _check_int("prefetch_max_bytes", self.prefetch_max_bytes, MIN_BUFFER_BYTES, 1 << 40)
        _check_int(
            "prefetch_max_partition_bytes",
            self.prefetch_max_partition_bytes,
            1,
            self.prefetch_max_bytes,
        )
        _check_choice("isolation_level", self.isolation_level, ("read_uncommitted",))
        if self.check_crcs is not True:
            raise _fail("check_crcs", self.check_crcs, "True: checksums are always verified (F9)")
        if self.fetch_max_wait_ms >= self.request_timeout_ms:
            raise ConfigError(
                f"fetch_max_wait_ms={self.fetch_max_wait_ms} must be less than "
                f"request_timeout_ms={self.request_timeout_ms}"
            )

    def _check_interceptors(self) -> None:
        given = cast("object", self.interceptors)
        if not isinstance(given, tuple | list):
            raise _fail("interceptors", given, "a list of objects")
        object.__setattr__(self, "interceptors", tuple(cast("list[object]", given)))
        for one in self.interceptors:
            if not (hasattr(one, "on_consume") or hasattr(one, "on_commit")):
                raise _fail("interceptors", one, "objects with on_consume or on_commit")


ASSIGNORS = ("uniform", "range", "roundrobin", "sticky", "cooperative-sticky")
SESSION_TIMEOUT_MS = 45_000
HEARTBEAT_INTERVAL_MS = 3_000


@dataclass(frozen=True, slots=True)
class GroupConfig(ConsumerConfig):
    """Settings of a consumer with a group: those of any consumer, and these."""

    group_instance_id: str | None = None
    """Makes a static member: one that closes and comes back within the session timeout finds its
    partitions (X01)."""
    enable_auto_commit: bool = True
    """Whether reading calls commit what earlier ones returned (O9)."""
    auto_commit_interval_ms: int = 5_000
    """How often they do."""
    max_poll_interval_ms: int = 300_000
    """Whoever asks for no record for so long leaves the group (RB13); also how long callbacks of a
    revocation may take."""
    allow_missing_topics: bool = True
    """Whether a topic that does not exist is waited for; else reading calls raise UnknownTopic
    (F106)."""
    session_timeout_ms: int = SESSION_TIMEOUT_MS
    """Accepted from elsewhere: brokers decide it for all (`group.session.timeout.ms`)."""
    heartbeat_interval_ms: int = HEARTBEAT_INTERVAL_MS
    """Accepted from elsewhere: the coordinator tells it."""
    partition_assignment_strategy: str | tuple[str, ...] = ()
    """uniform (also named sticky, cooperative-sticky), range or roundrobin: the first of those
    named; none: what most members of the group want."""
    client_rack: str | None = None
    """Where the consumer runs: among equals it gets partitions whose owner is near."""

    def __post_init__(self) -> None:
        ConsumerConfig.__post_init__(self)
        for name in ("group_instance_id", "client_rack"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise _fail(name, value, "text, not empty")
        _check_choice("enable_auto_commit", self.enable_auto_commit, (True, False))
        _check_choice("allow_missing_topics", self.allow_missing_topics, (True, False))
        _check_int("auto_commit_interval_ms", self.auto_commit_interval_ms, 0, 86_400_000)
        _check_int("max_poll_interval_ms", self.max_poll_interval_ms, 1, 86_400_000)
        _check_int("session_timeout_ms", self.session_timeout_ms, 1, 86_400_000)
        _check_int("heartbeat_interval_ms", self.heartbeat_interval_ms, 1, 86_400_000)
        for name in self.assignors:
            _check_choice("partition_assignment_strategy", name, ASSIGNORS)
        if (self.session_timeout_ms, self.heartbeat_interval_ms) != (
            SESSION_TIMEOUT_MS,
            HEARTBEAT_INTERVAL_MS,
        ):
            _log.info("session_timeout_ms and heartbeat_interval_ms are the brokers' to decide")

    @property
    def assignors(self) -> tuple[str, ...]:
        """The assignors named, the one wanted most first."""
        given = cast("object", self.partition_assignment_strategy)
        if isinstance(given, str):
            return (given,)
        if not isinstance(given, tuple | list):
            raise _fail("partition_assignment_strategy", given, "a name or several")
        return tuple(cast("list[str]", given))


_OF_GROUPS = {field.name for field in fields(GroupConfig)} - {
    field.name for field in fields(ConsumerConfig)
}

_DURATION = re.compile(
    r"P(?=\d|T\d)(?:(\d+)W)?(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?",
    re.ASCII,
)
_DURATION_MS = (604_800_000, 86_400_000, 3_600_000, 60_000, 1_000)
"""Of a week, a day, an hour, a minute, a second."""


def parse_reset(policy: object, now_ms: int = 0) -> str | int:
    """`earliest`, `latest`, `none`, or a moment as epoch ms; raises ConfigError.

    A moment is named, `by_time:<ms>`, or lies a while before `now_ms`: `PT1H`, `by_duration:PT1H`.
    """
    if policy in _RESETS:
        return str(policy)
    if isinstance(policy, str) and policy.startswith("by_time:"):
        digits = policy.removeprefix("by_time:")
        if digits.isascii() and digits.isdecimal() and int(digits) < 1 << 63:
            return int(digits)
    if isinstance(policy, str):
        found = _DURATION.fullmatch(policy.removeprefix("by_duration:"))
        if found is not None and len(policy) < 100:
            parts = zip(found.groups(), _DURATION_MS, strict=True)
            ago_ms = int(sum(float(number or 0) * unit for number, unit in parts))
            return max(now_ms - ago_ms, 0)
    raise _fail(
        "auto_offset_reset",
        policy,
        "earliest, latest, none, by_time:<epoch ms> or an ISO duration such as PT1H",
    )
