"""A model of a sink: writers that crash, wake up again and overlap, partitions that move (ADR 67).

Real are the decisions (`metadata.sinks`), what a writer does next (`spark.publication`) and what a
partition stores (`ProducerStates`). A driver commits batches in order, as Spark does: it may stop
at any step, for ever or to go on much later beside its successor, which runs the batch again with
other pieces in other partitions. Sweepers take what nobody decided on for forgotten at any moment,
and may stop between their two steps (ADR 74).
"""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import NamedTuple

from octavo.metadata.sinks import (
    Identity,
    Sink,
    StagedAt,
    check_decidable,
    decided,
    needs_decision,
    next_identity,
    published,
    retired,
    swept,
)
from octavo.proto.batch import decode_header
from octavo.proto.kept_producers import kept_id
from octavo.runtime.errors import InvalidProducerEpoch, OctavoError, OutOfOrderSequence
from octavo.runtime.errors_of_writers import StagedDataGone
from octavo.serving.partition.producers import Kind, ProducerStates
from octavo.spark.publication import Fate, SinkState, Step, fate, may_trim, next_step
from tests.serving_rig import handed_over, make_batch

Row = tuple[int, int]
"""Batch and number."""
Writer = Generator[None, None, None]
PARTITIONS = 3
ROWS_MAX = 6
LONG_MS = 1 << 50
_TEMPLATE = decode_header(make_batch([b"v"]))


class StagedPiece(NamedTuple):
    """Rows of one partition."""

    partition: int
    rows: tuple[Row, ...]


class Gone(Exception):
    """What was staged is not there any more."""


class PartitionModel:
    """One partition over its owners."""

    def __init__(self) -> None:
        self.states: ProducerStates[object] = ProducerStates(expiration_ms=1)
        self.log: list[Row] = []

    def send(
        self, by: Identity, base: int, rows: tuple[Row, ...], rng: random.Random
    ) -> OctavoError | None:
        """The answer of an owner that may die before or after it stored the rows."""
        verdict = self.states.decide(by.producer_id, by.producer_epoch, base, len(rows))
        if verdict.kind is Kind.DUPLICATE:
            return None
        if verdict.kind is Kind.OLD_EPOCH:
            return InvalidProducerEpoch("a later one is known")
        if verdict.kind is not Kind.APPEND:
            return OutOfOrderSequence("a gap")
        header = _TEMPLATE._replace(
            producer_id=by.producer_id,
            producer_epoch=by.producer_epoch,
            base_sequence=base,
            record_count=len(rows),
            base_offset=len(self.log),
            append_time_ms=1,
        )
        token = object()
        self.states.begin(header, len(self.log), 1, token)
        if rng.random() < 0.1:
            self.states.fail(by.producer_id, token)
            return OutOfOrderSequence("the owner died, nothing is stored")
        self.log += rows
        self.states.confirm(by.producer_id, token)
        return None

    def moves(self) -> None:
        """Another owner loads what the last one stored, after as long as you like."""
        snapshots = handed_over(self.states.packed(lambda _: False))
        self.states = ProducerStates(expiration_ms=1)
        self.states.restore(snapshots)
        self.states.expire(LONG_MS)


