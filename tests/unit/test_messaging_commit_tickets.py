"""Who hears of a commit that a later one took the place of: its callback, and no log."""

from __future__ import annotations

import logging

import pytest

from octavo.client.messaging.membership.offset_commits import OffsetCommits, SendCommit, Settle
from octavo.client.messaging.membership.tickets import ToUser
from octavo.client.messaging.membership.values import Slot
from octavo.client.messaging.records import OffsetAndMetadata
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.errors import OctavoError, RequestTimedOut
from octavo.runtime.errors_of_groups import CommitFailed, CommitReplaced

SLOT = Slot("t", 0, b"t" * 16)


def replaced() -> OctavoError:
    """What the core says of a commit that waits behind one under way, when a third comes."""
    core = OffsetCommits(SeededEntropy(1), auto_interval_s=None)

    def commit(ticket: str, offset: int) -> list[object]:
        offsets = {SLOT: OffsetAndMetadata(offset)}
        return [*core.commit(ticket, offsets, 0.0, deadline_s=30.0, waits=False)]

    (sent,) = commit("first", 1)
    assert isinstance(sent, SendCommit)
    assert commit("second", 2) == []
    (settled,) = commit("third", 3)
    assert isinstance(settled, Settle)
    assert settled.ticket == "second"
    assert settled.error is not None
    return settled.error


def test_a_commit_that_a_later_one_replaces_has_an_error_of_its_own() -> None:
    error = replaced()
    assert isinstance(error, CommitReplaced)
    assert isinstance(error, CommitFailed)
    assert "poll()" not in error.hint  # nothing is wrong with the membership


def test_whoever_commits_often_is_not_told_of_each_that_was_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[OctavoError | None] = []

    def tell(_calls: object, _offsets: object, error: OctavoError | None) -> None:
        told.append(error)

    offsets = {SLOT: OffsetAndMetadata(2)}
    with caplog.at_level(logging.INFO):
        ToUser(None, tell).settled(offsets, replaced())
        ToUser(None, tell).settled(offsets, None)
        assert not caplog.records
        ToUser(None, tell).settled(offsets, RequestTimedOut("no answer"))
        assert "commit_async failed" in caplog.text
    error = replaced()
    ToUser(lambda _offsets, _error: None, tell).settled(offsets, error)
    assert told == [error]
