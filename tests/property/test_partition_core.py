"""PartitionCore in a hostile world (INV-1, INV-2, A3, A6, A8, ML-5, ML-6, I2, I3, I8, W-9, O-3).

The promises are checked by `tests.partition_core_world`; here stand the schedules, and bugs that
the world must find: each class below breaks one rule.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from octavo.metadata.ledger_record import LedgerMetadata
from octavo.proto.segment_entries import encode_footer
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import (
    NotEnoughReplicas,
    NotLeader,
    OctavoError,
    RequestTimedOut,
    UnknownTopic,
)
from octavo.runtime.ids import EntryId, LedgerId
from octavo.serving.partition.actions import (
    PROCEED,
    Action,
    AnswerRolls,
    Close,
    Durable,
    FirstCopy,
    GiveUp,
    Publish,
    Refuse,
    SendSnapshot,
    Tell,
    WakeReaders,
)
from octavo.serving.partition.core import PartitionCore, PartitionStateName
from octavo.serving.partition.log import UNCONDITIONAL, Append, Conditions, PartitionLog, Reply
from octavo.serving.partition.open_segment import OpenSegment
from octavo.serving.partition.producers import ProducerStates
from octavo.serving.segments import RollReason
from tests.partition_core_world import World
from tests.partition_truth import BrokenRule

SCHEDULES = 250
SEEDS_MAX = 400
"""In so many schedules a planted bug is found, or the world is too kind."""


@pytest.mark.parametrize("hostile", [0.0, 0.15, 0.4])
def test_no_schedule_breaks_a_promise(hostile: float) -> None:
    total: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        total += World(seed, hostile=hostile).run().tally
    assert min(total["stored"], total["snapshots"], total["Publish"]) > SCHEDULES
    assert min(total["Close"], total["rolls"]) > SCHEDULES // 2
    assert total["duplicates"] > 5
    if hostile:
        failures = ("READ_UNKNOWN", "UNKNOWN_OUTCOME", "NOT_ENOUGH_BOOKIES", "UNKNOWN_TOPIC")
        assert min(total[f"failed: {code}"] for code in failures) > 2
        assert min(total["failed: NOT_LEADER"], total["failed: NO_SUCH_LEDGER"]) > 0
        answers = ("NOT_ENOUGH_REPLICAS", "REQUEST_TIMED_OUT", "NOT_LEADER", "UNKNOWN_TOPIC")
        assert min(total[f"answered: {code}"] for code in answers) > 10
        assert total["Recover"] > SCHEDULES // 4


def found_by(core: type[PartitionCore]) -> str | None:
    """What the first schedule that finds something says."""
    for seed in range(SEEDS_MAX):
        for hostile in (0.0, 0.4):
            try:
                World(seed, core, hostile=hostile).run()
            except (BrokenRule, OctavoError, AssertionError, IndexError) as error:
                return f"seed {seed}, hostile {hostile}: {error}"
    return None


# --- planted bugs: what is told ----------------------------------------------------------------


class TellsAtTheFirstCopy(PartitionCore):
    """INV-2."""

    def first_copy(self, segment: OpenSegment, append: Append) -> list[Action]:
        told = super().first_copy(segment, append)
        return [Durable(one.append) for one in told if isinstance(one, FirstCopy)]


class TellsOneBeforeAnyCopy(PartitionCore):
    """A4."""

    def produce(
        self,
        batch: Buffer,
        acks: int,
        reply: Reply,
        now_ms: int,
        now_s: float,
        *,
        conditions: Conditions = UNCONDITIONAL,
    ) -> list[Action]:
        actions = super().produce(batch, acks, reply, now_ms, now_s, conditions=conditions)
        return [*actions, *(FirstCopy(one) for one in self.log.sent_batches())]


class BelievesThatAllWasStored(PartitionCore):
    """ML-6: only the CLOSED record tells what is in a ledger."""

    def ledger_closed(self, closed: LedgerMetadata) -> list[Action]:
        sealed = super().ledger_closed(replace(closed, last_entry=EntryId(1 << 30)))
        if self.sealed is not None and closed.last_entry is not None:
            self.sealed = replace(self.sealed, last_entry=closed.last_entry)
        return sealed


class CallsSentNotWritten(PartitionCore):
    """A8."""

    def tick(
        self, now_ms: int, now_s: float, *, writer_wants: bool, has_trash: bool
    ) -> list[Action]:
        if self._intake.shortage(now_s) is not None:
            few = NotEnoughReplicas("too few")
            return list(self._intake.refused(self.log.drop_all(), few))
        return super().tick(now_ms, now_s, writer_wants=writer_wants, has_trash=has_trash)


class CallsEndedNotWritten(PartitionCore):
    """A8."""

    def end(self, reason: OctavoError) -> list[Action]:
        return super().end(NotEnoughReplicas("it ends"))


class EndsWithoutAWord(PartitionCore):
    """A8: each batch that is pending is answered once."""

    def end(self, reason: OctavoError) -> list[Action]:
        return [a for a in super().end(reason) if not isinstance(a, Refuse)]


class AnswersInTwoWays(PartitionCore):
    def produce(
        self,
        batch: Buffer,
        acks: int,
        reply: Reply,
        now_ms: int,
        now_s: float,
        *,
        conditions: Conditions = UNCONDITIONAL,
    ) -> list[Action]:
        actions = super().produce(batch, acks, reply, now_ms, now_s, conditions=conditions)
        return [*actions, *(a for a in actions if isinstance(a, Tell))]


class NeverSaysThatItTakesLong(PartitionCore):
    def next_deadline_s(self) -> float | None:
        return None


class ForgetsWhatItCalledLate(PartitionCore):
    """A8: a batch that was called late stays pending; its retry must attach."""

    def tick(
        self, now_ms: int, now_s: float, *, writer_wants: bool, has_trash: bool
    ) -> list[Action]:
        actions = super().tick(now_ms, now_s, writer_wants=writer_wants, has_trash=has_trash)
        late = [
            a.append
            for a in actions
            if isinstance(a, Refuse) and isinstance(a.error, RequestTimedOut)
        ]
        self._intake.refused(late[::-1], RequestTimedOut("late"))
        return actions


class ConfirmsWhatIsSent(PartitionCore):
    """I3: a retry of what is pending is told that it is stored."""

    def sent(self, segment: OpenSegment, append: Append, entry_id: EntryId) -> None:
        super().sent(segment, append, entry_id)
        self._intake.confirm(append)


class RemembersWhatItDropped(PartitionCore):
    """I3: a retry attaches to a batch that nobody sends any more."""

    class Producers(ProducerStates[Append]):
        def fail(self, producer_id: int, token: Append) -> None:
            """Nothing is forgotten."""

    def sent(self, segment: OpenSegment, append: Append, entry_id: EntryId) -> None:
        self._producers.__class__ = self.Producers
        super().sent(segment, append, entry_id)


class LetsReadersSleep(PartitionCore):
    """F1."""

    def added(self, segment: OpenSegment, entry_id: EntryId) -> list[Action]:
        return [a for a in super().added(segment, entry_id) if not isinstance(a, WakeReaders)]


# --- planted bugs: what is written -------------------------------------------------------------


class ClosesWithoutDraining(PartitionCore):
    """ML-5."""

    def _towards_end(self, segment: OpenSegment, why: RollReason, now_ms: int) -> list[Action]:
        segment.must_recover = True
        return [Close(encode_footer(segment.footer(self.log.high_watermark)), why.value)]


class SendsBehindTheFooter(PartitionCore):
    """ML-5: batches queue while a segment ends."""

    def _sends(self, now_ms: int, now_s: float) -> list[Action]:
        segment = self.segment
        if segment is None:
            return super()._sends(now_ms, now_s)
        was = segment.ends, segment.must_recover
        segment.ends, segment.must_recover = None, False
        actions = super()._sends(now_ms, now_s)
        segment.ends = was[0]
        return actions


class HandsOverWithoutSnapshot(PartitionCore):
    """I8."""

    def _towards_end(self, segment: OpenSegment, why: RollReason, now_ms: int) -> list[Action]:
        actions = super()._towards_end(segment, why, now_ms)
        if not any(isinstance(a, SendSnapshot) for a in actions):
            return actions
        segment.must_recover = True
        return [Close(encode_footer(segment.footer(self.log.high_watermark)), why.value)]


class BeginsWithoutSnapshot(PartitionCore):
    """I8."""

    def listed(self, ledger_id: LedgerId | None, now_ms: int, now_s: float) -> list[Action]:
        actions = super().listed(ledger_id, now_ms, now_s)
        return [a for a in actions if not isinstance(a, SendSnapshot)]


class SnapshotsBehindTheQueue(PartitionCore):
    """I8: a snapshot is of what was sent before it."""

    def _sends(self, now_ms: int, now_s: float) -> list[Action]:
        actions = super()._sends(now_ms, now_s)
        return sorted(actions, key=lambda a: isinstance(a, SendSnapshot))


class QueuesInAnotherOrder(PartitionCore):
    """ML-6: what is not in a closed ledger is written again, first."""

    class Log(PartitionLog):
        def resolve(self, last_entry: int) -> list[Append]:
            inside = super().resolve(last_entry)
            self._queued.reverse()
            return inside

    def sent(self, segment: OpenSegment, append: Append, entry_id: EntryId) -> None:
        self.log.__class__ = self.Log
        super().sent(segment, append, entry_id)


class LosesWhatWasNotInTheLedger(PartitionCore):
    def ledger_closed(self, closed: LedgerMetadata) -> list[Action]:
        actions = super().ledger_closed(closed)
        self.log.drop_queued()
        return actions


class TakesMoreThanItHasRoomFor(PartitionCore):
    def produce(
        self,
        batch: Buffer,
        acks: int,
        reply: Reply,
        now_ms: int,
        now_s: float,
        *,
        conditions: Conditions = UNCONDITIONAL,
    ) -> list[Action]:
        self._intake._check_room = lambda *_: None  # type: ignore[method-assign]
        return super().produce(batch, acks, reply, now_ms, now_s, conditions=conditions)


# --- planted bugs: ledgers and the list --------------------------------------------------------


class ForgetsWhatItClosed(PartitionCore):
    """ML-5: what was closed and its successor are one write."""

    def next_actions(self, now_ms: int, now_s: float, *, writer_wants: bool) -> list[Action]:
        actions = super().next_actions(now_ms, now_s, writer_wants=writer_wants)
        return [a._replace(sealed=None) if isinstance(a, Publish) else a for a in actions]


class ForgetsWhatItClosedWhenAWriteFails(PartitionCore):
    def work_failed(self, error: OctavoError) -> list[Action]:
        self.sealed = None
        return super().work_failed(error)


class CountsByItself(PartitionCore):
    """ML-6: the list's counts come from CLOSED records."""

    def ledger_closed(self, closed: LedgerMetadata) -> list[Action]:
        segment = self.segment
        actions = super().ledger_closed(closed)
        if self.sealed is not None and segment is not None:
            self.sealed = replace(self.sealed, last_entry=segment.last_durable_entry)
        return actions


