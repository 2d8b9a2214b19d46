"""A call that its deadline ends without an answer says what a broker answered before."""

from __future__ import annotations

from octavo.client.messaging.cluster.calls import with_answer
from octavo.runtime.errors import MetadataUnavailable, NotLeader, RequestTimedOut, UnknownTopic

CUT = RequestTimedOut("not known within 0.3 s")


def test_silence_after_a_retriable_answer_is_that_answer() -> None:
    answered = MetadataUnavailable("the store at a:1 does not answer", address="a:1")
    error = with_answer(CUT, answered)
    assert isinstance(error, MetadataUnavailable)
    assert "a:1" in error.cause
    assert CUT.cause in error.cause
    assert error.hint == answered.hint
    assert error.details == {"address": "a:1"}


def test_an_answer_stays_and_a_final_one_of_before_is_only_told() -> None:
    last = NotLeader("moved")
    assert with_answer(last, MetadataUnavailable("away")) is last
    assert with_answer(CUT, None) is CUT
    error = with_answer(CUT, UnknownTopic("topic 'a' does not exist"))
    assert type(error) is RequestTimedOut
    assert "does not exist" in error.cause
