"""Rolls and trims asked of a partition in a hostile world, and what judges them (ML-5, R4, I10)."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import deque
from functools import partial

from octavo.metadata.topics import PartitionState
from octavo.proto.batch import decode_header
from octavo.proto.segment_entries import is_batch, is_snapshot
from octavo.runtime.errors import (
    MetadataUnavailable,
    NotLeader,
    OctavoError,
    OffsetOutOfRange,
    UnknownOutcome,
    UnknownTopic,
)
from octavo.serving.compaction.lists import cleaned
from octavo.serving.partition.actions import Action, Change, Trim
from octavo.serving.partition.core import PartitionCore, PartitionStateName
from octavo.serving.partition.retention import RETENTION
from octavo.serving.partition.trims import TO_THE_END
from octavo.serving.segments import trimmed
from tests.partition_truth import LIMITS, BrokenRule, Truth, require


class AskedWorld(Truth, ABC):
    """The part of a world that asks for rolls and trims, and publishes trims."""

    core: PartitionCore
    rng: random.Random
    metadata: bool
    now_s: float

    def __init__(self) -> None:
        super().__init__()
        self.rolls: list[int] = []
        """The high watermark when each roll that is not answered was asked for."""
        self.trims: list[int] = []
        """Where the log is to begin by each trim that is not answered."""
        self.changes: deque[int] = deque()
        """How far the log is to be clean by each change that is not answered, in order."""

    @property
    @abstractmethod
    def now_ms(self) -> int: ...

    @abstractmethod
    def perform(self, actions: list[Action]) -> None: ...

    @abstractmethod
    def settle(self) -> None: ...

    @abstractmethod
    def fails(self, share: float = 1.0) -> bool: ...

    def roll(self) -> None:
        if self.core.state is PartitionStateName.SERVING:
            self.rolls.append(self.core.log.high_watermark)
            self.perform(self.core.roll())

    def answer_rolls(self, outcome: int | OctavoError) -> None:
        require(self.rolls, "nobody asked")
        if isinstance(outcome, int):
            require(outcome == self.core.log.high_watermark, "a roll tells the high watermark")
            ends = [one.end_offset for one in self.list.segments if one.end_offset is not None]
            closed = max((*ends, self.list.log_start_offset))
            require(closed >= max(self.rolls), "a roll is over when the closed part is listed")
        self.rolls.clear()
        self.tally["rolls"] += 1

    def trim(self) -> None:
        if self.core.state is not PartitionStateName.SERVING:
            return
        end = self.core.log.high_watermark
        before = self.rng.choice((TO_THE_END, self.rng.randint(0, end), end + 1))
        try:
            actions = self.core.trims.ask(before)
        except OffsetOutOfRange:
            require(before > end, "a trim within the log is taken")
            return
        require(before <= end, "a trim above what is readable is turned away")
        self.trims.append(end if before == TO_THE_END else before)
        self.perform(actions)

    def change(self) -> None:
        """A cleaner asks for a change of the list."""
        if self.core.state is not PartitionStateName.SERVING:
            return
        to = self.list.cleaned_to + self.rng.randrange(3)
        self.changes.append(to)
        wanted = partial(cleaned, cleaned_to=to, marks=())
        self.perform(self.core.changes.ask(wanted))

    def answer_change(self, error: OctavoError | None) -> None:
        require(self.changes, "nobody asked for a change")
        to = self.changes.popleft()
        require(error is not None or self.list.cleaned_to >= to, "told, and not listed")
        self.tally["changes"] += error is None

    def finish_change(self, work: Change) -> None:
        """As `SegmentChain.change` does."""
        self.reach_list()
        wanted = work.wanted(self.list)
        if wanted != self.list:
            is_told = not self.fails(0.4)
            if is_told or self.rng.random() < 0.5:
                self.list.check_successor(wanted)
                self.list = wanted
            if not is_told:
                raise UnknownOutcome("the reply was lost")
        self.list_was_read()
        self.perform(self.core.changes.done())

    def check_trim_to_the_end(self) -> None:
        """In an honest world: nothing is left to read, and the end stays."""
        if self.core.state is not PartitionStateName.SERVING:
            return
        end = self.core.log.high_watermark
        self.trims.append(end)
        self.perform(self.core.trims.ask(TO_THE_END))
        self.settle()
        if self.core.state is PartitionStateName.SERVING:
            require(not self.trims, "healed, and a trim is not answered")
            require(self.core.log.log_start == self.core.log.high_watermark == end, "all is gone")

    def answer_trims(self, outcome: int | OctavoError) -> None:
        require(self.trims, "nobody asked for a trim")
        if isinstance(outcome, int):
            require(outcome >= max(self.trims), "a trim is over when the log begins there")
            require(outcome == self.list.log_start_offset, "a trim tells what is listed")
        self.trims.clear()
        self.tally["trims"] += isinstance(outcome, int)

    def reach_list(self) -> None:
        """Raises when this owner cannot write the list."""
        if self.deleted:
            raise UnknownTopic("deleted")
        if self.foreign:
            raise NotLeader("another epoch")
        if not self.metadata:
            raise MetadataUnavailable("silent")

    def retain(self) -> None:
        """The broker's housekeeping, of a partition that is served."""
        core = self.core
        self.perform(core.retention.tick(self.list.segments, core.segment, self.now_ms, self.now_s))

    def check_that_it_empties(self) -> None:
        """R3: in an honest world an idle partition keeps no batch on any bookie."""
        if self.core.state is not PartitionStateName.SERVING or self.is_lost:
            return
        self.now_s += LIMITS.retention.rule.age_ms / 1000 + 1
        self.settle()
        if self.core.state is PartitionStateName.SERVING:
            kept = [one for held in self.listed() for one in held.entries if is_batch(one)]
            require(not kept, "past retention, and still there (R3)")
            require(len(self.list.segments) == 1, "one ledger holds the snapshot")

    def check_retention(self, start: int) -> None:
        """R1, R2: what goes by the rule is past it."""
        rule = LIMITS.retention.rule
        left = [one for one in self.list.segments if (one.end_offset or start + 1) > start]
        size_bytes = sum(len(e) for one in left for e in self.ledgers[one.ledger_id].entries)
        for one in self.list.segments:
            if one.end_offset is None or not self.list.log_start_offset < one.end_offset <= start:
                continue
            entries = self.ledgers[one.ledger_id].entries
            times = [decode_header(e).append_time_ms for e in entries if is_batch(e)]
            newest = max(times, default=0)
            is_old = newest + rule.age_ms < self.now_ms
            require(is_old or size_bytes >= rule.size_bytes, "kept by the rule, and cut off")

    def finish_trim(self, work: Trim) -> None:
        """As `SegmentChain.trim` does."""
        self.reach_list()
        wanted = trimmed(
            self.list,
            work.log_start,
            reason="test",
            now_ms=self.now_ms,
            open_snapshot=work.open_snapshot,
        )
        if wanted != self.list:
            is_told = not self.fails(0.4)
            if is_told or self.rng.random() < 0.5:
                if work.reason == RETENTION:
                    self.check_retention(wanted.log_start_offset)
                    self.tally["retention"] += 1
                self.adopt_trim(wanted)
            if not is_told:
                raise UnknownOutcome("the reply was lost")
        self.list_was_read()
        self.perform(self.core.trims.done())

    def adopt_trim(self, wanted: PartitionState) -> None:
        """It is listed now; judge it."""
        self.list.check_successor(wanted)
        gone = {one.ledger_id for one in self.list.segments} - {
            one.ledger_id for one in wanted.segments
        }
        start = wanted.log_start_offset
        require(start <= self.end_of_entries(durable=True), "cut off above what is durable")
        for one in self.list.segments:
            if one.ledger_id in gone:
                require(one.end_offset is not None, "only closed segments go")
                require((one.end_offset or 0) <= start, "what is retained is not dropped")
                self.dropped.append(self.ledgers[one.ledger_id])
        require(gone <= {one.ledger_id for one in wanted.trash}, "what is dropped is in the trash")
        self.list = wanted
        if gone:
            kept = [one.entries[: one.told] or one.entries[:1] for one in self.listed()]
            has_snapshot = any(
                entries and is_snapshot(entries[0]) and (one.closed or one.told)
                for entries, one in zip(kept, self.listed(), strict=True)
            )
            require(has_snapshot, "producers' state went with the data (I10)")
            self.tally["dropped"] += len(gone)

    def list_was_read(self) -> None:
        """The owner knows the list as it is."""
        self.perform(self.core.list_changed(self.list.log_start_offset))
        require(self.core.log.log_start == self.list.log_start_offset, "as listed")

    def check_trims(self, *, has_ended: bool) -> None:
        """What holds between any two events."""
        require(not (has_ended and self.trims), "ended, and somebody waits for a trim")
        require(not (has_ended and self.changes), "ended, and somebody waits for a change")
        start = self.core.log.log_start
        if not has_ended and start > self.core.log.high_watermark:
            raise BrokenRule("the log begins above its end")
