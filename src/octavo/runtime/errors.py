"""The exception tree of Octavo, drawn once, and what a caller may do about each class.

Owns every exception class that crosses a module boundary, the reason code it carries on the wire
and its retry class. It does not own the mapping to and from gRPC: that is `octavo.proto.errors`.

    OctavoError
    ├── ConfigError (also ValueError)          wrong setting or argument; nothing was sent
    ├── IllegalStateError                      call order broken (send after close)
    ├── ForkedClientError                      client used in a forked child
    ├── InvariantViolation                     a promise of our own is broken; stop, do not continue
    ├── RetriableError                         the same call may succeed later; nothing is decided
    │   ├── NotLeader, NotEnoughReplicas, NotEnoughBookies, RequestTimedOut, Throttled, NotReady
    │   ├── BrokerUnavailable, BookieUnavailable, BookieReadOnly, MetadataUnavailable
    │   ├── UnknownOutcome, Overloaded, ReadUnknown, BufferFull, FlushTimeout, CorruptFrame
    │   └── TooManyConnections, DedupWindowFull
    ├── RequestRejected                        the request is wrong; repeating it cannot help
    │   ├── UnknownTopic, InconsistentTopicId, TopicAlreadyExists, InvalidTopic, InvalidPartitions
    │   ├── InvalidReplicationFactor, InvalidConfig, InvalidRequest, InvalidPartition
    │   ├── MessageTooLarge, InvalidRecord, CorruptBatch, InvalidTimestamp, OffsetOutOfRange
    │   ├── NoOffsetForPartition, LogTruncated, UnsupportedVersion, WrongCluster
    │   ├── DeserializationFailed, PartitionDecommissioned, BacklogQuotaExceeded
    ├── MetadataRefused                        the store answered "no" to a conditional write
    │   ├── KeyExists, KeyMissing, VersionConflict, SessionExpired
    └── Fatal                                  the handle or client cannot go on
        ├── Fenced, LedgerConflict, OutOfOrderSequence, InvalidProducerEpoch, DeliveryFailed
        ├── NoSuchLedger, NoSuchEntry, CorruptEntry, MetadataCorrupt, LedgerClosed, ProducerClosed
        └── StorageFailed
            ├── StorageFull, StorageUnavailable         nothing is lost; free space, or mend access
            └── StorageDamaged, HistoryInDoubt, DiskFailed

Those of consumer groups are in `errors_of_groups`, those of exclusive writers in
`errors_of_writers`.

Every instance has `code` (stable reason string), `retriable`, `cause` (one line: what happened) and
`hint` (one line: what to do), as ruled by spec/interface.md U6 and spec groups §18.
"""

from __future__ import annotations

from octavo.runtime.error_base import OctavoError as OctavoError
from octavo.runtime.error_base import Retry as Retry


class ConfigError(OctavoError, ValueError):
    """A setting or argument is wrong."""

    code = "CONFIG"


class IllegalStateError(OctavoError):
    """The call is not allowed in the present state."""

    code = "ILLEGAL_STATE"


class ForkedClientError(OctavoError):
    """A client was used in a forked child process."""

    code = "FORKED_CLIENT"
    default_hint = "make the client after the fork, once per process: docs/forking.md"


class InvariantViolation(OctavoError):
    """An internal promise is broken; continuing could lose data."""

    code = "INVARIANT"
    default_hint = "this is a bug in Octavo: keep the logs and report it"


# --- retriable ---------------------------------------------------------------------------------


class RetriableError(OctavoError):
    """The call may succeed later."""

    code = "RETRIABLE"
    retry = Retry.SAME_PEER


class NotLeader(RetriableError):
    """This broker does not own the partition."""

    code = "NOT_LEADER"
    retry = Retry.AFTER_REFRESH
    default_hint = "refresh metadata and ask the owner"


MIN_INSYNC_DETAIL = "topic_min_insync_replicas"
"""Of NotEnoughReplicas: what the topic asks for is less than a send asserted (F032); nothing was
written, and waiting for bookies does not help."""


class NotEnoughReplicas(RetriableError):
    """Fewer bookies are alive than must hold a copy before an acknowledgement."""

    code = "NOT_ENOUGH_REPLICAS"
    default_hint = "start the missing bookies; nothing was acknowledged"


class DedupWindowFull(RetriableError):
    """The partition remembers as many ids of records as its topic allows; nothing was written."""

    code = "DEDUP_WINDOW_FULL"
    retry = Retry.SAME_PEER
    default_hint = "raise dedup.window.ids of the topic, or lower its dedup.window.ms"


class NotEnoughBookies(RetriableError):
    """No ensemble of the wanted size can be chosen."""

    code = "NOT_ENOUGH_BOOKIES"
    default_hint = "start more bookies"


class RequestTimedOut(RetriableError):
    """No answer in time; the outcome is unknown."""

    code = "REQUEST_TIMED_OUT"


