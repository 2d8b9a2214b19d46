"""What is really stored and listed of a partition whose core runs in a hostile world.

Knows nothing of the core; `tests.partition_core_world` changes it and judges by it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

from octavo.metadata.ledger_record import LedgerMetadata, LedgerState, Quorum
from octavo.proto.batch import HEADER_BYTES, decode_header
from octavo.proto.segment_entries import is_batch
from octavo.runtime.errors import (
    NotEnoughReplicas,
    NotLeader,
    OctavoError,
    RequestTimedOut,
    UnknownTopic,
)
from octavo.runtime.ids import EntryId, LedgerId
from octavo.serving.partition.limits import Bounds, Limits, RetentionLimits
from octavo.serving.partition.log import (
    ACKS_ALL,
    ACKS_ONE,
    Answer,
    Append,
    Appended,
    Reply,
)
from octavo.serving.partition.open_segment import SnapshotLimits
from octavo.serving.retention import RetentionRule
from octavo.serving.segments import RollLimits, first_state
from octavo.serving.topic_config import parse_topic_config
from tests.serving_rig import NAME, make_batch, make_config

QUORUM = Quorum(3, 3, 2)
LIMITS = Limits(
    Bounds(12, 6000, stall_s=2.0, produce_timeout_s=5.0),
    RollLimits(2500, 60_000, QUORUM.write),
    SnapshotLimits(records=6, size_bytes=1500, interval_ms=3_000),
    ack_quorum=QUORUM.ack,
    index_interval_bytes=200,
    retention=RetentionLimits(RetentionRule(4_000, 5_000), check_interval_ms=1_000),
)
SETTINGS = parse_topic_config({}, make_config())
PRODUCER_ID = 9
UNDECIDED = (NotLeader, RequestTimedOut, UnknownTopic)
"""Answers after which a batch may be stored or not (A8)."""


class BrokenRule(AssertionError):
    """The core broke a promise."""


def require(condition: object, message: str) -> None:
    if not condition:
        raise BrokenRule(message)


@lru_cache(maxsize=4096)
def batch_of(number: int, sequence: int) -> bytes:
    """One batch; `sequence` -1: of no producer."""
    values = [b"%06d" % number] * (1 + number % 3)
    if sequence < 0:
        return make_batch(values)
    return make_batch(values, pid=PRODUCER_ID, epoch=0, sequence=sequence)


def key_of(batch: object) -> bytes:
    """The body, which is the same in every copy of a batch and in no other batch."""
    return bytes(memoryview(batch)[HEADER_BYTES:])  # type: ignore[arg-type]


@dataclass(eq=False)
class Ledger:
    """What the bookies hold of one ledger, and its record."""

    ledger_id: LedgerId
    entries: list[bytes] = field(default_factory=list[bytes])
    told: int = 0
    """Entries 0..told-1 were acknowledged to the writer."""
    copied: int = 0
    """Entries 0..copied-1 lie on one bookie."""
    appends: dict[int, Append] = field(default_factory=dict[int, Append])
    stopped: bool = False
    """The writer takes nothing more; the core may not know yet."""
    lost: bool = False
    closed: LedgerMetadata | None = None
    close_asked: bool = False
    tracked: set[int] = field(default_factory=set[int])
    """Entries whose first copy is to be told (acks=1)."""

    def close(self, last_entry: int) -> None:
        del self.entries[last_entry + 1 :]
        length = sum(map(len, self.entries))
        self.closed = LedgerMetadata(
            self.ledger_id,
            QUORUM,
            LedgerState.CLOSED,
            (),
            last_entry=EntryId(last_entry),
            length=length,
        )


@dataclass(eq=False)
class Sent:
    """One request of a client, and its answers."""

    number: int
    sequence: int
    acks: int
    at_s: float
    answers: list[Answer] = field(default_factory=list[Answer])

    @property
    def key(self) -> bytes:
        return key_of(batch_of(self.number, self.sequence))


class Truth:
    """What is stored and said of one partition, whatever its core believes."""

    def __init__(self) -> None:
        self.ledgers: dict[LedgerId, Ledger] = {}
        self.list = replace(first_state(NAME.topic_id, NAME.partition), owner_epoch=1)
        self.foreign = False
        """Another owner claimed the partition."""
        self.deleted = False
        self.dropped: list[Ledger] = []
        """Were listed, and fell below the log's start."""
        self.sent: list[Sent] = []
        self.tally: Counter[str] = Counter()
        self.not_written: set[bytes] = set()
        """Batches of which that was said, and which nobody sent again since."""
        self.last_sequence_of: dict[bytes, int] = {}
        """The bodies of a producer's batches, and the sequence of their last record."""

    def listed(self) -> list[Ledger]:
        return [self.ledgers[one.ledger_id] for one in self.list.segments]

    def batches(self, *, durable: bool = False) -> Iterator[bytes]:
        """Batches in the ledgers that are or were listed, in order."""
        for ledger in (*self.dropped, *self.listed()):
            end = ledger.told if durable and ledger.closed is None else len(ledger.entries)
            yield from (entry for entry in ledger.entries[:end] if is_batch(entry))

    def end_of_entries(self, *, durable: bool = False) -> int:
        end = 0
        for batch in self.batches(durable=durable):
            end = decode_header(batch).next_offset
        return end

    def find(self, answer: Appended, key: bytes) -> bytes | None:
        """The batch where the answer says; a duplicate behind the window is told no offset."""
        is_anywhere = answer.duplicate and answer.base_offset < 0
        for batch in self.batches():
            is_there = is_anywhere or decode_header(batch).base_offset == answer.base_offset
            if is_there and key_of(batch) == key:
                return batch
        return None

    def is_durable(self, batch: object) -> bool:
        return any(one == batch for one in self.batches(durable=True))

    def is_copied(self, batch: object) -> bool:
        return self.is_durable(batch) or any(
            one == batch for ledger in self.listed() for one in ledger.entries[: ledger.copied]
        )

    def is_settled(self, sequence: int) -> bool:
        return any(
            isinstance(answer, Appended)
            for one in self.sent
            if one.sequence == sequence
            for answer in one.answers
        )

    @property
    def is_lost(self) -> bool:
        """Whether it has to be given up."""
        return self.foreign or self.deleted or any(one.lost for one in self.ledgers.values())

    def taken_over(self, rng: random.Random) -> None:
        """Another broker fences what is open, closes it and claims the list."""
        self.foreign = True
        for ledger in self.listed():
            if ledger.closed is None and not ledger.lost:
                ledger.stopped = True
                ledger.close(rng.randint(ledger.told, len(ledger.entries)) - 1)

    def check_refusal(self, append: Append, error: OctavoError, live: int) -> None:
        """A8: what is called not written is nowhere; any other refusal leaves it open."""
        if not isinstance(error, NotEnoughReplicas):
            require(isinstance(error, UNDECIDED), f"{error!r} leaves a producer nowhere")
            return
        key = key_of(append.payload)
        everywhere = (one for held in self.ledgers.values() for one in held.entries)
        require(key not in map(key_of, everywhere), "written, and called not written (A8)")
        require(live < QUORUM.ack, "enough bookies, and called too few (A6)")
        self.not_written.add(key)

    def reply_of(self, one: Sent) -> Reply:
        def reply(answer: Answer) -> None:
            require(not one.answers, "answered twice")
            one.answers.append(answer)
            if isinstance(answer, Appended) and one.acks:
                stored = self.find(answer, one.key)
                if stored is None:
                    raise BrokenRule(f"told {answer}, and not there")
                is_safe = self.is_durable(stored) or (
                    one.acks == ACKS_ONE and not answer.duplicate and self.is_copied(stored)
                )
                require(is_safe, f"told {answer}, and not durable (INV-2, I3)")
                self.tally["duplicates" if answer.duplicate else "stored"] += 1
            elif isinstance(answer, OctavoError):
                self.tally[f"answered: {answer.code}"] += 1

        return reply

    def check_log(self, rng: random.Random) -> None:
        """What a successor finds that recovers the ledgers."""
        for ledger in self.listed():
            if ledger.lost:
                return
            if ledger.closed is None:
                ledger.close(rng.randint(ledger.told, len(ledger.entries)) - 1)
        end = 0
        for batch in self.batches():
            header = decode_header(batch)
            require(header.base_offset == end, f"{header.base_offset} follows {end} in the log")
            end = header.next_offset
        keys = Counter(map(key_of, self.batches()))
        twice = [key for key in self.last_sequence_of if keys[key] > 1]
        require(not twice, "stored twice (I2)")
        require(not any(keys[key] for key in self.not_written), "not written, and there (A8)")
        for one in self.sent:
            for answer in one.answers:
                if isinstance(answer, Appended) and one.acks == ACKS_ALL:
                    found = self.find(answer, one.key)
                    require(found is not None, f"acknowledged {answer}, and lost (INV-1)")
