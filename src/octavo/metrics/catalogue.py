"""Every metric that a server shows: name, kind, labels, meaning (interface §4.1, F171).

The pages, `docs/reference/metrics.md`, dashboards, alert rules and tests take names from here and
nowhere else; those of groups and of tiering stand in modules of their own. Loads nothing but the
standard library, so that any program may look a name up.

Labels never hold a principal, a key or an address, and each has a bounded number of values; series
of partitions and groups are bounded by settings of the broker.
"""

from __future__ import annotations

from octavo.metrics import of_groups, of_tiering
from octavo.metrics.metric import BOOKIE, BOTH, BROKER, Kind, Metric, Server
from octavo.runtime.histogram import (
    GROUP_RECORDS,
    REQUEST_SECONDS,
    SYNC_SECONDS,
    WORK_SECONDS,
)

BUILD_INFO = Metric(
    "octavo_build_info", "gauge", BOTH, "1; the version that runs", ("version", "server")
)
LOOP_LAG = Metric(
    "octavo_loop_lag_seconds",
    "histogram",
    BOTH,
    "how much later than it asked for a timer of the event loop rang, looked at 4 times a second",
    buckets=SYNC_SECONDS,
)
CONNECTIONS = Metric(
    "octavo_connections",
    "gauge",
    BOTH,
    "connections of clients and other servers to the port for data; a broker knows it on Linux",
)
SCRAPE_FAILURES = Metric(
    "octavo_metrics_failures_total",
    "counter",
    BOTH,
    "parts of this page that could not be looked at, and were left out of it",
)
METADATA_OP_SECONDS = Metric(
    "octavo_zk_op_seconds",
    "histogram",
    BOTH,
    "operations of the metadata store, ZooKeeper or the embedded one, failed ones included",
    ("op",),
    REQUEST_SECONDS,
)
METADATA_OP_FAILURES = Metric(
    "octavo_zk_op_failures_total",
    "counter",
    BOTH,
    "operations of the metadata store without an answer, or with an unknown outcome",
    ("op",),
)
METADATA_SESSION_STATE = Metric(
    "octavo_zk_session_state",
    "gauge",
    BOTH,
    "1 for the state in which the session with the metadata store is, 0 for the others",
    ("state",),
)
METADATA_SESSION_LOSSES = Metric(
    "octavo_zk_session_losses_total", "counter", BOTH, "sessions that ended against our will"
)
LEDGER_RECOVERIES = Metric(
    "octavo_ledger_recoveries_total",
    "counter",
    BOTH,
    "recoveries of ledgers that this process carried out, by how they ended",
    ("outcome",),
)
RECOVERY_SECONDS = Metric(
    "octavo_recovery_seconds",
    "histogram",
    BOTH,
    "recoveries of ledgers that ended well",
    buckets=WORK_SECONDS,
)
ENSEMBLE_CHANGES = Metric(
    "octavo_ensemble_changes_total", "counter", BOTH, "ensembles that were changed in open ledgers"
)
DEGRADED_LEDGERS = Metric(
    "octavo_degraded_ledgers_total",
    "counter",
    BOTH,
    "ledgers that were opened with fewer copies than wanted, for want of bookies (A6)",
)

# --- brokers ------------------------------------------------------------------------------------

