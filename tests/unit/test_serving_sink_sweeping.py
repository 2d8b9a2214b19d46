"""What of a staging topic goes, and when (spec spark §8.3, ADR 74)."""

from __future__ import annotations

import pytest

from octavo.metadata.sinks import Identity, Sink, decided, published
from octavo.proto.kept_producers import kept_id
from octavo.proto.sink_staging import parse_staging_topic, staging_topic
from octavo.serving.sink_sweeping import Staged, Sweep, is_given_up, may_sweep, next_sweep

IDLE_MS = 1_000
NOW_MS = 10_000
OPEN = Sink("s", generation=2, touched_ms=NOW_MS)
DECIDED = decided(OPEN, 0, b"plan", Identity(kept_id(1), 0), NOW_MS)


def swept(sink: Sink, staged: Staged) -> tuple[Sweep, int]:
    return next_sweep(sink, staged, now_ms=NOW_MS, topic_idle_ms=IDLE_MS)


@pytest.mark.parametrize(
    ("sink", "generation", "may"),
    [
        (OPEN, 2, True),
        (published(DECIDED, 0), 2, True),
        (DECIDED, 2, False),  # decided and not published: for ever
        (DECIDED, 1, True),  # its plan is of this generation: no decision rests on that one
        (OPEN, 3, False),  # the record went back to a copy: not known
        (DECIDED._replace(is_ended=True), 2, True),
        (OPEN._replace(is_ended=True), 3, True),
    ],
)
def test_what_is_decided_and_not_published_stays(sink: Sink, generation: int, may: bool) -> None:
    assert may_sweep(sink, generation) is may
    assert not is_given_up(sink, generation) or may


@pytest.mark.parametrize(
    ("staged", "does"),
    [
        (Staged(5, 9, 9, 5), (Sweep.TRIM, 9)),  # all of it is older than the bound of an idle sink
        (Staged(5, 9, 8, 5), (Sweep.KEEP, 0)),  # the sink goes on: its oldest records stay
        (Staged(5, 9, 8, 7), (Sweep.TRIM, 7)),  # but not for ever
        (Staged(9, 9, 9, 9), (Sweep.KEEP, 0)),  # empty, and heard of a moment ago
    ],
)
def test_what_is_old_goes(staged: Staged, does: tuple[Sweep, int]) -> None:
    assert swept(OPEN, staged) == does


def test_what_the_record_gave_up_goes_whatever_its_age() -> None:
    """A broker died between the record and the deed."""
    assert swept(OPEN._replace(swept_to=7), Staged(5, 9, 8, 5)) == (Sweep.TRIM, 7)
    # It is more than is there: the log went back with a copy of the metadata.
    assert swept(OPEN._replace(swept_to=12), Staged(5, 9, 8, 5)) == (Sweep.TRIM, 9)


def test_an_empty_topic_of_an_idle_sink_goes_whole() -> None:
    idle = OPEN._replace(touched_ms=NOW_MS - IDLE_MS - 1)
    assert swept(idle, Staged(9, 9, 9, 9)) == (Sweep.RETIRE, 0)
    assert swept(idle, Staged(8, 9, 9, 9)) == (Sweep.TRIM, 9)
    assert swept(idle._replace(touched_ms=NOW_MS - IDLE_MS), Staged(9, 9, 9, 9))[0] is Sweep.KEEP


def test_names_of_staging_topics_lead_back() -> None:
    for generation in (0, 1, 17):
        name = staging_topic("query/1", generation)
        found = parse_staging_topic(name)
        assert found is not None
        assert (found.generation, staging_topic("query/1").endswith(found.digest)) == (
            generation,
            True,
        )
    for other in ("spark-staging-", "spark-staging-mine", staging_topic("q") + "-0", "orders"):
        assert parse_staging_topic(other) is None
