"""An in-memory storage layer with the promises of the ledger client (spec/ledger.md §3, §4).

Ledger records live in a real metadata store through the real catalog, so every compare-and-set
that keeps two writers apart is the real one. Bookies are one shared dictionary. A test can
withhold acknowledgements, take bookies away, decide how much of an unacknowledged tail a recovery
finds (R-20), and so make every unknown outcome on purpose.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from octavo.metadata.ledger_record import LedgerMetadata, LedgerState, Quorum
from octavo.metadata.ledgers import CREATED_VERSION, LedgerCatalog, VersionedLedger
from octavo.proto.entry import HEADER_BYTES, encode_header
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.errors import (
    Fenced,
    LedgerClosed,
    NoSuchLedger,
    NotEnoughBookies,
    OctavoError,
    ReadUnknown,
    UnknownOutcome,
)
from octavo.runtime.ids import NO_ENTRY, EntryId, LedgerId, Member


@dataclass
class StoredLedger:
    entries: list[bytes] = field(default_factory=list[bytes])
    durable: int = 0
    """Entries 0..durable-1 reached Qa."""
    fenced: bool = False


class MemoryBookies:
    """The shared storage of one test cluster."""

    def __init__(self, bookies: int = 3) -> None:
        entropy = SeededEntropy(1)
        self.members = [Member(f"bookie-{i}", entropy.uuid()) for i in range(1, bookies + 1)]
        self.live = bookies
        self.processes: dict[str, bytes] = {}
        """Nonces of processes by bookie; the others are of the first one."""
        self.ledgers_before: dict[str, int] = {}
        """Ledgers that are older than a bookie's process; of the others none."""
        self.hold = False
        """Entries arrive but nothing is acknowledged."""
        self.first_copies = False
        """While `hold`: one bookie acknowledges."""
        self.survivors: Callable[[int], int] = lambda unacknowledged: 0
        """How many unacknowledged entries the next recovery finds."""
        self.fail_close = False
        self.ledgers: dict[int, StoredLedger] = {}
        self.writers: list[MemoryWriter] = []
        self.deleted: list[int] = []
        self.reads = 0

    def stored(self, ledger_id: int) -> StoredLedger:
        """What they hold of a ledger that has a record; nothing was written to it at first."""
        return self.ledgers.setdefault(ledger_id, StoredLedger())

    def release(self) -> None:
        """Acknowledge again, what was held included."""
        self.hold = False
        for writer in self.writers:
            writer.poke()


class MemoryBackend:
    """One broker's ledger client."""

    def __init__(self, bookies: MemoryBookies, catalog: LedgerCatalog) -> None:
        self._bookies = bookies
        self._catalog = catalog
        self.created = 0

    async def draft_ledger(
        self,
        quorum: Quorum,
        custom: Mapping[str, str],
        *,
        allow_degraded: bool = True,
        above: int = -1,
    ) -> LedgerMetadata:
        live = self._bookies.live
        degraded = live < quorum.write
        if live < quorum.ack or (degraded and not allow_degraded):
            raise NotEnoughBookies(f"{live} bookies live, {quorum.ack} needed")
        if degraded:
            quorum = Quorum(live, live, quorum.ack)
        members = self._bookies.members[: quorum.ensemble]
        return await self._catalog.draft(
            quorum, members, custom=custom, degraded=degraded, above=above
        )

    def writer_of(self, created: LedgerMetadata, wanted: Quorum) -> MemoryWriter:
        self.created += 1
        self._bookies.stored(created.ledger_id)
        versioned = VersionedLedger(created, CREATED_VERSION)
        writer = MemoryWriter(self._bookies, self._catalog, versioned)
        self._bookies.writers.append(writer)
        return writer

    async def recover_ledger(self, ledger_id: LedgerId) -> LedgerMetadata:
        found = await self._catalog.read(ledger_id, barrier=True)
        if found.metadata.state is LedgerState.CLOSED:
            return found.metadata
        quorum = found.metadata.quorum
        if self._bookies.live < quorum.write - quorum.ack + 1:
            raise ReadUnknown(f"ledger {ledger_id}: not enough bookies to fence")
        await self._catalog.update(
            ledger_id,
            lambda record: record.in_recovery() if record.state is LedgerState.OPEN else record,
        )
        stored = self._bookies.stored(ledger_id)
        if not stored.fenced:
            stored.fenced = True
            kept = stored.durable + self._bookies.survivors(len(stored.entries) - stored.durable)
            del stored.entries[kept:]
            stored.durable = len(stored.entries)
        last = EntryId(len(stored.entries) - 1)
        length = sum(len(entry) - HEADER_BYTES for entry in stored.entries)
        closed = await self._catalog.update(
            ledger_id,
            lambda record: (
                record if record.state is LedgerState.CLOSED else record.closed(last, length)
            ),
        )
        return closed.metadata

    def reader_of(self, closed: LedgerMetadata) -> MemoryReader:
        return MemoryReader(self._bookies, self._catalog, closed)

    async def open_reader(self, ledger_id: LedgerId) -> MemoryReader:
        found = await self._catalog.read(ledger_id)
        return MemoryReader(self._bookies, self._catalog, found.metadata)

    async def delete_ledger(self, ledger_id: LedgerId) -> None:
        await self._catalog.delete(await self._catalog.read(ledger_id, barrier=True))
        self._bookies.ledgers.pop(ledger_id, None)
        self._bookies.deleted.append(ledger_id)


