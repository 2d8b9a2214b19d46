"""Idempotence: what a partition knows of each producer (spec groups §3, I1-I10). Pure.

`ProducerStates` answers the decision table I2 against durable and pending state together, moves the
durable state only when an append is durable (I3), and gives and takes the snapshots that survive an
owner change (I7-I9). Time comes in as a value.

Sequences are int32 that wrap 2147483647 -> 0. Two sequences are compared on that ring: a distance
below half of it is "ahead". A producer has at most a few batches in flight, so the ring is never
ambiguous for a correct client.

Producers through which sinks publish are *kept* (ADR 67): never forgotten, and so never taken for
unknown ones. What they send may come again at any time, from whoever finishes a publication.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

from octavo.proto.batch import BatchHeader
from octavo.proto.kept_producers import KEPT_MAX, is_kept
from octavo.proto.segment_entries import ProducerSnapshot, WindowItem, pack_producer
from octavo.runtime.invariant import invariant

T = TypeVar("T")

WINDOW = 5
"""Batches remembered per producer: as many as a client may have in flight (I4, I7)."""
SEQUENCES = 1 << 31
_HALF = SEQUENCES // 2
NO_OFFSET = -1
"""Told for a duplicate whose offset is no longer remembered (I2)."""


class Kind(Enum):
    """The answers of the decision table."""

    APPEND = "append"
    ATTACH = "attach"
    """The same batch is on its way: give its answer to both."""
    DUPLICATE = "duplicate"
    OUT_OF_ORDER = "out-of-order"
    OLD_EPOCH = "old-epoch"
    FULL = "full"
    """It would be one kept producer too many."""


class Verdict(NamedTuple, Generic[T]):
    """One row of I2."""

    kind: Kind
    pending: T | None = None
    """ATTACH: what `begin` was given for the same batch."""
    base_offset: int = NO_OFFSET
    append_time_ms: int = -1
    last_sequence: int = -1
    """OUT_OF_ORDER: the last sequence known, for the client's rule I5."""
    known_epoch: int = -1
    is_first: bool = False
    """DUPLICATE of the first batch this state knows, which is not the producer's first: what came
    before it is not vouched for (I5).
    """
    is_vouched: bool = True
    """False for a DUPLICATE that is only below what this state knows (I2's row of unknown offset):
    an earlier, forgotten state may or may not have stored it.
    """


def advance(sequence: int, by: int) -> int:
    """`sequence + by` on the ring of int32 sequences (I1)."""
    return (sequence + by) % SEQUENCES


def last_of(base_sequence: int, record_count: int) -> int:
    """The sequence of a batch's last record."""
    return advance(base_sequence, record_count - 1)


def _ahead(of: int, sequence: int) -> bool:
    """Whether `sequence` lies after `of` on the ring."""
    return 0 < (sequence - of) % SEQUENCES < _HALF


class _Pending(NamedTuple, Generic[T]):
    epoch: int
    base_sequence: int
    last_sequence: int
    base_offset: int
    append_time_ms: int
    token: T


@dataclass
class _Producer(Generic[T]):
    epoch: int
    last_sequence: int = -1  # of the newest durable batch; -1: none of this epoch yet
    window: deque[WindowItem] = field(default_factory=lambda: deque(maxlen=WINDOW))
    pending: deque[_Pending[T]] = field(default_factory=lambda: deque[_Pending[T]]())
    last_used_ms: int = 0
    packed: bytes = b""
    """What a snapshot says of the durable state; empty while there is none."""

    @property
    def vouched_from(self) -> int:
        """The first sequence this state tells the fate of (I10).

        Before it lie batches that an earlier, forgotten state may or may not have stored.

        A full window says enough: of the batches before it a client has none unresolved (I4).
        """
        return self.window[0].base_sequence if 0 < len(self.window) < WINDOW else 0

    def vouches_for(self, last_sequence: int) -> bool:
        """Whether a batch that ends there is certainly stored, given that it is not ahead."""
        return not self.vouched_from or not _ahead(last_sequence, self.vouched_from)

    def confirm(self, item: _Pending[T]) -> None:
        if item.epoch != self.epoch:
            self.epoch = item.epoch
            self.window.clear()
        self.window.append(
            WindowItem(
                item.base_sequence, item.last_sequence, item.base_offset, item.append_time_ms
            )
        )
        self.last_sequence = item.last_sequence
        self.last_used_ms = max(self.last_used_ms, item.append_time_ms)

    def pack(self, producer_id: int) -> None:
        """Keep `packed` true: once for each batch, so that no snapshot packs all producers."""
        self.packed = pack_producer(
            ProducerSnapshot(
                producer_id, self.epoch, self.last_sequence, self.last_used_ms, tuple(self.window)
            )
        )

    def copy_with(self, counts: Callable[[T], bool]) -> _Producer[T]:
        clone: _Producer[T] = _Producer(
            self.epoch,
            self.last_sequence,
            deque(self.window, maxlen=WINDOW),
            last_used_ms=self.last_used_ms,
        )
        for item in self.pending:
            if counts(item.token):
                clone.confirm(item)
        return clone


