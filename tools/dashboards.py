"""What the Grafana dashboards show: rows of panels, each a few expressions (interface §4.1, F171).

`tools/gen_dashboards.py` makes files of it; names come from the catalogue of metrics, and
`tests/unit/test_dashboards.py` holds every expression against it. Servers are told apart by
`instance`, which Prometheus adds.
"""

from __future__ import annotations

from octavo.metrics import catalogue as m
from octavo.metrics import of_groups as g
from octavo.metrics.metric import Metric
from tools.dashboard_words import (
    RATE,
    Choice,
    Dashboard,
    Panel,
    Query,
    Row,
    counter,
    gauge,
    graph,
    per_second,
    quantile,
    selected,
    servers,
    times,
)

TOPIC = 'topic=~"$topic"'
IN, OUT = 'direction="in"', 'direction="out"'
OF_GROUPS = 'method=~"CommitOffsets|FetchOffsets|FindCoordinator|Heartbeat|DescribeGroups"'
BY_NAME = {metric.name: metric for metric in m.ALL}

PROCESS = Row(
    "Process",
    (
        times("How late timers of the event loop rang", m.LOOP_LAG),
        counter("Processors used", BY_NAME["process_cpu_seconds_total"], "short"),
        gauge("Resident memory", BY_NAME["process_resident_memory_bytes"], unit="bytes"),
        graph(
            "Files open, of those that may be",
            f"{selected('process_open_fds')} / {selected('process_max_fds')}",
            unit="percentunit",
        ),
    ),
)
METADATA = Row(
    "Metadata store",
    (
        graph(
            "Operations, 99 %", quantile(m.METADATA_OP_SECONDS, 0.99, by="op"), "{{op}}", unit="s"
        ),
        counter("Operations that failed", m.METADATA_OP_FAILURES, label="op"),
        graph(
            "Servers with a session",
            f"sum by (state) ({selected(m.METADATA_SESSION_STATE.name)})",
            "{{state}}",
        ),
        counter("Sessions lost", m.METADATA_SESSION_LOSSES),
    ),
)

OVERVIEW = Dashboard(
    "octavo-overview",
    "Octavo / Overview",
    "Whether records flow, are safe, and which server is in trouble.",
    (
        Row(
            "Traffic",
            (
                graph(
                    "Records", per_second(m.MESSAGES, by="direction"), "{{direction}}", unit="ops"
                ),
                graph("Bytes", per_second(m.BYTES, by="direction"), "{{direction}}", unit="Bps"),
                times("From a batch read to its answer written", m.PUBLISH_ACK_SECONDS),
            ),
        ),
        Row(
            "Safety",
            (
                Panel(
                    "Ledgers that lack copies, or of which that is not known",
                    (
                        Query(f"max({selected(m.UNDERREPLICATED.name)})", "lack copies"),
                        Query(f"max({selected(m.LEDGERS_UNCHECKED.name)})", "not known"),
                    ),
                ),
                graph(
                    "Since the last look at all ledgers ended",
                    f"time() - max({selected(m.AUDIT_ENDED.name)})",
                    "age",
                    unit="s",
                ),
                graph(
                    "Bookies, as a broker sees them",
                    f"max by (state) ({selected(m.BOOKIES.name)})",
                    "{{state}}",
                ),
                Panel(
                    "Damage met",
                    (
                        Query(per_second(m.CORRUPT_ENTRIES), "{{instance}} damaged here"),
                        Query(per_second(m.UNREADABLE_ENTRIES), "{{instance}} at no bookie"),
                    ),
                    "ops",
                ),
            ),
        ),
        Row(
            "Servers",
            (
                graph(
                    "Servers by version",
                    f"count by (server, version) ({selected(m.BUILD_INFO.name)})",
                    "{{server}} {{version}}",
                ),
                gauge("Connections", m.CONNECTIONS),
                counter("Parts of pages left out", m.SCRAPE_FAILURES),
            ),
        ),
        METADATA,
        PROCESS,
    ),
    (servers(""),),
)

BY_PARTITION = "{{topic}}-{{partition}}"
ONE_EACH = "by (topic, partition)"
"""After a move two brokers may show a partition for the length of one scrape."""