class Throttled(RetriableError):
    """The server asks to slow down."""

    code = "THROTTLED"


class Overloaded(RetriableError):
    """A bounded queue of the server is full."""

    code = "OVERLOADED"


class TooManyConnections(RetriableError):
    """A client id has as many connections to this broker as its quota allows."""

    code = "TOO_MANY_CONNECTIONS"
    default_hint = "close other clients of this client_id, or raise it: `octavo quotas set`"


class NotReady(RetriableError):
    """The server is still starting (replay, recovery)."""

    code = "NOT_READY"


class BrokerUnavailable(RetriableError):
    """No broker can be reached."""

    code = "BROKER_UNAVAILABLE"
    retry = Retry.OTHER_PEER
    default_hint = "check the address and that `octavo up` or `octavo broker` is running"


class BookieUnavailable(RetriableError):
    """A bookie cannot be reached or closed the connection."""

    code = "BOOKIE_UNAVAILABLE"
    retry = Retry.OTHER_PEER


class CorruptFrame(RetriableError):
    """A frame of the bookie wire fails its checksum: nothing of it counts, its connection ends."""

    code = "CORRUPT_FRAME"
    default_hint = "the network or a machine's memory damages bytes; look at both ends' logs"


class BookieReadOnly(RetriableError):
    """The bookie refuses ordinary adds (read-only or disk full)."""

    code = "READONLY"
    retry = Retry.OTHER_PEER


class MetadataUnavailable(RetriableError):
    """The metadata store did not answer; nothing was decided."""

    code = "METADATA_UNAVAILABLE"
    default_hint = "check the metadata store; open ledgers keep accepting writes"


class UnknownOutcome(RetriableError):
    """A write was sent and its reply lost: it may or may not have happened (M-3)."""

    code = "UNKNOWN_OUTCOME"
    retry = Retry.AFTER_REFRESH


class ReadUnknown(RetriableError):
    """No replica could answer for certain; this is not "absent" (R-15)."""

    code = "READ_UNKNOWN"
    retry = Retry.OTHER_PEER


class BufferFull(RetriableError):
    """The producer's buffer is full; it stayed so for max_block_ms if the call may wait."""

    code = "BUFFER_FULL"
    default_hint = "raise buffer_memory, send slower, or wait for acknowledgements"


class FlushTimeout(RetriableError):
    """Not everything was acknowledged in time; see details['remaining']."""

    code = "FLUSH_TIMEOUT"


# --- rejected ----------------------------------------------------------------------------------


class RequestRejected(OctavoError):
    """The request is wrong; repeating it cannot help."""

    code = "REJECTED"


class UnknownTopic(RequestRejected):
    """The topic does not exist."""

    code = "UNKNOWN_TOPIC"
    default_hint = "create it with `octavo topic create NAME`"


class InconsistentTopicId(RequestRejected):
    """The topic of this name is another one than the request means: it was created again."""

    code = "INCONSISTENT_TOPIC_ID"
    default_hint = "the topic was deleted and created again under its name; nothing was done to it"


class TopicAlreadyExists(RequestRejected):
    """A topic of this (or a colliding) name exists."""

    code = "TOPIC_ALREADY_EXISTS"


class InvalidTopic(RequestRejected):
    """The topic name is not allowed."""

    code = "INVALID_TOPIC"
    default_hint = "use 1 to 249 of A-Z a-z 0-9 . _ - and not '.', '..' or a leading '__'"


class InvalidPartitions(RequestRejected):
    """The number of partitions is not allowed."""

    code = "INVALID_PARTITIONS"


class InvalidPartition(RequestRejected):
    """The partition does not exist in this topic."""

    code = "INVALID_PARTITION"


class PartitionDecommissioned(RequestRejected):
    """The partition takes no new records (F027); what was sent was not stored."""

    code = "PARTITION_DECOMMISSIONED"


class BacklogQuotaExceeded(RequestRejected):
    """A group is so far behind that the topic refuses new records (F162); nothing was stored."""

    code = "BACKLOG_QUOTA_EXCEEDED"


class InvalidReplicationFactor(RequestRejected):
    """The replication factor cannot be met."""

    code = "INVALID_REPLICATION_FACTOR"


class InvalidConfig(RequestRejected):
    """A topic setting is unknown or out of range."""

    code = "INVALID_CONFIG"


class InvalidRequest(RequestRejected):
    """The request is malformed."""

    code = "INVALID_REQUEST"


class MessageTooLarge(RequestRejected):
    """A record or batch is larger than the limit."""

    code = "MESSAGE_TOO_LARGE"


class InvalidRecord(RequestRejected):
    """A record breaks a rule of its topic."""

    code = "INVALID_RECORD"


