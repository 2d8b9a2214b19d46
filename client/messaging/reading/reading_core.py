"""The pure reading core: everything that decides what a reader does next (spec groups §4).

Events in, actions out: no socket, clock or task. `now_s` is monotonic seconds. It is composed of
`buffers` (what is handed out), `requests` (what is asked for), `positions` (where from) and
`retries` (when). Every `Work` action is answered by exactly one of `found`, `failed` and `lost`,
every plan of `requests` by one of `answered`, `request_failed` and `request_interrupted`, or all of
a stream by `stream_lost`; each may come late, after the user moved the position (F8).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

from octavo.client.messaging.cluster.topic_lives import TopicView
from octavo.client.messaging.reading.buffers import Buffers, Ends
from octavo.client.messaging.reading.positions import Offsets, Positions, Range
from octavo.client.messaging.reading.readings import (
    Action,
    Answer,
    AskRange,
    FindOwner,
    Interrupt,
    LookUp,
    Mark,
    OpenStream,
    Plan,
    Reading,
    ReadingSettings,
    Tell,
    Wake,
    Work,
)
from octavo.client.messaging.reading.requests import Requests, Stream
from octavo.client.messaging.reading.retries import Retries
from octavo.client.messaging.records import TopicPartition
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import (
    InvariantViolation,
    NotLeader,
    OctavoError,
)

TELL: list[Action] = [Tell()]


class ReadingCore:
    """One reader.

    Args:
        views: what is known of topics, kept up to date by its owner, who also calls
            `view_changed`.
    """

    def __init__(
        self, settings: ReadingSettings, views: Mapping[str, TopicView], entropy: Entropy
    ) -> None:
        self.buffers = Buffers()
        self.requests = Requests(self.buffers, settings)
        self.retries = Retries(settings, entropy)
        self.positions = Positions(self.buffers, self.requests, settings, self.retries, views)
        self._reset = settings.reset
        self._due_s = math.inf

    @property
    def readings(self) -> dict[TopicPartition, Reading]:
        """The assigned partitions."""
        return self.buffers.readings

    # --- what the user wants --------------------------------------------------------------------

    def assign(
        self,
        wanted: Iterable[TopicPartition],
        start: str | int | Mapping[TopicPartition, int | Literal["earliest"]] | None,
        now_s: float,
        *,
        followed: Iterable[str] = (),
    ) -> list[Action]:
        """Make `wanted` the assignment; kept partitions keep everything.

        New ones begin by the policy `start` (None: the reset policy), or at the positions it names,
        and those it does not name by the reset policy. `followed` are topics whose later partitions
        and lives are read, too.
        """
        policy = self._reset if start is None or isinstance(start, Mapping) else start
        self.positions.followed = dict.fromkeys(followed, policy)
        for reading in self.buffers.assign(wanted):
            reading.policy = policy
        for where, offset in start.items() if isinstance(start, Mapping) else ():
            reading = self.buffers.reading(where)
            if offset == "earliest":
                reading.policy = offset
                continue
            self.positions.move(reading, offset)
            reading.topic_id = self.positions.known_id(where)
        return self._advance(now_s) + TELL

    def seek(
        self, where: TopicPartition, offset: int, now_s: float, *, chosen: bool = False
    ) -> list[Action]:
        """Move one position; what is buffered or asked for already is dropped (F8).

        `chosen`: the user named the offset, which may not exist. IllegalStateError for a partition
        that is not assigned.
        """
        reading = self.buffers.reading(where)
        self.positions.move(reading, offset)
        reading.chosen = chosen
        reading.topic_id = self.positions.known_id(where)
        return [Interrupt(reading.owner), *self._advance(now_s), *TELL]

    def seek_by(
        self, wanted: Iterable[TopicPartition], policy: str | int, now_s: float
    ) -> list[Action]:
        """Look positions up anew by policy: earliest, latest or epoch ms."""
        for where in wanted:
            self.positions.move(self.buffers.reading(where), -1, policy)
        return self._advance(now_s)

    def go_back(self, firsts: Mapping[TopicPartition, int], now_s: float) -> list[Action]:
        """What was taken from these offsets on reached nobody: hand it out again (F9).

        A partition whose position moved elsewhere meanwhile stays there.
        """
        actions: list[Action] = []
        for where, offset in firsts.items():
            reading = self.readings.get(where)
            if reading is not None and 0 <= offset <= reading.position:
                reading.position = offset
                self.buffers.refetch(reading)
                actions.append(Interrupt(reading.owner))
        return actions + self._advance(now_s)

    def pause(self, wanted: Iterable[TopicPartition], now_s: float) -> list[Action]:
        """Hand out nothing of them and ask for nothing more, until `resume`.

        Others may need the room that their buffers have now.
        """
        for where in wanted:
            reading = self.buffers.reading(where)
            reading.paused = reading.pause_wanted = True
        return self._advance(now_s)

    def resume(self, wanted: Iterable[TopicPartition], now_s: float) -> list[Action]:
        """Undo `pause`."""
        actions: list[Action] = []
        for where in wanted:
            reading = self.buffers.reading(where)
            reading.pause_wanted = False
            if self.buffers.unpause(reading):
                actions.append(Interrupt(reading.owner))
        return [*actions, *self._advance(now_s), *TELL]

    def focus(self, ends: Ends | None, now_s: float) -> list[Action]:
        """Ask for nothing at or above `ends` while a reading up to them is under way."""
        if ends is self.requests.ends:
            return []
        self.requests.ends = ends
        return self._advance(now_s)

    def said(self, now_s: float) -> list[Action]:
        """An error was raised to the user: its partition may be asked for again."""
        return self._advance(now_s)

    # --- outcomes of work in the background -----------------------------------------------------

    def view_changed(self, view: TopicView, now_s: float) -> list[Action]:
        """Metadata came."""
        return [*self.positions.view_changed(view), *self._advance(now_s), *TELL]

    def found(self, work: Work, outcome: Offsets | Range | str, now_s: float) -> list[Action]:
        """The work succeeded: Offsets for LookUp, Range for AskRange, an address for FindOwner."""
        actions: list[Action] = []
        if isinstance(work, LookUp):
            assert isinstance(outcome, Offsets)
            actions = self.positions.looked_up(work, outcome, now_s)
        elif isinstance(work, AskRange):
            assert isinstance(outcome, Range)
            actions = self.positions.range_told(work, outcome, now_s)
        else:
            assert isinstance(outcome, str)
            if not outcome:
                return self.failed(work, NotLeader(f"{work.reading.where} has no owner"), now_s)
            work.reading.finding = work.reading.searching = False
            work.reading.owner = outcome
            return self._advance(now_s, self._assigned(work.reading))
        return [*actions, *self._advance(now_s), *TELL]

    def failed(self, work: Work, error: OctavoError, now_s: float) -> list[Action]:
        """The work failed: an error is no answer, so it is done again later (F5)."""
        actions: list[Action] = []
        if isinstance(work, LookUp):
            self.positions.look_up_failed(work, error, now_s)
        elif isinstance(work, AskRange):
            actions = self.positions.range_unknown(work, error, now_s)
        else:
            work.reading.finding = False
            for reading in self._assigned(work.reading):
                actions = self.positions.no_owner(reading, error, now_s)
            told = TELL if work.reading.error is not None else []
            return [*actions, *self._advance(now_s, self._assigned(work.reading)), *told]
        return [*actions, *self._advance(now_s), *TELL]

    def _assigned(self, reading: Reading) -> list[Reading]:
        """The reading, unless it is one of an assignment that is over."""
        return [reading] if self.readings.get(reading.where) is reading else []

    def lost(self, work: Work, now_s: float) -> list[Action]:
        """Whoever did the work is gone without a word: it is done again."""
        if isinstance(work, LookUp):
            for mark in work.marks:
                if mark.current:
                    mark.reading.looking = False
        elif isinstance(work, AskRange):
            if work.mark.current:
                work.mark.reading.ranging = False
        else:
            work.reading.finding = False
        return self._advance(now_s)

    # --- outcomes of requests -------------------------------------------------------------------

    def answered(
        self, plan: Plan, answers: Mapping[TopicPartition, Answer], now_s: float
    ) -> list[Action]:
        """A reply came. A partition that it leaves out is asked for again."""
        self.requests.ended(plan).failures = 0
        actions: list[Action] = []
        smooth = True
        news = False
        for ask in plan.asks:
            answer = answers.get(ask.reading.where)
            if answer is None or ask.generation != ask.reading.generation:
                continue  # or asked before a seek (F8)
            if answer.error is None and self.buffers.store(ask.reading, ask.offset, answer):
                news = True
            elif answer.error is not None:
                actions += self.positions.refused(ask.reading, answer.error, now_s)
            smooth = smooth and answer.error is None and ask.reading.error is None
        if smooth and not self.requests.starved:
            return TELL if news else []
        return [*actions, *self._advance(now_s), *TELL]

    def request_failed(self, plan: Plan, now_s: float) -> list[Action]:
        """A request got no reply: ask again later, the owner may have moved."""
        stream = self.requests.ended(plan)
        stream.failures += 1
        stream.retry_at_s = now_s + self.retries.delay_s(stream.failures)
        for reading, _, generation in plan.asks:
            if reading.generation == generation:
                reading.failures += 1
                reading.owner = ""
                reading.retry_at_s = stream.retry_at_s
        return self._advance(now_s)

    def request_interrupted(self, plan: Plan, now_s: float) -> list[Action]:
        """A request was ended before its reply: its partitions may be asked for again."""
        self.requests.ended(plan)
        return self._advance(now_s)

    def stream_broken(self, address: str, error: OctavoError, now_s: float) -> list[Action]:
        """Asking this broker met a fault of our own: every partition there says so at poll()."""
        stream = self.requests.stream_ended(address)
        stream.failures += 1
        stream.retry_at_s = now_s + self.retries.delay_s(stream.failures)
        for reading in self.readings.values():
            if reading.owner == address:
                self.buffers.refetch(reading)  # what is under way is not known any more
                reading.error = error
        return [*self._advance(now_s), *TELL]

    def stream_lost(self, address: str, now_s: float) -> list[Action]:
        """The stream to this broker is gone, with whatever was asked there."""
        self.requests.stream_ended(address)
        self.requests.streams.pop(address, None)
        return self._advance(now_s)

    # --- time -----------------------------------------------------------------------------------

    def next_deadline_s(self) -> float | None:
        """When `tick` is wanted next; None: not before another event."""
        return None if math.isinf(self._due_s) else self._due_s

    def tick(self, now_s: float) -> list[Action]:
        """Begin what waited for this moment."""
        return self._advance(now_s) if now_s >= self._due_s else []

    def _advance(self, now_s: float, some: list[Reading] | None = None) -> list[Action]:
        """Begin everything (or what concerns `some`) that may begin now; note when more may."""
        due_s = self._due_s
        if some is None:
            due_s = math.inf
            self.requests.starved.clear()
        actions: list[Action] = []
        unknown: list[Reading] = []
        wake: dict[str, None] = {}
        for reading in self.readings.values() if some is None else some:
            at_s = self.requests.ready_at_s(reading)
            if at_s > now_s:
                due_s = min(due_s, at_s)
            elif reading.position < 0:
                unknown.append(reading)
            elif reading.out_of_range:
                reading.ranging = True
                actions.append(AskRange(Mark(reading, reading.generation)))
            elif reading.owner:
                wake[reading.owner] = None
            else:
                actions.append(self._find(reading))
        self._due_s = due_s
        actions += self.positions.unknown(unknown, now_s)
        for address in wake:
            if address not in self.requests.streams:
                self.requests.streams[address] = Stream()
                actions.append(OpenStream(address))
            actions.append(Wake(address))
        return actions

    def _find(self, reading: Reading) -> FindOwner:
        reading.finding = True
        avoid = self.positions.known_owner(reading.where) if reading.failures > 1 else ""
        return FindOwner(reading, reading.failures > 0, avoid)

    def validate(self) -> None:
        """Raise InvariantViolation when the parts contradict each other."""
        self.buffers.validate()
        self.requests.validate()
        for reading in self.readings.values():
            if (reading.position < 0) != (reading.fetch_at < 0):
                raise InvariantViolation(f"half a position: {reading}")
            if reading.position < 0 and (reading.asked or reading.ranging or reading.buffer):
                raise InvariantViolation(f"asked for without a position: {reading}")
            if reading.looking and reading.position >= 0:
                raise InvariantViolation(f"a known position is looked up (F6): {reading}")
