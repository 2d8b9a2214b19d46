"""Topic settings: Kafka's dotted names, validated before a topic is created (F140).

`parse_topic_config` is the only door: unknown names and impossible values are InvalidConfig with a
hint, replication errors are InvalidReplicationFactor. Stored settings are parsed leniently by
`settings_of`, so that a record written by another build never stops a partition from loading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from octavo.proto.batch import (
    DEFAULT_RECORD_BYTES,
    HEADER_BYTES,
    MAX_BATCH_BYTES,
    MAX_RECORD_BYTES,
    RECORD_ENVELOPE_BYTES,
)
from octavo.proto.compression import CODECS
from octavo.runtime.errors import InvalidConfig, InvalidReplicationFactor
from octavo.runtime.suggestion import did_you_mean
from octavo.serving.backlog import BACKLOG_POLICIES, HOLD, BacklogQuota
from octavo.serving.config import BrokerConfig
from octavo.serving.dedup_rule import IDS_DEFAULT, IDS_MAX, WINDOW_MS_MAX, DedupRule
from octavo.serving.retention import AS_RETENTION, KEEP_ALL, UNLIMITED, RetentionRule

_INT64_MAX = (1 << 63) - 1
MAX_VALUE_CHARS = 1_000
CONFIG_ENTRIES_MAX = 64
POLICIES = ("compact", "delete")
COMPACTS, DELETES = POLICIES
RETENTION_MODES = ("limits", "consumed")
LIMITS, CONSUMED = RETENTION_MODES
CREATE, APPEND = "create", "append"
NO, YES = "false", "true"
TIERING = "tiering"
AS_SENT = "producer"


class TopicSettings(NamedTuple):
    """The effective settings of one topic."""

    segment_bytes: int
    segment_ms: int
    retention_ms: int
    """-1: no record goes by its age."""
    retention_bytes: int
    """Of one partition; -1: no record goes by the size of the log."""
    replication_factor: int
    min_insync_replicas: int
    timestamp_type: str
    """`create` or `append`: whose time a record has, its producer's or the owner's (X23)."""
    timestamp_before_max_ms: int
    """How far a producer's time may lie behind the broker's."""
    timestamp_after_max_ms: int
    """The same ahead."""
    compression_type: str
    """`producer`: batches stay as they were sent; else a codec (F039)."""
    max_message_bytes: int
    """Largest key + value + headers of a record (F153)."""
    max_batch_bytes: int
    """Largest batch: of a topic that names a limit, one record of that size and no more."""
    cleanup_policy: str
    """`delete`, `compact` or `compact,delete` (K9)."""
    min_cleanable_dirty_ratio: float
    """A log is compacted when more than such a part of it is dirty (K3)."""
    min_compaction_lag_ms: int
    """A segment whose newest record is younger is not compacted (K2)."""
    max_compaction_lag_ms: int
    """A log is compacted when a dirty record is older (K3)."""
    delete_retention_ms: int
    """How long a tombstone stays once it is clean (K5)."""
    retention_mode: str
    """`limits`, or `consumed`: a closed segment goes, too, when every group is past it (R5)."""
    exclusive_writer: str
    """`true`: only the producer that claimed a partition writes to it (X32)."""
    dedup_window_ms: int
    """How long a record's `dedup_id` counts; 0: such records are refused (X14)."""
    dedup_window_ids: int
    """Ids that one partition remembers; when they all count, the next one waits."""
    backlog_quota_bytes: int
    """What of one partition the slowest group may leave unread (F162); -1: everything."""
    backlog_quota_time_ms: int
    """How long ago the oldest of it may have been appended; -1: any time."""
    backlog_quota_policy: str
    """What happens then: `producer_hold`, `producer_exception` or `evict_oldest`."""
    tiering: str
    """`true`: closed segments are copied to the tree at the brokers' `tier_root` (F088)."""
    retention_local_ms: int
    """How long records stay on bookies once they are copied; -2: as long as at all."""
    retention_local_bytes: int
    """How much of one partition does; -2: as much as at all."""

    @property
    def is_tiered(self) -> bool:
        """Whether closed segments are copied to the tree."""
        return self.tiering == YES

    @property
    def local_retention(self) -> RetentionRule:
        """What stays on bookies although files hold it."""
        kept = self.retention
        age_ms, size_bytes = self.retention_local_ms, self.retention_local_bytes
        return RetentionRule(
            kept.age_ms if age_ms == AS_RETENTION else age_ms,
            kept.size_bytes if size_bytes == AS_RETENTION else size_bytes,
        )

    @property
    def has_writer(self) -> bool:
        """Whether a partition has one writer at a time."""
        return self.exclusive_writer == YES

    @property
    def dedup(self) -> DedupRule:
        """Which ids of records count."""
        return DedupRule(self.dedup_window_ms, self.dedup_window_ids)

    @property
    def backlog_quota(self) -> BacklogQuota:
        """How far groups may fall behind (F162)."""
        return BacklogQuota(
            self.backlog_quota_bytes, self.backlog_quota_time_ms, self.backlog_quota_policy
        )

    @property
    def goes_when_consumed(self) -> bool:
        """Whether records go once every registered group has committed past them."""
        return self.retention_mode == CONSUMED

    @property
    def append_time(self) -> bool:
        """Whether records have the time of their append."""
        return self.timestamp_type == APPEND

    @property
    def codec(self) -> int | None:
        """What batches are stored with; None: with what they were sent with."""
        return CODECS.get(self.compression_type)

    @property
    def compacts(self) -> bool:
        """Whether of each key only the last record is kept."""
        return COMPACTS in self.cleanup_policy

    @property
    def retention(self) -> RetentionRule:
        """What goes by age and size: nothing of a topic that is only compacted (K9)."""
        if DELETES not in self.cleanup_policy:
            return KEEP_ALL
        return RetentionRule(self.retention_ms, self.retention_bytes)


