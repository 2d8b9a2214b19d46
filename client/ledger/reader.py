"""Reading confirmed entries of one ledger; never fences, never changes metadata (§5).

Owns the reader's view of the record and of the LAC, the order in which replicas are asked,
speculative requests, and the rule that only explicit negatives of all Qw replicas mean "absent"
(RD-3).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from octavo.client.ledger.calls import BookieCalls
from octavo.client.ledger.pool import BookiePool
from octavo.client.ledger.record_view import RecordView
from octavo.client.ledger.replicas import ReplicaOrder
from octavo.client.ledger.tally import fence_covered
from octavo.metadata.ledger_record import LedgerMetadata, LedgerState
from octavo.proto.bookie_wire import MAX_ENTRIES_PER_FRAME, ReadReply, ReadRequest, Status
from octavo.proto.entry import MAX_ENTRY_BYTES
from octavo.runtime.checksum import Buffer
from octavo.runtime.clock import Clock
from octavo.runtime.errors import MetadataUnavailable, NoSuchEntry, NoSuchLedger, ReadUnknown
from octavo.runtime.ids import NO_ENTRY, EntryId, Member
from octavo.runtime.tasks import TaskOwner

_log = logging.getLogger("octavo.ledger.reader")
_POLL_PAUSE_S = 0.1
"""Pause between long polls that end at once."""
_NEGATIVE = (Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER)
_GONE_HINT = (
    "describe the topic again: start the query, job or export anew; trash_delay_ms of the brokers "
    "is how long they keep ledgers that they replaced or trimmed, for those who read them"
)


class LedgerReader:
    """Reads one ledger up to its last entry, or up to the LAC while it is not CLOSED (RD-1)."""

    def __init__(
        self,
        view: RecordView,
        pool: BookiePool,
        *,
        clock: Clock,
        own_lac: Callable[[], EntryId] | None = None,
    ) -> None:
        self._view = view
        self._pool = pool
        self._config = pool.config
        self._calls = BookieCalls(pool)
        self._clock = clock
        self._order = ReplicaOrder(pool, clock, slow_s=self._config.slow_replica_s)
        self._lac: EntryId = NO_ENTRY
        self._own_lac = own_lac

    @property
    def metadata(self) -> LedgerMetadata:
        """The record as last read."""
        return self._view.metadata

    async def close(self) -> None:
        """Stop following the record; the connections are the pool's."""
        await self._view.close()

    # --- how far ---

    def _known_end(self) -> EntryId:
        """RD-1: last entry of a CLOSED ledger, else the LAC known so far."""
        record = self.metadata
        if record.state is LedgerState.CLOSED and record.last_entry is not None:
            return record.last_entry
        if self._own_lac is not None:
            self._lac = max(self._lac, self._own_lac())
        return self._lac

    async def last_add_confirmed(self) -> EntryId:
        """The LAC, asked anew: the maximum over the last ensemble's replies (RD-5, RD-8)."""
        record = self.metadata
        if record.state is not LedgerState.CLOSED:
            await self._poll_lac(previous=-1, wait_s=0.0)
        return self._known_end()

    async def wait_beyond(self, entry: EntryId, timeout_s: float) -> EntryId:
        """The LAC once it is above `entry`, or as it is after `timeout_s` (RD-7).

        Returns at once for a CLOSED ledger: its end never moves.
        """
        deadline = self._clock.monotonic() + timeout_s
        while self._known_end() <= entry and self.metadata.state is not LedgerState.CLOSED:
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0:
                break
            started = self._clock.monotonic()
            fenced = await self._poll_lac(previous=entry, wait_s=left_s)
            if fenced:
                await self._refresh_quietly()
            if self._known_end() <= entry and self._clock.monotonic() - started < _POLL_PAUSE_S:
                # Fenced and not closed yet, or nobody answers: do not spin.
                await self._clock.sleep(min(_POLL_PAUSE_S, left_s))
        return self._known_end()

    async def _poll_lac(self, *, previous: int, wait_s: float) -> bool:
        """Ask every member of the last ensemble; True when one says the ledger is fenced.

        Waits for coverage (RD-8), or for the first one above `previous` when that is a long poll.
        """
        record = self.metadata
        tasks = TaskOwner("read LAC")
        members = record.last_fragment[1]
        answered: set[int] = set()
        asked = [
            tasks.spawn(self._ask_lac(slot, member, previous, wait_s, answered), name=str(member))
            for slot, member in enumerate(members)
        ]
        changed = tasks.spawn(self._view.wait_changed(), name="record changed")
        fenced = False
        try:
            waiting: set[asyncio.Task[object]] = {*asked}
            while waiting:
                done, _ = await asyncio.wait(
                    {*waiting, changed}, return_when=asyncio.FIRST_COMPLETED
                )
                waiting -= done
                fenced = fenced or any(t.result() is True for t in done if t is not changed)
                if changed in done and self.metadata is not record:
                    break
                if wait_s > 0 and (self._lac > previous or fenced):
                    break
                if wait_s == 0 and fence_covered(answered, record.quorum):
                    break
        finally:
            await tasks.close()
        return fenced

    async def _ask_lac(
        self, slot: int, member: Member, previous: int, wait_s: float, answered: set[int]
    ) -> bool:
        reply = await self._calls.read_lac(
            self.metadata.ledger_id,
            member,
            previous=previous,
            wait_s=wait_s,
            timeout_s=self._config.request_timeout_s,
        )
        if reply.status is Status.OK or reply.status in _NEGATIVE:
            answered.add(slot)
        if reply.status is Status.OK and reply.lac > self._lac:
            self._lac = reply.lac  # RD-5: never goes down
        return reply.fenced

    async def _refresh_quietly(self) -> None:
        try:
            await self._view.refresh()
        except MetadataUnavailable as error:
            _log.info("record of ledger %d not refreshed: %s", self.metadata.ledger_id, error)

    # --- reading ---

    async def read(self, first: EntryId, *, max_count: int, max_bytes: int) -> list[Buffer]:
        """Whole verified entries (header and payload), consecutive from `first`, at least one.

        Views of what a bookie sent; fewer than asked where a fragment ends. Never beyond the last
        entry, or the LAC of a ledger that is not CLOSED (RD-1). Raises NoSuchEntry beyond the end,
        or when every replica says an entry below it does not exist, which is data loss; ReadUnknown
        when no replica can answer for certain.
        """
        if first > self._known_end() and self.metadata.state is not LedgerState.CLOSED:
            await self.last_add_confirmed()
        end = self._known_end()
        if not 0 <= first <= end:
            raise NoSuchEntry(
                f"entry {first} of ledger {self.metadata.ledger_id}: the end is {end}",
                ledger_id=self.metadata.ledger_id,
                end=end,
            )
        count = min(max_count, end - first + 1, MAX_ENTRIES_PER_FRAME)
        max_bytes = min(max_bytes, self._config.read_max_bytes)
        try:
            return await self._read_once(first, count, max_bytes)
        except (ReadUnknown, NoSuchEntry):
            # RD-10: the ensemble may have been rewritten by re-replication.
            before = self.metadata
            await self._refresh_quietly()
            if self.metadata is before or self.metadata.fragments == before.fragments:
                raise
            return await self._read_once(first, count, max_bytes)

    async def _read_once(self, first: EntryId, count: int, max_bytes: int) -> list[Buffer]:
        quorum = self.metadata.quorum
        if quorum.ensemble == quorum.write:  # RD-4: every member holds the whole fragment
            return await self._read_from_replicas(first, self._clip(first, count), max_bytes)
        entries: list[Buffer] = []
        size = 0
        while count > 0 and size < max_bytes:
            step = min(count, self._config.read_parallel)
            got = await self._read_striped(EntryId(first + len(entries)), step, bool(entries))
            for entry in got:
                if entries and size + len(entry) > max_bytes:
                    return entries
                entries.append(entry)
                size += len(entry)
            count -= step
            if len(got) < step:
                break
        return entries

    async def _read_striped(self, first: EntryId, count: int, partial: bool) -> list[Buffer]:
        """Consecutive entries of different write sets at once; a gap ends the result."""
        tasks = TaskOwner("striped read")
        try:
            asked = [
                tasks.spawn(self._read_from_replicas(EntryId(e), 1, MAX_ENTRY_BYTES), name=str(e))
                for e in range(first, first + count)
            ]
            await asyncio.wait(asked)
        finally:
            await tasks.close()
        entries: list[Buffer] = []
        for task in asked:
            error = task.exception()
            if error is not None:
                if entries or partial:
                    break
                raise error
            entries.extend(task.result())
        return entries

    def _clip(self, first: EntryId, count: int) -> int:
        """One request stays inside one fragment."""
        for start, _ in self.metadata.fragments:
            if start > first:
                return min(count, start - first)
        return count

    async def _read_from_replicas(self, first: EntryId, count: int, max_bytes: int) -> list[Buffer]:
        """RD-2: ask replicas in order; the first valid copy wins, a slow one gets a rival."""
        record = self.metadata
        ensemble = record.members_for(first)
        order = self._order.sort([ensemble[slot] for slot in record.write_set(first)])
        tasks = TaskOwner("read")
        waiting: dict[asyncio.Task[ReadReply], Member] = {}
        statuses: list[Status] = []
        try:
            while order or waiting:
                if order and (not waiting or await self._nobody_answered(waiting)):
                    member = order.pop(0)
                    ask = self._ask(record, member, first, count, max_bytes)
                    waiting[tasks.spawn(ask, name=str(member))] = member
                    continue
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    member = waiting.pop(task)
                    reply = task.result()
                    if reply.entries:
                        self._order.answered(member)
                        return reply.entries
                    self._order.failed(member)
                    statuses.append(Status(reply.status))
        finally:
            await tasks.close()
        raise self._failure(record, first, statuses)

    async def _nobody_answered(self, waiting: Mapping[asyncio.Task[ReadReply], Member]) -> bool:
        """True when the speculative delay passed without any reply."""
        done, _ = await asyncio.wait(
            waiting,
            timeout=self._config.speculative_read_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if not done:
            for member in waiting.values():
                self._order.slow(member)
        return not done

    async def _ask(
        self, record: LedgerMetadata, member: Member, first: EntryId, count: int, max_bytes: int
    ) -> ReadReply:
        request = ReadRequest(
            member.incarnation.bytes, record.ledger_id, first, count, max(1, max_bytes)
        )
        return await self._calls.read(
            request, member, recovery=False, timeout_s=self._config.request_timeout_s
        )

    def _failure(
        self, record: LedgerMetadata, first: EntryId, statuses: Sequence[Status]
    ) -> NoSuchEntry | NoSuchLedger | ReadUnknown:
        """RD-3: absent only if all Qw said so; below the end that is data loss.

        Unless the record is a fixed one and all of the ledger went.
        """
        names = ", ".join(status.name for status in statuses)
        what = f"entry {first} of ledger {record.ledger_id}: {names}"
        if len(statuses) == record.quorum.write and all(s in _NEGATIVE for s in statuses):
            if self._view.is_fixed and set(statuses) == {Status.NO_SUCH_LEDGER}:
                return NoSuchLedger(
                    f"no bookie has ledger {record.ledger_id} any more: since it was described its "
                    "records were compacted, trimmed or moved, or its topic was deleted",
                    hint=_GONE_HINT,
                    ledger_id=record.ledger_id,
                )
            _log.error("data loss: %s", what)
            return NoSuchEntry(f"data loss, {what}", ledger_id=record.ledger_id, entry_id=first)
        return ReadUnknown(what, ledger_id=record.ledger_id, entry_id=first)
