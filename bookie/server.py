"""One bookie: boots its store, listens, registers last, watches disk and syncs (spec/ledger.md §6).

Owns start and stop order, the read-only decision (6.13) and fail-stop (B-8): when journal or index
fail, `failed` is set, nothing more is acknowledged, and the process must end.
"""

from __future__ import annotations

import asyncio
import uuid

from octavo.bookie.boot import Booted, Booter, Callbacks
from octavo.bookie.config import BookieConfig
from octavo.bookie.connection import Session
from octavo.bookie.connection_memory import UnsentReplies, eager_bytes
from octavo.bookie.control import ControlServer
from octavo.bookie.directory_lock import DirectoryLock
from octavo.bookie.faults import from_os_error, is_full
from octavo.bookie.held import HoldWatch
from octavo.bookie.information import InformationDesk
from octavo.bookie.journal.item import CommittedGroup, JournalItem, RetiredSegment
from octavo.bookie.opened import OpenedStore, StoreEvents, end_part
from octavo.bookie.reclaim.reclaimer import BookieMetadata
from octavo.bookie.space import SpaceGauge
from octavo.bookie.storage.index import IndexEngine
from octavo.bookie.storage.rocks_index import RocksEngine
from octavo.bookie.store import BookieStore
from octavo.metadata.bookies import (
    BookieRegistrar,
    BookieRegistration,
    CookieCatalog,
    wait_unregistered,
)
from octavo.metadata.connect import root_of
from octavo.metadata.ledger_ids import LedgerIdAllocator
from octavo.metadata.ledgers import LedgerCatalog
from octavo.metadata.paths import Paths
from octavo.metadata.repairs import RepairCatalog
from octavo.metadata.store import MetadataStore
from octavo.proto.endpoints import SocketNetwork
from octavo.proto.transport import Listening, Network
from octavo.runtime.address import join_address
from octavo.runtime.clock import Clock
from octavo.runtime.disk import Disk, RealDisk
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import (
    IllegalStateError,
    NotReady,
    OctavoError,
    StorageFailed,
    StorageFull,
)
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
        indexes: opens the index; RocksDB by default, tests and simulators keep it in memory.
        network: takes the connections of the framed wire; sockets by default.
    """

    def __init__(
        self,
        config: BookieConfig,
        *,
        store: MetadataStore,
        clock: Clock,
        entropy: Entropy,
        disk: Disk | None = None,
        indexes: IndexEngine | None = None,
        network: Network | None = None,
    ) -> None:
        self.config = config
        self._metadata = store
        self._clock = clock
        self._entropy = entropy
        self._disk = disk or RealDisk()
        self._indexes = indexes or RocksEngine()
        self._network = network or SocketNetwork()
        self._paths = Paths(root_of(config.metadata_url))
        self._gauge = SpaceGauge(config)
        self._tasks = TaskOwner("bookie", self._on_task_failure)
        self._requests = TaskOwner("bookie-requests", self._on_task_failure)
        self.desk = InformationDesk(
            config, self._gauge, state=lambda: self._state, opened=lambda: self._opened
        )
        self._control = ControlServer(
            self.desk.info, self.desk.collect, self.desk.scrub, self.desk.list_ledgers
        )
        self._sessions: set[Session] = set()
        self.unsent = UnsentReplies(config.unsent_replies_max_bytes)
        """Replies that clients do not take (BP-2)."""
        self._waiting: set[Session] = set()
        self._state = "starting"
        self._opened: OpenedStore | None = None
        self._registrar: BookieRegistrar | None = None
        self._hold: HoldWatch | None = None
        self._listener: Listening | None = None
        self._reconsider = asyncio.Event()
        self._no_space = asyncio.Event()
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        """Set once when the bookie must stop (B-8, B-28); its result is the reason."""
        self.wire_address = ""
        self.control_address = ""

    # --- what connections see ---------------------------------------------------------------

    @property
    def store(self) -> BookieStore:
        """The store requests go to."""
        opened = self._opened  # each frame asks: no hop through `_open`
        return opened.store if opened is not None else self._open.store

    @property
    def _open(self) -> OpenedStore:
        if self._opened is None:
            raise IllegalStateError("the bookie is not started")
        return self._opened

    @property
    def _boot(self) -> Booted:
        return self._open.booted

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
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._sessions)

    @property
    def ready(self) -> bool:
        """True while requests are answered."""
        return self._state in ("rw", "ro") and not self.failed.done()

    @property
    def eager_bytes(self) -> int:
        """Up to this size a frame of a greeted client gets its memory at once."""
        return eager_bytes(self._sessions)

    @property
    def crowded(self) -> bool:
        """True while adds should wait in their sockets."""
        opened = self._opened or self._open
        return opened.booted.journal.fill() > CROWDED_FILL

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
        await self._open_store(None)
        await self._measure_space()
        self._hold = HoldWatch(
            self._metadata, self._paths, self.member, self._clock, self._reconsider.set
        )
        await self._hold.look()
        self._listener = await self._network.listen(self._accept, config.host, config.port)
        self.wire_address = join_address(host, self._listener.port)
        state = self._desired_state()
        self._apply(state)
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
        # Before the registration is won the cluster is told nothing of this boot: a copy that loses
        # it has changed nothing that the other process relies on (B-28).
        await self._registrar.register(config.registration_wait_s)
        await self._announce()
        self._tasks.spawn(self._watch_disk(), name="watch disk")
        self._tasks.spawn(self._watch_sync(), name="watch sync")
        self._tasks.spawn(self._hold.follow(), name="follow hold")
        self._tasks.spawn(self._keep_state(), name="keep state")
        self._tasks.spawn(self._reopen_when_full(), name="reopen")
        await self._control.started()
        await self._tell_health()
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

    async def _begin_epoch(self) -> None:
        await LedgerIdAllocator(self._metadata, self._paths, self._clock).raise_epoch()

    async def _open_store(self, lock: DirectoryLock | None) -> None:
        """Boot the directory and start what works on it."""
        config, clock, entropy = self.config, self._clock, self._entropy
        cookies = CookieCatalog(self._metadata, self._paths, clock=clock, entropy=entropy)
        booter = Booter(
            config,
            self._disk,
            cookies,
            self._indexes,
            clock=clock,
            entropy=entropy,
            claim=self._claim,
            on_older_store=self._begin_epoch,
        )
        callbacks = Callbacks(self._sink, self._on_storage_failure, self._on_roll)
        booted = await booter.boot(callbacks, lock)
        if booted.frozen:
            self._gauge.allocation_failed()
        opened = OpenedStore(
            config,
            booted,
            disk=self._disk,
            metadata=BookieMetadata(
                self._metadata,
                LedgerCatalog(self._metadata, self._paths, clock=clock, entropy=entropy),
                cookies,
                LedgerIdAllocator(self._metadata, self._paths, clock),
                RepairCatalog(self._metadata, self._paths, clock=clock),
            ),
            clock=clock,
            entropy=entropy,
            events=StoreEvents(
                on_visible=self._on_visible,
                on_disk_full=self._on_disk_full,
                on_failure=self._on_storage_failure,
                on_broken=self.fail,
            ),
        )
        self.desk.index_rebuilds += booted.index_is_new
        self._opened = opened
        opened.start()

    async def _announce(self) -> None:
        """The registration is ours: tell the cluster of this boot, then keep telling."""
        opened = self._open
        if not opened.booted.frozen:
            try:
                await opened.booted.identity.publish_cookie()
            except OSError as error:
                raise from_os_error(f"the cookie in {self.config.data_dir}", error) from error
            opened.keep_evidence(self._on_task_failure)
            await opened.reclaim()

    async def _reopen_when_full(self) -> None:
        """6.13: end a store without space, or a frozen one that has it again, in a boot in place.

        The disk filled up under the index or an open segment. As a restart would, with the same
        safety.
        """
        while True:
            await self._no_space.wait()
            self._no_space.clear()
            _log.warning("storage-opens-again", frozen=self._boot.frozen)
            await self._reopen()

    async def _reopen(self) -> None:
        self._state = "reopening"
        await self._tell_health()
        for session in list(self._sessions):
            session.connection.abort(NotReady("the bookie opens its storage again"))
        requests, self._requests = (
            self._requests,
            TaskOwner("bookie-requests", self._on_task_failure),
        )
        await requests.close()
        lock = self._boot.lock
        await self._open.close()
        await self._open_store(lock)
        await self._announce()
        if not self._boot.frozen:
            await self._measure_space()
        self._apply(self._desired_state())
        self._reconsider.set()

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
        opened = self._opened or self._open
        opened.index_writer.put(work)

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

    def _on_storage_failure(self, error: BaseException) -> None:
        """Journal or index stopped for good.

        Without space the storage is opened again, read-only if need be (6.13); anything else is
        fail-stop (B-8).
        """
        full = isinstance(error, StorageFull) or (isinstance(error, OSError) and is_full(error))
        if not full or self.failed.done():
            self.fail(error)
            return
        _log.error("storage-full", cause=str(error))
        self._gauge.allocation_failed()
        self._state = "reopening"
        self._no_space.set()

    def _on_task_failure(self, name: str, error: BaseException) -> None:
        self.fail(error)

    def _on_taken(self) -> None:
        """B-28: another process registered under our id; the loser exits."""
        self.fail(IllegalStateError(f"another process serves as {self.config.bookie_id}"))

    def _on_roll(self, segment: int) -> None:
        self._open.keeper.roll()

    def _on_disk_full(self) -> None:
        self._gauge.allocation_failed()
        self._reconsider.set()

    # --- background -------------------------------------------------------------------------

    def _desired_state(self) -> str:
        held = self._hold is not None and self._hold.held
        return "rw" if self._gauge.writable and not self._boot.frozen and not held else "ro"

    def _apply(self, state: str) -> None:
        self._state = state
        store = self.store
        store.writable = state == "rw"
        store.recovery_writable = self._gauge.recovery_allowed

    async def _tell_health(self) -> None:
        await self._control.tell(answers=self.ready, writable=self.ready and self._state == "rw")

    async def _measure_space(self) -> None:
        disks = [(self._gauge.data, self.config.data_dir)]
        if self._gauge.index is not None:
            disks.append((self._gauge.index, self.config.index_home))
        for disk, folder in disks:
            free, total = await asyncio.to_thread(self._disk.free_bytes, folder)
            warned = disk.warn
            disk.observe(free, total)
            if disk.warn and not warned:
                _log.warning("disk-filling", folder=str(folder), free_bytes=free, total_bytes=total)

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
            if self._state == "reopening":
                continue  # it reconsiders when it is done
            if self._boot.frozen and self._gauge.writable:
                self._no_space.set()
            state = self._desired_state()
            if state == "ro" or state == self._state:
                self._apply(state)
                await self._tell_health()
            assert self._registrar is not None
            if state != self._registrar.state:
                _log.warning("bookie-state", state=state, **self._gauge.free_bytes())
                try:
                    await self._registrar.switch("rw" if state == "rw" else "ro")
                except OctavoError as error:
                    _log.warning("state-not-registered", cause=str(error))
                    await self._clock.sleep(WATCH_INTERVAL_S)
                    self._reconsider.set()
                    continue
            if state == self._desired_state():
                self._apply(state)
                await self._tell_health()

    # --- stop -------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Unregister, finish what was accepted, make it provable, close; safe after a failed start.

        A step that fails is logged and does not keep the others from being done: nothing that was
        acknowledged depends on a stop in good order.
        """
        self._state = "stopping"
        await end_part("health", self._control.leave())
        await end_part("tasks", self._tasks.close())
        if self._registrar is not None:
            await end_part("registration", self._registrar.close())
        if self._listener is not None:
            await end_part("listener", self._listener.close())
        if self._opened is not None:
            await self._opened.close(finish=not self.failed.done())
        await end_part("requests", self._requests.close())
        for session in list(self._sessions):
            session.connection.close()
        if self._opened is not None:
            self._boot.lock.release()
            self._opened = None
        await end_part("control", self._control.stop())