class _Setting(NamedTuple):
    field: str
    """Of TopicSettings."""
    parse: Callable[[str, str, BrokerConfig], int | float | str]


def _integer(name: str, text: str, low: int, high: int) -> int:
    try:
        value = int(text.strip())
    except ValueError:
        raise InvalidConfig(f"{name} must be a whole number, not {text!r}") from None
    if not low <= value <= high:
        raise InvalidConfig(f"{name} must be between {low} and {high}, not {value}")
    return value


def _between(low: int, high: int) -> Callable[[str, str, BrokerConfig], int]:
    return lambda name, text, _: _integer(name, text, low, high)


def _backlog_limit(name: str, text: str, _: BrokerConfig) -> int:
    value = _integer(name, text, UNLIMITED, _INT64_MAX)
    if value == 0:
        raise InvalidConfig(
            f"{name}=0 leaves a group nothing to read", hint=f"{name}={UNLIMITED} sets no limit"
        )
    return value


def _segment_bytes(name: str, text: str, broker: BrokerConfig) -> int:
    return _integer(name, text, broker.min_segment_bytes, 1 << 40)


def _ratio(name: str, text: str, _: BrokerConfig) -> float:
    try:
        value = float(text.strip())
    except ValueError:
        raise InvalidConfig(f"{name} must be a number, not {text[:100]!r}") from None
    if not 0 <= value <= 1:  # also what is no number at all
        raise InvalidConfig(f"{name} must be between 0 and 1, not {text[:100]}")
    return value


def _mode(name: str, text: str, _: BrokerConfig) -> str:
    if text.strip() not in RETENTION_MODES:
        raise InvalidConfig(
            f"{name}: {text[:100]!r} is no mode", hint=did_you_mean(text[:100], RETENTION_MODES)
        )
    return text.strip()


