"""Natural batching: who waits for an answer, and that nobody waits for long."""

from __future__ import annotations

from octavo.client.messaging.recent_sends import HOLD_S, UNANSWERED_MAX, RecentSends


def busy() -> RecentSends:
    recent = RecentSends()
    for number in range(UNANSWERED_MAX):
        assert recent.held_until(1.0) is None
        recent.sent(number, 1.0)
    return recent


def test_a_batch_waits_only_while_so_many_are_unanswered() -> None:
    recent = busy()
    assert recent.held_until(1.0) == 1.0 + HOLD_S
    recent.answered(0)
    assert recent.held_until(1.0) is None
    recent.answered(0)  # an answer that comes twice, or late, changes nothing
    recent.answered(99)
    recent.sent(7, 1.0)
    assert recent.held_until(1.0) is not None


def test_sends_that_are_not_answered_in_time_hold_nobody() -> None:
    recent = busy()
    assert recent.held_until(1.0 + HOLD_S) is None


def test_the_wait_is_counted_from_the_send_that_fills_the_count() -> None:
    recent = busy()
    later = 1.0 + HOLD_S / 2
    for number in range(UNANSWERED_MAX):
        recent.sent(10 + number, later)
    assert recent.held_until(later) == later + HOLD_S
    assert recent.held_until(1.0 + HOLD_S) == later + HOLD_S


def test_a_lost_stream_holds_nobody() -> None:
    recent = busy()
    recent.clear()
    assert recent.held_until(1.0) is None
