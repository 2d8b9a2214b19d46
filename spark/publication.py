"""How a batch is published once: what comes next, and what an answer means (ADR 67). Pure.

    staged --decide--> decided --send all, each by its sequence--> sent --note--> published

A decision is made once and never changed; what follows it may be done by anybody, any number of
times, at the same time: a partition stores each sequence of the batch's producer epoch once, and
all who send them send the same records. So a crash at any step leaves something that the next
one finishes, and a writer that was thought dead does no harm.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from octavo.runtime.errors import (
    InvalidProducerEpoch,
    OctavoError,
    OutOfOrderSequence,
    RequestTimedOut,
)
from octavo.runtime.errors_of_writers import SinkEnded

NO_BATCH = -1


class SinkState(NamedTuple):
    """What the cluster knows of a sink, as `metadata.sinks.Sink` has it."""

    batch_id: int = NO_BATCH
    plan: bytes = b""
    is_published: bool = True
    producer_id: int = -1
    producer_epoch: int = -1
    generation: int = 0
    """Of the topic in which it stages."""
    swept_to: int = 0
    """Of that topic: what lies before is gone."""
    is_ended: bool = False
    """By an operator."""


class Step(Enum):
    """What a writer of batch b does next."""

    DECIDE = "decide"
    """Ask that its own staged batch be the one."""
    PUBLISH = "publish"
    """Send what is decided, its own or not, and note that it is published."""
    DONE = "done"
    """All of the batch is in the log."""


def next_step(state: SinkState, batch_id: int) -> Step:
    """What comes next for whoever is to commit `batch_id`; raises SinkEnded."""
    if state.is_ended and (state.batch_id < batch_id or not state.is_published):
        raise SinkEnded(f"this sink was ended, and batch {batch_id} is not published")
    if not state.is_published and state.batch_id <= batch_id:
        return Step.PUBLISH  # of an earlier batch first: its writer is gone
    if state.batch_id < batch_id:
        return Step.DECIDE
    return Step.DONE


def may_trim(state: SinkState, batch_id: int) -> bool:
    """Whether whoever is to commit `batch_id` may remove what is staged up to the plan.

    Only of this batch, and only once it is published: what a later plan names may not be yet.
    """
    return state.is_published and state.batch_id == batch_id and bool(state.plan)


class Fate(Enum):
    """What an answer to one batch of records means."""

    STORED = "stored"
    AGAIN = "again"
    """Send the same again, to whoever owns the partition then."""
    SUPERSEDED = "superseded"
    """The partition has records of a later batch of the sink: look at its state again."""
    FAILED = "failed"
    """It stays decided; a later attempt goes on with it."""


def fate(error: OctavoError | None) -> Fate:
    """Of one batch of records that was answered, or whose answer is not known."""
    if error is None:
        return Fate.STORED
    if isinstance(error, InvalidProducerEpoch):
        return Fate.SUPERSEDED
    # An owner may lack what another one stored, because it lost its office: that ends with the time
    # that is given to one batch of records. UnknownTopic is the end of the topic at once: rows are
    # staged for one life of it, which was there then, and brokers prove that it is not (M-4).
    again = error.retriable or isinstance(error, OutOfOrderSequence | RequestTimedOut)
    return Fate.AGAIN if again else Fate.FAILED
