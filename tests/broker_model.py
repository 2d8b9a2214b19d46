"""A model of one partition at its owner: the I2 table of spec groups §3, in memory.

Used by the fake broker and, without any I/O, by the property tests of the producer's core.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from octavo.proto import batch as batch_format
from octavo.proto.batch import BatchFlags
from octavo.proto.compression import Codec
from octavo.proto.dedup_ids import is_marked, read_digest
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import InvalidProducerEpoch, OctavoError, OutOfOrderSequence
from octavo.serving.partition.writer_seat import WriterSeat

MASK = 0x7FFFFFFF
WINDOW = 5


@dataclass
class Appended:
    """The answer to a produce: stored now or earlier."""

    base_offset: int
    duplicate: bool


@dataclass
class Producer:
    """What the owner remembers of one producer id."""

    epoch: int
    last: int
    window: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=WINDOW))


@dataclass
class Sequences:
    """Producer states of one partition; `decide` is the I2 table for durable state."""

    known: dict[int, Producer] = field(default_factory=lambda: dict[int, Producer]())

    def decide(self, pid: int, epoch: int, base: int, count: int) -> Appended | OctavoError | None:
        """None: append it."""
        if pid < 0:
            return None
        state = self.known.get(pid)
        last = (base + count - 1) & MASK
        if state is None:
            return None
        if epoch < state.epoch:
            return InvalidProducerEpoch(f"epoch {epoch} < {state.epoch}")
        if epoch > state.epoch:
            return None if base == 0 else OutOfOrderSequence("new epoch", last_sequence=-1)
        for seen_base, seen_last, offset in state.window:
            if (seen_base, seen_last) == (base, last):
                return Appended(offset, duplicate=True)
        if base == (state.last + 1) & MASK:
            return None
        if (state.last - last) & MASK < 1 << 30:
            return Appended(-1, duplicate=True)
        return OutOfOrderSequence(f"base {base} after {state.last}", last_sequence=state.last)

    def note(self, pid: int, epoch: int, base: int, count: int, offset: int) -> None:
        if pid < 0:
            return
        state = self.known.get(pid)
        if state is None or state.epoch != epoch:
            state = self.known[pid] = Producer(epoch, -1)
        state.last = (base + count - 1) & MASK
        state.window.append((base, state.last, offset))


class PartitionModel:
    """A partition's log: stored batches with their offsets."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.end = 0
        self.log_start = 0
        self.sequences = Sequences()
        self.ids: dict[bytes, int] = {}
        """Offsets of records with ids (X14), for ever."""
        self.seat: WriterSeat | None = None
        self.epoch = 1

    def produce(self, batch: bytes, now_ms: int) -> Appended:
        header = batch_format.verify(batch)
        identity = (header.producer_id, header.producer_epoch, header.base_sequence)
        verdict = self.sequences.decide(*identity, header.record_count)
        digest = read_digest(batch) if is_marked(header) else b""
        if digest in self.ids:
            return Appended(self.ids[digest], duplicate=True)
        if isinstance(verdict, Appended):
            return verdict
        if verdict is not None:
            raise verdict
        offset = self.append(batch, now_ms)
        self.sequences.note(*identity, header.record_count, offset)
        if digest:
            self.ids[digest] = offset
        return Appended(offset, duplicate=False)

    def append(self, batch: Buffer, now_ms: int) -> int:
        header = batch_format.decode_header(batch)
        offset = self.end
        self.batches.append(
            batch_format.stamp(
                batch, base_offset=offset, owner_epoch=self.epoch, append_time_ms=now_ms
            )
        )
        self.end = offset + header.record_count
        return offset

    def append_control(self, now_ms: int) -> int:
        """A control batch, as a transaction marker will be: takes one offset, is never shown."""
        plain = batch_format.encode([now_ms], [b"marker"], [b""])
        header = batch_format.decode_header(plain)
        body = plain[batch_format.HEADER_BYTES :]
        marked = batch_format.seal(
            [bytes(batch_format.body_of(plain, header))],
            1,
            (now_ms, now_ms),
            flags=BatchFlags.CONTROL,
            codec=Codec.NONE,
            producer=(-1, -1, -1),
            schema_id=0,
        )
        assert body
        return self.append(marked, now_ms)

    def trim(self, new_start: int) -> None:
        self.log_start = new_start
        self.batches = [
            b for b in self.batches if batch_format.decode_header(b).next_offset > new_start
        ]

    def read(self, offset: int, max_bytes: int) -> tuple[list[bytes], int]:
        """Whole batches from `offset` on, at least one, and the offset behind them."""
        out: list[bytes] = []
        size = 0
        position = offset
        for batch in self.batches:
            following = batch_format.decode_header(batch).next_offset
            if following <= offset:
                continue
            if out and size + len(batch) > max_bytes:
                break
            out.append(batch)
            size += len(batch)
            position = following
        return out, position

    def offset_at(self, timestamp_ms: int) -> int | None:
        for batch in self.batches:
            rows = batch_format.decode_rows(batch)
            for offset, stamp in zip(rows.offsets, rows.timestamps_ms, strict=True):
                if stamp >= timestamp_ms and offset >= self.log_start:
                    return offset
        return None

    def values(self) -> list[bytes | None]:
        out: list[bytes | None] = []
        for batch in self.batches:
            rows = batch_format.decode_rows(batch)
            if not rows.header.flags & BatchFlags.CONTROL:
                out += rows.values
        return out
