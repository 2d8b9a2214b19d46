"""Natural batching: who waits for an answer, and that nobody waits for long."""

from __future__ import annotations

from octavo.client.messaging.producing.recent_sends import HOLD_S, RecentSends


def test_a_batch_waits_only_while_an_answer_is_owed() -> None:
    recent = RecentSends()
    assert recent.held_until(1.0) is None
    recent.sent(0, 1.0)
    assert recent.held_until(1.0) == 1.0 + HOLD_S
    recent.sent(1, 1.0)
    recent.answered(0)
    assert recent.held_until(1.0) == 1.0 + HOLD_S
    recent.answered(1)
    recent.answered(1)  # an answer that comes twice, or late, changes nothing
    recent.answered(99)
    assert recent.held_until(1.0) is None


def test_sends_that_are_not_answered_in_time_hold_nobody() -> None:
    recent = RecentSends()
    recent.sent(0, 1.0)
    assert recent.held_until(1.0 + HOLD_S) is None


def test_the_wait_is_counted_from_the_last_send() -> None:
    recent = RecentSends()
    later = 1.0 + HOLD_S / 2
    recent.sent(0, 1.0)
    recent.sent(1, later)
    assert recent.held_until(later) == later + HOLD_S
    assert recent.held_until(1.0 + HOLD_S) == later + HOLD_S


def test_a_lost_stream_holds_nobody() -> None:
    recent = RecentSends()
    recent.sent(0, 1.0)
    recent.clear()
    assert recent.held_until(1.0) is None
