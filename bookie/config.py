"""Settings of one bookie process; every limit has its default and its unit here."""

from __future__ import annotations

import pathlib
import re

from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from octavo.bookie.journal.segment import MAX_SEGMENT_BYTES
from octavo.client.autorecovery.settings import RepairSettings

_BOOKIE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class BookieConfig(RepairSettings):
    """Configuration of a bookie (environment prefix OCTAVO_BOOKIE_)."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_prefix="OCTAVO_BOOKIE_")

    bookie_id: str
    """Configured name; never derived from an address others may reuse (B-28)."""
    data_dir: pathlib.Path
    """Folder of journal, index and identity; one bookie owns it."""
    index_dir: pathlib.Path | None = None
    """Folder on another disk for the index (ADR 65): it lies there in a folder of the bookie's
    name, so that several bookies may share it. None: in `data_dir`."""
    metadata_url: str = "embedded://127.0.0.1:7660/octavo"
    """`zk://host:2181/octavo`, or `embedded://host:port/octavo` of an `octavo up`."""
    host: str = "127.0.0.1"
    """Address to bind and, unless `advertised_host` is set, to register."""
    advertised_host: str = ""
    """Host that is registered for others; empty: `host`."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port of the framed protocol; 0 takes a free one."""
    control_port: int = Field(default=0, ge=0, le=65535)
    """Port of the gRPC control service; 0 takes a free one."""
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of the page for Prometheus; 0 takes a free one, which the log names. None: no page.
    `octavo up` gives one to every server."""
    metrics_host: str = ""
    """Address to bind for it; empty: `host`."""
    fault_domain: str = ""
    """Rack or zone, levels separated by `/`, the widest first (`zone-a/rack-3`); copies of an entry
    are spread over several, and over hosts in any case (3.8). Empty: the default one."""
    metadata_session_timeout_s: float = Field(default=30.0, gt=0)
    """A bookie that is silent for so long is taken for gone by the metadata store."""
    registration_wait_s: float = Field(default=30.0, ge=0)
    """How long the registration of a previous process may outlive it before start-up fails
    (B-28)."""
    accept_data_loss: bool = False
    """Start although the history is in doubt: takes a new incarnation (B-23, B-25)."""
    accept_index_loss: bool = False
    """Start although the folder of the index, which lies outside of `data_dir`, is lost or an older
    copy: the index is built anew from the journal (ADR 20, 65)."""
    accept_older_metadata: bool = False
    """Start although an older copy of the metadata was put back: what was written since that copy
    is not found any more (ADR 23)."""

    autorecovery: bool = True
    """This process looks after missing copies as well (§7): it may be elected the auditor, and
    repairs."""

    # journal (6.4)
    segment_bytes: int = Field(default=256 << 20, ge=4096, le=MAX_SEGMENT_BYTES)
    """Size of one file of the journal; its space is taken when it is made (B-7)."""
    group_commit_max_bytes: int = Field(default=4 << 20, ge=4096)
    """Most that one write and one sync take together (B-6)."""
    queue_max_records: int = Field(default=10_000, ge=1)
    """Records that wait for their sync; above it adds are answered OVERLOADED (B-9)."""
    queue_max_bytes: int = Field(default=64 << 20, ge=4096)
    """The same in bytes."""
    idle_mark_s: float = Field(default=1.0, gt=0)
    """An idle journal proves its last entry after so long (B-15)."""
    evidence_interval_s: float = Field(default=1.0, gt=0)
    """How often the durable file is synced while entries come (ADR 14)."""
    evidence_publish_s: float = Field(default=10.0, gt=0)
    """How often a busy bookie tells the metadata store how far its log is durable; an idle one does
    so within two `evidence_interval_s`."""
    sync_log_s: float = Field(default=1.0, gt=0)
    """A sync that takes longer is logged (B-9)."""
    sync_read_only_s: float = Field(default=30.0, gt=0)
    """A sync that takes longer makes the bookie read-only (B-9)."""

    page_cache_bytes: int | None = Field(default=0, ge=0)
    """Synced bytes of the open segment that stay in the operating system's page cache, in whole
    steps; a full segment leaves it. None (`none` in the environment): the operating system decides.

    Readers of the tail are served by the brokers' caches. Pages given back at once are written
    again while they are still in the processor's cache (ADR 11); fresh ones cost several times
    what writing them does on virtual machines that return free memory to their host (ADR 8).
    """

    # index (6.7)
    memtable_flush_s: float = Field(default=60.0, gt=0)
    """How often the index is made durable; bounds what a start replays (B-11)."""
    memtable_bytes: int = Field(default=64 << 20, ge=1 << 16)
    """The same by size."""
    memtable_flush_bytes: int = Field(default=1 << 30, ge=1 << 20)
    """The same by what the journal took meanwhile: a start after a kill reads no more than this and
    two segments. Large entries need little of an index, and much of a disk."""

    # disk space (6.13)
    disk_warn_ratio: float = Field(default=0.90, gt=0, le=1)
    """A fuller disk is logged."""
    disk_read_only_ratio: float = Field(default=0.95, gt=0, le=1)
    """A fuller disk makes the bookie read-only (6.13)."""
    disk_writable_ratio: float = Field(default=0.93, gt=0, le=1)
    """Below this the bookie is writable again; at least 2 points under `disk_read_only_ratio`."""
    disk_reserve_segments: float = Field(default=2.0, ge=0)
    """Less free space than this many segments also means read-only."""
    disk_check_s: float = Field(default=10.0, gt=0)
    """How often free space is looked at."""

    # garbage collection (6.14)
    gc_interval_s: float = Field(default=900.0, gt=0)
    """How often the ledgers stored here are compared with the metadata (G-6)."""
    gc_confirm_s: float = Field(default=60.0, gt=0)
    """A ledger is deleted when it was found missing twice, so far apart (G-2)."""
    gc_reads_per_s: float = Field(default=200.0, gt=0)
    """Reads of the metadata store that a comparison makes at most, directories included (G-6)."""
    gc_unexplained_ratio: float = Field(default=0.2, ge=0, le=1)
    """Where nothing is known of deletions that were counted: if more of the ledgers are missing,
    nothing is deleted and an alarm is raised (G-3)."""

    gc_surplus_interval_s: float = Field(default=86_400.0, gt=0)
    """How often copies are looked for that no record asks this bookie for (G-4)."""
    gc_surplus_quiet_s: float = Field(default=3600.0, gt=0)
    """How long nobody must have added to them before they are given up."""

    # compaction (6.9)
    compaction_check_s: float = Field(default=60.0, gt=0)
    """How often segments that hold nothing any more are looked for; deletions ask for it at
    once."""
    compaction_minor_ratio: float = Field(default=0.2, ge=0, lt=1)
    """Segments with less than this part in use are copied together (B-18) …"""
    compaction_minor_interval_s: float = Field(default=3600.0, gt=0)
    """… so often,"""
    compaction_major_ratio: float = Field(default=0.8, ge=0, lt=1)
    """and those with less than this part in use …"""
    compaction_major_interval_s: float = Field(default=86_400.0, gt=0)
    """… so often, or in each round while the disk is fuller than `disk_warn_ratio`."""
    compaction_bytes_per_s: float = Field(default=float(16 << 20), gt=0)
    """Most that compaction copies in a second (B-18)."""

    # scrub (6.15)
    scrub_bytes_per_s: float = Field(default=float(8 << 20), ge=0)
    """Most that a scrub reads in a second: 5 TB of segments within `scrub_interval_s`. An entry
    counts as 512 bytes more than it has. 0: nothing is read before somebody asks for it."""
    scrub_interval_s: float = Field(default=604_800.0, gt=0)
    """From the beginning of one look at all segments to that of the next."""
    scrub_start_s: float = Field(default=600.0, ge=0)
    """A start waits for so long at most, drawn anew each time, before it goes on with a scrub."""
    scrub_recheck_s: float = Field(default=10.0, gt=0)
    """How often entries that were found damaged are looked at, until they are repaired."""

    # requests
    ledgers_in_memory_max: int = Field(default=100_000, ge=1)
    """Ledgers whose state is kept in memory."""
    reader_threads: int = Field(default=2, ge=1)
    """Threads that read segments."""
    reads_in_flight_max: int = Field(default=256, ge=1)
    """Reads that wait or run; above it they are answered OVERLOADED."""
    read_reply_max_bytes: int = Field(default=1 << 20, ge=4096)
    """Largest reply to a read of several entries; one entry is always sent."""
    unsent_replies_max_bytes: int = Field(default=256 << 20, ge=1 << 20)
    """Replies, over all connections, that clients have not taken; above it ordinary reads are
    answered OVERLOADED (BP-2)."""
    connection_in_flight_max_bytes: int = Field(default=16 << 20, ge=4096)
    """Add bytes of one connection not yet answered; above it the socket is not read."""
    connections_max: int = Field(default=4096, ge=1)
    """More are told so and closed."""
    hello_timeout_s: float = Field(default=5.0, gt=0)
    """A connection that has not said hello by then is closed."""
    long_polls_max: int = Field(default=10_000, ge=1)
    """Readers that wait for the end of a ledger to move."""
    long_poll_max_s: float = Field(default=30.0, gt=0)
    """Longest that one of them waits for an answer."""
    refusal_cache_s: float = Field(default=60.0, ge=0)
    """How long an admission refusal is remembered (B-32)."""

    @property
    def index_home(self) -> pathlib.Path:
        """The folder that holds the index and what tells it from another bookie's."""
        return self.data_dir if self.index_dir is None else self.index_dir / self.bookie_id

    @field_validator("bookie_id")
    @classmethod
    def _valid_id(cls, value: str) -> str:
        if not _BOOKIE_ID.fullmatch(value):
            raise ValueError("use 1 to 100 of A-Z a-z 0-9 . _ - and start with a letter or digit")
        return value

    @model_validator(mode="after")
    def _related(self) -> BookieConfig:
        if self.disk_writable_ratio > self.disk_read_only_ratio - 0.02 + 1e-9:
            raise ValueError("disk_writable_ratio must be at least 0.02 below disk_read_only_ratio")
        if self.disk_warn_ratio > self.disk_read_only_ratio:
            raise ValueError("disk_warn_ratio must not exceed disk_read_only_ratio")
        return self