class ProducerStates(Generic[T]):
    """All producers of one partition. T is what the caller attaches to a pending append.

    Args:
        expiration_ms: I10, forget a producer this long after its last append.
        max_producers: bound on remembered producers; beyond it the longest unused one that has
            nothing pending is forgotten and counted in `evicted`.
        kept_max: bound on kept producers; beyond it new ones are refused.
    """

    def __init__(
        self,
        *,
        expiration_ms: int = 86_400_000,
        max_producers: int = 20_000,
        kept_max: int = KEPT_MAX,
    ) -> None:
        self._expiration_ms = expiration_ms
        self._max_producers = max_producers
        self._kept_max = kept_max
        self._producers: OrderedDict[int, _Producer[T]] = OrderedDict()  # oldest use first
        self._kept: dict[int, _Producer[T]] = {}
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._producers) + len(self._kept)

    def _find(self, producer_id: int) -> _Producer[T] | None:
        known = self._kept if is_kept(producer_id) else self._producers
        return known.get(producer_id)

    def _used(self, producer_id: int, epoch: int) -> _Producer[T]:
        """The producer, known from now on, and the one that was used last."""
        if is_kept(producer_id):
            return self._kept.setdefault(producer_id, _Producer[T](epoch))
        known = self._producers.get(producer_id)
        if known is None:
            known = self._producers[producer_id] = _Producer[T](epoch)
            self._make_room()
        self._producers.move_to_end(producer_id)
        return known

    def decide(
        self, producer_id: int, epoch: int, base_sequence: int, record_count: int
    ) -> Verdict[T]:
        """The decision table I2; changes nothing."""
        known = self._find(producer_id)
        if known is None:
            return self._first(producer_id, base_sequence)
        newest = known.pending[-1] if known.pending else None
        known_epoch = newest.epoch if newest else known.epoch
        if epoch < known_epoch:
            return Verdict(Kind.OLD_EPOCH, known_epoch=known_epoch)
        if epoch > known_epoch:
            if base_sequence == 0:
                return Verdict(Kind.APPEND)
            return Verdict(Kind.OUT_OF_ORDER, last_sequence=-1, known_epoch=known_epoch)
        last = last_of(base_sequence, record_count)
        for item in known.pending:
            if (item.epoch, item.base_sequence, item.last_sequence) == (epoch, base_sequence, last):
                return Verdict(Kind.ATTACH, pending=item.token)
        # Durable items of an older epoch say nothing about this one.
        if known.epoch == epoch:
            for done in known.window:
                if (done.base_sequence, done.last_sequence) == (base_sequence, last):
                    return Verdict(
                        Kind.DUPLICATE,
                        base_offset=done.base_offset,
                        append_time_ms=done.append_time_ms,
                        is_first=base_sequence != 0 and base_sequence == known.vouched_from,
                    )
        last_durable = known.last_sequence if known.epoch == epoch else -1
        last_known = newest.last_sequence if newest else last_durable
        if base_sequence == advance(last_known, 1):
            return Verdict(Kind.APPEND)
        # Only what is durable may be called a duplicate: pending batches can still fail (I3).
        if last_durable >= 0 and not _ahead(last_durable, last):
            return Verdict(Kind.DUPLICATE, is_vouched=known.vouches_for(last))
        # A gap (base > last_seq + 1) or a partial overlap: never split, never drop silently. The
        # client takes the answer as proof, so only a batch ahead hears of pending ones.
        told = last_known if _ahead(last_known, last) else last_durable
        return Verdict(Kind.OUT_OF_ORDER, last_sequence=told)

    def _first(self, producer_id: int, base_sequence: int) -> Verdict[T]:
        """Of a producer that is not known: a kept one was never here, an ordinary one maybe."""
        if not is_kept(producer_id):
            return Verdict(Kind.APPEND)
        if base_sequence != 0:
            return Verdict(Kind.OUT_OF_ORDER)
        return Verdict(Kind.APPEND if len(self._kept) < self._kept_max else Kind.FULL)

    def begin(self, header: BatchHeader, base_offset: int, append_time_ms: int, token: T) -> bool:
        """Note an append that `decide` allowed; it counts for decisions, not yet as durable.

        Returns whether the producer was unknown, so that any sequence was accepted (I2).
        """
        was_unknown = self._find(header.producer_id) is None
        known = self._used(header.producer_id, header.producer_epoch)
        known.pending.append(
            _Pending(
                header.producer_epoch,
                header.base_sequence,
                last_of(header.base_sequence, header.record_count),
                base_offset,
                append_time_ms,
                token,
            )
        )
        known.last_used_ms = max(known.last_used_ms, append_time_ms)
        return was_unknown

    def confirm(self, producer_id: int, token: T) -> None:
        """The oldest pending append of this producer is durable (I3)."""
        known = self._certain(producer_id)
        item = known.pending.popleft()
        invariant(item.token is token, "appends of one producer become durable in order")
        known.confirm(item)
        known.pack(producer_id)

    def fail(self, producer_id: int, token: T) -> None:
        """The newest pending append was not written (I3); called newest first."""
        known = self._certain(producer_id)
        item = known.pending.pop()
        invariant(item.token is token, "failed appends are taken back newest first")
        if not known.pending and not known.window and known.last_sequence < 0:
            (self._kept if is_kept(producer_id) else self._producers).pop(producer_id)

    def _certain(self, producer_id: int) -> _Producer[T]:
        known = self._find(producer_id)
        invariant(known is not None, "a producer with pending appends is known")
        assert known is not None  # for the type
        return known

    def replay(self, header: BatchHeader) -> None:
        """Take over a stored batch at load, without judging its sequence (I9)."""
        if header.producer_id < 0:
            return
        known = self._used(header.producer_id, header.producer_epoch)
        # Replay carries no token: the item is confirmed at once and never stays pending.
        if header.producer_epoch != known.epoch:
            known.epoch = header.producer_epoch
            known.window.clear()
        # A batch that lost records keeps the sequences of its whole place (K8).
        last = last_of(header.base_sequence, header.last_offset_delta + 1)
        known.window.append(
            WindowItem(header.base_sequence, last, header.base_offset, header.append_time_ms)
        )
        known.last_sequence = last
        known.last_used_ms = max(known.last_used_ms, header.append_time_ms)
        known.pack(header.producer_id)

    def packed(self, counts: Callable[[T], bool]) -> list[bytes]:
        """All windows (I7), as if the pending appends for which `counts` is true were durable.

        Each is what `pack_producer` gives; only producers with pending appends are packed here.
        """
        told: list[bytes] = []
        for producer_id, live in chain(self._producers.items(), self._kept.items()):
            if not live.pending:
                if live.packed:
                    told.append(live.packed)
                continue
            state = live.copy_with(counts)
            if state.window:
                state.pack(producer_id)
                told.append(state.packed)
        return told

    def restore(self, snapshots: Iterable[ProducerSnapshot]) -> None:
        """Forget everything and take over a snapshot."""
        self._producers.clear()
        self._kept.clear()
        for item in snapshots:
            known = self._kept if is_kept(item.producer_id) else self._producers
            known[item.producer_id] = _Producer(
                item.epoch,
                item.last_sequence,
                deque(item.window, maxlen=WINDOW),
                last_used_ms=item.last_used_ms,
                packed=pack_producer(item),
            )

    def expire(self, now_ms: int) -> int:
        """Forget producers unused for `expiration_ms` (I10); returns how many.

        The oldest use comes first, so the look ends at the first producer that is still young.
        """
        limit = now_ms - self._expiration_ms
        gone: list[int] = []
        for producer_id, state in self._producers.items():
            if state.last_used_ms >= limit:
                break
            if not state.pending:
                gone.append(producer_id)
        for producer_id in gone:
            del self._producers[producer_id]
        return len(gone)

    def _make_room(self) -> None:
        if len(self._producers) <= self._max_producers:
            return
        for producer_id, state in self._producers.items():
            if not state.pending and state.window:
                del self._producers[producer_id]
                self.evicted += 1
                return