@dataclass
class _Op:
    entry_id: EntryId
    on_done: Callable[[EntryId, OctavoError | None], None]
    on_first_copy: Callable[[EntryId], None] | None
    first_told: bool = False


class MemoryWriter:
    """A pipelining writer; acknowledgements come on a later turn of the loop."""

    def __init__(
        self, bookies: MemoryBookies, catalog: LedgerCatalog, made: VersionedLedger
    ) -> None:
        self._bookies = bookies
        self._catalog = catalog
        self._written = made
        self._pending: list[_Op] = []
        self._callbacks: list[Callable[[OctavoError], None]] = []
        self._lac = NO_ENTRY
        self._acked_length = 0
        self.length = 0
        self.stopped: OctavoError | None = None
        self.wants_roll = False

    @property
    def ledger_id(self) -> LedgerId:
        return self._written.metadata.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._written.metadata

    @property
    def in_flight_bytes(self) -> int:
        return self.length - self._acked_length

    @property
    def last_add_confirmed(self) -> EntryId:
        return self._lac

    @property
    def _stored(self) -> StoredLedger:
        return self._bookies.ledgers[self.ledger_id]

    def add(
        self,
        payload: bytes,
        on_done: Callable[[EntryId, OctavoError | None], None],
        on_first_copy: Callable[[EntryId], None] | None = None,
    ) -> EntryId:
        if self.stopped is not None:
            raise self.stopped
        entry_id = EntryId(self._lac + 1 + len(self._pending))
        self.length += len(payload)
        head = encode_header(self.ledger_id, entry_id, self._lac, self.length, payload)
        self._pending.append(_Op(entry_id, on_done, on_first_copy))
        stored = self._bookies.ledgers.get(self.ledger_id)
        if stored is not None and not stored.fenced:
            stored.entries.append(head + payload)
        self.poke()
        return entry_id

    def poke(self) -> None:
        asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        if self.stopped is not None or not self._pending:
            return
        if self.ledger_id not in self._bookies.ledgers or self._stored.fenced:
            self.stop(Fenced(f"ledger {self.ledger_id} was recovered by someone else"))
            return
        if self._bookies.hold or self._bookies.live < self.metadata.quorum.ack:
            if self._bookies.first_copies:
                self._first_copies()
            return
        self._first_copies()
        done, self._pending = self._pending, []
        self._stored.durable = len(self._stored.entries)
        self._lac = EntryId(self._lac + len(done))
        self._acked_length = self.length
        for op in done:
            op.on_done(op.entry_id, None)

    def _first_copies(self) -> None:
        for op in self._pending:
            if op.on_first_copy is not None and not op.first_told:
                op.first_told = True
                op.on_first_copy(op.entry_id)

    def stop(self, error: OctavoError) -> None:
        """W-6: what is pending becomes unknown."""
        if self.stopped is not None:
            return
        self.stopped = error
        pending, self._pending = self._pending, []
        for op in pending:
            op.on_done(op.entry_id, UnknownOutcome(f"ledger stopped: {error.cause}"))
        for callback in self._callbacks:
            callback(error)

    async def append(self, payload: bytes) -> EntryId:
        future: asyncio.Future[EntryId] = asyncio.get_running_loop().create_future()

        def done(entry_id: EntryId, error: OctavoError | None) -> None:
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(entry_id)

        self.add(payload, done)
        return await future

    async def wait_capacity(self) -> None:
        return

    async def close(self) -> LedgerMetadata:
        if self.stopped is not None:
            raise self.stopped
        if self._bookies.fail_close:
            self._bookies.fail_close = False
            raise UnknownOutcome("the close was lost")
        try:
            closed = await self._catalog.close_as_writer(
                self._written, self._lac, self._acked_length
            )
        except Fenced as error:
            self.stop(error)
            raise
        self._stored.fenced = True
        del self._stored.entries[self._lac + 1 :]
        self._stored.durable = len(self._stored.entries)
        self.stop(LedgerClosed(f"ledger {self.ledger_id} is closed"))
        return closed.metadata

    def abandon(self, cause: str) -> None:
        self.stop(LedgerClosed(cause))

    def on_stopped(self, callback: Callable[[OctavoError], None]) -> None:
        self._callbacks.append(callback)


class MemoryReader:
    """Reads confirmed entries."""

    def __init__(
        self, bookies: MemoryBookies, catalog: LedgerCatalog, metadata: LedgerMetadata
    ) -> None:
        self._bookies = bookies
        self._catalog = catalog
        self.metadata = metadata

    async def read(self, first: EntryId, *, max_count: int, max_bytes: int) -> list[bytes]:
        self._bookies.reads += 1
        stored = self._bookies.ledgers.get(self.metadata.ledger_id)
        if stored is None:
            raise NoSuchLedger(f"ledger {self.metadata.ledger_id} was deleted")
        out: list[bytes] = []
        size = 0
        for entry in stored.entries[first : min(first + max_count, stored.durable)]:
            if out and size + len(entry) > max_bytes:
                break
            out.append(entry)
            size += len(entry)
        if not out:
            raise ReadUnknown(f"entry {first} is not confirmed")
        await asyncio.sleep(0)
        return out

    async def last_add_confirmed(self) -> EntryId:
        return EntryId(self._bookies.ledgers[self.metadata.ledger_id].durable - 1)

    async def wait_beyond(self, entry: EntryId, timeout_s: float) -> EntryId:
        return await self.last_add_confirmed()

    async def close(self) -> None:
        return