def _one_of(*choices: str) -> Callable[[str, str, BrokerConfig], str]:
    def parse(name: str, text: str, _: BrokerConfig) -> str:
        value = text.strip()
        if value not in choices:
            raise InvalidConfig(
                f"{name} must be one of {', '.join(choices)}, not {text[:100]!r}",
                hint=did_you_mean(value[:100], choices),
            )
        return value

    return parse


def _policy(name: str, text: str, _: BrokerConfig) -> str:
    """As it is kept and shown: in one order, without spaces."""
    given = {one.strip() for one in text.split(",")}
    for one in sorted(given.difference(POLICIES)):
        raise InvalidConfig(
            f"{name}: {one[:100]!r} is no policy",
            hint=did_you_mean(one[:100], POLICIES),
        )
    return ",".join(one for one in POLICIES if one in given)


_SETTINGS: dict[str, _Setting] = {
    "retention.ms": _Setting("retention_ms", _between(UNLIMITED, _INT64_MAX)),
    "retention.bytes": _Setting("retention_bytes", _between(UNLIMITED, _INT64_MAX)),
    "segment.bytes": _Setting("segment_bytes", _segment_bytes),
    "segment.ms": _Setting("segment_ms", _between(1_000, _INT64_MAX)),
    "cleanup.policy": _Setting("cleanup_policy", _policy),
    "min.cleanable.dirty.ratio": _Setting("min_cleanable_dirty_ratio", _ratio),
    "min.compaction.lag.ms": _Setting("min_compaction_lag_ms", _between(0, _INT64_MAX)),
    "max.compaction.lag.ms": _Setting("max_compaction_lag_ms", _between(1, _INT64_MAX)),
    "delete.retention.ms": _Setting("delete_retention_ms", _between(0, _INT64_MAX)),
    "retention.mode": _Setting("retention_mode", _mode),
    "exclusive.writer": _Setting("exclusive_writer", _one_of(NO, YES)),
    "dedup.window.ms": _Setting("dedup_window_ms", _between(0, WINDOW_MS_MAX)),
    "dedup.window.ids": _Setting("dedup_window_ids", _between(1, IDS_MAX)),
    "backlog.quota.bytes": _Setting("backlog_quota_bytes", _backlog_limit),
    "backlog.quota.time.ms": _Setting("backlog_quota_time_ms", _backlog_limit),
    "backlog.quota.policy": _Setting("backlog_quota_policy", _one_of(*BACKLOG_POLICIES)),
    "replication.factor": _Setting("replication_factor", _between(1, 64)),
    "min.insync.replicas": _Setting("min_insync_replicas", _between(1, 64)),
    "compression.type": _Setting("compression_type", _one_of(AS_SENT, *CODECS)),
    "message.timestamp.type": _Setting("timestamp_type", _one_of(CREATE, APPEND)),
    "message.timestamp.before.max.ms": _Setting("timestamp_before_max_ms", _between(0, _INT64_MAX)),
    "message.timestamp.after.max.ms": _Setting("timestamp_after_max_ms", _between(0, _INT64_MAX)),
    "max.message.bytes": _Setting("max_message_bytes", _between(HEADER_BYTES, MAX_RECORD_BYTES)),
    TIERING: _Setting("tiering", _one_of(NO, YES)),
    "retention.local.ms": _Setting("retention_local_ms", _between(AS_RETENTION, _INT64_MAX)),
    "retention.local.bytes": _Setting("retention_local_bytes", _between(AS_RETENTION, _INT64_MAX)),
}

_DELETES = (
    "retention.ms",
    "retention.bytes",
    "cleanup.policy",
    "min.compaction.lag.ms",
    "delete.retention.ms",
    "retention.mode",
    TIERING,
    "retention.local.ms",
    "retention.local.bytes",
)
"""Settings that say what goes."""
_BACKLOG_LIMITS = ("backlog.quota.bytes", "backlog.quota.time.ms")
_BACKLOG_QUOTA = (*_BACKLOG_LIMITS, "backlog.quota.policy")
TOPIC_CONFIG_KEYS: tuple[str, ...] = tuple(_SETTINGS)


