"""A bookie of the simulated world: accept, sync, fence, crash, lose the disk."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from octavo.proto.bookie_wire import Status
from octavo.proto.entry import decode_header
from octavo.runtime.ids import Member

Reply = Callable[[Status, object], None]


@dataclass
class Record:
    """One unsynced record of a bookie's stream and the replies that wait for its sync."""

    entry: int | None  # None: a fence
    data: bytes
    replies: list[Callable[[], None]]


class SimBookie:
    """A bookie by the rules B-1..B-4, B-F1..B-F3, B-25; `hole_h3` plants H3."""

    def __init__(
        self,
        name: str,
        *,
        new_uuid: Callable[[], uuid.UUID],
        on_copy: Callable[[int, Member], None],
        hole_h3: bool = False,
    ) -> None:
        self.name = name
        self._new_uuid = new_uuid
        self._on_copy = on_copy
        self._hole_h3 = hole_h3
        self.incarnation = new_uuid()
        self.salvage: set[uuid.UUID] = set()
        self.alive = True
        self.fenced = False  # volatile flag
        self.fence_durable = False
        self.store: dict[int, bytes] = {}
        self.queue: list[Record] = []

    @property
    def member(self) -> Member:
        return Member(self.name, self.incarnation)

    def add(self, member: Member, entry: int, data: bytes, recovery: bool, reply: Reply) -> None:
        if member != self.member:
            return reply(Status.WRONG_INCARNATION, None)
        if self.fenced and not recovery:
            return reply(Status.FENCED, None)
        known = self.store.get(entry)
        waiting = next((q for q in self.queue if q.entry == entry), None)
        if known is None and waiting is not None:
            known = waiting.data
        if known is not None and known != data:
            return reply(Status.CONFLICT, None)
        if waiting is not None:
            waiting.replies.append(partial(reply, Status.OK, None))
        elif known is not None:
            reply(Status.OK, None)
        else:
            self.queue.append(Record(entry, data, [partial(reply, Status.OK, None)]))
        return None

    def fence(self, member: Member, reply: Reply) -> None:
        if member != self.member:
            lac = self._lac() if member.incarnation in self.salvage else -1
            return reply(Status.OK, lac)
        return self._after_fence(lambda: reply(Status.OK, self._lac()))

    def read(self, member: Member, entry: int, fence: bool, reply: Reply) -> None:
        if member != self.member:
            known = self.store.get(entry)
            return reply(Status.UNKNOWN, None) if known is None else reply(Status.OK, known)
        if fence and self._hole_h3:
            known = self.store.get(entry)  # looks before the accepted adds are durable
            answer = partial(reply, Status.NO_SUCH_ENTRY if known is None else Status.OK, known)
            return self._after_fence(answer)
        if fence:
            return self._after_fence(lambda: self._lookup(entry, reply))
        waiting = next((q for q in self.queue if q.entry == entry), None)
        if waiting is not None:
            waiting.replies.append(lambda: self._lookup(entry, reply))  # INV-9
            return None
        return self._lookup(entry, reply)

    def sync(self, count: int | None = None, *, answer: bool = True) -> None:
        done, self.queue = self.queue[:count], self.queue[len(self.queue[:count]) :]
        for record in done:
            if record.entry is None:
                self.fence_durable = True
            else:
                self.store[record.entry] = record.data
                self._on_copy(record.entry, self.member)
        if answer:
            for record in done:
                for reply in record.replies:
                    reply()

    def crash(self, kept: int) -> None:
        self.sync(kept, answer=False)
        self.queue.clear()
        self.alive = False
        self.fenced = self.fence_durable

    def wipe(self) -> None:
        """The disk is lost; the operator accepts it: a new incarnation (B-25)."""
        self.crash(0)
        self.salvage.add(self.incarnation)
        self.incarnation = self._new_uuid()
        self.store.clear()
        self.fenced = self.fence_durable = False

    def _after_fence(self, then: Callable[[], None]) -> None:
        if self.fence_durable:
            then()
            return
        self.fenced = True
        self.queue.append(Record(None, b"", [then]))

    def _lookup(self, entry: int, reply: Reply) -> None:
        known = self.store.get(entry)
        reply(Status.NO_SUCH_ENTRY if known is None else Status.OK, known)

    def _lac(self) -> int:
        entries = [*self.store.values(), *(q.data for q in self.queue if q.entry is not None)]
        return max((decode_header(data).lac for data in entries), default=-1)
