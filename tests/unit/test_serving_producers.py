"""The decision table I2 row by row, and what survives an owner change (spec groups §3)."""

from __future__ import annotations

import pytest

from octavo.proto.batch import BatchHeader, decode_header
from octavo.proto.kept_producers import kept_id
from octavo.proto.segment_entries import ProducerSnapshot, pack_producer
from octavo.serving.partition import producers
from octavo.serving.partition.producers import SEQUENCES, Kind, ProducerStates, advance, last_of
from tests.serving_rig import handed_over, make_batch

LAST = SEQUENCES - 1


def header(base: int, count: int = 1, *, pid: int = 7, epoch: int = 0) -> BatchHeader:
    raw = make_batch([b"v"] * count, pid=pid, epoch=epoch, sequence=base)
    return decode_header(raw)


class Log:
    """Drives states as a partition does; offsets count records."""

    def __init__(self) -> None:
        self.states: ProducerStates[str] = ProducerStates()
        self.offset = 0

    def begin(self, base: int, count: int = 1, *, pid: int = 7, epoch: int = 0) -> str:
        token = f"{pid}/{epoch}/{base}"
        self.states.begin(header(base, count, pid=pid, epoch=epoch), self.offset, 1000, token)
        self.offset += count
        return token

    def store(self, base: int, count: int = 1, *, pid: int = 7, epoch: int = 0) -> None:
        self.states.confirm(pid, self.begin(base, count, pid=pid, epoch=epoch))

    def kind(self, base: int, count: int = 1, *, epoch: int = 0) -> Kind:
        return self.states.decide(7, epoch, base, count).kind


def test_i2_epoch_older_than_known_is_refused() -> None:
    log = Log()
    log.store(0, epoch=3)
    verdict = log.states.decide(7, 2, 1, 1)
    assert (verdict.kind, verdict.known_epoch) == (Kind.OLD_EPOCH, 3)


def test_i2_newer_epoch_starts_at_0_and_clears_the_window() -> None:
    log = Log()
    log.store(0, 2, epoch=0)
    assert log.kind(0, 2, epoch=1) is Kind.APPEND
    log.store(0, 2, epoch=1)
    verdict = log.states.decide(7, 1, 0, 2)
    assert (verdict.kind, verdict.base_offset) == (Kind.DUPLICATE, 2)
    assert log.kind(0, 2, epoch=0) is Kind.OLD_EPOCH


def test_i2_newer_epoch_not_at_0_is_out_of_order() -> None:
    log = Log()
    log.store(0)
    assert log.kind(1, epoch=1) is Kind.OUT_OF_ORDER


def test_i2_same_batch_pending_attaches() -> None:
    log = Log()
    token = log.begin(0, 3)
    verdict = log.states.decide(7, 0, 0, 3)
    assert (verdict.kind, verdict.pending) == (Kind.ATTACH, token)


def test_i2_same_batch_in_window_is_a_duplicate_with_its_offset() -> None:
    log = Log()
    for i in range(5):
        log.store(i * 2, 2)
    verdict = log.states.decide(7, 0, 0, 2)
    assert (verdict.kind, verdict.base_offset, verdict.append_time_ms) == (Kind.DUPLICATE, 0, 1000)


def test_i2_older_than_the_window_is_a_duplicate_without_offset() -> None:
    log = Log()
    for i in range(6):
        log.store(i)
    verdict = log.states.decide(7, 0, 0, 1)
    assert (verdict.kind, verdict.base_offset) == (Kind.DUPLICATE, -1)


def test_i2_next_sequence_appends_and_pending_counts_for_it() -> None:
    log = Log()
    log.store(0, 10)
    assert log.kind(10) is Kind.APPEND
    log.begin(10, 5)
    assert log.kind(15) is Kind.APPEND


def test_i3_what_is_only_pending_is_never_called_a_duplicate() -> None:
    log = Log()
    log.store(0, 10)
    log.begin(10, 5)
    assert log.kind(10) is Kind.OUT_OF_ORDER  # inside the pending batch, but not that batch
    assert log.kind(8, 4) is Kind.OUT_OF_ORDER