def default_settings(broker: BrokerConfig) -> TopicSettings:
    """What a topic without settings of its own gets."""
    return TopicSettings(
        segment_bytes=broker.segment_bytes,
        segment_ms=broker.segment_ms,
        retention_ms=broker.retention_ms,
        retention_bytes=broker.retention_bytes,
        replication_factor=broker.write_quorum,
        min_insync_replicas=broker.ack_quorum,
        timestamp_type=CREATE,
        timestamp_before_max_ms=_INT64_MAX,
        timestamp_after_max_ms=broker.timestamp_after_max_ms,
        compression_type=AS_SENT,
        max_message_bytes=DEFAULT_RECORD_BYTES,
        max_batch_bytes=MAX_BATCH_BYTES,
        cleanup_policy=DELETES,
        min_cleanable_dirty_ratio=0.5,
        min_compaction_lag_ms=0,
        max_compaction_lag_ms=_INT64_MAX,
        delete_retention_ms=86_400_000,
        retention_mode=LIMITS,
        exclusive_writer=NO,
        dedup_window_ms=0,
        dedup_window_ids=IDS_DEFAULT,
        backlog_quota_bytes=UNLIMITED,
        backlog_quota_time_ms=UNLIMITED,
        backlog_quota_policy=HOLD,
        tiering=NO,
        retention_local_ms=AS_RETENTION,
        retention_local_bytes=AS_RETENTION,
    )


def effective(
    stored: Mapping[str, str], broker: BrokerConfig, *, internal: bool = False
) -> dict[str, str]:
    """Every setting as it works for a topic, set or by default."""
    settings = settings_of(stored, broker, internal=internal)
    return {name: str(getattr(settings, setting.field)) for name, setting in _SETTINGS.items()}


def parse_topic_config(config: Mapping[str, str], broker: BrokerConfig) -> TopicSettings:
    """Validate a request's settings.

    Raises InvalidConfig (unknown name, bad value) or InvalidReplicationFactor.
    """
    given: dict[str, int | float | str] = {}
    for name, text in config.items():
        setting = _SETTINGS.get(name)
        if setting is None:
            raise InvalidConfig(
                f"unknown topic setting {name[:100]!r}", hint=did_you_mean(name[:100], _SETTINGS)
            )
        if len(text) > MAX_VALUE_CHARS:
            raise InvalidConfig(f"{name}: value of {len(text)} characters is too long")
        given[setting.field] = setting.parse(name, text, broker)
    base = default_settings(broker)
    if "replication_factor" in given and "min_insync_replicas" not in given:
        # The broker's default quorum must not make a smaller replication factor impossible.
        factor = int(given["replication_factor"])
        base = base._replace(min_insync_replicas=min(base.min_insync_replicas, factor))
    if given.get("retention_mode") == CONSUMED:
        # Never before it is consumed, unless the topic itself has a limit besides (R5).
        base = base._replace(retention_ms=UNLIMITED, retention_bytes=UNLIMITED)
    if "max_message_bytes" in given:
        given["max_batch_bytes"] = int(given["max_message_bytes"]) + RECORD_ENVELOPE_BYTES
    settings = base._replace(**given)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    _check_quorum(settings)
    if settings.goes_when_consumed and DELETES not in settings.cleanup_policy:
        raise InvalidConfig(
            f"retention.mode={CONSUMED} deletes, and cleanup.policy={settings.cleanup_policy} "
            "keeps the last record of each key",
            hint="use cleanup.policy=delete, or compact,delete",
        )
    _check_tiering(settings)
    if settings.min_compaction_lag_ms > settings.max_compaction_lag_ms:
        raise InvalidConfig(
            f"min.compaction.lag.ms={settings.min_compaction_lag_ms} exceeds "
            f"max.compaction.lag.ms={settings.max_compaction_lag_ms}"
        )
    return settings