class DeserializationFailed(RequestRejected):
    """A key or value is not what the consumer's deserialiser expects; details name the record."""

    code = "DESERIALIZATION_FAILED"
    default_hint = "seek() to the next offset to skip the record"


class CorruptBatch(RequestRejected):
    """A batch fails its checksum or layout rules."""

    code = "CORRUPT_BATCH"
    default_hint = "the bytes changed on the way or the writer is broken; nothing was stored"


class InvalidTimestamp(RequestRejected):
    """A record's timestamp is too far in the future."""

    code = "INVALID_TIMESTAMP"


class OffsetOutOfRange(RequestRejected):
    """The offset is outside what the partition retains."""

    code = "OFFSET_OUT_OF_RANGE"


class NoOffsetForPartition(RequestRejected):
    """There is no position and the reset policy is none."""

    code = "NO_OFFSET_FOR_PARTITION"


class LogTruncated(RequestRejected):
    """The position lies above the end of the partition."""

    code = "LOG_TRUNCATED"


class UnsupportedVersion(RequestRejected):
    """The peer speaks a version or format this build does not know."""

    code = "UNSUPPORTED_VERSION"


class WrongCluster(RequestRejected):
    """The peer belongs to another cluster."""

    code = "WRONG_CLUSTER"


# --- conditional metadata writes ---------------------------------------------------------------


class MetadataRefused(OctavoError):
    """The metadata store refused a conditional write; the caller must re-read (M-1)."""

    code = "METADATA_REFUSED"
    retry = Retry.AFTER_REFRESH


class KeyExists(MetadataRefused):
    """The key exists already."""

    code = "KEY_EXISTS"


class KeyMissing(MetadataRefused):
    """The key does not exist (as seen by one server; see M-4 before acting on it)."""

    code = "KEY_MISSING"


class VersionConflict(MetadataRefused):
    """The key has another version than expected."""

    code = "VERSION_CONFLICT"


class SessionExpired(MetadataRefused):
    """The session ended; its ephemeral keys are gone."""

    code = "SESSION_EXPIRED"


# --- fatal -------------------------------------------------------------------------------------


class Fatal(OctavoError):
    """The handle or client cannot go on."""

    code = "FATAL"


class Fenced(Fatal):
    """Another client recovered this ledger; its writer must stop."""

    code = "FENCED"


class LedgerClosed(Fatal):
    """The ledger is closed; no more entries can be added."""

    code = "LEDGER_CLOSED"


class LedgerConflict(Fatal):
    """Two different byte strings exist for one entry (INV-5)."""

    code = "CONFLICT"
    default_hint = "possible split brain: stop writers of this ledger and report it"


class OutOfOrderSequence(Fatal):
    """A producer's sequence has a gap or an overlap."""

    code = "OUT_OF_ORDER_SEQUENCE"


class InvalidProducerEpoch(Fatal):
    """A newer producer with the same id is active."""

    code = "INVALID_PRODUCER_EPOCH"


class DeliveryFailed(Fatal):
    """A record was not acknowledged within delivery_timeout_ms; it may or may not be stored."""

    code = "DELIVERY_FAILED"


class ProducerClosed(Fatal):
    """The producer was closed or failed; it accepts nothing more."""

    code = "PRODUCER_CLOSED"


class NoSuchLedger(Fatal):
    """The ledger does not exist."""

    code = "NO_SUCH_LEDGER"


class NoSuchEntry(Fatal):
    """The entry does not exist, said from complete knowledge (INV-9)."""

    code = "NO_SUCH_ENTRY"


class CorruptEntry(Fatal):
    """A stored entry fails its digest; this is not "absent" (R2)."""

    code = "CORRUPT_ENTRY"


class MetadataCorrupt(Fatal):
    """A metadata record cannot be parsed or breaks its rules (M-7)."""

    code = "METADATA_CORRUPT"


class StorageFailed(Fatal):
    """The store of a bookie cannot be used."""

    code = "STORAGE_FAILED"


class StorageFull(StorageFailed):
    """No space is left (or a quota is used up); nothing is lost (6.13)."""

    code = "STORAGE_FULL"
    default_hint = "free space on this file system; nothing is lost"


class StorageUnavailable(StorageFailed):
    """A file cannot be opened or locked now; nothing is known to be lost."""

    code = "STORAGE_UNAVAILABLE"


class StorageDamaged(StorageFailed):
    """A file holds something else than was written to it; this is not "absent" (R2)."""

    code = "STORAGE_DAMAGED"


class HistoryInDoubt(StorageFailed):
    """What was acknowledged may be missing (B-23); nothing is served under this incarnation."""

    code = "HISTORY_IN_DOUBT"


class DiskFailed(StorageFailed):
    """The disk failed a read, write or sync; nothing is acknowledged after it (B-8)."""

    code = "DISK_FAILED"
    default_hint = "look at the kernel's log and the disk's health; what was acknowledged is kept"
