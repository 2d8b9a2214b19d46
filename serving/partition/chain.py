"""The asyncio shell of one partition's segment list: claim it, publish changes, sweep its trash.

Everything that changes the list is a compare-and-set against the version this owner saw last. A
conflict with another owner's epoch is NotLeader at once; an outcome that stays unknown is settled
by re-reading before anything else is tried (M-3, ML-7). This is the second half of the argument
why two owners can never both append (ledger §8.3): an owner rolls only through this list. A new
ledger is created by the very write that lists it, or that names it in the trash (ADR 61).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from octavo.metadata.ledger_record import LedgerMetadata, Quorum
from octavo.metadata.topics import PartitionCatalog, PartitionState, VersionedPartition
from octavo.proto.segments import Segment
from octavo.runtime.clock import Clock
from octavo.runtime.errors import (
    KeyExists,
    KeyMissing,
    LedgerConflict,
    MetadataUnavailable,
    NoSuchLedger,
    NotLeader,
    OctavoError,
    RetriableError,
    UnknownOutcome,
    UnknownTopic,
    VersionConflict,
)
from octavo.runtime.ids import LedgerId
from octavo.runtime.telemetry import get_logger
from octavo.serving import segments as lists
from octavo.serving.ledger_backend import LedgerBackend, Writer
from octavo.serving.partition.name import PartitionName

CLAIM_ATTEMPTS_MAX = 8
"""ML-4 starts over when the list changed under it; beyond this somebody else should own it."""
CHANGE_ATTEMPTS_MAX = 3
"""Writes of one `change` before its caller pauses; each but the first follows a re-read."""
TRASH_SWEEP_MAX = 32
"""Ledgers deleted in one sweep, at once: rolls of the partition wait for it."""

_log = get_logger("octavo.serving.partition.chain")

Closed = dict[LedgerId, LedgerMetadata]
Load = Callable[[PartitionState, Closed], Awaitable[dict[LedgerId, Segment]]]
"""Given the list and the CLOSED records of its last ledgers: the segments with their counts."""


class SegmentChain:
    """The list of one partition as its present owner sees it."""

    def __init__(
        self,
        name: PartitionName,
        quorum: Quorum,
        *,
        backend: LedgerBackend,
        catalog: PartitionCatalog,
        clock: Clock,
        allow_degraded: bool,
    ) -> None:
        self._name = name
        self.quorum = quorum
        """Of the next ledger."""
        self._backend = backend
        self._catalog = catalog
        self._clock = clock
        self._allow_degraded = allow_degraded
        self._record: VersionedPartition | None = None
        self._in_doubt = False  # the last compare-and-set may or may not have happened
        self._draft: LedgerMetadata | None = None  # not (or not surely) created and listed yet
        self.kept: set[LedgerId] = set()
        """Reserved ledgers that a cleaner here is writing: they stay, whatever their age (K7)."""
        self._listeners: list[Callable[[PartitionState], None]] = []

    @property
    def state(self) -> PartitionState:
        """The list as last read or written."""
        return self._owned.state

    @property
    def _owned(self) -> VersionedPartition:
        if self._record is None:
            raise NotLeader(f"{self._name} is not loaded")
        return self._record

    @property
    def owner_epoch(self) -> int:
        """The epoch this owner claimed."""
        return self.state.owner_epoch

    async def claim(self, load: Load) -> None:
        """Become the owner (ML-4): recover what is open, fill counts, CAS with owner epoch + 1.

        Raises retriable errors when bookies or the metadata store do not answer, NotLeader when the
        list kept changing, UnknownTopic when the topic is gone.
        """
        for _ in range(CLAIM_ATTEMPTS_MAX):
            found = await self._read_or_create()
            closed: Closed = {}
            for segment in lists.to_recover(found.state):
                closed[segment.ledger_id] = await self._recover_listed(segment)
            sealed = await load(found.state, closed)
            wanted = lists.claimed(found.state, sealed, self._clock.wall_ms())
            try:
                self._adopt(await self._catalog.cas(found, wanted))
            except (VersionConflict, UnknownOutcome):
                continue  # somebody else is at work, or our own claim succeeded: start over
            except KeyMissing:
                raise UnknownTopic(f"topic {self._name.topic!r} was deleted") from None
            _log.info("partition-claimed", partition=str(self._name), epoch=self.owner_epoch)
            return
        raise NotLeader(f"{self._name}: the segment list kept changing while it was opened")

    async def _read_or_create(self) -> VersionedPartition:
        found = await self._catalog.read(self._name.topic_id, self._name.partition)
        if found is not None:
            return found
        try:
            first = lists.first_state(self._name.topic_id, self._name.partition)
            return await self._catalog.create(first)
        except (KeyExists, UnknownOutcome):  # made by another, or by us and written to since
            found = await self._catalog.read(self._name.topic_id, self._name.partition)
            if found is None:
                raise UnknownTopic(f"topic {self._name.topic!r} was deleted") from None
            return found

    async def _recover_listed(self, segment: Segment) -> LedgerMetadata:
        try:
            closed = await self._backend.recover_ledger(segment.ledger_id)
        except NoSuchLedger as error:  # ML-4: never a silent removal
            _log.error(
                "listed-ledger-missing", partition=str(self._name), ledger_id=segment.ledger_id
            )
            raise LedgerConflict(
                f"{self._name} lists ledger {segment.ledger_id}, which does not exist",
                hint="data was deleted from under the topic; restore the metadata or ask for help",
            ) from error
        if segment.end_offset is not None and closed.last_entry != segment.last_entry:
            raise LedgerConflict(
                f"ledger {segment.ledger_id} ends at entry {closed.last_entry}, "
                f"the list of {self._name} says {segment.last_entry}"
            )
        return closed

    async def change(
        self,
        fn: Callable[[PartitionState], PartitionState],
        *,
        creates: LedgerMetadata | None = None,
    ) -> PartitionState:
        """Publish a new list: the one way in which an owner changes it (ML-5, ML-7, ML-9).

        `creates`: a drafted ledger that the new list names; it exists once the list names it.

        `fn` gets the list as it is and returns the list as it should be; it is called again on
        what a re-read found, after a conflict or when the outcome of a write is not known, and
        returns what it was given when that shows the change already. Listeners are told of each
        new list once. Raises NotLeader when another owner changed the list, UnknownTopic when the
        topic is gone, MetadataUnavailable or UnknownOutcome when nothing is certain: the next
        `change` reads first. A cancelled call leaves the same doubt.
        """
        if self._in_doubt:
            await self._settle_doubt()
        for _ in range(CHANGE_ATTEMPTS_MAX):
            before = self._owned
            wanted = fn(before.state)
            if wanted == before.state:
                return before.state
            self._in_doubt = True
            try:
                self._adopt(await self._catalog.cas(before, wanted, creates=creates))
            except (VersionConflict, UnknownOutcome):
                await self._settle_doubt()
            except KeyMissing:
                raise UnknownTopic(f"topic {self._name.topic!r} was deleted") from None
            except KeyExists as error:
                raise self._taken(creates, error) from error
            else:
                self._in_doubt = False
                return self.state
        raise UnknownOutcome(f"{self._name}: the segment list kept changing while it was written")

    def listen(self, callback: Callable[[PartitionState], None]) -> None:
        """Call `callback` with each new list, whoever wrote it, once and in order."""
        self._listeners.append(callback)

    async def publish(
        self, *, sealed: Segment | None, open_new: bool, base_offset: int
    ) -> Writer | None:
        """One roll step (ML-5): list what was closed and, if asked, a new ledger.

        The returned writer may be written to: its ledger is in the list (ledger §8.3, point 4).
        It is returned although none was asked for when an earlier write of unknown outcome listed
        it. Raises as `change`; after a retriable error call it again.
        """
        if self._in_doubt:
            await self._settle_doubt()
        draft = self._waiting_draft()
        if open_new and draft is None:
            draft = self._draft = await self._backend.draft_ledger(
                self.quorum,
                self._custom("topic"),
                allow_degraded=self._allow_degraded,
                above=self.state.max_ledger_id_ever,
            )
        opened = (draft.ledger_id, base_offset) if draft is not None and open_new else None
        now_ms = self._clock.wall_ms()

        def roll(state: PartitionState) -> PartitionState:
            if draft is not None and lists.names(state, draft.ledger_id):
                return state  # with the seal: both are one write
            return lists.advanced(state, sealed=sealed, opened=opened, now_ms=now_ms)

        await self.change(roll, creates=draft if open_new else None)
        if draft is None or not lists.names(self.state, draft.ledger_id):
            return None
        self._draft = None
        return self.writer_of(draft)

    def _waiting_draft(self) -> LedgerMetadata | None:
        """What an earlier write may have listed; None when nobody may list it any more (ML-3).

        That is so when a ledger with a higher id was listed meanwhile. Then it does not exist.
        """
        draft = self._draft
        if (
            draft is not None
            and not lists.names(self.state, draft.ledger_id)
            and draft.ledger_id <= self.state.max_ledger_id_ever
        ):
            draft = self._draft = None
        return draft

    def _taken(self, creates: LedgerMetadata | None, error: KeyExists) -> OctavoError:
        """A restored backup drew an old id (ID-3): nothing was written, another one is drawn."""
        self._in_doubt = False
        if creates is None:
            return error
        if creates is self._draft:
            self._draft = None
        _log.error("ledger-id-taken", partition=str(self._name), ledger_id=creates.ledger_id)
        return MetadataUnavailable(
            f"{self._name}: ledger {creates.ledger_id} exists already",
            hint="the metadata went back to an older state; another id is drawn",
        )

    async def trim(self, log_start: int, open_snapshot: LedgerId | None, reason: str) -> None:
        """The log begins at `log_start` or later (R4): listed first, ledgers go by the trash.

        Raises as `change`; when the outcome is not known, either list is valid.
        """
        now_ms = self._clock.wall_ms()
        await self.change(
            lambda state: lists.trimmed(
                state, log_start, reason=reason, now_ms=now_ms, open_snapshot=open_snapshot
            )
        )

    async def draft_reserved(self) -> LedgerMetadata:
        """A ledger for a cleaner, with all of its copies (A6), for a change that reserves it.

        The trash's sweep leaves it alone until `kept` loses it.
        """
        draft = await self._backend.draft_ledger(
            self.quorum, self._custom("cleaned"), allow_degraded=False
        )
        self.kept.add(draft.ledger_id)
        return draft

    def writer_of(self, created: LedgerMetadata) -> Writer:
        """The writer of a ledger that a change of the list created."""
        return self._backend.writer_of(created, self.quorum)

    def _custom(self, kind: str) -> dict[str, str]:
        name = self._name
        return {
            "kind": kind,
            "topic": name.topic,
            "topic_id": name.topic_id.hex,
            "partition": str(name.partition),
            "owner_epoch": str(self.owner_epoch),
        }

    def _adopt(self, record: VersionedPartition) -> None:
        """This is the list now; a list that was read again unchanged is no news."""
        is_new = self._record is None or record.state != self._record.state
        self._record = record
        if is_new:
            for callback in self._listeners:
                callback(record.state)

    async def _settle_doubt(self) -> None:
        """Re-read the list (ML-7); another epoch means another owner: stop (ledger §8.3)."""
        epoch = self.owner_epoch
        found = await self._catalog.read(self._name.topic_id, self._name.partition)
        if found is None:
            raise UnknownTopic(f"topic {self._name.topic!r} was deleted")
        if found.state.owner_epoch != epoch:
            raise NotLeader(
                f"{self._name} is owned under epoch {found.state.owner_epoch}, ours was {epoch}"
            )
        self._adopt(found)
        self._in_doubt = False

    async def still_ours(self) -> bool:
        """Whether the list still carries our epoch; raises MetadataUnavailable."""
        found = await self._catalog.read(self._name.topic_id, self._name.partition)
        return found is not None and found.state.owner_epoch == self.owner_epoch

    async def sweep_trash(self, delay_ms: int) -> int:
        """Delete trashed ledgers that waited long enough (ML-9); returns how many."""
        due = lists.due_trash(self.state, self._clock.wall_ms(), delay_ms)
        due = [item for item in due if item.ledger_id not in self.kept][:TRASH_SWEEP_MAX]
        deleted = await asyncio.gather(*(self._delete(item.ledger_id) for item in due))
        gone = [item for item, is_gone in zip(due, deleted, strict=True) if is_gone]
        if gone:
            try:
                await self.change(lambda state: lists.without_trash(state, gone))
            except RetriableError as error:
                if isinstance(error, NotLeader):
                    raise
                _log.info("trash-not-forgotten", partition=str(self._name), cause=error.cause)
        return len(gone)

    async def _delete(self, ledger_id: LedgerId) -> bool:
        try:
            await self._backend.delete_ledger(ledger_id)
        except NoSuchLedger:
            return True
        except OctavoError as error:
            _log.warning("trash-not-deleted", ledger_id=ledger_id, cause=error.cause)
            return False
        return True