MESSAGES = Metric(
    "octavo_broker_messages_total",
    "counter",
    BROKER,
    "records that became durable (in) and that were given to readers (out); not of internal "
    "topics. What goes out is counted by offsets: gaps of compacted topics count",
    ("direction",),
)
BYTES = Metric(
    "octavo_broker_bytes_total",
    "counter",
    BROKER,
    "bytes of batches, as stored: compressed, with their headers; not of internal topics",
    ("direction",),
)
REQUEST_SECONDS_OF = Metric(
    "octavo_broker_request_seconds",
    "histogram",
    BROKER,
    "requests other than the streams of producers and readers, by gRPC status; a group's "
    "Heartbeat is held on purpose",
    ("method", "code"),
    REQUEST_SECONDS,
)
PUBLISH_ACK_SECONDS = Metric(
    "octavo_broker_publish_ack_seconds",
    "histogram",
    BROKER,
    "from a batch that was read to its answer that is written: of each message with answers the "
    "batch that waited longest",
    buckets=REQUEST_SECONDS,
)
THROTTLED = Metric(
    "octavo_throttled_total",
    "counter",
    BROKER,
    "messages after which a client was slowed down, and requests or streams that were refused, by "
    "the quota it was over",
    ("quota",),
)
STREAMS = Metric(
    "octavo_broker_streams", "gauge", BROKER, "open streams of producers and readers", ("kind",)
)
PARTITIONS = Metric("octavo_broker_partitions", "gauge", BROKER, "partitions served here")
BUNDLES = Metric("octavo_broker_bundles", "gauge", BROKER, "bundles of partitions held here")
PENDING_BATCHES = Metric(
    "octavo_broker_pending_batches", "gauge", BROKER, "batches with an offset, not durable yet"
)
PARTITION_LOAD_SECONDS = Metric(
    "octavo_broker_partition_load_seconds",
    "histogram",
    BROKER,
    "opening a partition, recovery included, if it ended well",
    buckets=WORK_SECONDS,
)
TAKE_OVER_SECONDS = Metric(
    "octavo_broker_take_over_seconds",
    "histogram",
    BROKER,
    "from a bundle that was taken because its owner is gone to each of its partitions served",
    buckets=WORK_SECONDS,
)
OVER_BACKLOG_QUOTA = Metric(
    "octavo_broker_partitions_over_backlog_quota",
    "gauge",
    BROKER,
    "partitions served here whose backlog is over the topic's quota (F162), by what happens then",
    ("policy",),
)
BACKLOG_EVICTED = Metric(
    "octavo_broker_backlog_evicted_offsets_total",
    "counter",
    BROKER,
    "offsets by which groups were moved on because the backlog of a partition served here was over "
    "its quota, all groups together",
)
BUSIEST_PARTITION = Metric(
    "octavo_broker_busiest_partition_ratio",
    "gauge",
    BROKER,
    "part of the load of this broker that its busiest partition had in the last load interval",
)
BOOKIES = Metric(
    "octavo_broker_bookies", "gauge", BROKER, "registered bookies, as this broker sees them",
    ("state",),
)  # fmt: skip
TAIL_CACHE_BYTES = Metric(
    "octavo_broker_tail_cache_bytes", "gauge", BROKER, "newest entries kept for readers of the tail"
)
PARTITION_END = Metric(
    "octavo_partition_end_offset",
    "gauge",
    BROKER,
    "the high watermark",
    ("topic", "partition"),
    setting="metrics_partitions_max",
)
PARTITION_BEGIN = Metric(
    "octavo_partition_begin_offset",
    "gauge",
    BROKER,
    "the lowest retained offset",
    ("topic", "partition"),
    setting="metrics_partitions_max",
)
PARTITION_MESSAGES = Metric(
    "octavo_partition_messages_total",
    "counter",
    BROKER,
    "as octavo_broker_messages_total, since the partition is served here",
    ("topic", "partition", "direction"),
    setting="metrics_partitions_max",
)
PARTITION_LOAD = Metric(
    "octavo_partition_load_ratio",
    "gauge",
    BROKER,
    "part of the load of this broker that the partition had in the last load interval (F175)",
    ("topic", "partition"),
    setting="metrics_partitions_max",
)
PARTITION_BACKLOG = Metric(
    "octavo_partition_backlog_bytes",
    "gauge",
    BROKER,
    "what the slowest group of the topic has not read, where a backlog quota is set (F162)",
    ("topic", "partition"),
    setting="metrics_partitions_max",
)
PARTITION_BACKLOG_QUOTA = Metric(
    "octavo_partition_backlog_quota_bytes",
    "gauge",
    BROKER,
    "backlog.quota.bytes of the topic, where it is set",
    ("topic", "partition"),
    setting="metrics_partitions_max",
)

# --- bookies ------------------------------------------------------------------------------------

