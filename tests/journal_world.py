"""A stream's core over a disk that loses power, fills up and fails, with every promise checked.

The world is the core's shell, on one thread: it carries out each action on a `PowerCutDisk`, may
let any of them fail, lets clients submit between any two, and wakes the core only when the queue
said so or the deadline is over. After a kill or a power cut the log is judged as a boot does, and
the next life goes on from there.
"""

from __future__ import annotations

import errno
import pathlib
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from octavo.bookie.journal.actions import (
    Acknowledge,
    Action,
    CreateSegment,
    DropSegment,
    End,
    EnterSegment,
    Fail,
    NoteDurable,
    Publish,
    SyncDirectory,
    SyncSegment,
    WriteBatch,
    WriteCarried,
    WriteHeader,
)
from octavo.bookie.journal.core import JournalCore, Step
from octavo.bookie.journal.item import JournalItem, body_of_items, body_of_records
from octavo.bookie.journal.options import JournalOptions
from octavo.bookie.journal.queue import JournalQueue
from octavo.bookie.journal.replay import Evidence, Span, Verdict, judge, span_records
from octavo.bookie.journal.segment import (
    BATCH_HEADER_BYTES,
    HEADER_BYTES,
    START,
    Position,
    Record,
    RecordType,
    SegmentHeader,
    encode_batch,
    encode_segment_header,
    segment_name,
    segment_number,
)
from octavo.proto.bookie_wire import Status
from tests.power_cut_disk import PowerCutDisk, SimFile

FOLDER = pathlib.Path("/journal")
INSTANCE, INCARNATION = uuid.UUID(int=7), uuid.UUID(int=8)
OPTIONS = JournalOptions(
    segment_bytes=3000,
    group_max_bytes=900,
    queue_max_records=24,
    queue_max_bytes=4000,
    idle_mark_s=1.0,
)
STEPS_MAX = 400
"""Steps in which an honest stream has answered everything."""


class BrokenRule(AssertionError):
    """The core broke a promise."""


def require(condition: object, message: str) -> None:
    if not condition:
        raise BrokenRule(message)


@dataclass
class Faults:
    """What may go wrong in a life."""

    no_space: float = 0.0
    """Chance that making a segment finds no space."""
    failure: float = 0.0
    """Chance that an action fails otherwise, or a write is short."""


@dataclass(eq=False)
class Sent:
    """One item and what became of it."""

    number: int
    item: JournalItem
    answer: Status | None = None
    written: bool = False
    published: bool = False
    life: int = 0

    def records(self) -> list[tuple[int, bytes]]:
        words, data = body_of_items([self.item])
        joined, found = b"".join(data), list[tuple[int, bytes]]()
        for word in words:
            length = word & 0xFFFFFF
            found.append((word >> 24, joined[:length]))
            joined = joined[length:]
        return found


@dataclass
class Segment:
    """One file of the log, as the shell knows it."""

    header: SegmentHeader | None
    path: pathlib.Path
    file: SimFile
    size_bytes: int
    position: int = 0
    synced: int = 0
    named: bool = False
    entered: bool = False
    sync_failed: bool = False


