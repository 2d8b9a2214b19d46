"""Each batch of a sink is added once, whatever stops, wakes up or moves (ADR 67)."""

from __future__ import annotations

import pytest

from octavo.metadata.sinks import Identity, Sink, StagedAt, decided
from octavo.spark.publication import SinkState
from tests.sink_world import SinkWorld, Writer

SEEDS = 150
BATCHES = 8


def test_each_batch_is_added_once() -> None:
    crashes = gone = refused = 0
    for seed in range(SEEDS):
        world = SinkWorld(seed)
        world.run(BATCHES)
        crashes += world.crashes
        gone += world.gone
        refused += world.refused
        assert len(world.staged) <= 1 + world.crashes + world.refused
    assert crashes > SEEDS  # else nothing was shown
    assert gone > 0  # a writer met what another one had removed
    assert refused > SEEDS // 4  # what a writer had staged was swept before it was decided


class Forgetful(SinkWorld):
    """Partitions forget the sink's producer as they forget others."""

    def producer(self, number: int) -> int:
        return number


class Overwriting(SinkWorld):
    """Who asks last decides."""

    def decide(self, batch_id: int, attempt: int) -> None:
        self.sink = self.sink._replace(is_published=True, batch_id=batch_id - 1)
        super().decide(batch_id, attempt)


class SameEpoch(SinkWorld):
    """Each batch goes under the epoch of the one before."""

    def decide(self, batch_id: int, attempt: int) -> None:
        before = self.sink
        super().decide(batch_id, attempt)
        if self.sink.batch_id != before.batch_id and before.producer_id >= 0:
            by = Identity(before.producer_id, before.producer_epoch)
            self.sink = decided(Sink("query/1"), batch_id, b"%d" % attempt, by, 0)


class EarlyNote(SinkWorld):
    """It is noted as published before it is sent."""

    def publish(self, state: SinkState) -> Writer:
        self.note_published(state.batch_id)
        yield from super().publish(state)


class EarlyTrim(SinkWorld):
    """What is staged goes once it is decided."""

    def publish(self, state: SinkState) -> Writer:
        yield from self.send_all(state, int(state.plan))
        self.trim(int(state.plan))
        yield
        self.note_published(state.batch_id)
        yield


class TrimsForOthers(SinkWorld):
    """Who comes late removes what a later plan names."""

    def may_trim(self, state: SinkState, batch_id: int) -> bool:
        return state.batch_id >= batch_id and bool(state.plan)


class OwnAttempt(SinkWorld):
    """A writer publishes what it staged itself, whatever was decided."""

    def commit(self, batch_id: int, attempt: int) -> Writer:
        for _ in super().commit(batch_id, attempt):
            if self.sink.batch_id == batch_id and not self.sink.is_published:
                self.sink = self.sink._replace(plan=b"%d" % attempt)
            yield


class SweepsWhatIsDecided(SinkWorld):
    """A sweeper does not look whether something is decided and not published."""

    def given_up(self, generation: int, before: int | None) -> Sink | None:
        return self.sink._replace(swept_to=before or self.attempts + 1)


class DecidesWhatIsSwept(SinkWorld):
    """A writer that comes late may decide all the same."""

    def check_decidable(self, staged: StagedAt) -> None:
        """No."""


class SameGeneration(SinkWorld):
    """A staging topic goes and the next one counts as the same."""

    def given_up(self, generation: int, before: int | None) -> Sink | None:
        found = super().given_up(generation, before)
        return found if found is None else found._replace(generation=0)


@pytest.mark.parametrize(
    "kind",
    [
        Forgetful,
        Overwriting,
        SameEpoch,
        EarlyNote,
        EarlyTrim,
        TrimsForOthers,
        OwnAttempt,
        SweepsWhatIsDecided,
        DecidesWhatIsSwept,
        SameGeneration,
    ],
)
def test_a_planted_bug_is_found(kind: type[SinkWorld]) -> None:
    for seed in range(SEEDS):
        try:
            kind(seed).run(BATCHES)
        except AssertionError:
            return
    pytest.fail(f"{kind.__name__} was not found")