class ClosesAgainAfterAnUnknownClose(PartitionCore):
    """W-9: after a close of unknown outcome only recovery tells the end."""

    def next_actions(self, now_ms: int, now_s: float, *, writer_wants: bool) -> list[Action]:
        if self.segment is not None and self.segment.ends is not None:
            self.segment.must_recover = False
        return super().next_actions(now_ms, now_s, writer_wants=writer_wants)


class WaitsForAStoppedLedger(PartitionCore):
    def stopped(self, segment: OpenSegment) -> list[Action]:
        actions = super().stopped(segment)
        return [a for a in actions if a is not PROCEED]

    def tick(
        self, now_ms: int, now_s: float, *, writer_wants: bool, has_trash: bool
    ) -> list[Action]:
        return []


class OpensALedgerWhileItLeaves(PartitionCore):
    """O-3: nothing new is begun."""

    def next_actions(self, now_ms: int, now_s: float, *, writer_wants: bool) -> list[Action]:
        if self.state is PartitionStateName.CLOSING and self.segment is None:
            return [Publish(self.sealed, True, self.log.high_watermark)]
        return super().next_actions(now_ms, now_s, writer_wants=writer_wants)

    @property
    def has_left(self) -> bool:
        return self.state is PartitionStateName.CLOSED


class LeavesAnOpenLedger(PartitionCore):
    """O-3."""

    @property
    def has_left(self) -> bool:
        return self.state in (PartitionStateName.CLOSING, PartitionStateName.CLOSED)