@dataclass
class Tally:
    """What a run met, so that a test sees that it was worth it."""

    acknowledged: int = 0
    refused: int = 0
    rolls: int = 0
    failures: int = 0
    cuts: int = 0
    kills: int = 0
    carried: int = 0
    marks: int = 0
    ended: int = 0

    def add(self, other: Tally) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class World:
    """Several lives of one stream."""

    seed: int
    core_type: type[JournalCore] = JournalCore
    queue_type: type[JournalQueue] = JournalQueue
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.disk = PowerCutDisk(random.Random(self.seed + 1))
        self.tally = Tally()
        self.sent: list[Sent] = []
        self.by_item: dict[int, Sent] = {}
        self.life = 0
        self.now_s = 100.0
        self.used: set[int] = set()  # numbers of segments whose file was made
        self._begin()

    def _begin(self) -> None:
        """The state of one process."""
        self.queue = self.queue_type(OPTIONS)
        template = SegmentHeader(0, INSTANCE, INCARNATION, uuid.UUID(int=0), 0, 0, START)
        self.core = self.core_type(template, OPTIONS, self.queue)
        self.segment: Segment | None = None
        self.making: Segment | None = None
        self.carried: list[list[Record]] = []
        self.noted = self.marked = START
        self.rung = False
        self.gone = False  # killed in the middle
        self.failed: Exception | None = None
        self.ended = False
        self.honest = False
        self.no_space_in_a_row = 0
        self.quiet_since_s = self.now_s

    # --- lives ------------------------------------------------------------------------------

    def run(self, lives: int) -> Tally:
        """Raises BrokenRule, or InvariantViolation of the core itself."""
        for self.life in range(lives):
            self._boot()
            if self.core.step is Step.READY:
                self._live()
            self._end()
        self._boot(last=True)
        return self.tally

    def _live(self) -> None:
        for _ in range(self.rng.randrange(6, 30)):
            if self.failed or self.gone:
                return
            for _ in range(self.rng.choice((0, 0, 1, 1, 2, 20))):
                self._submit()
            if self.rng.random() < 0.3:
                self.now_s += self.rng.choice((0.1, 0.4, 1.5))
            self._wake()

    def _end(self) -> None:
        """A clean stop, or a kill or power cut in whatever state this is."""
        if self.failed is None and not self.gone and self.core.step is Step.READY:
            if self.rng.random() < 0.4:
                self._settle()
            if self.rng.random() < 0.4:
                self._stop()
        power = self.rng.random() < 0.6
        self.tally.cuts += power
        self.tally.kills += not power
        if power and self.rng.random() < 0.5:
            self.noted = START  # a note is not synced by itself
        self.disk.restart(power=power)
        self._judge()

    def _settle(self) -> None:
        """Without faults everything is answered, by rings and deadlines alone, and proven."""
        self.honest = True
        for _ in range(STEPS_MAX):
            self._wake()
            if self.failed or self.core.step is not Step.READY:
                raise BrokenRule(f"an honest disk, and {self.failed}")
            deadline_s = self.core.next_deadline_s()
            if deadline_s is None:
                break
            require(deadline_s <= self.now_s + OPTIONS.idle_mark_s, "a deadline too far away")
            self.now_s = max(self.now_s, deadline_s)
        waiting = [one.number for one in self.sent if one.life == self.life and one.answer is None]
        require(not waiting, f"items {waiting} are never answered")
        require(not self.core.unproven, "B-15: an idle stream proves its last batch")
        require(not self.queue.queued_records, "answered items take room")

    def _stop(self) -> None:
        self.honest = True
        self.queue.closed = True
        self._wake(again=True)
        require(self.ended, "a stop has an end")
        waiting = [one.number for one in self.sent if one.life == self.life and one.answer is None]
        require(not waiting, f"items {waiting} are not answered by a stop")
        require(not self.core.unproven, "B-15: a clean stop proves the last batch")
        self.tally.ended += 1

    # --- clients ----------------------------------------------------------------------------

    def _submit(self) -> None:
        if self.queue.closed:
            return
        number, rng = len(self.sent), self.rng
        lazy, reserve = rng.random() < 0.2, rng.random() < 0.3
        if lazy:
            lac = (RecordType.EXPLICIT_LAC, number, 1)
            item = JournalItem([], [], self._done, controls=(lac,), lazy=True)
        else:
            sizes = [rng.choice((10, 60, 300)) for _ in range(rng.randrange(1, 4))]
            entries = [b"%06d/%d/" % (number, i) + bytes(n) for i, n in enumerate(sizes)]
            heads = [(number, i, -1, 0, 0) for i in range(len(entries))]
            run = b"".join(entries) if rng.random() < 0.5 else None
            item = JournalItem(
                heads,
                list(entries),
                self._done,
                controls=((RecordType.FENCE, number, 0),) if reserve else (),
                reserve=reserve,
                run=run,
            )
        if not self.queue.has_room(item.records, item.nbytes, reserve=item.reserve, lazy=lazy):
            return
        sent = Sent(number, item, life=self.life)
        self.sent.append(sent)
        self.by_item[id(item)] = sent
        self.rung = self.queue.submit(item) or self.rung
        share = 2 if reserve else 1
        require(self.queue.queued_bytes <= OPTIONS.queue_max_bytes * share, "B-9: bytes")
        require(self.queue.queued_records <= OPTIONS.queue_max_records + 1000, "B-9: records")
        if not reserve:
            require(self.queue.queued_records <= OPTIONS.queue_max_records, "B-9: records")

    @staticmethod
    def _done(_status: Status) -> None:
        """Answers are seen where the action is carried out."""

    # --- the shell --------------------------------------------------------------------------

    def _wake(self, *, again: bool = False) -> None:
        """What the commit thread does until it sleeps, if something wakes it."""
        deadline_s = self.core.next_deadline_s()
        due = deadline_s is not None and deadline_s <= self.now_s
        if not (self.rung or due or again):
            return
        self.rung = False
        for _ in range(STEPS_MAX):
            if self.failed or self.gone or self.ended:
                return
            actions = self.core.wake(self.now_s)
            if not actions:
                return
            self._drive(actions)
        raise BrokenRule("the stream never comes to rest")

    def _drive(self, actions: list[Action]) -> None:
        while actions and not self.gone:
            outcome: list[Action] = []
            for place, action in enumerate(actions):
                require(self.failed is None, f"B-8: {type(action).__name__} after a failure")
                if self.rng.random() < 0.15:
                    self._submit()
                if not self.honest and self.rng.random() < 0.01:
                    self.gone = True
                    return
                error = self._fault(action)
                if error is not None:
                    outcome = self.core.failed(error)
                    break
                outcome = self._do(action)
                last = place == len(actions) - 1
                require(last or not outcome, "an action with an outcome stands last")
            self._check()
            actions = outcome

    def _check(self) -> None:
        self.core.validate()
        self.queue.validate()

    def _fault(self, action: Action) -> OSError | None:
        """What the operating system says instead of doing it."""
        making = isinstance(action, CreateSegment) or (
            isinstance(action, WriteHeader | SyncSegment | SyncDirectory) and self.making
        )
        if self.honest or isinstance(action, Acknowledge | EnterSegment | End | Fail):
            return None
        rng, number = self.rng, None
        share = 1.0 if self.segment else 0.1  # a boot without space has little to show
        if making and rng.random() < self.faults.no_space * share:
            number = rng.choice((errno.ENOSPC, errno.EDQUOT))
        elif rng.random() < self.faults.failure:
            # Without space a write that was allocated fails as well, on some file systems.
            number = rng.choice((errno.EIO, errno.EIO, errno.ENOSPC))
        if number is None:
            return None
        if number != errno.EIO and making:
            self.no_space_in_a_row += 1
        target = self.making or self.segment
        if isinstance(action, SyncSegment) and target is not None:
            target.sync_failed = True
            target.file.fail_sync(rng)
        if isinstance(action, WriteBatch | WriteCarried) and target is not None:
            whole = self._bytes_of(action, target)
            target.file.write(target.position, whole[: rng.randrange(len(whole))] or b"\0")
        return OSError(number, "injected")

    def _do(self, action: Action) -> list[Action]:
        done: Callable[..., list[Action] | None] = getattr(self, f"_do_{_snake(type(action))}")
        return done(action) or []

    def _do_create_segment(self, action: CreateSegment) -> list[Action]:
        require(action.number not in self.used, f"segment {action.number} is used twice")
        require(self.making is None, "two segments are made at once")
        path = FOLDER / segment_name(action.number)
        self.disk.create(path, action.size_bytes)
        self.used.add(action.number)
        self.making = Segment(None, path, self.disk.names[path], action.size_bytes)
        return self.core.file_created(uuid.UUID(int=self.rng.getrandbits(128)), 1)

    def _do_write_header(self, action: WriteHeader) -> list[Action]:
        making = self.making
        assert making is not None
        making.header = action.header
        return self._write(making, encode_segment_header(action.header))

    def _do_sync_segment(self, _action: SyncSegment) -> list[Action]:
        target = self.making or self.segment
        assert target is not None
        require(not target.sync_failed, "B-8: a sync that failed is repeated")
        target.file.sync()
        target.synced = target.position
        return self.core.synced()

    def _do_sync_directory(self, _action: SyncDirectory) -> list[Action]:
        self.disk.sync_dir(FOLDER)
        if self.making is not None:
            self.making.named = True
        return self.core.directory_synced(self.now_s)

    def _do_drop_segment(self, action: DropSegment) -> list[Action]:
        path = FOLDER / segment_name(action.number)
        require(self.segment is None or path != self.segment.path, "the log itself is removed")
        self.making = None
        if path in self.disk.names:
            self.disk.unlink(path)
            self.disk.sync_dir(FOLDER)
        return self.core.segment_dropped(self.now_s)

    def _do_enter_segment(self, action: EnterSegment) -> None:
        making = self.making
        require(making is not None and making.header == action.header, "entered but not made")
        assert making is not None
        require(making.synced >= HEADER_BYTES, "§6.2: a header that is not synced")
        require(making.named, "§6.2: a name that is not synced")
        old = None if self.segment is None else self.segment.header
        require(action.retired == old, "the full segment is retired")
        self.segment, self.making = making, None
        making.entered = True
        self.no_space_in_a_row = 0
        self.tally.rolls += action.retired is not None

    def _do_write_carried(self, action: WriteCarried) -> list[Action]:
        self.tally.carried += 1
        return self._write(self._entered(), self._bytes_of(action, self._entered()))

    def _do_write_batch(self, action: WriteBatch) -> list[Action]:
        target, items = self._entered(), action.items
        sizes = sum(item.nbytes for item in items)
        require(
            len(items) <= 1 or sizes <= OPTIONS.group_max_bytes, "B-6: a group beyond its bound"
        )
        require(action.durable_up_to <= Position(action.segment, target.synced), "claims too much")
        for item in items:
            sent = self.by_item[id(item)]
            require(not sent.written and sent.answer is None, f"item {sent.number} written again")
            sent.written = True
        self.tally.marks += not items
        whole = self._bytes_of(action, target)
        left = target.size_bytes - target.position - len(whole)
        require(left >= (BATCH_HEADER_BYTES if items else 0), "beyond what was allocated (6.13)")
        if not self.honest and self.rng.random() < self.faults.failure:
            whole = whole[: self.rng.randrange(len(whole))]  # a short write, without an error
        return self._write(target, whole)

    def _bytes_of(self, action: WriteBatch | WriteCarried, target: Segment) -> bytes:
        if isinstance(action, WriteBatch):
            words, data = body_of_items(action.items)
        else:
            words, data = body_of_records(self.carried[action.which])
        assert target.header is not None
        nbytes = sum(map(len, data))
        salt, claims = target.header.salt, action.durable_up_to
        head = encode_batch(salt, action.segment, action.sequence, claims, words, data, nbytes)
        return b"".join([head, *map(bytes, data)])

    def _write(self, target: Segment, data: bytes) -> list[Action]:
        if data:
            target.file.write(target.position, data)
        target.position += len(data)
        return self.core.written(target.position)

    def _do_note_durable(self, action: NoteDurable) -> None:
        require(self._is_synced(action.position), f"ADR 14: a note of {action.position} that lies")
        self.noted = action.position

    def _do_publish(self, action: Publish) -> None:
        group = action.group
        require(self._is_synced(group.mark), f"B-5: the index is ahead, at {group.mark}")
        require(group.mark > self.marked, "B-11: a mark that stands or goes back")
        self.marked = group.mark
        for item in group.items:
            sent = self.by_item[id(item)]
            require(not sent.published, f"item {sent.number} is indexed twice")
            require(self._covered(item), f"B-5: item {sent.number} is indexed before its sync")
            require(sent.number == self._next("published"), "B-10: the index's order")
            sent.published = True
            self._lies_where_it_says(sent, group.segment)

    def _do_acknowledge(self, action: Acknowledge) -> None:
        self.queue.settle(action.items)
        for item in action.items:
            sent = self.by_item[id(item)]
            require(sent.answer is None, f"item {sent.number} is answered twice")
            if action.status is Status.OK:
                require(self._covered(item), f"B-4: item {sent.number} is told before its sync")
                end = Position(self.core.header.number, item.offset + item.nbytes)
                require(end <= self.noted, "ADR 14: told before noted")
                require(sent.number == self._next("answer"), "answers in the order of adds")
                self.tally.acknowledged += 1
            else:
                require(action.status is Status.DISK_FULL, f"answered {action.status.name}")
                require(not sent.written, f"item {sent.number} is refused and written")
                tries = 3 if item.reserve else 1
                require(self.no_space_in_a_row >= tries, "6.13: refused although there is space")
                self.tally.refused += 1
            sent.answer = action.status

    def _do_end(self, action: End) -> None:
        require(action.retired == self._entered().header, "the last segment is retired")
        self.ended = True

    def _do_fail(self, action: Fail) -> None:
        self.failed = action.error
        self.tally.failures += 1

    # --- what is known ----------------------------------------------------------------------

    def _entered(self) -> Segment:
        require(self.segment is not None, "no segment is open")
        assert self.segment is not None
        return self.segment

    def _is_synced(self, position: Position) -> bool:
        for segment in (self.segment, self.making):
            header = None if segment is None else segment.header
            if segment is not None and header is not None and header.number == position.segment:
                return segment.named and position.offset <= segment.synced
        return False

    def _covered(self, item: JournalItem) -> bool:
        target = self._entered()
        return target.named and 0 < item.offset <= item.offset + item.nbytes <= target.synced

    def _next(self, what: str) -> int:
        """The oldest item of this life that was not refused and does not have it yet."""
        return next(
            one.number
            for one in self.sent
            if one.life == self.life
            and one.answer is not Status.DISK_FULL
            and not getattr(one, what)
            and (what != "answer" or one.answer is None)
        )

    def _lies_where_it_says(self, sent: Sent, number: int) -> None:
        file = self.disk.names[FOLDER / segment_name(number)]
        expected = b"".join(data for _, data in sent.records())
        at = sent.item.offset
        require(
            bytes(file.cached[at : at + len(expected)]) == expected, "an item lies somewhere else"
        )

    # --- boots ------------------------------------------------------------------------------

    def _boot(self, *, last: bool = False) -> None:
        """Judge the log and go on in a new segment; the last time with an honest disk."""
        found = self._judge()
        self._begin()
        self.life += last
        self.honest = last
        tail = [list(records) for span in found.tail for records in self._batches(span)]
        self.carried = tail
        numbers = [*self._numbers(), found.durable.segment, *self.used]
        sizes = [(len(batch), sum(len(r.data) for r in batch)) for batch in tail]
        self._drive(self.core.open(max([0, *numbers]) + 1, found.durable, sizes))
        ready = self.core.step is Step.READY
        require(ready or self.failed or self.gone, "a boot that does not end")
        if ready:
            require(self._is_synced(self.core.durable), "B-17: served before it is durable")
        if last:
            require(ready, f"an honest disk, and {self.failed}")
            self._submit()
            self._settle()
            self._judge()

    def _judge(self) -> Verdict:
        """What a boot would find now: all that was promised, and nothing that was refused."""
        evidence = [Evidence(self.noted, "a note")] if self.noted > START else []
        verdict = judge(START, self._numbers(), self._load, INSTANCE, evidence=evidence)
        require(not verdict.problems, f"{verdict.problems}")
        found = [
            (record.type, bytes(record.data))
            for span in (*verdict.spans, *verdict.tail)
            for records in self._batches(span)
            for record in records
        ]
        place = 0
        for one in self.sent:
            records = one.records()
            if found[place : place + len(records)] == records:
                place += len(records)
                require(one.answer is not Status.DISK_FULL, f"item {one.number} was refused")
            else:
                require(one.answer is not Status.OK, f"INV-1: item {one.number} is lost")
        require(place == len(found), "the log holds what nobody sent, or in another order")
        require(self.marked <= max(self._ends(verdict), default=START), "the index is ahead")
        return verdict

    def _ends(self, verdict: Verdict) -> list[Position]:
        return [
            Position(span.segment, batch.end)
            for span in (*verdict.spans, *verdict.tail)
            for batch in span.batches
        ]

    def _batches(self, span: Span) -> list[list[Record]]:
        return [records for _, records in span_records(span, self._load(span.segment))]

    def _numbers(self) -> list[int]:
        found = (segment_number(name) for name in self.disk.list(FOLDER))
        return sorted(number for number in found if number is not None)

    def _load(self, number: int) -> bytes:
        return self.disk.read(FOLDER / segment_name(number))


def _snake(kind: type) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in kind.__name__).lstrip("_")
