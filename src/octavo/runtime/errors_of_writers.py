"""Errors of topics that have one writer at a time (X32), and of sinks (ADR 67).

Part of the tree that `octavo.runtime.errors` draws, with the same promises:

    RetriableError
    └── ExclusiveWriterBusy
    RequestRejected
    └── ExclusiveWriterRequired, SinkLimitReached, SinkEnded, StagedDataGone
    Fatal
    └── ProducerFenced
"""

from __future__ import annotations

from octavo.runtime.error_base import Retry
from octavo.runtime.errors import Fatal, RequestRejected, RetriableError


class ExclusiveWriterBusy(RetriableError):
    """Another producer is the exclusive writer of the partition, and lives."""

    code = "EXCLUSIVE_WRITER_BUSY"
    retry = Retry.SAME_PEER
    default_hint = "use access_mode='wait_for_exclusive', or take it: 'exclusive_with_fencing'"


class ExclusiveWriterRequired(RequestRejected):
    """The topic takes records of its exclusive writer only (X32); nothing was stored."""

    code = "EXCLUSIVE_WRITER_REQUIRED"
    default_hint = "make the producer with access_mode='exclusive', or set exclusive.writer=false"


class ProducerFenced(Fatal):
    """Another producer took over what this one was the only writer of (X32)."""

    code = "PRODUCER_FENCED"
    default_hint = "this producer has ended; whoever took over writes now"


class SinkLimitReached(RequestRejected):
    """A partition, or the cluster, remembers as many sinks as it may; nothing was stored."""

    code = "SINK_LIMIT_REACHED"
    default_hint = "write at least once, or to another topic: a partition forgets no sink"


class SinkEnded(RequestRejected):
    """An operator ended this sink: nothing of it is decided any more (ADR 74)."""

    code = "SINK_ENDED"
    default_hint = "give the query a new checkpoint, or the write another txnId"


class StagedDataGone(RequestRejected):
    """What a batch staged was swept, or deleted by hand, before it was decided: nothing of it was
    added (ADR 74)."""

    code = "STAGED_DATA_GONE"
    default_hint = (
        "run the batch again: start the query with its checkpoint, or the write with its txnId; if "
        "a batch takes longer than sink_idle_ms of the brokers, raise it"
    )