def test_i2_gap_is_out_of_order_with_the_last_sequence() -> None:
    log = Log()
    log.store(0, 10)
    verdict = log.states.decide(7, 0, 11, 1)
    assert (verdict.kind, verdict.last_sequence) == (Kind.OUT_OF_ORDER, 9)


def test_i2_partial_overlap_is_never_split() -> None:
    log = Log()
    log.store(0, 10)
    assert log.kind(8, 4) is Kind.OUT_OF_ORDER
    assert log.kind(0, 11) is Kind.OUT_OF_ORDER


def test_i2_unknown_producer_may_start_anywhere() -> None:
    assert Log().kind(12345) is Kind.APPEND


def test_i1_sequence_wraps_to_0() -> None:
    log = Log()
    log.store(LAST - 1, 2)
    assert log.kind(0) is Kind.APPEND
    log.store(0, 3)
    assert log.kind(3) is Kind.APPEND
    assert log.kind(LAST - 1, 2) is Kind.DUPLICATE
    assert advance(LAST, 1) == 0


def test_i1_one_batch_may_cross_the_wrap() -> None:
    log = Log()
    log.store(LAST - 1, 5)
    assert last_of(LAST - 1, 5) == 2
    assert log.kind(3) is Kind.APPEND
    verdict = log.states.decide(7, 0, LAST - 1, 5)
    assert (verdict.kind, verdict.base_offset) == (Kind.DUPLICATE, 0)
    assert log.kind(LAST - 20, 2) is Kind.DUPLICATE
    assert log.kind(4) is Kind.OUT_OF_ORDER


def test_i3_failed_append_leaves_no_trace() -> None:
    log = Log()
    token = log.begin(0, 4)
    log.states.fail(7, token)
    assert len(log.states) == 0
    assert log.kind(0, 4) is Kind.APPEND


def test_i3_failures_are_taken_back_newest_first() -> None:
    log = Log()
    log.store(0)
    first, second = log.begin(1), log.begin(2)
    log.states.fail(7, second)
    log.states.fail(7, first)
    assert log.kind(1) is Kind.APPEND
    assert log.kind(0) is Kind.DUPLICATE


def test_i7_snapshot_keeps_all_five_descriptors() -> None:
    log = Log()
    for i in range(7):
        log.store(i, pid=7)
    other: ProducerStates[str] = ProducerStates()
    other.restore(handed_over(log.states.packed(lambda _: False)))
    offsets = [other.decide(7, 0, i, 1).base_offset for i in range(7)]
    assert offsets == [-1, -1, 2, 3, 4, 5, 6]
    assert other.decide(7, 0, 7, 1).kind is Kind.APPEND


def test_i8_snapshot_counts_only_the_pending_batches_asked_for() -> None:
    log = Log()
    log.store(0)
    sent = log.begin(1)
    log.begin(2)
    other: ProducerStates[str] = ProducerStates()
    other.restore(handed_over(log.states.packed(lambda token: token == sent)))
    assert other.decide(7, 0, 1, 1).kind is Kind.DUPLICATE
    assert other.decide(7, 0, 2, 1).kind is Kind.APPEND
    assert log.kind(2) is Kind.ATTACH  # taking it changed nothing


def test_i9_replay_never_judges() -> None:
    states: ProducerStates[str] = ProducerStates()
    for base in (50, 10, 10, 99):
        states.replay(header(base)._replace(base_offset=base))
    assert states.decide(7, 0, 100, 1).kind is Kind.APPEND
    assert states.decide(7, 0, 99, 1).base_offset == 99


def test_i10_expiry_spares_pending_producers() -> None:
    states: ProducerStates[str] = ProducerStates(expiration_ms=100)
    states.begin(header(0, pid=1), 0, 1000, "a")
    states.confirm(1, "a")
    states.begin(header(0, pid=2), 1, 1000, "b")
    assert states.expire(1101) == 1
    assert len(states) == 1