TOPICS = Dashboard(
    "octavo-topics",
    "Octavo / Topics",
    "What each topic takes and gives; brokers need the setting metrics_partitions_max.",
    (
        Row(
            "Topics",
            (
                graph(
                    "Records in",
                    per_second(m.PARTITION_MESSAGES, TOPIC, IN, by="topic"),
                    "{{topic}}",
                    unit="ops",
                ),
                graph(
                    "Records out",
                    per_second(m.PARTITION_MESSAGES, TOPIC, OUT, by="topic"),
                    "{{topic}}",
                    unit="ops",
                ),
                graph(
                    "Records retained",
                    f"sum by (topic) (max {ONE_EACH} "
                    f"({selected(m.PARTITION_END.name, TOPIC)}) - max {ONE_EACH} "
                    f"({selected(m.PARTITION_BEGIN.name, TOPIC)}))",
                    "{{topic}}",
                ),
            ),
        ),
        Row(
            "Partitions",
            (
                graph(
                    "Ten that take most of their broker (F175)",
                    f"topk(10, {selected(m.PARTITION_LOAD.name, TOPIC)})",
                    f"{BY_PARTITION} {{{{instance}}}}",
                    unit="percentunit",
                ),
                graph(
                    "Ten with most records in",
                    "topk(10, "
                    + per_second(
                        m.PARTITION_MESSAGES,
                        TOPIC,
                        IN,
                        by="topic, partition",
                    )
                    + ")",
                    BY_PARTITION,
                    unit="ops",
                ),
                graph(
                    "High watermark",
                    f"topk(20, max {ONE_EACH} ({selected(m.PARTITION_END.name, TOPIC)}))",
                    BY_PARTITION,
                ),
            ),
        ),
    ),
    (
        servers("broker"),
        Choice("topic", f"label_values({m.PARTITION_END.name}, topic)", every=".*"),
    ),
)

GROUP, OF_TOPIC = 'group=~"$group"', "by (group, topic)"
BY_TOPIC, BY_SLOT = "{{group}} {{topic}}", "{{group}} {{topic}}-{{partition}}"


def of_topics(metric: Metric) -> str:
    """Of each topic of each group; after a move two brokers may show one for one scrape."""
    return f"max {OF_TOPIC} ({selected(metric.name, GROUP, TOPIC)})"


def worst(metric: Metric) -> str:
    """The ten partitions of groups with the highest values."""
    return f"topk(10, max by (group, topic, partition) ({selected(metric.name, GROUP, TOPIC)}))"


LAG = Row(
    "Lag",
    (
        graph("Records behind", of_topics(g.TOPIC_LAG), BY_TOPIC),
        graph("Oldest record not consumed", of_topics(g.TOPIC_LAG_SECONDS), BY_TOPIC, unit="s"),
        graph(
            "Records appended, less those consumed; above 0 the lag grows",
            f"{of_topics(g.TOPIC_INFLOW)} - {of_topics(g.TOPIC_DRAIN)}",
            BY_TOPIC,
            unit="ops",
        ),
        graph("Records consumed", of_topics(g.TOPIC_DRAIN), BY_TOPIC, unit="ops"),
        graph("Ten partitions furthest behind", worst(g.SUBSCRIPTION_LAG), BY_SLOT),
        graph("Ten partitions behind for longest", worst(g.SUBSCRIPTION_LAG_SECONDS), BY_SLOT, "s"),
        graph(
            "Members",
            f"max by (group) ({selected(g.SUBSCRIPTION_CONSUMERS.name, GROUP)})",
            "{{group}}",
        ),
        Panel(
            "Not known, and not shown",
            (
                Query(of_topics(g.TOPIC_UNKNOWN), f"{BY_TOPIC}: partitions not known"),
                Query(selected(g.SUBSCRIPTION_LEFT_OUT.name), "{{instance}} {{kind}} not shown"),
            ),
        ),
    ),
)