class TakesBatchesWhileItLeaves(PartitionCore):
    """O-3."""

    def check_serving(self) -> None:
        if self.state is not PartitionStateName.CLOSING:
            super().check_serving()


class ComesBackAfterItsEnd(PartitionCore):
    """A list write that ends late opens a ledger of a partition that ended."""

    def listed(self, ledger_id: LedgerId | None, now_ms: int, now_s: float) -> list[Action]:
        was, self.state = self.state, PartitionStateName.SERVING
        actions = super().listed(ledger_id, now_ms, now_s)
        self.state = was
        return actions


# --- planted bugs: when to go on, and when not -------------------------------------------------


class GoesOnWithoutTheList(PartitionCore):
    """ledger §8.3: another epoch in the list means another owner."""

    def work_failed(self, error: OctavoError) -> list[Action]:
        return super().work_failed(RequestTimedOut("try again"))


class GivesUpAtAnyFailure(PartitionCore):
    def work_failed(self, error: OctavoError) -> list[Action]:
        return self.give_up(NotLeader("something failed"))


class GivesUpWithTheRawError(PartitionCore):
    """A producer cannot do anything with what a driver found."""

    def give_up(self, error: OctavoError) -> list[Action]:
        return [*self.end(error), GiveUp(error)]


class GivesUpTwice(PartitionCore):
    def give_up(self, error: OctavoError) -> list[Action]:
        actions = super().give_up(error)
        return [*actions, *(a for a in actions if isinstance(a, GiveUp))]


