"""One table from exceptions to the wire and back (style §3, Errors; spec groups G4, §18).

Every class of `octavo.errors` has its reason code and its gRPC status here; `from_wire`
finds the class by code, so both directions share the table. Bookie statuses map through
`status_error`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn, cast

import grpc
from grpc import aio

from octavo.proto import broker_pb2
from octavo.proto.bookie_wire import Status
from octavo.runtime import errors as e
from octavo.runtime import errors_of_groups as g
from octavo.runtime import errors_of_writers as w
from octavo.runtime.error_base import OctavoError, all_error_classes

_UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
_INVALID = grpc.StatusCode.INVALID_ARGUMENT
_PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED

GRPC_CODES: dict[type[OctavoError], grpc.StatusCode] = {
    e.OctavoError: grpc.StatusCode.INTERNAL,
    e.ConfigError: _INVALID,
    e.IllegalStateError: _PRECONDITION,
    e.ForkedClientError: _PRECONDITION,
    e.InvariantViolation: grpc.StatusCode.INTERNAL,
    e.RetriableError: _UNAVAILABLE,
    e.NotLeader: _PRECONDITION,
    e.NotEnoughReplicas: _UNAVAILABLE,
    e.DedupWindowFull: _EXHAUSTED,
    e.NotEnoughBookies: _UNAVAILABLE,
    e.RequestTimedOut: grpc.StatusCode.DEADLINE_EXCEEDED,
    e.Throttled: _EXHAUSTED,
    e.Overloaded: _EXHAUSTED,
    e.TooManyConnections: _EXHAUSTED,
    e.NotReady: _UNAVAILABLE,
    e.BrokerUnavailable: _UNAVAILABLE,
    e.BookieUnavailable: _UNAVAILABLE,
    e.BookieReadOnly: _UNAVAILABLE,
    e.CorruptFrame: _UNAVAILABLE,
    e.MetadataUnavailable: _UNAVAILABLE,
    e.UnknownOutcome: grpc.StatusCode.UNKNOWN,
    e.ReadUnknown: _UNAVAILABLE,
    e.BufferFull: _EXHAUSTED,
    e.FlushTimeout: grpc.StatusCode.DEADLINE_EXCEEDED,
    e.RequestRejected: _INVALID,
    e.UnknownTopic: grpc.StatusCode.NOT_FOUND,
    e.InconsistentTopicId: _PRECONDITION,
    e.TopicAlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    e.InvalidTopic: _INVALID,
    e.InvalidPartitions: _INVALID,
    e.InvalidPartition: _INVALID,
    e.PartitionDecommissioned: _PRECONDITION,
    e.BacklogQuotaExceeded: _EXHAUSTED,
    e.InvalidReplicationFactor: _INVALID,
    e.InvalidConfig: _INVALID,
    e.InvalidRequest: _INVALID,
    e.MessageTooLarge: _INVALID,
    e.InvalidRecord: _INVALID,
    e.DeserializationFailed: _INVALID,
    e.CorruptBatch: grpc.StatusCode.DATA_LOSS,
    e.InvalidTimestamp: _INVALID,
    e.OffsetOutOfRange: grpc.StatusCode.OUT_OF_RANGE,
    e.NoOffsetForPartition: grpc.StatusCode.OUT_OF_RANGE,
    e.LogTruncated: grpc.StatusCode.OUT_OF_RANGE,
    e.UnsupportedVersion: grpc.StatusCode.UNIMPLEMENTED,
    e.WrongCluster: _PRECONDITION,
    e.MetadataRefused: grpc.StatusCode.ABORTED,
    e.KeyExists: grpc.StatusCode.ALREADY_EXISTS,
    e.KeyMissing: grpc.StatusCode.NOT_FOUND,
    e.VersionConflict: grpc.StatusCode.ABORTED,
    e.SessionExpired: grpc.StatusCode.ABORTED,
    e.Fatal: grpc.StatusCode.INTERNAL,
    e.Fenced: _PRECONDITION,
    e.LedgerClosed: _PRECONDITION,
    e.LedgerConflict: grpc.StatusCode.DATA_LOSS,
    e.OutOfOrderSequence: _PRECONDITION,
    e.InvalidProducerEpoch: _PRECONDITION,
    e.DeliveryFailed: grpc.StatusCode.DEADLINE_EXCEEDED,
    e.ProducerClosed: _PRECONDITION,
    e.NoSuchLedger: grpc.StatusCode.NOT_FOUND,
    e.NoSuchEntry: grpc.StatusCode.NOT_FOUND,
    e.CorruptEntry: grpc.StatusCode.DATA_LOSS,
    e.MetadataCorrupt: grpc.StatusCode.DATA_LOSS,
    e.StorageFailed: grpc.StatusCode.INTERNAL,
    e.StorageFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    e.StorageUnavailable: grpc.StatusCode.UNAVAILABLE,
    e.StorageDamaged: grpc.StatusCode.DATA_LOSS,
    e.HistoryInDoubt: grpc.StatusCode.DATA_LOSS,
    e.DiskFailed: grpc.StatusCode.INTERNAL,
    g.NotCoordinator: _PRECONDITION,
    g.CoordinatorNotAvailable: _UNAVAILABLE,
    g.CoordinatorLoadInProgress: _UNAVAILABLE,
    g.UnstableOffsetCommit: _UNAVAILABLE,
    g.InvalidGroupId: _INVALID,
    g.GroupIdNotFound: grpc.StatusCode.NOT_FOUND,
    g.GroupMaxSizeReached: _EXHAUSTED,
    g.GroupLimitReached: _EXHAUSTED,
    g.NonEmptyGroup: _PRECONDITION,
    g.GroupSubscribedToTopic: _PRECONDITION,
    g.InvalidCommitOffset: _INVALID,
    g.OffsetMetadataTooLarge: _INVALID,
    g.CommitFailed: _PRECONDITION,
    g.CommitReplaced: _PRECONDITION,
    g.UnknownMemberId: _PRECONDITION,
    g.FencedMemberEpoch: _PRECONDITION,
    g.StaleMemberEpoch: _PRECONDITION,
    g.FencedInstanceId: _PRECONDITION,
    w.ExclusiveWriterBusy: _PRECONDITION,
    w.ExclusiveWriterRequired: _PRECONDITION,
    w.SinkLimitReached: _EXHAUSTED,
    w.SinkEnded: _PRECONDITION,
    w.StagedDataGone: _PRECONDITION,
    w.ProducerFenced: _PRECONDITION,
}

_BY_CODE: dict[str, type[OctavoError]] = {cls.code: cls for cls in all_error_classes()}

_BY_STATUS: dict[Status, type[OctavoError]] = {
    Status.FENCED: e.Fenced,
    Status.UNAUTHORIZED: e.Fenced,
    Status.READONLY: e.BookieReadOnly,
    Status.DISK_FULL: e.BookieReadOnly,
    Status.WRONG_INCARNATION: e.BookieUnavailable,
    Status.NOT_ADMITTED_RETRY: e.MetadataUnavailable,
    Status.CONFLICT: e.LedgerConflict,
    Status.BAD_DIGEST: e.CorruptBatch,
    Status.TOO_LARGE: e.MessageTooLarge,
    Status.BAD_VERSION: e.UnsupportedVersion,
    Status.OVERLOADED: e.Overloaded,
    Status.NO_SUCH_ENTRY: e.NoSuchEntry,
    Status.NO_SUCH_LEDGER: e.NoSuchLedger,
    Status.EIO: e.ReadUnknown,
    Status.UNKNOWN: e.ReadUnknown,
    Status.NOT_READY: e.NotReady,
    Status.INTERNAL: e.BookieUnavailable,
    Status.BAD_REQUEST: e.InvalidRequest,
    Status.TIMEOUT: e.RequestTimedOut,
    Status.DISCONNECTED: e.BookieUnavailable,
}


def grpc_code(error: OctavoError) -> grpc.StatusCode:
    """The gRPC status of an error, from its class or the nearest base that has one."""
    for cls in type(error).__mro__:
        code = GRPC_CODES.get(cls)
        if code is not None:
            return code
    return grpc.StatusCode.INTERNAL


def to_wire(error: OctavoError) -> broker_pb2.Error:
    """The body form of an error."""
    return broker_pb2.Error(
        code=error.code,
        cause=error.cause,
        hint=error.hint,
        details={name: str(value) for name, value in error.details.items()},
    )


def from_wire(error: broker_pb2.Error) -> OctavoError:
    """The exception of a body error; a code this build does not know becomes an OctavoError."""
    cls = _BY_CODE.get(error.code)
    if cls is None:
        return OctavoError(f"{error.code}: {error.cause}", hint=error.hint)
    return cls(error.cause, hint=error.hint, **dict(error.details))


_REASON_KEY = "octavo-error-bin"


_TURNED_AWAY = (
    "it listens and closed the connection at once: it takes connections_max of them, or is just "
    "ending; connections of programs that are not needed can be closed"
)
_DROPPED = "the broker has more requests than it can begin, or is just ending: ask again later"
_NO_FILES = "this program may open no further file: raise its limit, `ulimit -n`"


def _hint_of(details: str) -> str:
    """What to do about a connection that cannot be made; empty: the usual."""
    if "failed to connect" not in details:
        return ""
    if "Too many open files" in details:
        return _NO_FILES
    return _TURNED_AWAY if details.endswith("Socket closed") else ""


def from_rpc_error(error: aio.AioRpcError, peer: str) -> OctavoError:
    """The exception of a failed RPC: the server's own when it sent one, else by status."""
    trailing = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    for key, value in trailing:
        if key == _REASON_KEY and isinstance(value, bytes):
            return from_wire(broker_pb2.Error.FromString(value))
    # gRPC's words for a failed socket() end with a line of memory that nobody wrote.
    details = (error.details() or "").partition("\n")[0]
    text = f"{peer}: {error.code().name}: {details}"
    code = error.code()
    if code is grpc.StatusCode.UNAVAILABLE:
        return e.BrokerUnavailable(text, hint=_hint_of(details))
    if code is grpc.StatusCode.CANCELLED:
        return e.BrokerUnavailable(text, hint=_DROPPED)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return e.RequestTimedOut(text)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return e.MessageTooLarge(text)
    if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED):
        return e.InvalidRequest(text)
    return e.BrokerUnavailable(text)


async def abort(context: aio.ServicerContext[object, object], error: OctavoError) -> NoReturn:
    """End an RPC with the error's status and its body form in the trailing metadata."""
    await context.abort(
        grpc_code(error),
        error.cause,
        trailing_metadata=((_REASON_KEY, to_wire(error).SerializeToString()),),
    )
    raise error


def status_error(status: int, what: str, *, hint: str = "") -> OctavoError:
    """The exception of a bookie's status.

    A status this build does not know is never a "no" (R-15).
    """
    try:
        known = Status(status)
    except ValueError:
        return e.ReadUnknown(f"{what}: unknown bookie status {status}")
    cls = _BY_STATUS.get(known, e.ReadUnknown)
    return cls(f"{what}: {known.name}", hint=hint)
