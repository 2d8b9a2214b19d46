"""What a producer remembers of failures that nobody looked at (U2)."""

from __future__ import annotations

import pytest

from octavo.client.messaging.producing import failures
from octavo.client.messaging.producing.failures import UnseenFailures
from octavo.client.messaging.producing.futures import Completion
from octavo.runtime.errors import DeliveryFailed


def failed(records: int = 2) -> Completion:
    made = Completion("t", 0)
    made.timestamps_ms = [1] * records
    made.fail(DeliveryFailed("gone"))
    return made


def test_u2_what_nobody_looked_at_is_raised_once_with_its_count_and_first_error() -> None:
    unseen = UnseenFailures()
    first = failed()
    for batch in (first, failed(3)):
        unseen.note(batch)
    assert unseen.records() == 5
    with pytest.raises(DeliveryFailed, match=r"5 records .* first error: .*gone") as caught:
        unseen.raise_unseen()
    assert caught.value.details["records"] == 5
    assert caught.value.__cause__ is first.error
    unseen.raise_unseen()
    assert unseen.records() == 0


def test_what_somebody_looked_at_is_not_told_again() -> None:
    unseen = UnseenFailures()
    before, after = failed(), failed()
    before.observed = True
    unseen.note(before)
    unseen.note(after)
    assert unseen.records() == 2
    after.observed = True
    assert unseen.records() == 0
    unseen.raise_unseen()


def test_a_batch_that_is_told_again_after_an_interruption_counts_once() -> None:
    unseen = UnseenFailures()
    batch = failed()
    unseen.note(batch)
    unseen.note(batch)
    assert unseen.records() == 2


def test_above_the_bound_only_records_are_counted_and_seen_ones_make_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failures, "FAILURES_KEPT_MAX", 2)
    unseen = UnseenFailures()
    kept = [failed(1), failed(1)]
    for batch in (*kept, failed(10)):
        unseen.note(batch)
    assert unseen.records() == 12
    kept[0].observed = True
    unseen.note(failed(5))  # takes the place of the one that was seen
    assert unseen.records() == 16
    with pytest.raises(DeliveryFailed, match="16 records"):
        unseen.raise_unseen()