SUBSCRIPTIONS = Dashboard(
    "octavo-subscriptions",
    "Octavo / Subscriptions",
    "How far groups are behind, what readers get, and how the requests of groups fare.",
    (
        LAG,
        Row(
            "Reading",
            (
                gauge("Open streams of readers", m.STREAMS)._replace(
                    queries=(Query(selected(m.STREAMS.name, 'kind="fetch"')),)
                ),
                graph("Records given to readers", per_second(m.MESSAGES, OUT), unit="ops"),
                graph(
                    "Records given for each one taken; less than groups that read: some fall back",
                    f"{per_second(m.PARTITION_MESSAGES, TOPIC, OUT, by='topic')} / "
                    f"({per_second(m.PARTITION_MESSAGES, TOPIC, IN, by='topic')} > 0)",
                    "{{topic}}",
                ),
            ),
        ),
        Row(
            "Requests of groups",
            (
                graph(
                    "Requests",
                    per_second(m.REQUEST_SECONDS_OF, OF_GROUPS, by="method"),
                    "{{method}}",
                    unit="reqps",
                ),
                graph(
                    "Requests that failed",
                    per_second(m.REQUEST_SECONDS_OF, OF_GROUPS, 'code!="OK"', by="method, code"),
                    "{{method}} {{code}}",
                    unit="reqps",
                ),
                graph(
                    "Commits and look-ups of offsets, 99 %",
                    quantile(
                        m.REQUEST_SECONDS_OF,
                        0.99,
                        'method=~"CommitOffsets|FetchOffsets"',
                        by="method",
                    ),
                    "{{method}}",
                    unit="s",
                ),
            ),
        ),
    ),
    (
        servers("broker"),
        Choice("group", f"label_values({g.SUBSCRIPTION_CONSUMERS.name}, group)", every=".*"),
        Choice("topic", f"label_values({g.TOPIC_UNKNOWN.name}, topic)", every=".*"),
    ),
)

BOOKIES = Dashboard(
    "octavo-bookies",
    "Octavo / Bookies",
    "Journal, disk, space, copies.",
    (
        Row(
            "Journal",
            (
                times("From an add queued to its acknowledgement", m.JOURNAL_ADD_SECONDS),
                times("Syncs", m.JOURNAL_FSYNC_SECONDS),
                graph(
                    "Entries written together, on average",
                    f"rate({selected(m.JOURNAL_GROUP_SIZE.name + '_sum')}{RATE}) / "
                    f"rate({selected(m.JOURNAL_GROUP_SIZE.name + '_count')}{RATE})",
                ),
                counter("Bytes written", m.JOURNAL_BYTES, "Bps"),
                gauge("Entries that wait for their sync", m.JOURNAL_QUEUE_ENTRIES),
                gauge("Their bytes", m.JOURNAL_QUEUE_BYTES, unit="bytes"),
            ),
        ),
        Row(
            "Disk",
            (
                graph("State", f"{selected(m.BOOKIE_STATE.name)} == 1", "{{instance}} {{state}}"),
                graph(
                    "Part of the disk that is free",
                    f"{selected(m.DISK_FREE.name)} / {selected(m.DISK_TOTAL.name)}",
                    "{{instance}} {{disk}}",
                    unit="percentunit",
                ),
                gauge("Stored, and of it live", m.STORED_BYTES, m.LIVE_BYTES, unit="bytes"),
                gauge("Files removed, less what was copied", m.RECLAIMED_BYTES, unit="bytes"),
                counter("Copied by compaction", m.COPIED_BYTES, "Bps"),
                counter("Ledgers deleted", m.LEDGERS_DELETED),
                gauge("Doubts that keep deletions back", m.COLLECTION_ALARM, m.LEDGERS_MISSING),
            ),
        ),
        Row(
            "Entries",
            (
                counter("Entries", m.BOOKIE_ENTRIES, label="direction"),
                counter("Adds refused, their ledger is fenced", m.FENCED_ADDS),
                counter("Adds refused", m.REFUSED_ADDS, label="status"),
                counter("Reads that met damage", m.CORRUPT_ENTRIES),
                counter("Adds with other bytes than stored; never expected", m.CONFLICTS),
                counter("Indexes built anew", m.INDEX_REBUILDS),
                gauge("Ledgers in memory", m.LEDGERS),
            ),
        ),
        Row(
            "Repair",
            (
                gauge("Auditor", m.AUDITOR),
                gauge("Ledgers that lack copies", m.UNDERREPLICATED, m.LEDGERS_UNCHECKED),
                counter("Ledgers repaired", m.LEDGERS_REPAIRED),
                counter("Attempts that left something missing", m.REPAIRS_FAILED),
                counter("Entries copied", m.REPAIRED_ENTRIES),
                counter("Bytes copied", m.REPAIRED_BYTES, "Bps"),
                counter("Entries found at no bookie", m.UNREADABLE_ENTRIES),
            ),
        ),
        Row(
            "Scrub",
            (
                counter("Read by the scrub", m.SCRUB_BYTES, "Bps"),
                graph(
                    "Since all was read last",
                    f"time() - {selected(m.SCRUB_ENDED.name)}",
                    unit="s",
                ),
                Panel(
                    "Entries found damaged, and repaired",
                    (
                        Query(per_second(m.SCRUB_DAMAGED), "{{instance}} damaged"),
                        Query(per_second(m.SCRUB_REPAIRED), "{{instance}} repaired"),
                    ),
                    "ops",
                ),
                gauge(
                    "Entries that wait, segments in quarantine",
                    m.SCRUB_WAITING,
                    m.SCRUB_QUARANTINED,
                ),
            ),
        ),
        METADATA,
        PROCESS,
    ),
    (servers("bookie"),),
)

