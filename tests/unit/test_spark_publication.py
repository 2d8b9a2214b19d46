"""What a writer of a sink does next, and what an answer means to it (ADR 67)."""

from __future__ import annotations

import pytest

from octavo.runtime import errors as e
from octavo.runtime.errors_of_writers import SinkLimitReached
from octavo.spark.publication import Fate, SinkState, Step, fate, may_trim, next_step


@pytest.mark.parametrize(
    ("decided", "is_published", "step"),
    [
        (-1, True, Step.DECIDE),
        (4, True, Step.DECIDE),
        (4, False, Step.PUBLISH),  # its writer is gone: first that one
        (5, False, Step.PUBLISH),
        (5, True, Step.DONE),
        (6, False, Step.DONE),  # 6 was decided because 5 was published
        (6, True, Step.DONE),
    ],
)
def test_what_comes_next_for_batch_5(decided: int, is_published: bool, step: Step) -> None:
    state = SinkState(decided, b"p", is_published)
    assert next_step(state, 5) is step
    assert may_trim(state, 5) is (decided == 5 and is_published)


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (None, Fate.STORED),
        (e.NotLeader("x"), Fate.AGAIN),
        (e.BrokerUnavailable("x"), Fate.AGAIN),
        (e.Throttled("x", throttle_ms=1), Fate.AGAIN),
        (e.NotEnoughReplicas("x"), Fate.AGAIN),
        (e.OutOfOrderSequence("an owner that lost its office"), Fate.AGAIN),
        (e.RequestTimedOut("x"), Fate.AGAIN),
        (e.InvalidProducerEpoch("x"), Fate.SUPERSEDED),
        (e.InvalidRecord("x"), Fate.FAILED),
        (e.PartitionDecommissioned("x"), Fate.FAILED),
        (e.InconsistentTopicId("x"), Fate.FAILED),
        (e.UnknownTopic("deleted since the decision"), Fate.FAILED),
        (SinkLimitReached("x"), Fate.FAILED),
    ],
)
def test_what_an_answer_means(error: e.OctavoError | None, meaning: Fate) -> None:
    assert fate(error) is meaning