class SinkWorld:
    """One sink. Subclasses plant bugs in the methods that writers use."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.sink = Sink("query/1")
        self.partitions = [PartitionModel() for _ in range(PARTITIONS)]
        self.staged: dict[int, list[StagedPiece]] = {}
        """By attempt, in the order in which they were staged: its number is its offset."""
        self.generations: dict[int, int] = {}
        """In which staging topic an attempt is staged."""
        self.refused = 0
        self.attempts = 0
        self.producers = 0
        self.crashes = 0
        self.gone = 0

    # --- what a writer asks of the cluster --------------------------------------------------------

    def state(self) -> SinkState:
        sink = self.sink
        return SinkState(
            sink.batch_id, sink.plan, sink.is_published, sink.producer_id, sink.producer_epoch
        )

    def decide(self, batch_id: int, attempt: int) -> None:
        if not needs_decision(self.sink, batch_id):
            return
        self.check_decidable(StagedAt(self.generations[attempt], attempt))
        by = next_identity(self.sink, self.sink.id_epoch if self.producers else 0)
        if by is None or self.rng.random() < 0.05:  # a backup was restored
            self.producers += 1
            by = Identity(self.producer(self.producers), 0)
        self.sink = decided(self.sink, batch_id, b"%d" % attempt, by, 0)

    def check_decidable(self, staged: StagedAt) -> None:
        check_decidable(self.sink, staged)

    def producer(self, number: int) -> int:
        return kept_id(number)

    def note_published(self, batch_id: int) -> None:
        self.sink = published(self.sink, batch_id)

    def trim(self, attempt: int) -> None:
        """What was staged up to the attempt that was published."""
        for older in [one for one in self.staged if one <= attempt]:
            del self.staged[older]

    # --- a sweeper --------------------------------------------------------------------------------

    def sweeper(self) -> Writer:
        """What a broker does that thinks all of it is old: the record first, then the deed."""
        generation, end = self.sink.generation, self.attempts + 1
        whole = self.rng.random() < 0.4
        yield
        found = self.given_up(generation, None if whole else end)
        if found is None:
            return
        self.sink = found
        yield
        for attempt in list(self.staged):
            of = self.generations[attempt]
            if of == generation and (whole or attempt < end):
                del self.staged[attempt]

    def given_up(self, generation: int, before: int | None) -> Sink | None:
        """None: all of the topic."""
        if before is None:
            return retired(self.sink, generation)
        return swept(self.sink, generation, before)

    # --- a writer ---------------------------------------------------------------------------------

    def stage(self, batch_id: int, count: int) -> int:
        """Run a batch: its rows at some borders, in some partitions."""
        self.attempts += 1
        attempt = self.attempts
        pieces: list[StagedPiece] = []
        rows = [(batch_id, number) for number in range(count)]
        while rows:
            size = self.rng.randint(1, len(rows))
            pieces.append(StagedPiece(self.rng.randrange(PARTITIONS), tuple(rows[:size])))
            rows = rows[size:]
        self.staged[attempt] = pieces
        self.generations[attempt] = self.sink.generation
        return attempt

    def commit(self, batch_id: int, attempt: int) -> Writer:
        """What `exactly_once` does; it may end, or stand still, at every `yield`."""
        state = self.state()
        yield
        if self.may_trim(state, batch_id):
            self.trim(int(state.plan))
            yield
        while (step := next_step(state, batch_id)) is not Step.DONE:
            if step is Step.DECIDE:
                self.decide(batch_id, attempt)
                yield
            else:
                try:
                    yield from self.publish(state)
                except (Gone, InvalidProducerEpoch):
                    now = self.state()
                    if (now.batch_id, now.is_published) == (state.batch_id, state.is_published):
                        raise
                    self.gone += 1
                    state = now
                    yield
                    continue
            state = self.state()
            yield

    def may_trim(self, state: SinkState, batch_id: int) -> bool:
        return may_trim(state, batch_id)

    def publish(self, state: SinkState) -> Writer:
        plan = int(state.plan)
        yield from self.send_all(state, plan)
        self.note_published(state.batch_id)
        yield
        self.trim(plan)
        yield

    def send_all(self, state: SinkState, plan: int) -> Writer:
        by = Identity(state.producer_id, state.producer_epoch)
        next_sequence = [0] * PARTITIONS
        position = 0
        while True:
            if plan not in self.staged:
                raise Gone
            if position >= len(self.staged[plan]):
                return
            piece = self.staged[plan][position]
            base = next_sequence[piece.partition]
            answer = self.partitions[piece.partition].send(by, base, piece.rows, self.rng)
            yield
            match fate(answer):
                case Fate.STORED if self.rng.random() < 0.9:
                    next_sequence[piece.partition] += len(piece.rows)
                    position += 1
                case Fate.STORED | Fate.AGAIN:
                    continue  # the answer was lost, or another owner is to be asked
                case _:
                    assert answer is not None
                    raise answer

    # --- Spark ------------------------------------------------------------------------------------

    def run(self, batches: int) -> None:
        """Batches one after the other; raises AssertionError as soon as a row comes twice."""
        rng = self.rng
        zombies: list[Writer] = []
        sweepers: list[Writer] = []
        for batch_id in range(batches):
            count = rng.randint(0, ROWS_MAX)
            driver = self.commit(batch_id, self.stage(batch_id, count))
            while True:
                if rng.random() < 0.05:
                    sweepers.append(self.sweeper())
                mover = rng.choice([driver, driver, *zombies, *sweepers])
                try:
                    goes_on = self.stepped(mover)
                except StagedDataGone:
                    self.refused += 1
                    goes_on = False
                    if mover is driver:  # Spark runs the batch again
                        driver = self.commit(batch_id, self.stage(batch_id, count))
                        continue
                if not goes_on:
                    if mover is driver:
                        break
                    (zombies if mover in zombies else sweepers).remove(mover)
                if rng.random() < 0.08:
                    self.crashes += 1
                    if rng.random() < 0.6:
                        zombies.append(driver)
                    driver = self.commit(batch_id, self.stage(batch_id, count))
                if rng.random() < 0.08:
                    sweepers = [one for one in sweepers if rng.random() < 0.5]  # brokers die, too
                if rng.random() < 0.1:
                    rng.choice(self.partitions).moves()
                self.check(batch_id, count, complete=False)
            self.check(batch_id, count, complete=True)

    @staticmethod
    def stepped(writer: Writer) -> bool:
        """Whether it goes on."""
        try:
            next(writer)
        except (StopIteration, Gone, InvalidProducerEpoch):
            return False
        return True

    def check(self, batch_id: int, count: int, *, complete: bool) -> None:
        rows = [row for partition in self.partitions for row in partition.log]
        if len(rows) != len(set(rows)):  # said also where assertions are off
            raise AssertionError("a row was added twice")
        if complete:
            mine = sorted(row for row in rows if row[0] == batch_id)
            if mine != [(batch_id, number) for number in range(count)]:
                raise AssertionError("rows are missing")