def test_i10_expiry_looks_past_a_pending_producer_and_ends_at_the_first_young_one() -> None:
    states: ProducerStates[str] = ProducerStates(expiration_ms=100)
    states.begin(header(0, pid=1), 0, 1000, "a")  # the oldest, still on its way
    for pid, used_ms in ((2, 1001), (3, 1002), (4, 1050)):
        states.begin(header(0, pid=pid), pid, used_ms, "b")
        states.confirm(pid, "b")
    assert states.expire(1103) == 2
    assert [item.producer_id for item in handed_over(states.packed(lambda _: False))] == [4]
    states.confirm(1, "a")
    assert states.expire(1151) == 2


def test_i7_a_snapshot_packs_only_producers_with_pending_appends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states: ProducerStates[str] = ProducerStates()
    for pid in range(200):
        states.begin(header(0, pid=pid), pid, 1000, "a")
        states.confirm(pid, "a")
    states.begin(header(1, pid=7), 200, 1000, "b")
    packed: list[int] = []

    def counting(item: ProducerSnapshot) -> bytes:
        packed.append(item.producer_id)
        return pack_producer(item)

    monkeypatch.setattr(producers, "pack_producer", counting)
    told = handed_over(states.packed(lambda _: True))
    assert packed == [7]
    assert {item.producer_id: len(item.window) for item in told} == {
        pid: 2 if pid == 7 else 1 for pid in range(200)
    }


def test_number_of_producers_is_bounded_and_the_longest_unused_goes() -> None:
    states: ProducerStates[str] = ProducerStates(max_producers=3)
    for pid in range(5):
        token = f"{pid}"
        states.begin(header(0, pid=pid), pid, 1000 + pid, token)
        states.confirm(pid, token)
    assert len(states) == 3
    assert states.evicted == 2
    assert states.decide(0, 0, 5, 1).kind is Kind.APPEND
    assert states.decide(4, 0, 0, 1).kind is Kind.DUPLICATE


def test_confirming_out_of_order_is_an_invariant() -> None:
    log = Log()
    log.begin(0)
    second = log.begin(1)
    with pytest.raises(Exception, match="in order"):
        log.states.confirm(7, second)


def kept(number: int) -> int:
    return kept_id(number)


def test_a_kept_producer_is_never_forgotten() -> None:
    """ADR 67: neither by time nor for others, and its last batch is told again as stored."""
    states: ProducerStates[str] = ProducerStates(expiration_ms=100, max_producers=2)
    for number in range(4):
        states.begin(header(0, pid=kept(number)), number, 1000, "a")
        states.confirm(kept(number), "a")
    for pid in range(5):
        states.begin(header(0, pid=pid), pid, 1000, "b")
        states.confirm(pid, "b")
    assert states.evicted == 3
    states.expire(1 << 60)
    fresh: ProducerStates[str] = ProducerStates()
    fresh.restore(handed_over(states.packed(lambda _: True)))
    for known in (states, fresh):
        assert len(known) == 4
        for number in range(4):
            assert known.decide(kept(number), 0, 0, 1).kind is Kind.DUPLICATE


def test_a_kept_producer_that_is_not_known_never_was_here() -> None:
    states: ProducerStates[str] = ProducerStates(kept_max=2)
    assert states.decide(kept(1), 3, 0, 1).kind is Kind.APPEND
    assert states.decide(kept(1), 3, 7, 1).kind is Kind.OUT_OF_ORDER
    states.begin(header(0, pid=kept(1)), 0, 1000, "a")
    states.fail(kept(1), "a")
    assert len(states) == 0
    for number in range(2):
        states.replay(header(0, pid=kept(number)))
    assert states.decide(kept(2), 0, 0, 1).kind is Kind.FULL
    assert states.decide(kept(0), 0, 1, 1).kind is Kind.APPEND
    assert states.decide(2, 0, 9, 1).kind is Kind.APPEND  # ordinary ones have a bound of their own