def _check_quorum(settings: TopicSettings) -> None:
    copies, needed = settings.replication_factor, settings.min_insync_replicas
    if needed > copies:  # A1
        raise InvalidConfig(
            f"min.insync.replicas={needed} exceeds replication.factor={copies}",
            hint="lower min.insync.replicas or raise replication.factor",
        )
    if needed == 1 and copies > 1:  # ledger 4.8
        raise InvalidConfig(
            f"min.insync.replicas=1 with replication.factor={copies} could lose acknowledged data",
            hint="use min.insync.replicas=2, or replication.factor=1 for a single copy",
        )


def _check_tiering(settings: TopicSettings) -> None:
    if not settings.is_tiered:
        return
    if settings.compacts:
        raise InvalidConfig(
            f"tiering=true copies segments as they are, and cleanup.policy="
            f"{settings.cleanup_policy} replaces them",
            hint="use cleanup.policy=delete, or leave tiering out",
        )
    for name, local, kept in (
        ("ms", settings.retention_local_ms, settings.retention_ms),
        ("bytes", settings.retention_local_bytes, settings.retention_bytes),
    ):
        is_longer = local == UNLIMITED or local > kept
        if local != AS_RETENTION and kept != UNLIMITED and is_longer:
            raise InvalidConfig(
                f"retention.local.{name}={local} is more than retention.{name}={kept}",
                hint=f"{AS_RETENTION} keeps on bookies what is kept at all",
            )


def check_tier_root(settings: TopicSettings, broker: BrokerConfig) -> None:
    """Raise InvalidConfig for a topic with tiering where brokers have no tree to copy to."""
    if settings.is_tiered and not broker.tier_root:
        raise InvalidConfig(
            "tiering=true, and this broker was not told where to copy to",
            hint="start every broker with OCTAVO_BROKER_TIER_ROOT=<a folder that brokers and "
            "readers see>",
        )


def check_replication(settings: TopicSettings, live_bookies: int) -> None:
    """F051: a topic cannot ask for more copies than there are bookies that take records.

    Those are live and not read-only; raises InvalidReplicationFactor.
    """
    if settings.replication_factor > live_bookies:
        raise InvalidReplicationFactor(
            f"replication.factor={settings.replication_factor}, but {live_bookies} bookies are "
            "there that take records",
            hint="`octavo cluster health` names those that are read-only (a full disk); start more "
            "bookies, make room, or ask for fewer copies",
            live_bookies=live_bookies,
        )


def settings_of(
    stored: Mapping[str, str], broker: BrokerConfig, *, internal: bool = False
) -> TopicSettings:
    """Settings of an existing topic; values this build cannot use fall back to the default.

    What an `internal` topic holds is the state of something: nothing goes unless it says so.
    """
    usable: dict[str, str] = {}
    keeps_all = {
        "retention.ms": str(UNLIMITED),
        "retention.bytes": str(UNLIMITED),
        "cleanup.policy": DELETES,
        "retention.mode": LIMITS,
        TIERING: NO,
    }
    no_quota = {name: str(UNLIMITED) for name in _BACKLOG_LIMITS}
    keeping: dict[str, str] = {}
    if internal:
        usable |= keeps_all
    for name, text in stored.items():
        setting = _SETTINGS.get(name)
        if setting is None:
            continue
        try:
            setting.parse(name, text, broker)
        except InvalidConfig:
            if name in _DELETES:
                keeping |= keeps_all  # what is to stay is not known here: nothing goes
            if name in _BACKLOG_QUOTA:
                keeping |= no_quota  # nor is what was meant: nobody is held, nothing is evicted
            continue
        usable[name] = text
    try:
        return parse_topic_config(usable | keeping, broker)
    except InvalidConfig:
        return parse_topic_config(keeps_all, broker)
