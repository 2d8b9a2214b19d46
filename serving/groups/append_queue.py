"""Records on their way into the log, and answers that wait for them (RB8, G2).

One batch is appended at a time; what comes meanwhile is gathered and goes together. The records of
one event stay in one batch. An answer waits for the batch with the newest record that it depends
on; one batch is in the log only when all before it are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from octavo.proto.group_records import Record, StoredRecord, encode, size_hint_bytes
from octavo.runtime.invariant import invariant
from octavo.serving.groups.values import Refusal, Reply, Token

EVENT_BYTES_MAX = 2 << 20
"""Of the records of one event by their size hints, which are right within a factor of two: half of
what a batch may have."""


class Unstored(NamedTuple):
    """A record on its way; its bytes are made beside the loop when there are many."""

    group_id: str
    record: Record


class AppendRecords(NamedTuple):
    """Append these as one batch, and tell `stored(number)` or `lost()`."""

    number: int
    unstored: tuple[Unstored, ...]

    def records(self) -> list[StoredRecord]:
        """Their bytes; may be called from any thread."""
        return [encode(group_id, record) for group_id, record in self.unstored]


class Respond(NamedTuple):
    """Answer a request."""

    token: Token
    reply: Reply
    proved: bool = False
    """It waited for an append that began after the request came, so that nobody else was the
    coordinator meanwhile. Without that the shell needs another proof before it answers (G3)."""


class AppendQueue:
    """Batches have numbers from 1 on."""

    def __init__(self, batch_bytes_max: int) -> None:
        self._batch_bytes_max = batch_bytes_max
        self._gathered: deque[list[Unstored]] = deque()
        self._last_bytes = 0
        """Of the last of them, about."""
        self._stored = 0
        self._started = 0
        self._waiting: dict[int, list[Respond]] = {}
        """By the batch that they wait for."""

    @property
    def size(self) -> int:
        """Records that are not appended yet, and answers that wait."""
        return sum(map(len, self._gathered)) + sum(map(len, self._waiting.values()))

    @property
    def newest(self) -> int:
        """Number of the newest batch; 0: there was none."""
        return self._started + len(self._gathered)

    @property
    def next_started(self) -> int:
        """Number of the batch that is appended next."""
        return self._started + 1

    def add(self, records: Iterable[Unstored]) -> int:
        """Records of one event, in one batch. The number of it.

        Only what no batch could hold is divided; then it is the number of the last. A part that is
        stored without the others does no harm: tombstones count each by itself, a target counts
        once the group's record behind it says so, what is taken stands behind what was freed, and
        nothing of it was told.
        """
        part: list[Unstored] = []
        size_bytes = 0
        for one in records:
            hint_bytes = size_hint_bytes(*one)
            if part and size_bytes + hint_bytes > EVENT_BYTES_MAX:
                self._add(part, size_bytes)
                part, size_bytes = [], 0
            part.append(one)
            size_bytes += hint_bytes
        return self._add(part, size_bytes)

    def _add(self, given: list[Unstored], size_bytes: int) -> int:
        if not self._gathered or self._last_bytes + size_bytes > self._batch_bytes_max:
            self._gathered.append([])
            self._last_bytes = 0
        self._gathered[-1] += given
        self._last_bytes += size_bytes
        return self._started + len(self._gathered)

    def respond(self, token: Token, reply: Reply, after: int) -> list[Respond]:
        """An answer that waits for that batch; it is given back when that is stored already."""
        response = Respond(token, reply, proved=after > self._started)
        if after <= self._stored:
            return [response]
        self._waiting.setdefault(after, []).append(response)
        return []

    def start(self) -> list[AppendRecords]:
        """The next batch, if none is being appended."""
        if self._started > self._stored or not self._gathered:
            return []
        self._started += 1
        return [AppendRecords(self._started, tuple(self._gathered.popleft()))]

    def stored(self, number: int) -> list[Respond]:
        """That batch is durable. Answers that waited for it."""
        invariant(
            number == self._started == self._stored + 1,
            f"batch {number} is said to be stored; {self._started} is under way",
        )
        self._stored = number
        return self._waiting.pop(number, [])

    def lose(self) -> list[Respond]:
        """Nothing more is appended here: whoever waits asks the next coordinator."""
        waiting = [response for answers in self._waiting.values() for response in answers]
        self._waiting.clear()
        self._gathered.clear()
        return [Respond(token, type(reply)(Refusal.NOT_COORDINATOR)) for token, reply, _ in waiting]