class HidesThatTheTopicIsGone(PartitionCore):
    """UNKNOWN_TOPIC is final; NOT_LEADER would be asked about for ever."""

    def give_up(self, error: OctavoError) -> list[Action]:
        is_gone = isinstance(error, UnknownTopic)
        return super().give_up(NotLeader("moved") if is_gone else error)


class NeverStopsTrying(PartitionCore):
    """A failed write is tried again at once and never rests."""

    def work_failed(self, error: OctavoError) -> list[Action]:
        return [a for a in super().work_failed(error) if type(a).__name__ != "Pause"]


class AnswersRollsAtOnce(PartitionCore):
    def roll(self, *, renew: bool = False) -> list[Action]:
        return [*super().roll(renew=renew), AnswerRolls(self.log.high_watermark)]


class ForgetsWhoAskedForARoll(PartitionCore):
    def listed(self, ledger_id: LedgerId | None, now_ms: int, now_s: float) -> list[Action]:
        actions = super().listed(ledger_id, now_ms, now_s)
        return [a for a in actions if not isinstance(a, AnswerRolls)]


BUGS: list[type[PartitionCore]] = [
    TellsAtTheFirstCopy,
    TellsOneBeforeAnyCopy,
    BelievesThatAllWasStored,
    CallsSentNotWritten,
    CallsEndedNotWritten,
    EndsWithoutAWord,
    AnswersInTwoWays,
    NeverSaysThatItTakesLong,
    ForgetsWhatItCalledLate,
    ConfirmsWhatIsSent,
    RemembersWhatItDropped,
    LetsReadersSleep,
    ClosesWithoutDraining,
    SendsBehindTheFooter,
    HandsOverWithoutSnapshot,
    BeginsWithoutSnapshot,
    SnapshotsBehindTheQueue,
    QueuesInAnotherOrder,
    LosesWhatWasNotInTheLedger,
    TakesMoreThanItHasRoomFor,
    ForgetsWhatItClosed,
    ForgetsWhatItClosedWhenAWriteFails,
    CountsByItself,
    ClosesAgainAfterAnUnknownClose,
    WaitsForAStoppedLedger,
    OpensALedgerWhileItLeaves,
    LeavesAnOpenLedger,
    TakesBatchesWhileItLeaves,
    ComesBackAfterItsEnd,
    GoesOnWithoutTheList,
    GivesUpAtAnyFailure,
    GivesUpWithTheRawError,
    GivesUpTwice,
    HidesThatTheTopicIsGone,
    NeverStopsTrying,
    AnswersRollsAtOnce,
    ForgetsWhoAskedForARoll,
]


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: type[PartitionCore]) -> None:
    assert found_by(bug) is not None
