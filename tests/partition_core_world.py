"""A partition's core in a world where ledgers, bookies and the metadata store fail at any step.

The world is the core's driver, on one thread and without a loop: it does each action at once, runs
one piece of ledger work at a time, and lets anything happen between its begin and its end. Writes
may have happened although nobody was told. It keeps the truth (what each ledger holds, what the
list says) and judges by it every answer, every entry and every list, when it comes.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from octavo.metadata.ledger_record import LedgerMetadata
from octavo.proto.segment_entries import decode_footer, decode_snapshot, is_snapshot
from octavo.runtime.errors import (
    InvariantViolation,
    NoSuchLedger,
    NotEnoughBookies,
    NotEnoughReplicas,
    NotLeader,
    OctavoError,
    OutOfOrderSequence,
    ReadUnknown,
    Throttled,
    UnknownOutcome,
    UnknownTopic,
)
from octavo.runtime.ids import EntryId, LedgerId
from octavo.serving.partition.actions import (
    Action,
    AnswerChange,
    AnswerRolls,
    AnswerTrims,
    Change,
    Close,
    Durable,
    FirstCopy,
    GiveUp,
    KeepIndex,
    Pause,
    Proceed,
    Publish,
    Recover,
    Refuse,
    Send,
    SendSnapshot,
    Tell,
    Trim,
    WakeReaders,
    Work,
)
from octavo.serving.partition.core import PartitionCore, PartitionStateName
from octavo.serving.partition.log import (
    ACKS_ALL,
    Append,
    Appended,
)
from octavo.serving.partition.open_segment import OpenSegment
from octavo.serving.partition.producers import ProducerStates
from octavo.serving.partition.world import World as Surroundings
from octavo.serving.segments import advanced, names
from tests.partition_asked_world import AskedWorld
from tests.partition_truth import (
    LIMITS,
    QUORUM,
    SETTINGS,
    BrokenRule,
    Ledger,
    Sent,
    batch_of,
    key_of,
    require,
)
from tests.serving_rig import NAME, NOW_MS

TURNS_MAX = 60
"""Turns in which an honest world answers everything."""
WINDOW = 5
"""Batches a producer has on their way (I4)."""


class World(AskedWorld):
    """One life of one partition.

    Args:
        hostile: chance that a step is a fault; 0 is an honest world.
    """

    def __init__(
        self, seed: int, core: type[PartitionCore] = PartitionCore, *, hostile: float = 0.3
    ) -> None:
        super().__init__()
        self.rng = random.Random(seed)
        self.hostile = hostile
        self.now_s = 100.0
        self.live = 3
        self.metadata = True
        self.certain = True
        self.draft: Ledger | None = None
        self.opened: tuple[Ledger, OpenSegment] | None = None
        self.work: Work | None = None
        self.woken = False
        self.paused = False
        self.close_fails = False
        self.gone: list[OctavoError] = []
        self.sequence = self.numbers = 0
        self.high_watermark = 0
        self.woken_before = 0
        surroundings = Surroundings(lambda: self.live, lambda: self.metadata, lambda: self.certain)
        producers: ProducerStates[Append] = ProducerStates(expiration_ms=600_000, max_producers=100)
        self.core = core(NAME, SETTINGS, LIMITS, producers=producers, world=surroundings)
        self.core.loaded(owner_epoch=1, log_start=0, end_offset=0, last_append_ms=-1)

    @property
    def now_ms(self) -> int:
        return NOW_MS + int(self.now_s * 1000)

    # --- the driver's side --------------------------------------------------------------------

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Work):
                require(self.work is None, "one piece of ledger work at a time")
                require(action is actions[-1], "work comes last")
                self.begin(action)
            else:
                self.perform_one(action)
        self.judge()

    def perform_one(self, action: Action) -> None:  # noqa: C901
        match action:
            case Send(append):
                self.send(append)
            case SendSnapshot(payload):
                self.send_snapshot(payload)
            case Durable(append):
                require(self.is_durable(append.payload), "what is not durable is not told")
                append.answer(append.appended())
            case FirstCopy(append):
                require(self.is_copied(append.payload), "acks=1 is told when one bookie has it")
                append.answer_one()
            case Refuse(append, error):
                self.check_refusal(append, error, self.live)
                append.answer(error)
            case Tell(reply, answer):
                reply(answer)
            case AnswerRolls(outcome):
                self.answer_rolls(outcome)
            case AnswerTrims(outcome):
                self.answer_trims(outcome)
            case AnswerChange(error):
                self.answer_change(error)
            case KeepIndex(ledger_id, _):
                require(self.ledgers[ledger_id].closed, "the index of a closed ledger")
            case Pause():
                self.paused = self.woken = True
            case Proceed():
                self.woken = True
            case GiveUp(reason):
                require(isinstance(reason, NotLeader | UnknownTopic), "the registry knows what to")
                self.gone.append(reason)
            case WakeReaders():
                self.tally["woken"] += 1
            case _:
                raise AssertionError(action)

    def send(self, append: Append) -> None:
        if self.opened is None or self.opened[1].must_recover:
            return
        ledger, segment = self.opened
        self.check_entry(ledger)
        if ledger.stopped:
            self.perform(self.core.stopped(segment))
            return
        require(ledger.entries and is_snapshot(ledger.entries[0]), "a ledger begins with one (I8)")
        base = append.header.base_offset
        require(base == self.end_of_entries(), f"{base} follows {self.end_of_entries()}")
        key = key_of(append.payload)
        require(key not in self.not_written, "called not written, and written later (A8)")
        stored = map(key_of, self.batches())
        require(key not in self.last_sequence_of or key not in stored, "stored twice (I2)")
        if append.waiting_one:
            ledger.tracked.add(len(ledger.entries))
        ledger.entries.append(bytes(append.payload))
        ledger.appends[len(ledger.entries) - 1] = append
        self.core.sent(segment, append, EntryId(len(ledger.entries) - 1))
        self.tally["sent"] += 1

    def send_snapshot(self, payload: bytes) -> None:
        if self.opened is None or self.opened[1].must_recover:
            return
        ledger, segment = self.opened
        self.check_entry(ledger)
        if ledger.stopped:
            self.perform(self.core.stopped(segment))
            return
        snapshot = decode_snapshot(payload)
        require(snapshot.end_offset == self.end_of_entries(), "a snapshot is of what is before it")
        stored = (self.last_sequence_of.get(key_of(batch), -1) for batch in self.batches())
        last = max(stored, default=-1)
        found = max((one.last_sequence for one in snapshot.producers), default=-1)
        require(found == last, f"a snapshot knows sequence {found}, stored is {last} (I8)")
        ledger.entries.append(bytes(payload))
        segment.snapshot_sent(EntryId(len(ledger.entries) - 1), len(payload), self.now_s)
        self.tally["snapshots"] += 1

    def check_entry(self, ledger: Ledger) -> None:
        require(names(self.list, ledger.ledger_id) or self.foreign, "written to, and not listed")
        require(not ledger.close_asked, "nothing is added behind the footer")

    def drive(self) -> None:
        """What the driver's task does when it is woken."""
        if self.work is not None or not self.woken or self.core.has_left:
            return
        self.woken = self.paused = False
        for _ in range(TURNS_MAX):
            actions = self.core.next_actions(
                self.now_ms, self.now_s, writer_wants=self.rng.random() < self.hostile / 20
            )
            self.perform(actions)
            if not actions or self.work is not None:
                return
        raise BrokenRule("the driver never rests")

    # --- ledger work --------------------------------------------------------------------------

    def begin(self, work: Work) -> None:
        self.work = work
        match work:
            case Recover(ledger_id):
                require(self.ledgers[ledger_id].stopped, "only a stopped ledger is recovered")
            case Close(footer, _):
                assert self.opened is not None
                ledger, _segment = self.opened
                self.check_entry(ledger)
                require(ledger.told == len(ledger.entries), "a ledger is drained first (ML-5)")
                require(decode_footer(footer).end_offset == self.end_of_entries(), "its end")
                if self.core.state is PartitionStateName.CLOSING:
                    require(is_snapshot(ledger.entries[-1]), "handed over with a snapshot (I8)")
                ledger.close_asked = True
                if not ledger.stopped:
                    ledger.entries.append(footer)
                    self.close_fails = self.fails(0.4)
                else:
                    self.close_fails = True
                ledger.stopped = True  # whatever comes of it
            case Publish(sealed, _, base_offset):
                require(base_offset == self.end_of_entries(), "a ledger begins where the log ends")
                if sealed is not None:
                    closed = self.ledgers[sealed.ledger_id].closed
                    require(closed and sealed.last_entry == closed.last_entry, "counts (ML-6)")
                    require(sealed.end_offset == base_offset, "a sealed segment ends at the end")
            case Trim() | Change():
                require(self.core.state is PartitionStateName.SERVING, "who leaves does not trim")
        self.tally[type(work).__name__] += 1

    def finish(self) -> None:
        """The work under way ends, in one way or another."""
        work, self.work = self.work, None
        if work is None:
            return
        try:
            match work:
                case Recover(ledger_id):
                    self.opened_gone(self.recover(self.ledgers[ledger_id]))
                case Close():
                    self.finish_close()
                case Publish():
                    self.finish_publish(work)
                case Trim():
                    self.finish_trim(work)
                case Change():
                    self.finish_change(work)
        except OctavoError as error:
            if isinstance(error, InvariantViolation | BrokenRule):
                raise
            self.tally[f"failed: {error.code}"] += 1
            if self.core.state is not PartitionStateName.CLOSED:
                self.perform(self.core.work_failed(error))
                require(self.paused or self.core.has_left, "a failed step is followed by a pause")
                if isinstance(error, UnknownTopic):
                    require(isinstance(self.core.gone, UnknownTopic), "that it is gone is told")
        self.woken = True

    def fails(self, share: float = 1.0) -> bool:
        return self.rng.random() < self.hostile * share

    def recover(self, ledger: Ledger) -> LedgerMetadata:
        if ledger.lost:
            raise NoSuchLedger(f"ledger {ledger.ledger_id} is gone")
        if ledger.closed is None:
            if self.live < 2 or self.fails(0.5):
                raise ReadUnknown("too few bookies answer")
            # what Qa acknowledged is there; of the rest a part may be.
            last = self.rng.randint(ledger.told, max(ledger.told, len(ledger.entries))) - 1
            ledger.close(last)
        if self.fails(0.3):
            raise UnknownOutcome("the reply was lost")
        assert ledger.closed is not None
        return ledger.closed

    def finish_close(self) -> None:
        assert self.opened is not None
        ledger, segment = self.opened
        if self.close_fails:
            if ledger.closed is None and self.rng.random() < 0.5:  # done, and nobody was told
                ledger.close(len(ledger.entries) - 1)
            self.perform(self.core.stopped(segment))
            return
        ledger.told = len(ledger.entries)
        ledger.close(len(ledger.entries) - 1)
        assert ledger.closed is not None
        self.opened_gone(ledger.closed)

    def opened_gone(self, closed: LedgerMetadata) -> None:
        self.opened = None
        self.perform(self.core.ledger_closed(closed))

    def finish_publish(self, work: Publish) -> None:
        """As `SegmentChain.publish` does: the list that names a ledger creates it."""
        self.reach_list()
        if self.draft is None or not names(self.list, self.draft.ledger_id):
            if work.open_new and self.draft is None:
                if self.live < QUORUM.ack:
                    raise NotEnoughBookies("too few")
                self.draft = Ledger(LedgerId(len(self.ledgers)))
            opened = self.draft if work.open_new else None
            wanted = advanced(
                self.list,
                sealed=work.sealed,
                opened=(opened.ledger_id, work.base_offset) if opened else None,
                now_ms=self.now_ms,
            )
            is_lost = self.fails(0.4)
            if not is_lost or self.rng.random() < 0.5:  # if lost: it happened, nobody was told
                self.list = wanted
                if opened is not None:
                    self.ledgers[opened.ledger_id] = opened
            if is_lost:
                raise UnknownOutcome("the reply was lost")
        self.list_was_read()
        ledger = self.draft
        if ledger is None or not names(self.list, ledger.ledger_id):
            self.perform(self.core.listed(None, self.now_ms, self.now_s))
            return
        self.draft = None
        had_ended = self.core.state is PartitionStateName.CLOSED
        actions = self.core.listed(ledger.ledger_id, self.now_ms, self.now_s)
        if had_ended:
            require(self.core.segment is None and not actions, "what ended does nothing any more")
            return
        require(self.core.segment, "a listed ledger that nobody writes to nor closes")
        assert self.core.segment is not None
        self.opened = (ledger, self.core.segment)
        if ledger.stopped:
            self.perform(self.core.stopped(self.core.segment))
        self.perform(actions)

    # --- events -------------------------------------------------------------------------------

    def produce(self) -> None:
        """A new batch, or one again: the oldest unanswered, or any."""
        mine = {one.sequence: one for one in self.sent if one.sequence >= 0}
        waiting = [seq for seq in mine if not self.is_settled(seq)]
        roll = self.rng.random()
        if roll < 0.4:
            number, sequence, acks = self.new_number(), -1, self.rng.choice((-1, -1, 1, 0))
        else:
            acks = ACKS_ALL
            if mine and roll < 0.55:
                one = mine[self.rng.choice(list(mine))]
                number, sequence = one.number, one.sequence
            elif waiting and (roll < 0.7 or len(waiting) >= WINDOW):
                number, sequence = mine[min(waiting)].number, min(waiting)
            else:
                number, sequence = self.new_number(), self.sequence
        self.request(number, sequence, acks)

    def new_number(self) -> int:
        self.numbers += 1
        return self.numbers

    def request(self, number: int, sequence: int, acks: int) -> Sent | None:
        batch = batch_of(number, sequence)
        one = Sent(number, sequence, acks, self.now_s)
        last = sequence + number % 3
        if sequence >= 0:
            self.last_sequence_of[key_of(batch)] = last
        try:
            actions = self.core.produce(batch, acks, self.reply_of(one), self.now_ms, self.now_s)
        except (NotLeader, OutOfOrderSequence, Throttled, NotEnoughReplicas, UnknownTopic) as error:
            require(not one.answers, "answered and refused")
            is_final = isinstance(error, NotLeader | UnknownTopic)
            serves = self.core.state is PartitionStateName.SERVING
            require(is_final or serves, f"{error.code} of a partition that is not served here")
            self.tally[f"refused: {error.code}"] += 1
            return None
        require(self.core.state is PartitionStateName.SERVING, "taken, and not served here")
        require(self.core.log.pending <= LIMITS.bounds.pending_batches, "pending is bounded")
        self.not_written.discard(key_of(batch))
        self.sent.append(one)
        self.sequence = max(self.sequence, last + 1)
        self.perform(actions)
        return one

    def acknowledge(self) -> None:
        """Qa bookies have one entry more."""
        if self.opened is None or self.live < QUORUM.ack:
            return
        ledger, segment = self.opened
        if not ledger.stopped and ledger.told < len(ledger.entries):
            ledger.told += 1
            ledger.copied = max(ledger.copied, ledger.told)
            self.perform(self.core.added(segment, EntryId(ledger.told - 1)))

    def copy(self) -> None:
        """One bookie has one entry more."""
        if self.opened is None:
            return
        ledger, segment = self.opened
        if not ledger.stopped and ledger.copied < len(ledger.entries):
            ledger.copied += 1
            if ledger.copied - 1 in ledger.tracked:
                append = ledger.appends[ledger.copied - 1]
                self.perform(self.core.first_copy(segment, append))

    def notice(self) -> None:
        """The core hears that the writer stopped."""
        if self.opened is not None and self.opened[0].stopped and self.work is None:
            self.perform(self.core.stopped(self.opened[1]))

    def stop_ledger(self) -> None:
        if self.opened is not None:
            self.opened[0].stopped = True

    def lose_ledger(self) -> None:
        if self.opened is not None and self.work is None:
            self.opened[0].lost = self.opened[0].stopped = True

    def take_over(self) -> None:
        self.taken_over(self.rng)

    def delete(self) -> None:
        self.deleted = True
        if self.rng.random() < 0.5:
            self.perform(self.core.end(UnknownTopic("deleted")))

    def end(self) -> None:
        self.perform(self.core.end(NotLeader("its deadline is over")))

    def leave(self) -> None:
        self.perform(self.core.leave())

    def change_bookies(self) -> None:
        self.live = self.rng.choice((0, 1, 2, 3, 3))

    def change_metadata(self) -> None:
        self.metadata = not self.metadata
        self.certain = self.metadata or self.rng.random() < 0.5

    def tick(self) -> None:
        has_trash = self.rng.random() < 0.1
        self.perform(
            self.core.tick(self.now_ms, self.now_s, writer_wants=False, has_trash=has_trash)
        )
        if self.core.state is PartitionStateName.SERVING:
            self.retain()
            oldest_s = self.now_s - LIMITS.bounds.produce_timeout_s
            late = [one for one in self.sent if not one.answers and one.at_s < oldest_s]
            require(not late, "kept waiting longer than may be")

    def wait(self) -> None:
        self.now_s += self.rng.choice((0.1, 0.5, 2.5))

    def step(self) -> None:
        if self.rng.random() < self.hostile:
            events, weights = FAULTS
        else:
            events, weights = HONEST
        (event,) = self.rng.choices(events, weights)
        event(self)

    def run(self, steps: int = 90) -> World:
        """Let it happen, then let everything heal, and judge."""
        for _ in range(steps):
            self.step()
        self.heal()
        if self.core.state is PartitionStateName.SERVING:
            self.check_healed()
        self.leave()
        self.settle()
        self.check_left()
        return self

    def heal(self) -> None:
        self.hostile, self.live, self.metadata, self.certain = 0.0, 3, True, True
        self.settle()

    def settle(self) -> None:
        """Until nothing happens any more."""
        for _ in range(TURNS_MAX):
            before = self.progress()
            self.now_s += 0.6
            self.notice()
            while self.opened and not self.opened[0].stopped:
                told = self.opened[0].told
                self.acknowledge()
                if self.opened and told == self.opened[0].told:
                    break
            self.drive()
            self.finish()
            self.tick()
            if before == self.progress() and (not self.woken or self.core.has_left):
                return
        raise BrokenRule("it never comes to rest")

    def progress(self) -> tuple[object, ...]:
        told = sum(one.told for one in self.ledgers.values())
        return self.tally.total(), told, self.core.log.pending, self.list, self.core.has_left

    # --- judging ------------------------------------------------------------------------------

    def judge(self) -> None:
        """What holds between any two events."""
        self.core.validate()
        self.check_trims(has_ended=self.core.state is PartitionStateName.CLOSED)
        if self.core.state is PartitionStateName.CLOSED:
            require(all(one.answers for one in self.sent), "ended, and somebody still waits")
            require(not self.rolls, "ended, and somebody still waits for a roll")
            return
        reached = self.core.log.high_watermark
        require(reached >= self.high_watermark, "the high watermark never goes back (A3)")
        require(reached <= self.end_of_entries(durable=True), "readable, and not durable (A3)")
        if reached > self.high_watermark:
            require(self.tally["woken"] > self.woken_before, "readers are told that there is more")
        self.high_watermark, self.woken_before = reached, self.tally["woken"]

    def check_healed(self) -> None:
        require(not self.core.log.pending, "healed, and something still waits")
        require(all(one.answers for one in self.sent), "healed, and somebody still waits")
        require(self.core.log.high_watermark == self.end_of_entries(), "all of it is readable")
        self.roll()
        self.settle()
        require(not (self.rolls or self.trims or self.changes), "asked, and nobody ends it")
        if not self.request(self.new_number(), -1, ACKS_ALL):
            require(self.is_lost, "healed, and nothing is taken")
            return
        self.settle()
        answer = self.sent[-1].answers[0]
        is_told = isinstance(answer, Appended) or (
            self.is_lost and isinstance(answer, NotLeader | UnknownTopic)
        )
        require(is_told, f"healed, and nothing is stored: {answer}")
        self.check_trim_to_the_end()
        self.check_that_it_empties()

    def check_left(self) -> None:
        """And what a successor finds."""
        require(self.core.has_left, "it never leaves")
        require(len(self.gone) <= int(self.is_lost), f"gave up {self.gone}")
        if self.core.state is PartitionStateName.CLOSING:
            require(self.core.segment is None and self.core.sealed is None, "left in good order")
        self.perform(self.core.end(NotLeader("it left")))
        self.check_log(self.rng)


Events = tuple[tuple[Callable[[World], None], ...], tuple[float, ...]]
HONEST: Events = (
    (
        World.produce,
        World.acknowledge,
        World.copy,
        World.drive,
        World.finish,
        World.tick,
        World.wait,
        World.roll,
        World.trim,
        World.change,
        World.notice,
    ),
    (8, 10, 4, 6, 6, 2, 2, 0.7, 0.7, 0.7, 2),
)
FAULTS: Events = (
    (
        World.stop_ledger,
        World.change_bookies,
        World.change_metadata,
        World.lose_ledger,
        World.take_over,
        World.delete,
        World.end,
        World.leave,
        World.produce,
    ),
    (4, 4, 2, 0.1, 0.12, 0.12, 0.06, 0.15, 6),
)
"""What may happen, and how often."""
