"""One bookie: boots its store, listens, registers last, watches disk and syncs (spec/ledger.md §6).

Owns start and stop order, the read-only decision (6.13) and fail-stop (B-8): when journal or index
fail, `failed` is set, nothing more is acknowledged, and the process must end.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable

import octavo
from octavo.bookie.admission import AdmissionDesk
from octavo.bookie.boot import STREAM, Booted, Booter, Callbacks
from octavo.bookie.config import BookieConfig
from octavo.bookie.connection import Session
from octavo.bookie.control import ControlServer
from octavo.bookie.evidence import EvidenceKeeper
from octavo.bookie.journal.item import CommittedGroup, JournalItem, RetiredSegment
from octavo.bookie.space import SpaceGauge
from octavo.bookie.storage.index_writer import IndexWriter
from octavo.bookie.storage.reads import EntryReader, SegmentFiles
from octavo.bookie.store import BookieStore
from octavo.metadata.bookies import (
    BookieRegistrar,
    BookieRegistration,
    CookieCatalog,
    wait_unregistered,
)
from octavo.metadata.connect import root_of
from octavo.metadata.ledgers import LedgerCatalog
from octavo.metadata.paths import Paths
from octavo.metadata.store import MetadataStore
from octavo.proto import bookie_pb2
from octavo.runtime.address import bare_host, join_address
from octavo.runtime.clock import Clock
from octavo.runtime.disk import Disk, RealDisk
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import IllegalStateError, OctavoError, StorageFailed
from octavo.runtime.ids import Member
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger

WATCH_INTERVAL_S = 1.0
"""How often a sync in progress is looked at; disk space has its own, longer interval."""
CROWDED_FILL = 0.5
"""Above this part of the journal queue, connections with adds in flight are not read."""
UNCROWDED_FILL = 0.25

_log = get_logger("octavo.bookie.server")


class BookieServer:
    """A bookie in this process.

    Args:
        store: a connected metadata store; it stays the caller's.
        disk: file operations; tests give one that fails.
    """

    def __init__(
        self,
        config: BookieConfig,
        *,
        store: MetadataStore,
        clock: Clock,
        entropy: Entropy,
        disk: Disk | None = None,
    ) -> None:
        self.config = config
        self._metadata = store
        self._clock = clock
        self._entropy = entropy
        self._disk = disk or RealDisk()
        self._paths = Paths(root_of(config.metadata_url))
        self._gauge = SpaceGauge(config)
        self._tasks = TaskOwner("bookie", self._on_task_failure)
        self._requests = TaskOwner("bookie-requests", self._on_task_failure)
        self._control = ControlServer(self._info)
        self._sessions: set[Session] = set()
        self._waiting: set[Session] = set()
        self._state = "starting"
        self._booted: Booted | None = None
        self._store: BookieStore | None = None
        self._index_writer: IndexWriter | None = None
        self._files: SegmentFiles | None = None
        self._registrar: BookieRegistrar | None = None
        self._listener: asyncio.Server | None = None
        self._reconsider = asyncio.Event()
        self._keeper: EvidenceKeeper | None = None
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        """Set once when the bookie must stop (B-8, B-28); its result is the reason."""
        self.wire_address = ""
        self.control_address = ""

    # --- what connections see ---------------------------------------------------------------

    @property
    def store(self) -> BookieStore:
        """The store requests go to."""
        if self._store is None:
            raise IllegalStateError("the bookie is not started")
        return self._store

    @property
    def _boot(self) -> Booted:
        if self._booted is None:
            raise IllegalStateError("the bookie is not started")
        return self._booted

    @property
    def cluster_id(self) -> str:
        """The cluster this bookie belongs to."""
        return self._boot.identity.cookie.instance_id

    @property
    def incarnation(self) -> uuid.UUID:
        """The incarnation ensembles name."""
        return self._boot.identity.cookie.incarnation

    @property
    def salvage(self) -> frozenset[bytes]:
        """Older incarnations that ensembles may still name (B-25)."""
        return frozenset(old.bytes for old in self._boot.identity.cookie.salvage)

    @property
    def member(self) -> Member:
        """How ledger metadata names this bookie."""
        return Member(self.config.bookie_id, self.incarnation)

    @property
    def ready(self) -> bool:
        """True while requests are answered."""
        return self._state in ("rw", "ro") and not self.failed.done()

    @property
    def crowded(self) -> bool:
        """True while adds should wait in their sockets."""
        return self._boot.journal.fill() > CROWDED_FILL

    def wait_uncrowded(self, session: Session) -> None:
        """Resume `session` when the journal's queue has drained."""
        self._waiting.add(session)

    # --- start ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Replay, listen, register; raises StorageFailed (with a hint) or MetadataUnavailable."""
        config = self.config
        control_port = await self._control.start(config.host, config.control_port)
        host = config.advertised_host or config.host
        self.control_address = join_address(host, control_port)
        cookies = CookieCatalog(
            self._metadata, self._paths, clock=self._clock, entropy=self._entropy
        )
        booter = Booter(
            config,
            self._disk,
            cookies,
            clock=self._clock,
            entropy=self._entropy,
            claim=self._claim,
        )
        self._booted = await booter.boot(Callbacks(self._sink, self.fail, self._on_roll))
        self._assemble(self._booted)
        await self._measure_space()
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._accept, bare_host(config.host), config.port)
        port = self._listener.sockets[0].getsockname()[1]
        self.wire_address = join_address(host, port)
        state = self._desired_state()
        self._registrar = BookieRegistrar(
            self._metadata,
            self._paths,
            BookieRegistration(
                bookie_id=config.bookie_id,
                incarnation=self.incarnation,
                wire_address=self.wire_address,
                control_address=self.control_address,
                fault_domain=config.fault_domain,
                state="rw" if state == "rw" else "ro",
            ),
            clock=self._clock,
            entropy=self._entropy,
            on_taken=self._on_taken,
        )
        # Until the cluster knows this boot, requests get NOT_READY: a process that loses the
        # registration to another one has changed nothing that the other one relies on (B-28).
        await self._registrar.register(config.registration_wait_s)
        await self._booted.identity.publish_cookie()
        self._apply(state)
        self._tasks.spawn(self._watch_disk(), name="watch disk")
        self._tasks.spawn(self._watch_sync(), name="watch sync")
        self._tasks.spawn(self._keep_state(), name="keep state")
        assert self._keeper is not None
        self._tasks.spawn(self._keeper.run(), name="keep evidence")
        await self._control.set_serving(True)
        _log.info(
            "bookie-started",
            bookie=config.bookie_id,
            incarnation=str(self.incarnation),
            wire=self.wire_address,
            control=self.control_address,
            state=state,
        )

    async def _claim(self) -> None:
        config = self.config
        await wait_unregistered(
            self._metadata,
            self._paths,
            config.bookie_id,
            config.registration_wait_s,
            clock=self._clock,
        )

    def _assemble(self, booted: Booted) -> None:
        config = self.config
        self._files = SegmentFiles(booted.journal_dir, self._disk)
        catalog = LedgerCatalog(
            self._metadata, self._paths, clock=self._clock, entropy=self._entropy
        )
        self._store = BookieStore(
            config,
            incarnation=self.incarnation,
            journal=booted.journal,
            index=booted.index,
            reader=EntryReader(booted.index, self._files),
            desk=AdmissionDesk(catalog, self.member),
            clock=self._clock,
            on_disk_full=self._on_disk_full,
            on_broken=self.fail,
        )
        self._index_writer = IndexWriter(
            booted.index,
            STREAM,
            flush_interval_s=config.memtable_flush_s,
            drop_retired=config.page_cache_bytes is not None,
            clock=self._clock,
            on_visible=self._on_visible,
            on_failure=self.fail,
        )
        self._index_writer.start()
        self._keeper = EvidenceKeeper(
            config, booted.journal, booted.durable_file, booted.identity, self._clock
        )
        booted.journal.start()

    def _accept(self) -> asyncio.BufferedProtocol:
        session = Session(self, self._requests, self._sessions_discard)
        self._sessions.add(session)
        if len(self._sessions) > self.config.connections_max:
            _log.warning("connection-refused", connections=len(self._sessions))
            limit = self.config.connections_max
            session.refuse(f"this bookie serves {limit} connections at a time, and has so many")
        return session.connection

    def _sessions_discard(self, session: Session) -> None:
        self._sessions.discard(session)
        self._waiting.discard(session)

    # --- callbacks --------------------------------------------------------------------------

    def _sink(self, work: CommittedGroup | RetiredSegment) -> None:
        assert self._index_writer is not None
        self._index_writer.put(work)

    def _on_visible(self, items: list[JournalItem]) -> None:
        self.store.on_visible(items)
        if self._waiting and self._boot.journal.fill() < UNCROWDED_FILL:
            waiting, self._waiting = self._waiting, set()
            for session in waiting:
                session.resume()

    def fail(self, error: BaseException) -> None:
        """B-8: fail-stop."""
        if not self.failed.done():
            _log.error("bookie-failed", cause=repr(error))
            self.failed.set_result(error)
        for session in list(self._sessions):
            session.connection.abort(StorageFailed(f"the bookie failed: {error}"))

    def _on_task_failure(self, name: str, error: BaseException) -> None:
        self.fail(error)

    def _on_taken(self) -> None:
        """B-28: another process registered under our id; the loser exits."""
        self.fail(IllegalStateError(f"another process serves as {self.config.bookie_id}"))

    def _on_roll(self, segment: int) -> None:
        if self._keeper is not None:
            self._keeper.roll()

    def _on_disk_full(self) -> None:
        self._gauge.allocation_failed()
        self._reconsider.set()

    # --- background -------------------------------------------------------------------------

    def _desired_state(self) -> str:
        return "rw" if self._gauge.writable else "ro"

    def _apply(self, state: str) -> None:
        self._state = state
        store = self.store
        store.writable = state == "rw"
        store.recovery_writable = self._gauge.recovery_allowed

    async def _measure_space(self) -> None:
        free, total = await asyncio.to_thread(self._disk.free_bytes, self.config.data_dir)
        warned = self._gauge.warn
        self._gauge.observe_space(free, total)
        if self._gauge.warn and not warned:
            _log.warning("disk-filling", free_bytes=free, total_bytes=total)

    async def _watch_disk(self) -> None:
        while True:
            await self._clock.sleep(self.config.disk_check_s)
            await self._measure_space()
            self._reconsider.set()

    async def _watch_sync(self) -> None:
        logged = False
        while True:
            await self._clock.sleep(min(WATCH_INTERVAL_S, self.config.sync_log_s))
            started = self._boot.journal.sync_started_s
            running = None if started is None else self._clock.monotonic() - started
            slow = running is not None and running > self.config.sync_log_s
            if slow and not logged:
                _log.warning("slow-sync", running_s=running)
            logged = slow
            self._gauge.observe_sync(running)
            if self._gauge.writable != self.store.writable:
                self._reconsider.set()

    async def _keep_state(self) -> None:
        """6.13: read-only at once, writable only after the metadata store knows."""
        while True:
            await self._reconsider.wait()
            self._reconsider.clear()
            state = self._desired_state()
            if state == "ro" or state == self._state:
                self._apply(state)
            assert self._registrar is not None
            if state != self._registrar.state:
                _log.warning("bookie-state", state=state, free_bytes=self._gauge.free_bytes)
                try:
                    await self._registrar.switch("rw" if state == "rw" else "ro")
                except OctavoError as error:
                    _log.warning("state-not-registered", cause=str(error))
                    await self._clock.sleep(WATCH_INTERVAL_S)
                    self._reconsider.set()
                    continue
            if state == self._desired_state():
                self._apply(state)

    # --- information ------------------------------------------------------------------------

    def _info(self) -> bookie_pb2.InfoReply:
        reply = bookie_pb2.InfoReply(
            bookie_id=self.config.bookie_id, state=self._state, version=octavo.__version__
        )
        if self._booted is not None and self._store is not None:
            journal = self._booted.journal
            reply.incarnation = str(self.incarnation)
            reply.cluster_id = self.cluster_id
            reply.journal_bytes_written = journal.bytes_written
            reply.journal_syncs = journal.syncs
            reply.entries_added = self._store.stats.entries_added
            reply.entries_read = self._store.stats.entries_read
            reply.free_bytes = self._gauge.free_bytes
            reply.segments = journal.segment
            reply.ledgers = self._store.ledgers_in_memory
            reply.queue_bytes = journal.queued_bytes
        return reply

    # --- stop -------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Unregister, finish what was accepted, make it provable, close. Safe after a failed
        start.

        A step that fails is logged and does not keep the others from being done: nothing that was
        acknowledged depends on a stop in good order.
        """
        self._state = "stopping"
        await self._end("health", self._control.set_serving(False))
        await self._end("tasks", self._tasks.close())
        if self._registrar is not None:
            await self._end("registration", self._registrar.close())
        if self._listener is not None:
            self._listener.close()
        booted = self._booted
        if booted is not None:
            await self._close_store(booted)
        await self._end("requests", self._requests.close())
        for session in list(self._sessions):
            session.connection.close()
        if booted is not None:
            booted.lock.release()
            self._booted = None
        await self._end("control", self._control.stop())

    async def _close_store(self, booted: Booted) -> None:
        await self._end("journal", asyncio.to_thread(booted.journal.stop))
        if self._index_writer is not None:
            await self._end("index writer", asyncio.to_thread(self._index_writer.stop))
        if self._keeper is not None and not self.failed.done():
            await self._end("evidence", self._keeper.finish())
        await self._end("durable file", asyncio.to_thread(booted.durable_file.close))
        if self._store is not None:
            await self._end("store", self._store.close())
        if self._files is not None:
            await self._end("files", asyncio.to_thread(self._files.close))
        await self._end("index", asyncio.to_thread(booted.index.close))

    async def _end(self, what: str, step: Awaitable[object]) -> None:
        try:
            await step
        except Exception as error:  # noqa: BLE001 - the other steps must be done
            _log.error("stop-incomplete", part=what, cause=repr(error))