BROKERS = Dashboard(
    "octavo-brokers",
    "Octavo / Broker internals",
    "Requests, partitions and who owns them, writing of ledgers.",
    (
        Row(
            "Requests",
            (
                graph(
                    "Requests",
                    per_second(m.REQUEST_SECONDS_OF, by="method"),
                    "{{method}}",
                    unit="reqps",
                ),
                graph(
                    "Requests that failed",
                    per_second(m.REQUEST_SECONDS_OF, 'code!="OK"', by="method, code"),
                    "{{method}} {{code}}",
                    unit="reqps",
                ),
                graph(
                    "Requests, 99 %",
                    quantile(m.REQUEST_SECONDS_OF, 0.99, 'method!="Heartbeat"', by="method"),
                    "{{method}}",
                    unit="s",
                ),
                graph("Streams", selected(m.STREAMS.name), "{{instance}} {{kind}}"),
                times("From a batch read to its answer written", m.PUBLISH_ACK_SECONDS),
                gauge("Batches not durable yet", m.PENDING_BATCHES),
                counter("Clients slowed down or refused", m.THROTTLED, label="quota"),
            ),
        ),
        Row(
            "Partitions",
            (
                gauge("Partitions", m.PARTITIONS),
                gauge("Bundles", m.BUNDLES),
                gauge("Load of the busiest partition", m.BUSIEST_PARTITION, unit="percentunit"),
                graph(
                    "Over their backlog quota (F162)",
                    selected(m.OVER_BACKLOG_QUOTA.name),
                    "{{instance}} {{policy}}",
                ),
                times("Opening a partition", m.PARTITION_LOAD_SECONDS),
                times("Taking over from an owner that is gone", m.TAKE_OVER_SECONDS),
                gauge("Cache of the tail", m.TAIL_CACHE_BYTES, unit="bytes"),
            ),
        ),
        Row(
            "Ledgers",
            (
                counter("Recoveries", m.LEDGER_RECOVERIES, label="outcome"),
                times("Recoveries that ended well", m.RECOVERY_SECONDS),
                counter("Ensembles changed", m.ENSEMBLE_CHANGES),
                counter("Ledgers opened with fewer copies than wanted", m.DEGRADED_LEDGERS),
            ),
        ),
        METADATA,
        PROCESS,
    ),
    (servers("broker"),),
)

FILES = {
    "overview.json": OVERVIEW,
    "topics.json": TOPICS,
    "subscriptions.json": SUBSCRIPTIONS,
    "bookies.json": BOOKIES,
    "brokers.json": BROKERS,
}
"""Every dashboard, by the name of its file."""