JOURNAL_ADD_SECONDS = Metric(
    "octavo_bookie_journal_add_seconds",
    "histogram",
    BOOKIE,
    "from an add that is queued to its acknowledgement: of each group the add that waited longest",
    buckets=SYNC_SECONDS,
)
JOURNAL_FSYNC_SECONDS = Metric(
    "octavo_bookie_journal_fsync_seconds",
    "histogram",
    BOOKIE,
    "syncs of the journal",
    buckets=SYNC_SECONDS,
)
JOURNAL_GROUP_SIZE = Metric(
    "octavo_bookie_journal_group_size",
    "histogram",
    BOOKIE,
    "entries and control records that were written and synced together",
    buckets=GROUP_RECORDS,
)
JOURNAL_BYTES = Metric(
    "octavo_bookie_journal_bytes_total", "counter", BOOKIE, "bytes written to the journal"
)
JOURNAL_QUEUE_ENTRIES = Metric(
    "octavo_bookie_journal_queue_entries", "gauge", BOOKIE, "entries that wait for their sync"
)
JOURNAL_QUEUE_BYTES = Metric(
    "octavo_bookie_journal_queue_bytes", "gauge", BOOKIE, "their bytes"
)  # fmt: skip
BOOKIE_STATE = Metric(
    "octavo_bookie_state",
    "gauge",
    BOOKIE,
    "1 for the state in which the bookie is, 0 for the others",
    ("state",),
)
DISK_FREE = Metric(
    "octavo_bookie_disk_free_bytes",
    "gauge",
    BOOKIE,
    "free space of the disk of the segments (data), and of the index where that is another one "
    "(index), as last measured",
    ("disk",),
)
DISK_TOTAL = Metric(
    "octavo_bookie_disk_total_bytes", "gauge", BOOKIE, "size of that disk", ("disk",)
)
BOOKIE_ENTRIES = Metric(
    "octavo_bookie_entries_total",
    "counter",
    BOOKIE,
    "entries that were stored (in) and given to readers (out)",
    ("direction",),
)
FENCED_ADDS = Metric(
    "octavo_fenced_adds_total",
    "counter",
    BOOKIE,
    "adds refused because their ledger is fenced: its writer was replaced",
)
REFUSED_ADDS = Metric(
    "octavo_bookie_refused_adds_total",
    "counter",
    BOOKIE,
    "adds refused, by status",
    ("status",),
)
CORRUPT_ENTRIES = Metric(
    "octavo_bookie_corrupt_entries_total",
    "counter",
    BOOKIE,
    "reads that met a damaged entry or a failing disk, and entries that compaction could not copy",
)
CONFLICTS = Metric(
    "octavo_bookie_conflicts_total",
    "counter",
    BOOKIE,
    "adds of an entry that is stored with other bytes; never expected (INV-5)",
)
INDEX_REBUILDS = Metric(
    "octavo_bookie_index_rebuilds_total",
    "counter",
    BOOKIE,
    "how often this process built its index anew from the journal; 0 until it is built",
)
LEDGERS = Metric("octavo_bookie_ledgers", "gauge", BOOKIE, "ledgers whose state is in memory")
STORED_BYTES = Metric(
    "octavo_bookie_stored_bytes", "gauge", BOOKIE, "bytes of segments that are not written to"
)
LIVE_BYTES = Metric("octavo_bookie_live_bytes", "gauge", BOOKIE, "bytes of live entries in them")
RECLAIMED_BYTES = Metric(
    "octavo_bookie_reclaimed_bytes",
    "gauge",
    BOOKIE,
    "bytes of files removed since the start, less what was copied for it",
)
COPIED_BYTES = Metric(
    "octavo_bookie_compacted_bytes_total", "counter", BOOKIE, "bytes that compaction copied"
)
LEDGERS_DELETED = Metric(
    "octavo_bookie_ledgers_deleted_total", "counter", BOOKIE, "ledgers found gone and deleted"
)
LEDGERS_MISSING = Metric(
    "octavo_bookie_ledgers_missing", "gauge", BOOKIE, "ledgers found missing once, not deleted yet"
)
COLLECTION_ALARM = Metric(
    "octavo_bookie_collection_alarm",
    "gauge",
    BOOKIE,
    "1 while something speaks against deleting what the metadata does not know, else 0",
)
UNDERREPLICATED = Metric(
    "octavo_ledgers_underreplicated",
    "gauge",
    BOOKIE,
    "ledgers that lacked copies when the auditor last walked all; only its process shows it",
)
LEDGERS_UNCHECKED = Metric(
    "octavo_ledgers_unchecked",
    "gauge",
    BOOKIE,
    "ledgers of which that walk could not learn whether they lack copies; unreadable ones included",
)
AUDIT_ENDED = Metric(
    "octavo_audit_ended_timestamp_seconds",
    "gauge",
    BOOKIE,
    "when that walk ended, seconds since 1970",
)
AUDITOR = Metric("octavo_auditor", "gauge", BOOKIE, "1 while this process is the auditor, else 0")
LEDGERS_REPAIRED = Metric(
    "octavo_ledgers_repaired_total", "counter", BOOKIE, "ledgers of which nothing is missing again"
)
REPAIRS_FAILED = Metric(
    "octavo_ledger_repair_failures_total", "counter", BOOKIE, "attempts that left something missing"
)
REPAIRED_ENTRIES = Metric(
    "octavo_repaired_entries_total", "counter", BOOKIE, "entries that this process copied"
)
REPAIRED_BYTES = Metric("octavo_repaired_bytes_total", "counter", BOOKIE, "their bytes")
UNREADABLE_ENTRIES = Metric(
    "octavo_unreadable_entries_total",
    "counter",
    BOOKIE,
    "entries that repair found at no bookie, each time again",
)

