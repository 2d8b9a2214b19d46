"""A hostile world around a ReadingCore, and what must hold of it at every step. No I/O, no clock.

Two brokers serve lives of one topic. Requests and work in the background wait until the world
answers, fails, loses or forgets them, in any order; owners move and leave stale ones behind that
answer as well; logs grow, are trimmed and cut; the topic is deleted and created again, and metadata
tell of it late. The user takes, seeks, pauses, assigns and gives back at any moment. After the
hostile part the world is kind: everything must be read to the end, soon.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from octavo.client.messaging.cluster.topic_lives import TopicView
from octavo.client.messaging.reading.positions import ABOVE_END_ATTEMPTS, Offsets, Range
from octavo.client.messaging.reading.reading_core import ReadingCore
from octavo.client.messaging.reading.readings import (
    Action,
    Answer,
    AskRange,
    FindOwner,
    Interrupt,
    LearnTopic,
    LifeIsOver,
    LookUp,
    Mark,
    OpenStream,
    Plan,
    ReadingSettings,
    Wake,
    Work,
)
from octavo.client.messaging.records import TopicPartition
from octavo.proto import batch as batch_format
from octavo.proto.batch import BatchHeader
from octavo.runtime.checksum import Buffer
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.errors import (
    BrokerUnavailable,
    InconsistentTopicId,
    LogTruncated,
    NoOffsetForPartition,
    NotLeader,
    OctavoError,
    OffsetOutOfRange,
    RequestRejected,
    RequestTimedOut,
    UnknownTopic,
)
from tests.reading_brokers import BROKERS, PARTITION, Brokers, Life

PREFETCH = 400
"""Bytes of buffers in all: three batches and more."""
RESETS: list[str | int] = ["earliest", "latest", 3, "none"]
KIND_STEPS_MAX = 400
KIND_S_MAX = 30.0
USERS_ERRORS = (NoOffsetForPartition, LogTruncated, OffsetOutOfRange, InconsistentTopicId)
"""After these the user says where to go on."""


@dataclass(eq=False)
class Place:
    """What the user must get next of one partition."""

    life: Life | None = None
    """None: whichever the first record is of."""
    offset: int = -1
    """-1: the position is being looked up."""
    may_look: bool = True
    """Its position may be looked up: it is new, the user said so, or there is proof."""
    above: int = 0
    """How often in a row an owner said that the position lies above the end."""


@dataclass(eq=False)
class UnderWay:
    """A request at a broker, perhaps with its reply on the way back."""

    plan: Plan
    ids: dict[TopicPartition, bytes]
    reply: dict[TopicPartition, Answer] | None = None


@dataclass
class Counts:
    """What a core did, to compare kinds of worlds."""

    work: int = 0
    requests: int = 0
    records: int = 0
    resets: int = 0
    failed_at: dict[object, float] = field(default_factory=lambda: dict[object, float]())


class World:
    """One run, decided by `seed`."""

    def __init__(self, seed: int, plant: Callable[[ReadingCore], None] | None = None) -> None:
        self.random = random.Random(seed)
        self.kind = False
        self.brokers = Brokers(self.random, self.random.choice([0.1, 0.5, 1.0]))
        self.followed = self.random.random() < 0.5
        self.reset = self.random.choice(RESETS)
        self.now = 100.0
        self.views: dict[str, TopicView] = {}
        self.core = ReadingCore(
            ReadingSettings(
                PREFETCH, PARTITION, PREFETCH, PARTITION, max_wait_ms=500, reset=self.reset
            ),
            self.views,
            SeededEntropy(seed),
        )
        if plant is not None:
            plant(self.core)
        self.work: list[Work] = []
        self.at: dict[str, UnderWay] = {}
        self.streams: set[str] = set()
        self.view_due = False
        self.ends: dict[TopicPartition, int] | None = None
        self.queue: deque[Action] = deque()
        self.places: dict[TopicPartition, Place] = {}
        self.batch_bytes = 0
        """Of the largest batch that was sent: each reply may be above the limits by one."""
        self.did = Counts()
        for n in range(2):
            self.life.append(n, 3)
        self.tell_view()
        self.assign([0, 1])

    @property
    def life(self) -> Life:
        return self.brokers.life

    # --- the core's side ------------------------------------------------------------------------

    def act(self, actions: list[Action]) -> None:
        self.queue.extend(actions)
        while self.queue:
            action = self.queue.popleft()
            if isinstance(action, LookUp | FindOwner | AskRange):
                self.begin(action)
            elif isinstance(action, OpenStream):
                assert action.address not in self.streams, "a second stream to one broker"
                self.streams.add(action.address)
            elif isinstance(action, Wake):
                assert action.address in self.streams, "a broker without a stream is woken"
                self.ask(action.address)
            elif isinstance(action, Interrupt):
                late = self.brokers.chance(0.3)  # the reply was faster
                if action.address in self.at and not late:
                    plan = self.at.pop(action.address).plan
                    self.queue.extend(self.core.request_interrupted(plan, self.now))
            elif isinstance(action, LifeIsOver):
                view = self.views.get(action.topic)
                if view is not None and view.topic_id == action.topic_id:
                    del self.views[action.topic]
                self.view_due = True
            elif isinstance(action, LearnTopic):
                self.view_due = True
        self.check()

    def begin(self, work: Work) -> None:
        self.did.work += 1
        for mark in _marks(work):
            twice = any(type(one) is type(work) and mark in _marks(one) for one in self.work)
            assert not twice, f"{work} twice at a time"
        self.work.append(work)
        if isinstance(work, LookUp):
            for mark in work.marks:
                self.not_at_once(LookUp, mark)
                place = self.places[mark.reading.where]
                assert place.may_look, f"{mark.reading.where} is looked up without proof (F5, F6)"
                place.offset = -1
                self.did.resets += 1
        elif isinstance(work, AskRange):
            self.not_at_once(AskRange, work.mark)
        else:
            reading = work.reading
            self.not_at_once(FindOwner, Mark(reading, reading.generation))
            same = [one for one in self.work if isinstance(one, FindOwner)]
            assert [one.reading for one in same].count(reading) == 1, "two searches at a time"

    def not_at_once(self, kind: object, mark: Mark) -> None:
        key = (kind, mark.reading, mark.generation)
        assert self.did.failed_at.get(key) != self.now, f"{kind} again without a pause"

    def failed_now(self, kind: object, mark: Mark) -> None:
        self.did.failed_at[kind, mark.reading, mark.generation] = self.now

    def ask(self, address: str) -> None:
        """What the shell's loop does when it is woken."""
        if address in self.at or address not in self.streams:
            return
        plan = self.core.requests.plan(address, self.now)
        if plan is None:
            return
        self.did.requests += 1
        for reading, offset, generation in plan.asks:
            self.not_at_once(Plan, Mark(reading, generation))
            assert self.ends is None or offset < self.ends[reading.where], "asked behind the ends"
            assert not reading.paused
        self.at[address] = UnderWay(
            plan, {one.reading.where: one.reading.topic_id for one in plan.asks}
        )

    def check(self) -> None:
        """What holds at every moment."""
        core = self.core
        core.validate()
        room = PREFETCH + len(self.streams) * self.batch_bytes
        assert core.buffers.buffered_bytes <= room, "more is buffered than the budget allows"
        for where, reading in core.readings.items():
            place = self.places[where]
            if not reading.resolved or place.offset < 0:
                continue
            assert reading.position >= place.offset, f"{where}: the position went back"
            if place.life is not None:
                following = place.life.next_record(where.partition, place.offset)
                ahead = following is not None and reading.position > following
                assert not ahead, f"{where}: position {reading.position} skips {following}"

    # --- the brokers' side ----------------------------------------------------------------------

    def tell_view(self) -> None:
        """Metadata come to the client."""
        self.view_due = False
        if self.brokers.deleted:
            self.views.pop("t", None)
            return
        life = self.life
        owners = tuple(self.brokers.owner[n] for n in range(len(life.logs)))
        view = TopicView("t", len(life.logs), owners, topic_id=life.topic_id)
        self.views["t"] = view
        if self.followed:
            for n in range(len(life.logs)):
                self.places.setdefault(TopicPartition("t", n), Place())
        for place in self.places.values():
            if self.followed and place.life is not life:
                place.may_look = True
        self.act(self.core.view_changed(view, self.now))

    def replies(self, address: str) -> dict[TopicPartition, Answer]:
        under_way = self.at[address]
        left = under_way.plan.max_bytes
        out: dict[TopicPartition, Answer] = {}
        some = False
        for reading, offset, _ in under_way.plan.asks:
            where = reading.where
            if self.brokers.chance(0.1):
                continue  # left out of the reply
            answer = self.brokers.answer(address, where, offset, under_way.ids[where])
            kept: list[Buffer] = []
            for batch in answer.batches:
                if some and len(batch) > left:
                    header = batch_format.decode_header(batch)
                    answer = answer._replace(next_offset=header.base_offset)
                    break
                some = True
                left -= len(batch)
                self.batch_bytes = max(self.batch_bytes, len(batch))
                kept.append(batch)
            out[where] = answer._replace(batches=kept)
        return out

    def serve(self, address: str) -> None:
        """A reply comes to be, and perhaps arrives."""
        under_way = self.at[address]
        if under_way.reply is None:
            under_way.reply = self.replies(address)
            if self.brokers.chance(0.3):
                return  # later
        del self.at[address]
        for reading, _, generation in under_way.plan.asks:
            answer = under_way.reply.get(reading.where)
            if answer is not None and generation == reading.generation:
                if answer.error is None:
                    self.places[reading.where].above = 0
                elif not isinstance(answer.error, NotLeader | OffsetOutOfRange):
                    self.failed_now(Plan, Mark(reading, generation))
        self.act(self.core.answered(under_way.plan, under_way.reply, self.now))
        self.ask(address)
        self.check()

    def lose(self, address: str) -> None:
        """No reply comes."""
        plan = self.at.pop(address).plan
        for reading, _, generation in plan.asks:
            self.failed_now(Plan, Mark(reading, generation))
        self.act(self.core.request_failed(plan, self.now))

    def finish(self, work: Work) -> None:
        """Something in the background comes to its end."""
        self.work.remove(work)
        if self.brokers.chance(0.1):
            self.act(self.core.lost(work, self.now))
        elif isinstance(work, FindOwner):
            self.find(work)
        elif isinstance(work, AskRange):
            self.tell_range(work)
        else:
            self.look(work)

    def fail(self, work: Work, kind: type, mark: Mark, error: OctavoError) -> None:
        if not error.details.get("owner_address"):
            self.failed_now(kind, mark)
        self.act(self.core.failed(work, error, self.now))

    def find(self, work: FindOwner) -> None:
        where = work.reading.where
        mark = Mark(work.reading, work.reading.generation)
        if not self.brokers.has(where.partition):
            self.fail(work, FindOwner, mark, UnknownTopic("gone"))
        elif self.brokers.chance(0.3):
            hint = self.random.choice(["", *BROKERS])
            error = self.random.choice(
                [
                    BrokerUnavailable("no"),
                    NotLeader("no", owner_address=hint),
                    RequestTimedOut("no"),
                ]
            )
            self.fail(work, FindOwner, mark, error)
        else:
            known = self.brokers.owner[where.partition]
            self.act(
                self.core.found(
                    work,
                    self.random.choice(BROKERS) if self.brokers.chance(0.3) else known,
                    self.now,
                )
            )

    def tell_range(self, work: AskRange) -> None:
        reading = work.mark.reading
        where = reading.where
        if not self.brokers.has(where.partition) or self.brokers.chance(0.3):
            self.fail(work, AskRange, work.mark, RequestTimedOut("no"))
            return
        log = self.life.logs[where.partition]
        told = Range(log.log_start, log.end, self.life.topic_id)
        if work.mark.current and reading.topic_id in (b"", told.topic_id):
            place = self.places[where]
            place.above = place.above + 1 if reading.fetch_at > told.end else 0
            if reading.fetch_at < told.start or place.above > ABOVE_END_ATTEMPTS:
                place.may_look = self.reset != "none"
        self.act(self.core.found(work, told, self.now))

    def look(self, work: LookUp) -> None:
        life = self.life
        if len(self.brokers.lives) > 1 and self.brokers.chance(0.2):
            life = self.brokers.lives[-2]  # of a broker behind the times
        wheres = [mark.reading.where for mark in work.marks]
        beyond = any(where.partition >= len(life.logs) for where in wheres)
        if self.brokers.deleted or beyond or self.brokers.chance(0.3):
            for mark in work.marks:
                self.failed_now(LookUp, mark)
            kind = self.random.choice([RequestTimedOut, RequestRejected, BrokerUnavailable])
            self.act(
                self.core.failed(work, UnknownTopic("gone") if beyond else kind("no"), self.now)
            )
            return
        found = {where: self.brokers.offset(life, where.partition, work.policy) for where in wheres}
        ids = dict.fromkeys(wheres, life.topic_id)
        view = self.views.get("t")
        for mark in work.marks:
            if mark.current and (view is None or view.topic_id == life.topic_id):
                self.places[mark.reading.where] = Place(life, found[mark.reading.where], False)
        self.act(self.core.found(work, Offsets(found, ids), self.now))

    # --- the user's side ------------------------------------------------------------------------

    def assign(self, numbers: list[int]) -> None:
        wanted = [TopicPartition("t", n) for n in numbers]
        self.places = {where: self.places.get(where) or Place() for where in wanted}
        topics = ["t"] if self.followed else []
        self.act(self.core.assign(wanted, None, self.now, followed=topics))

    def some_place(self) -> TopicPartition:
        return self.random.choice(list(self.core.readings))

    def seek(self, where: TopicPartition, offset: int) -> None:
        view = self.views.get("t")
        life = next(
            (one for one in self.brokers.lives if view and one.topic_id == view.topic_id), None
        )
        self.places[where] = Place(life, offset, may_look=False)
        self.act(self.core.seek(where, offset, self.now, chosen=True))

    def seek_by(self, where: TopicPartition, policy: str | int) -> None:
        self.places[where].may_look = True
        self.act(self.core.seek_by([where], policy, self.now))

    def focus(self, *, on: bool) -> None:
        self.ends = None
        if on and not self.brokers.deleted:
            self.ends = {
                where: self.life.logs[where.partition].end
                if where.partition < len(self.life.logs)
                else 0
                for where in self.core.readings
            }
        self.act(self.core.focus(self.ends, self.now))

    def got(self, where: TopicPartition, offset: int, value: bytes | None) -> None:
        assert not self.core.readings[where].paused, "handed out although paused"
        assert self.ends is None or offset < self.ends.get(where, 0), "handed out behind the ends"
        assert value is not None
        number, partition, written = (int(part) for part in value.split(b":"))
        place = self.places[where]
        place.life = place.life or self.brokers.lives[number]
        assert (number, partition, written) == (place.life.number, where.partition, offset), (
            f"{where}: {value!r} at {offset}, of life {place.life.number}"
        )
        following = place.life.next_record(where.partition, place.offset)
        skipped = following is not None and following < offset
        assert offset >= place.offset, f"{where}: {offset} twice, {place.offset} is next"
        assert not skipped, f"{where}: {offset} although {following} is next"
        place.offset = offset + 1
        self.did.records += 1

    def take(self) -> None:
        """One poll: an error, or records in one of both forms, which may go back."""
        error = self.core.buffers.take_error()
        if error is not None:
            self.act(self.core.said(self.now))
            self.react(error)
            return
        touched = self.core.buffers.taking = {}
        before = {where: place.offset for where, place in self.places.items()}
        if self.random.random() < 0.5:
            for record in self.core.buffers.take_records(self.random.randint(1, 8), self.ends):
                self.got(record.topic_partition, record.offset, record.value)
        else:
            for where, batch, _, first, end in self.core.buffers.take_batches(
                self.random.randint(1, 600), _five, self.ends
            ):
                rows = batch_format.decode_rows(batch)
                for offset, value in zip(rows.offsets, rows.values, strict=True):
                    if first <= offset < end:
                        self.got(where, offset, value)
        if self.brokers.chance(0.1):  # it reached nobody
            for where, offset in before.items():
                if where in touched and self.places[where].offset >= 0:
                    self.places[where].offset = min(offset, self.places[where].offset)
            self.act(self.core.go_back(touched, self.now))
        for address in sorted(self.streams):
            self.ask(address)
        self.check()

    def react(self, error: OctavoError) -> None:
        """A program that goes on after it was told."""
        assert error.code != "INVARIANT", error
        if isinstance(error, USERS_ERRORS):
            for where in list(self.core.readings):
                reading = self.core.readings[where]
                lost = not reading.resolved or self.kind
                if lost or self.random.random() < 0.5:
                    self.seek_by(where, "earliest")

    def use(self) -> None:
        """Something that a user may do at any moment."""
        where = self.some_place()
        roll = self.random.random()
        if roll < 0.2:
            end = self.life.logs[0].end + 3
            self.seek(where, self.random.randint(0, end))
        elif roll < 0.3:
            self.seek_by(where, self.random.choice(RESETS[:3]))
        elif roll < 0.5:
            self.act(self.core.pause([where], self.now))
        elif roll < 0.75:
            self.act(self.core.resume(list(self.core.readings), self.now))
        elif roll < 0.9:
            self.focus(on=self.random.random() < 0.5)
        elif not self.followed:
            self.assign(self.random.choice([[0], [1], [0, 1]]))

    # --- a run ----------------------------------------------------------------------------------

    def step(self) -> None:
        """Whatever happens next while the world is hostile."""
        roll = self.random.random()
        if roll < 0.3 and self.at:
            self.serve(self.random.choice(sorted(self.at)))
        elif roll < 0.33 and self.at:
            self.lose(self.random.choice(sorted(self.at)))
        elif roll < 0.55 and self.work:
            self.finish(self.random.choice(self.work))
        elif roll < 0.7:
            self.take()
        elif roll < 0.73:
            self.use()
        elif roll < 0.86:
            self.brokers.change()
        elif roll < 0.87 or (roll < 0.89 and self.view_due):
            self.tell_view()
        elif roll < 0.9 and self.streams:
            address = self.random.choice(sorted(self.streams))
            self.streams.remove(address)
            self.at.pop(address, None)
            self.act(self.core.stream_lost(address, self.now))
        else:
            self.pass_time(self.random.choice([0.01, 0.1, 0.5]))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        due_s = self.core.next_deadline_s()
        if due_s is not None and due_s <= self.now:
            self.act(self.core.tick(self.now))

    def run(self, steps: int = 150) -> Counts:
        """The hostile part, then the kind one. AssertionError when anything does not hold."""
        for _ in range(steps):
            self.step()
        self.be_kind()
        return self.did

    def be_kind(self) -> None:
        self.kind = True
        self.brokers.rough = 0.0
        if self.brokers.deleted:
            self.brokers.recreate()
        self.focus(on=False)
        self.tell_view()
        self.act(self.core.resume(list(self.core.readings), self.now))
        if not self.followed:
            self.assign([0])
        until_s = self.now + KIND_S_MAX
        worked = self.did.work
        for _ in range(KIND_STEPS_MAX):
            if self.at_the_end():
                break
            assert self.now < until_s, f"not read within {KIND_S_MAX} s: {self.core.readings}"
            self.kind_step()
        else:
            raise AssertionError(f"not read within {KIND_STEPS_MAX} steps: {self.core.readings}")
        assert self.did.work - worked < KIND_STEPS_MAX

    def kind_step(self) -> None:
        """Whatever is under way ends well; else time passes until something is due."""
        if self.view_due:
            self.tell_view()
        busy = bool(self.work)
        for work in list(self.work):
            if work in self.work:
                self.finish(work)
        for address in sorted(self.at):
            if address in self.at and self.has_answer(address):
                busy = True
                self.serve(address)
        taken = self.did.records
        self.take()
        if busy or self.work or self.did.records > taken or self.view_due:
            return
        due_s = self.core.next_deadline_s()
        waits = [0.5] if self.at else []
        if due_s is not None:
            waits.append(max(due_s - self.now, 0.0))
        assert waits or self.at_the_end(), f"nothing will ever happen: {self.core.readings}"
        self.pass_time(min(waits, default=0.0))
        for address in sorted(self.at):
            self.serve(address)  # the long poll ends empty

    def has_answer(self, address: str) -> bool:
        """Whether the broker answers now: it keeps a request that nothing can be said to."""
        return any(
            answer.error is not None or answer.batches for answer in self.replies(address).values()
        )

    def at_the_end(self) -> bool:
        """Whether the user has every record there is."""
        return all(
            place.offset >= 0
            and place.life in (None, self.life)
            and self.core.readings[where].resolved
            and self.core.readings[where].error is None
            and self.life.next_record(where.partition, place.offset) is None
            and self.core.readings[where].position >= self.life.logs[where.partition].end
            for where, place in self.places.items()
            if where in self.core.readings
        )


def _marks(work: Work) -> tuple[Mark, ...]:
    """The positions that it is done for; none for an owner, who serves any position."""
    if isinstance(work, LookUp):
        return work.marks
    return (work.mark,) if isinstance(work, AskRange) else ()


def _five(
    where: TopicPartition, batch: Buffer, header: BatchHeader, first: int, end: int
) -> tuple[TopicPartition, Buffer, BatchHeader, int, int]:
    return where, batch, header, first, end
