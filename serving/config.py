"""Settings of a broker process; defaults are visible here, units are in the names.

Topic settings live in `octavo.serving.topic_config`; the broker's values are their defaults.
"""

from __future__ import annotations

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from octavo.runtime.config import FrozenSettings

_KIB = 1024
_MIB = 1024 * _KIB


class BrokerConfig(FrozenSettings):
    """What one broker is told at start; environment names start with `OCTAVO_BROKER_`."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_prefix="OCTAVO_BROKER_")

    broker_id: str = Field(min_length=1, max_length=200)
    """Configured name, unique in the cluster."""
    metadata_url: str = "embedded://127.0.0.1:7660/octavo"
    """`zk://host:2181/octavo`, or `embedded://host:port/octavo` of an `octavo up`."""
    host: str = "127.0.0.1"
    """Address to bind."""
    port: int = Field(default=7650, ge=0, le=65535)
    """0 picks a free port."""
    advertised_address: str = ""
    """What clients are told; empty: host and the port in use."""
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of the page for Prometheus; 0 takes a free one, which the log names. None: no page.
    `octavo up` gives one to every server."""
    metrics_host: str = ""
    """Address to bind for it; empty: `host`."""
    metrics_partitions_max: int = Field(default=0, ge=0, le=10_000)
    """Partitions that have series of their own on the page; 0: none."""
    metrics_groups_max: int = Field(default=1_000, ge=0, le=10_000)
    """How many series of each kind the page has for groups that are coordinated here: partitions of
    their topics, their topics, groups. A topic with more partitions than are left has sums only;
    what has no series is counted. 0: none, and the lag of groups is not looked for."""
    metrics_groups_interval_ms: int = Field(default=2_000, ge=20, le=3_000)
    """How often the lag of groups is looked for, if there is a page (M4)."""
    tracing: bool = False
    """Whether requests that belong to a client's trace get spans, which are sent over HTTP where
    the environment says (OTEL_EXPORTER_OTLP_ENDPOINT); needs `octavo[otel-broker]`."""

    bundles: int = Field(default=64, ge=1, le=4096)
    """Hash ranges of partitions; must be equal on every broker of a cluster (O-1)."""
    ownership_settle_s: float = Field(default=5.0, ge=0)
    """The set of live brokers must be stable this long before bundles are given away."""
    ownership_moves_per_step: int = Field(default=6, ge=1)
    """Bundles unloaded in one step; about 10 % of 64 (F145)."""
    unload_deadline_s: float = Field(default=60.0, gt=0)
    """O-3: an unload that takes longer is abandoned; fencing protects the data."""
    session_timeout_s: float = Field(default=6.0, gt=0)
    """A broker whose session is silent for so long loses its partitions, whoever else lives."""
    suspect_after_s: float = Field(default=1.5, gt=0)
    """A broker that answers no heartbeat for so long is replaced by others; one whose process is
    gone at once."""

    load_report_interval_s: float = Field(default=15.0, gt=0)
    """How often a broker measures its load; it is written when it changed, or at each fourth time.
    Must be equal on every broker of a cluster."""
    shedding_enabled: bool = True
    """Bundles move from brokers that have too much to do (O-4)."""
    shedding_interval_s: float = Field(default=60.0, gt=0)
    """How often that is looked at; at least twice `load_report_interval_s`."""
    shedding_above_average_percent: float = Field(default=10.0, gt=0, le=100)
    """A broker gives bundles away when its usage is above the average by so many points,"""
    shedding_overload_percent: float = Field(default=85.0, gt=5, le=100)
    """or above this."""
    shedding_hits: int = Field(default=3, ge=1, le=1_000)
    """How many looks one after the other must show it, while nothing else moved there."""
    shedding_grace_s: float = Field(default=1800.0, ge=0)
    """A bundle that moved, for whatever reason, stays for so long."""
    shedding_moves_max: int = Field(default=2, ge=1, le=64)
    """Bundles that move because of one look."""

    ensemble_size: int = Field(default=3, ge=1, le=64)
    """Bookies that one ledger is spread over (E)."""
    write_quorum: int = Field(default=3, ge=1, le=64)
    """Copies of each entry (Qw); the default of `replication.factor`."""
    ack_quorum: int = Field(default=2, ge=1, le=64)
    """Copies that are durable when a record is acknowledged (Qa)."""
    allow_degraded_ledgers: bool = True
    """A6: open a new ledger with fewer than Qw bookies as long as Qa live."""

    bookie_quarantine_s: float = Field(default=10.0, gt=0)
    """How long a bookie that failed is avoided; a degraded ledger is rolled no sooner (3.4, A6)."""

    segment_bytes: int = Field(default=1024 * _MIB, ge=64 * _KIB)
    """A segment of this size is closed and the next one begun; `segment.bytes` of a topic."""
    segment_ms: int = Field(default=604_800_000, ge=1_000)
    """The same by age; `segment.ms` of a topic."""
    retention_ms: int = Field(default=604_800_000, ge=-1)
    """Records are deleted so long after they were appended, in whole closed segments; -1: never.
    The default of `retention.ms`, also of topics that were created without it."""
    retention_bytes: int = Field(default=-1, ge=-1)
    """A partition larger than this loses its oldest segments; -1: never. `retention.bytes`."""
    retention_check_interval_ms: int = Field(default=300_000, ge=100)
    """How often each partition is looked at for records that are to be deleted."""
    sink_idle_ms: int = Field(default=3_600_000, ge=100)
    """What a sink of Spark staged for a batch that was not decided goes once it has staged nothing
    for so long: longer than a batch takes from its first task to its last (ADR 74)."""
    sink_staging_max_age_ms: int = Field(default=172_800_000, ge=100)
    """It goes at this age though the sink goes on staging; and the staging topic of a sink that
    has staged and decided nothing for so long."""
    backlog_check_interval_ms: int = Field(default=60_000, ge=100)
    """How often the backlogs of topics with a quota are measured; every two seconds while one is
    over, and as soon as what came in since may have brought it there."""
    writer_lease_ms: int = Field(default=10_000, ge=100, le=3_600_000)
    """How long the exclusive writer of a partition counts as alive after it was heard of: whoever
    waits for its place waits so long when it dies."""
    decommission_grace_ms: int = Field(default=330_000, ge=0)
    """How long a partition that is decommissioned still takes records, of producers that have not
    heard of it: longer than their `metadata_max_age_ms`, so that no send fails."""
    compaction_check_interval_ms: int = Field(default=15_000, ge=20)
    """How often partitions of compacted topics are looked at."""
    compaction_concurrency: int = Field(default=1, ge=1, le=64)
    """Partitions that one broker cleans at a time."""
    compaction_memory_bytes: int = Field(default=64 * _MIB, ge=_KIB, le=1 << 30)
    """Of keys and their last offsets in one pass, up to three times as much for a moment. Keys that
    do not fit are left to the next pass."""
    tier_root: str = ""
    """Folder that every broker and reader sees, to which closed segments of topics with
    `tiering=true` are copied as exported trees (F088); equal on every broker. Empty: there are no
    such topics."""
    tier_check_interval_ms: int = Field(default=30_000, ge=20)
    """How often partitions with tiering are looked at."""
    tier_bytes_per_s: int = Field(default=64 * _MIB, ge=0)
    """What a broker copies on average, as stored; 0: as fast as it goes."""
    tier_open_files: int = Field(default=16, ge=1, le=1_000)
    """Exported files kept open for readers of what is on no bookie any more."""
    compaction_bytes_per_s: int = Field(default=64 * _MIB, ge=0)
    """What all passes of a broker read and write, on average; 0: as fast as it goes."""
    min_segment_bytes: int = Field(default=_MIB, ge=64 * _KIB)
    """Smallest `segment.bytes` a topic may ask for (F071); tests lower it to 64 KiB."""
    timestamp_after_max_ms: int = Field(default=3_600_000, ge=0)
    """Records further in the future are refused."""
    max_partitions_per_topic: int = Field(default=10_000, ge=1)
    """Most that a topic may have."""

    index_interval_bytes: int = Field(default=64 * _KIB, ge=_KIB)
    """Distance of two entries of a segment's offset index."""
    snapshot_interval_ms: int = Field(default=60_000, ge=10)
    """How often the state of producers is written into the log (design.md §6)."""
    snapshot_interval_records: int = Field(default=100_000, ge=1)
    """The same by number of records."""
    snapshot_interval_bytes: int = Field(default=32 * _MIB, ge=64 * _KIB)
    """Bounds what a new owner replays after a crash, also when batches are large."""
    producer_expiration_ms: int = Field(default=86_400_000, ge=1_000)
    """The state of a producer that wrote nothing for so long is dropped."""
    max_producers_per_partition: int = Field(default=20_000, ge=1, le=30_000)
    """A snapshot of all of them must fit one entry (E-4)."""

    tail_cache_bytes: int = Field(default=64 * _MIB, ge=0)
    """Newest entries kept in memory for readers of the tail."""
    cold_cache_bytes: int = Field(default=32 * _MIB, ge=_MIB)
    """Read-ahead of backlog readers; never shares bytes with the tail cache (F078)."""
    cold_read_budget_bytes: int = Field(default=32 * _MIB, ge=_MIB)
    """Storage reads in flight (BP-2)."""
    cold_chunk_bytes: int = Field(default=2 * _MIB, ge=64 * _KIB)
    """Size of one read from a bookie for a reader of the backlog."""
    cold_read_bytes_per_s: int = Field(default=8 * _MIB, ge=0)
    """While records come in, what all readers of backlogs together are given a second; twice of
    what comes in for each of them, if that is more. 0: as fast as it goes (F078)."""
    open_readers: int = Field(default=256, ge=1)
    """Ledger readers kept open for closed segments."""
    segment_indexes: int = Field(default=1024, ge=1)
    """Indexes of closed segments kept in memory."""

    connections_max: int = Field(default=10_000, ge=1)
    """Connections of clients and other brokers; more are closed at once. Fewer when the process may
    not open so many files."""
    client_bytes_in_per_s: int = Field(default=0, ge=0)
    """What each client id may send to this broker, over all of its streams; 0: no limit. A client
    with a quota of its own (`octavo quotas set`) goes by that."""
    client_bytes_out_per_s: int = Field(default=0, ge=0)
    """The same for what it reads."""
    client_requests_per_s: int = Field(default=0, ge=0)
    """The same for messages on its produce and fetch streams and for its other calls; heartbeats of
    members and claims of exclusive writers do not count."""
    client_connections_max: int = Field(default=0, ge=0)
    """Connections with such streams that one client id may have; 0: no limit."""
    connection_pending_batches: int = Field(default=1_000, ge=1)
    """BP-3: above it the produce stream is not read."""
    produce_bytes_in_flight: int = Field(default=256 * _MIB, ge=8 * _MIB)
    """Bytes of batches being written, over all connections."""
    fetch_bytes_in_flight: int = Field(default=256 * _MIB, ge=64 * _MIB)
    """Bytes of replies not yet handed to connections, over all of them; each reply counts twice:
    it is in memory as read and as a message."""
    fetch_max_bytes: int = Field(default=52_428_800, ge=_MIB)
    """Most that a client may ask for in one fetch."""
    fetch_reply_bytes: int = Field(default=2 * _MIB, ge=64 * _KIB)
    """A reply stops growing here, whatever the client allows: larger messages leave the CPU's
    cache, and the client works on one while the next is made."""
    fetch_max_wait_ms: int = Field(default=30_000, ge=0)
    """Longest that a fetch waits for records."""
    fetch_max_partitions: int = Field(default=10_000, ge=1)
    """Most partitions of one fetch."""
    max_receive_bytes: int = Field(default=32 * _MIB, ge=8 * _MIB)
    """Largest gRPC message accepted; above the batch limit plus 64 KiB (G7)."""
    max_send_bytes: int = Field(default=64 * _MIB, ge=16 * _MIB)
    """Largest gRPC message sent."""

    group_session_timeout_ms: int = Field(default=45_000, ge=100, le=1_800_000)
    """A member of a group that is silent for so long is no member any more (RB5); at least
    `group_min_session_timeout_ms`."""
    group_min_session_timeout_ms: int = Field(default=6_000, ge=100)
    """Tests lower it."""
    group_heartbeat_interval_ms: int = Field(default=3_000, ge=20)
    """How long a member's heartbeat is held while there is nothing to tell; at most a third of the
    session timeout."""
    group_max_size: int = Field(default=10_000, ge=1)
    """Members of one group."""
    group_requests_max: int = Field(default=20_000, ge=1)
    """Requests about groups, held heartbeats included, that wait at one broker."""
    group_log_records_max: int = Field(default=50_000, ge=100)
    """A partition of groups with more records, and three times as many as count, is compacted:
    its state is written anew and the rest deleted. Bounds what a next coordinator reads."""
    offset_commit_timeout_ms: int = Field(default=5_000, ge=10)
    """A commit that is not stored within it gets REQUEST_TIMED_OUT (O4)."""
    offset_metadata_max_bytes: int = Field(default=4_096, ge=0)
    """Of the text beside a committed offset (O2)."""
    offsets_retention_minutes: int = Field(default=10_080, ge=1)
    """Age at which committed offsets of groups without members expire (O6)."""
    offsets_retention_check_interval_ms: int = Field(default=600_000, ge=10)
    """How often that is looked at."""

    partition_pending_bytes: int = Field(default=64 * _MIB, ge=8 * _MIB)
    """Bytes of one partition being written."""
    partition_pending_batches: int = Field(default=4_000, ge=1)
    """Above it a partition answers THROTTLED instead of queueing."""
    produce_timeout_s: float = Field(default=30.0, gt=0)
    """A8: after this a waiting producer gets REQUEST_TIMED_OUT; the batch stays pending."""
    stall_s: float = Field(default=5.0, gt=0)
    """A head batch older than this with too few bookies turns new batches away (A6)."""
    recovery_timeout_s: float = Field(default=30.0, gt=0)
    """How long the recovery of one ledger may take before it is tried anew."""
    load_wait_s: float = Field(default=15.0, gt=0)
    """How long a lookup waits for a partition to be recovered before it answers retriably."""
    housekeeping_interval_s: float = Field(default=1.0, gt=0)
    """How often segments are looked at for their age."""
    trash_delay_ms: int = Field(default=600_000, ge=0)
    """ML-9: how long a ledger stays in the trash before it is deleted."""
    stop_deadline_s: float = Field(default=20.0, gt=0)
    """Longest that a clean stop takes."""

    @model_validator(mode="after")
    def check(self) -> BrokerConfig:
        """Relations between fields."""
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum:
            raise ValueError("ensemble_size >= write_quorum >= ack_quorum must hold")
        if self.group_session_timeout_ms < self.group_min_session_timeout_ms:
            raise ValueError("group_session_timeout_ms is below group_min_session_timeout_ms")
        if 3 * self.group_heartbeat_interval_ms > self.group_session_timeout_ms:
            raise ValueError("group_heartbeat_interval_ms exceeds a third of the session timeout")
        if self.shedding_enabled and self.shedding_interval_s < 2 * self.load_report_interval_s:
            raise ValueError("shedding_interval_s is below twice load_report_interval_s")
        if self.fetch_max_bytes + 8 * _MIB > self.max_send_bytes:
            raise ValueError("max_send_bytes must exceed fetch_max_bytes by 8 MiB (G7)")
        return self
