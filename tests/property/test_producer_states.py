"""ProducerStates against a model that remembers everything, with sequences that never wrap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octavo.proto.batch import BatchHeader, decode_header
from octavo.serving.partition.producers import SEQUENCES, Kind, ProducerStates
from tests.serving_rig import handed_over, make_batch

PIDS = st.integers(0, 2)
_TEMPLATE = decode_header(make_batch([b"v"]))


def header(pid: int, epoch: int, base: int, count: int, offset: int = 0) -> BatchHeader:
    return _TEMPLATE._replace(
        producer_id=pid,
        producer_epoch=epoch,
        base_sequence=base % SEQUENCES,
        record_count=count,
        base_offset=offset,
        append_time_ms=1,
    )


@dataclass
class Sent:
    pid: int
    epoch: int
    base: int  # unwrapped
    count: int
    offset: int


@dataclass
class Truth:
    epoch: int = 0
    start: int = 0
    next: int = 0
    stored: list[Sent] = field(default_factory=list[Sent])
    pending: list[Sent] = field(default_factory=list[Sent])


class ProducerMachine(RuleBasedStateMachine):
    """Appends, retries, failures, owner changes; sequences start near the wrap."""

    def __init__(self) -> None:
        super().__init__()
        self.states: ProducerStates[Sent] = ProducerStates()
        self.offset = 0
        self.queue: list[Sent] = []  # all pending appends in log order
        self.truth = {
            pid: Truth(start=start, next=start) for pid, start in enumerate((0, SEQUENCES - 5, 777))
        }

    def decide(self, pid: int, epoch: int, base: int, count: int) -> object:
        return self.states.decide(pid, epoch, base % SEQUENCES, count)

    @rule(pid=PIDS, count=st.integers(1, 4))
    def append_next(self, pid: int, count: int) -> None:
        truth = self.truth[pid]
        verdict = self.states.decide(pid, truth.epoch, truth.next % SEQUENCES, count)
        assert verdict.kind is Kind.APPEND
        sent = Sent(pid, truth.epoch, truth.next, count, self.offset)
        self.states.begin(header(pid, truth.epoch, truth.next, count), self.offset, 1, sent)
        truth.pending.append(sent)
        truth.next += count
        self.queue.append(sent)
        self.offset += count

    @precondition(lambda self: self.queue)
    @rule()
    def oldest_becomes_durable(self) -> None:
        sent = self.queue.pop(0)
        self.states.confirm(sent.pid, sent)
        truth = self.truth[sent.pid]
        truth.pending.remove(sent)
        truth.stored.append(sent)

    @precondition(lambda self: self.queue)
    @rule(data=st.data())
    def newest_fail(self, data: st.DataObject) -> None:
        for _ in range(data.draw(st.integers(1, len(self.queue)))):
            sent = self.queue.pop()
            self.states.fail(sent.pid, sent)
            truth = self.truth[sent.pid]
            truth.pending.remove(sent)
            truth.next = sent.base
            self.offset = sent.offset

    @rule(pid=PIDS, data=st.data())
    def retry_anything_sent(self, pid: int, data: st.DataObject) -> None:
        truth = self.truth[pid]
        known = [*truth.stored, *truth.pending]
        if not known:
            return
        sent = data.draw(st.sampled_from(known))
        verdict = self.states.decide(pid, sent.epoch, sent.base % SEQUENCES, sent.count)
        if sent in truth.pending:
            assert verdict.kind is Kind.ATTACH
            assert verdict.pending is sent
            return
        assert verdict.kind is Kind.DUPLICATE
        window = truth.stored[-5:]
        assert verdict.base_offset == (sent.offset if sent in window else -1)

    @rule(pid=PIDS, gap=st.integers(1, 1000), count=st.integers(1, 4))
    def a_gap_is_refused(self, pid: int, gap: int, count: int) -> None:
        truth = self.truth[pid]
        if truth.stored or truth.pending:
            base = (truth.next + gap) % SEQUENCES
            verdict = self.states.decide(pid, truth.epoch, base, count)
            assert verdict.kind is Kind.OUT_OF_ORDER
            assert verdict.last_sequence == (truth.next - 1) % SEQUENCES

    @rule(pid=PIDS, over=st.integers(1, 3), behind=st.integers(1, 3))
    def an_overlap_is_refused(self, pid: int, over: int, behind: int) -> None:
        truth = self.truth[pid]
        if truth.stored or truth.pending:
            base = (truth.next - behind) % SEQUENCES
            verdict = self.states.decide(pid, truth.epoch, base, behind + over)
            assert verdict.kind is Kind.OUT_OF_ORDER

    @rule(pid=PIDS)
    def an_old_epoch_is_refused(self, pid: int) -> None:
        truth = self.truth[pid]
        if truth.stored or truth.pending:
            verdict = self.states.decide(pid, truth.epoch - 1, truth.next % SEQUENCES, 1)
            assert verdict.kind is Kind.OLD_EPOCH

    @rule(durable_too=st.booleans())
    def owner_changes(self, durable_too: bool) -> None:
        """Snapshot and replay give the same state; what was pending is lost or durable."""
        fresh: ProducerStates[Sent] = ProducerStates()
        counts: Callable[[Sent], bool] = lambda _: durable_too  # noqa: E731
        fresh.restore(handed_over(self.states.packed(counts)))
        for sent in self.queue if durable_too else reversed(self.queue):
            truth = self.truth[sent.pid]
            truth.pending.remove(sent)
            if durable_too:
                truth.stored.append(sent)
            else:
                truth.next = sent.base
                self.offset = sent.offset
        self.queue.clear()
        self.states = fresh

    @invariant()
    def what_is_packed_is_what_is_known(self) -> None:
        """A snapshot tells the newest batches of each producer, from bytes packed long before."""
        told = {
            item.producer_id: [(sent.base_sequence, sent.base_offset) for sent in item.window]
            for item in handed_over(self.states.packed(lambda _: False))
        }
        assert told == {
            pid: [(sent.base % SEQUENCES, sent.offset) for sent in truth.stored[-5:]]
            for pid, truth in self.truth.items()
            if truth.stored
        }

    @invariant()
    def unknown_producers_hold_no_memory(self) -> None:
        known = sum(bool(truth.stored or truth.pending) for truth in self.truth.values())
        assert len(self.states) == known


TestProducerStates = ProducerMachine.TestCase