SCRUB_BYTES = Metric(
    "octavo_bookie_scrub_bytes_total", "counter", BOOKIE, "bytes that the scrub read (6.15)"
)
SCRUB_PASSES = Metric(
    "octavo_bookie_scrub_passes_total",
    "counter",
    BOOKIE,
    "looks of the scrub at all that is stored that ended",
)
SCRUB_ENDED = Metric(
    "octavo_bookie_scrub_ended_timestamp_seconds",
    "gauge",
    BOOKIE,
    "when the last of them ended, also before this process, seconds since 1970",
)
SCRUB_DAMAGED = Metric(
    "octavo_bookie_scrub_damaged_entries_total",
    "counter",
    BOOKIE,
    "entries that the scrub found damaged",
)
SCRUB_REPAIRED = Metric(
    "octavo_bookie_scrub_repaired_entries_total",
    "counter",
    BOOKIE,
    "entries that were found damaged and can be read again",
)
SCRUB_WAITING = Metric(
    "octavo_bookie_scrub_waiting_entries",
    "gauge",
    BOOKIE,
    "entries found damaged that wait for their repair from other copies",
)
SCRUB_QUARANTINED = Metric(
    "octavo_bookie_scrub_quarantined_segments",
    "gauge",
    BOOKIE,
    "damaged segments, kept as they are while entries in them wait",
)

# --- the process, as the library reads it -------------------------------------------------------


def _of_process(name: str, kind: Kind, meaning: str, *labels: str) -> Metric:
    return Metric(name, kind, BOTH, meaning, labels, by_library=True)


PROCESS: tuple[Metric, ...] = (
    _of_process("process_virtual_memory_bytes", "gauge", "virtual memory"),
    _of_process("process_resident_memory_bytes", "gauge", "resident memory"),
    _of_process("process_start_time_seconds", "gauge", "when it began, seconds since 1970"),
    _of_process("process_cpu_seconds_total", "counter", "processor time of all threads"),
    _of_process("process_open_fds", "gauge", "open files"),
    _of_process("process_max_fds", "gauge", "files that it may open"),
    _of_process(
        "python_gc_objects_collected_total", "counter", "objects in cycles freed", "generation"
    ),
    _of_process(
        "python_gc_objects_uncollectable_total", "counter", "objects never freed", "generation"
    ),
    _of_process("python_gc_collections_total", "counter", "runs of the collector", "generation"),
    _of_process(
        "python_info", "gauge", "1; the interpreter that runs",
        "implementation", "major", "minor", "patchlevel", "version",
    ),
)  # fmt: skip

OURS: tuple[Metric, ...] = (
    *(one for one in globals().values() if isinstance(one, Metric)),
    *of_groups.ALL,
    *of_tiering.ALL,
)
"""All but those of the library, in the order of this file; then those of groups and tiering."""
ALL: tuple[Metric, ...] = (*OURS, *PROCESS)


def of_server(server: Server) -> tuple[Metric, ...]:
    """What the page of such a server shows."""
    return tuple(metric for metric in ALL if server in metric.servers)
