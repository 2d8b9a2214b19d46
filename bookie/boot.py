"""From a directory to a store that may serve: lock, cookies, replay, new segment.

spec/ledger.md §6.8 and §6.11.

Owns the order of these steps and the refusal when the history is in doubt (B-23). Nothing is served
and nothing is registered before `boot()` returns (B-17).
"""

from __future__ import annotations

import asyncio
import pathlib
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from octavo.bookie.config import BookieConfig
from octavo.bookie.directory_lock import LOCK_FILE, DirectoryLock
from octavo.bookie.faults import from_os_error
from octavo.bookie.identity import (
    ACCEPT_HINT,
    COOKIE_FILE,
    DIRECTORY_ROLE,
    FIRST_COOKIE_FILE,
    OLDER_STORE_HINT,
    BootKind,
    Identity,
    Judgement,
)
from octavo.bookie.index_home import IndexHome
from octavo.bookie.journal.durable_file import DURABLE_FILE, DurableFile
from octavo.bookie.journal.folder import SegmentFolder
from octavo.bookie.journal.item import CommittedGroup, RetiredSegment
from octavo.bookie.journal.options import JournalOptions
from octavo.bookie.journal.refusing import RefusingJournal
from octavo.bookie.journal.replay import Evidence, Span, Verdict, judge, span_records
from octavo.bookie.journal.segment import (
    START,
    Position,
    Record,
    SegmentHeader,
)
from octavo.bookie.journal.writer import JournalWriter
from octavo.bookie.reclaim.adoption import adopt_sorted, finish_deletions
from octavo.bookie.storage.applier import IndexApplier
from octavo.bookie.storage.frozen_index import add_unproven
from octavo.bookie.storage.index import Index, IndexEngine
from octavo.bookie.storage.suspected import SuspectedIndex
from octavo.metadata.bookies import CookieCatalog
from octavo.runtime.clock import Clock
from octavo.runtime.disk import Disk
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import HistoryInDoubt, StorageDamaged, StorageFailed, StorageFull
from octavo.runtime.telemetry import get_logger

STREAM = 0
"""The one append stream of a process; scale a host by processes (P-5)."""

JOURNAL_DIR = "journal"
REPLAY_COMMIT_RECORDS = 4096
"""Records that a replay gathers for one write to the index."""

_log = get_logger("octavo.bookie.boot")


@dataclass
class Callbacks:
    """Where the opened journal reports to; all but `sink` run on the loop."""

    sink: Callable[[CommittedGroup | RetiredSegment], None]
    on_failure: Callable[[BaseException], None]
    on_roll: Callable[[int], None]


@dataclass
class Booted:
    """An opened store, ready to serve."""

    lock: DirectoryLock
    identity: Identity
    index: Index
    journal: JournalWriter
    durable_file: DurableFile
    journal_dir: pathlib.Path
    frozen: bool = False
    """There was no space to start: nothing can be written (6.13)."""
    index_is_new: bool = False
    """It was built anew from the journal."""


def _close_quietly(index: Index) -> None:
    """Close an index whose boot failed already."""
    try:
        index.close()
    except StorageFailed as error:
        _log.warning("index-not-closed", cause=error.cause)


def _is_empty(names: list[str]) -> bool:
    own = {LOCK_FILE, FIRST_COOKIE_FILE, f".{COOKIE_FILE}.tmp", f".{FIRST_COOKIE_FILE}.tmp"}
    return not set(names) - own


class Booter:
    """Runs the boot of one data directory.

    Args:
        indexes: opens the index of the directory.
        claim: makes sure that no other process serves under this id, or raises; awaited before the
            identity in the metadata store is created or replaced (B-28).
        on_older_store: makes a metadata store that went back safe to go on with, before the
            identity in it is brought forward (ADR 23).
    """

    def __init__(
        self,
        config: BookieConfig,
        disk: Disk,
        cookies: CookieCatalog,
        indexes: IndexEngine,
        *,
        clock: Clock,
        entropy: Entropy,
        claim: Callable[[], Awaitable[None]],
        on_older_store: Callable[[], Awaitable[None]],
    ) -> None:
        self._config = config
        self._disk = disk
        self._indexes = indexes
        self._claim = claim
        self._on_older_store = on_older_store
        self._cookies = cookies
        self._clock = clock
        self._entropy = entropy
        self._data_dir = config.data_dir
        self._journal_dir = config.data_dir / JOURNAL_DIR
        self._segments = SegmentFolder(self._journal_dir, disk, give_up=config.accept_data_loss)
        self._home = IndexHome(config, disk)
        self._index_dir = self._home.path
        self._durable_file = DurableFile(config.data_dir, disk)
        self._suspected = SuspectedIndex(config.data_dir, disk)
        self._built_anew = False
        self._renewed = False
        """This boot took a new incarnation: damaged history may be salvaged under it (B-25)."""

    async def boot(self, callbacks: Callbacks, lock: DirectoryLock | None = None) -> Booted:
        """Open everything; `lock` is the directory's, if it is held already.

        Without space for what a start writes the result is frozen: everything can be read, nothing
        written (6.13). Raises StorageFailed with a cause and a hint when it must not serve.
        """
        try:
            await asyncio.to_thread(self._disk.make_dir, self._data_dir)
            mine = lock
            if mine is None:
                mine = await asyncio.to_thread(DirectoryLock, self._data_dir)
        except OSError as error:
            raise from_os_error(f"the data folder {self._data_dir}", error) from error
        try:
            return await self._boot_or_freeze(mine, callbacks)
        except BaseException:
            if lock is None:
                mine.release()
            raise

    async def _boot_or_freeze(self, lock: DirectoryLock, callbacks: Callbacks) -> Booted:
        what = f"the start in {self._data_dir} failed"
        try:
            return await self._boot_locked(lock, callbacks)
        except StorageFull as error:
            full = error
        except OSError as error:
            failed = from_os_error(what, error)
            if not isinstance(failed, StorageFull):
                raise failed from error
            full = failed
        try:
            return await self._boot_frozen(lock, callbacks, full)
        except OSError as error:
            raise from_os_error(what, error) from error

    async def _identify(self) -> tuple[Identity, Judgement, uuid.UUID]:
        instance = await self._cookies.cluster_id()
        names = await asyncio.to_thread(self._disk.list, self._data_dir)
        identity = Identity(
            self._data_dir,
            self._disk,
            self._cookies,
            self._entropy,
            self._config.bookie_id,
            instance,
        )
        judgement = await identity.compare(directory_empty=_is_empty(names))
        if judgement.kind is BootKind.OLDER_STORE:
            judgement = await self._accept_older(identity, judgement.cause)
        await asyncio.to_thread(self._home.look, identity, judgement.kind)
        self._suspected.reason = self._suspected.reason or self._home.lost
        return identity, judgement, uuid.UUID(instance)

    async def _accept_older(self, identity: Identity, cause: str) -> Judgement:
        """ADR 23: refuse, or go on with an older store when the operator said so."""
        judgement = await identity.compare(directory_empty=False, accept_older_store=True)
        if not self._config.accept_older_metadata or judgement.kind is not BootKind.NORMAL:
            raise HistoryInDoubt(
                f"bookie {self._config.bookie_id!r} knows more than the metadata: {cause}",
                hint=OLDER_STORE_HINT,
            )
        await self._claim()
        await self._on_older_store()
        _log.error("older-metadata-accepted", cause=cause)
        return judgement

    async def _boot_locked(self, lock: DirectoryLock, callbacks: Callbacks) -> Booted:
        identity, judgement, instance = await self._identify()
        if judgement.kind is BootKind.DOUBTFUL:
            await self._renew(identity, [judgement.cause])
        elif judgement.kind is BootKind.RENEWED:
            self._renewed = True
            _log.error("renewal-goes-on", incarnation=str(identity.cookie.incarnation))
        elif judgement.kind is BootKind.NEW:
            await self._claim()
            await identity.create()
        await asyncio.to_thread(self._disk.make_dir, self._journal_dir)
        if self._config.index_home != self._data_dir:
            await asyncio.to_thread(self._disk.make_dir, self._config.index_home)
        normal = judgement.kind is BootKind.NORMAL
        while True:
            index = await self._open_index(identity, normal=normal)
            is_new = bool(self._suspected.reason)
            try:
                evidence = await asyncio.to_thread(self._evidence, identity, normal)
                journal = await self._replay(identity, index, instance, callbacks, evidence)
                try:
                    await identity.bump_directory(journal.segment)
                    await asyncio.to_thread(self._suspected.clear)
                except BaseException:
                    await asyncio.to_thread(journal.abandon)
                    raise
            except BaseException as error:
                await asyncio.to_thread(self._durable_file.close)
                await asyncio.to_thread(_close_quietly, index)
                if not isinstance(error, StorageDamaged) or is_new:
                    raise
                continue  # damage was met while replaying: once more, with a new index
            return Booted(
                lock,
                identity,
                index,
                journal,
                self._durable_file,
                self._journal_dir,
                index_is_new=self._built_anew,
            )

    async def _boot_frozen(
        self, lock: DirectoryLock, callbacks: Callbacks, full: StorageFull
    ) -> Booted:
        """6.13: serve what can be read.

        Needs a history without doubt and a usable index: whatever would mend them needs space.
        """
        identity, judgement, instance = await self._identify()
        if judgement.kind is not BootKind.NORMAL or self._home.lost:
            raise full
        try:
            index = await asyncio.to_thread(
                self._indexes.open_frozen, self._index_dir, self._suspected.report
            )
        except StorageDamaged as damaged:
            raise StorageFull(f"{full.cause}; and {damaged.cause}") from damaged
        try:
            await self._replay_frozen(identity, index, instance, full)
        except StorageDamaged as damaged:
            await asyncio.to_thread(_close_quietly, index)
            raise StorageFull(f"{full.cause}; and {damaged.cause}") from damaged
        except BaseException:
            await asyncio.to_thread(_close_quietly, index)
            raise
        journal = self._journal(RefusingJournal, identity.cookie.incarnation, instance, callbacks)
        _log.error("started-without-space", cause=full.cause, hint=full.hint)
        return Booted(
            lock, identity, index, journal, self._durable_file, self._journal_dir, frozen=True
        )

    async def _replay_frozen(
        self, identity: Identity, index: Index, instance: uuid.UUID, full: StorageFull
    ) -> None:
        if not self._is_known(await asyncio.to_thread(index.identity), identity):
            reason = self._suspected.reason or "the index is not complete"
            raise StorageFull(f"{full.cause}; and {reason}")
        evidence = await asyncio.to_thread(self._evidence, identity, True)
        mark = await asyncio.to_thread(index.mark, STREAM)
        self._home.require_newest(mark or START, identity.cookie.boot_counter)
        verdict, problems = await self._judge(mark, instance, evidence)
        if problems:
            await self._renew(identity, problems)
        await asyncio.to_thread(self._apply_frozen, index, verdict)

    def _apply_frozen(self, index: Index, verdict: Verdict) -> None:
        finish_deletions(index)
        applier = IndexApplier(index, STREAM)
        self._apply(applier, verdict.spans)
        for span in verdict.tail:
            for _, records in span_records(span, self._segments.load(span.segment)):
                for record in records:
                    add_unproven(index, applier, record)
        applier.commit(applier.mark)

    def _is_known(self, found: bytes | None, identity: Identity) -> bool:
        """True if an index that names this directory is ours."""
        return found is not None and found.decode("ascii", "replace") in identity.known_directories

    def _evidence(self, identity: Identity, normal: bool) -> list[Evidence | None]:
        """What is known of the log from outside; None: evidence that must be there is missing."""
        if not normal:
            return []
        return [*identity.evidence(), *self._home.evidence(), self._durable_file.read()]

    async def _renew(self, identity: Identity, causes: list[str]) -> None:
        """B-23, B-25: refuse, or once a boot take a new incarnation when the operator said so."""
        if self._renewed:
            return
        cause = "; ".join(causes)
        if not self._config.accept_data_loss:
            raise HistoryInDoubt(
                f"bookie {self._config.bookie_id!r} cannot trust its history: {cause}",
                hint=ACCEPT_HINT,
            )
        await self._claim()
        await identity.renew()
        self._renewed = True
        _log.error("new-incarnation", cause=cause, incarnation=str(identity.cookie.incarnation))

    async def _open_index(self, identity: Identity, *, normal: bool) -> Index:
        """The index of this directory.

        One that is lost, damaged or foreign is replaced by an empty one, which the journal fills if
        it is whole (R5, ADR 20).
        """
        if not await asyncio.to_thread(self._suspected.read):
            index: Index | None = None
            try:
                index = await self._new_index()
                found = await asyncio.to_thread(index.identity)
                if self._is_known(found, identity) or (found is None and not normal):
                    return index
                self._suspected.reason = f"the index {self._index_dir} is missing or foreign"
            except StorageDamaged as damaged:
                self._suspected.report(damaged)
            if index is not None:
                await asyncio.to_thread(_close_quietly, index)
        self._home.require_ours(self._suspected.reason)
        self._built_anew = True
        _log.error("index-is-built-anew", cause=self._suspected.reason)
        await asyncio.to_thread(self._indexes.put_aside, self._index_dir, self._clock.wall_ms())
        return await self._new_index()

    async def _new_index(self) -> Index:
        return await asyncio.to_thread(
            self._indexes.open,
            self._index_dir,
            self._config.memtable_bytes,
            self._suspected.report,
        )

    async def _replay(
        self,
        identity: Identity,
        index: Index,
        instance_id: uuid.UUID,
        callbacks: Callbacks,
        evidence: list[Evidence | None],
    ) -> JournalWriter:
        mark = await asyncio.to_thread(index.mark, STREAM)
        self._home.require_newest(mark or START, identity.cookie.boot_counter)
        verdict, problems = await self._judge(mark, instance_id, evidence)
        if problems and not self._renewed:
            await self._renew(identity, problems)
            verdict, _ = await self._judge(mark, instance_id, evidence)
        cookie = identity.cookie
        journal = self._journal(JournalWriter, cookie.incarnation, instance_id, callbacks)
        numbers = await asyncio.to_thread(self._segments.numbers)
        used = [cookie.boot_counter, *(p.position.segment for p in evidence if p is not None)]
        number = max([*numbers, *used, verdict.durable.segment]) + 1
        directory = cookie.directories[DIRECTORY_ROLE].encode()
        try:
            await asyncio.to_thread(self._make_durable, index, verdict, journal, number, directory)
        except BaseException:
            await asyncio.to_thread(journal.abandon)
            raise
        return journal

    def _journal(
        self,
        kind: type[JournalWriter],
        incarnation: uuid.UUID,
        instance_id: uuid.UUID,
        callbacks: Callbacks,
    ) -> JournalWriter:
        config = self._config
        return kind(
            self._journal_dir,
            self._disk,
            SegmentHeader(STREAM, instance_id, incarnation, uuid.UUID(int=0), 0, 0, START),
            JournalOptions(
                segment_bytes=config.segment_bytes,
                group_max_bytes=config.group_commit_max_bytes,
                queue_max_records=config.queue_max_records,
                queue_max_bytes=config.queue_max_bytes,
                page_cache_bytes=config.page_cache_bytes,
                idle_mark_s=config.idle_mark_s,
            ),
            clock=self._clock,
            entropy=self._entropy,
            on_durable=self._durable_file.note,
            sink=callbacks.sink,
            on_failure=callbacks.on_failure,
            on_roll=callbacks.on_roll,
        )

    async def _judge(
        self, mark: Position | None, instance_id: uuid.UUID, evidence: list[Evidence | None]
    ) -> tuple[Verdict, list[str]]:
        """What the journal holds from the mark on, and what casts doubt on it (B-23)."""
        numbers = await asyncio.to_thread(self._segments.numbers)
        known = [proof for proof in evidence if proof is not None]
        verdict = await asyncio.to_thread(
            judge,
            mark or START,
            numbers,
            self._segments.load,
            instance_id,
            evidence=known,
            salvage=self._renewed,
        )
        problems = list(verdict.problems)
        if len(known) < len(evidence):
            problems.append(f"the file {DURABLE_FILE!r} is missing or damaged")
        if problems and self._suspected.reason:
            problems.insert(0, self._suspected.reason)
        return verdict, problems

    def _make_durable(
        self,
        index: Index,
        verdict: Verdict,
        journal: JournalWriter,
        next_number: int,
        identity: bytes,
    ) -> None:
        """Apply what is proven, write the rest again into the next segment and apply that.

        Then the mark moves behind it; with a flush replay is done (B-5, B-14, B-17, ADR 14).
        """
        finish_deletions(index)
        is_new = index.mark(STREAM) is None
        applier = IndexApplier(index, STREAM)
        replayed = self._apply(applier, verdict.spans)
        tail: list[list[Record]] = []
        for span in verdict.tail:
            data = self._segments.load(span.segment)
            tail += [records for _, records in span_records(span, data)]
        for record in journal.open(next_number, verdict.durable, tail):
            applier.add_record(next_number, record)
        adopted = 0
        if is_new and self._renewed:
            applier.commit(applier.mark)
            numbers = self._segments.sorted_numbers()
            adopted = adopt_sorted(index, applier, numbers, self._segments.load)
        self._durable_file.create(journal.durable)
        applier.set_identity(identity)
        applier.commit(journal.durable)
        index.flush()
        for end in verdict.open_ends:
            self._segments.trim(end)
        _log.info(
            "replayed",
            records=replayed,
            written_again=sum(map(len, tail)),
            adopted=adopted,
            segments=len(verdict.spans),
            segment=next_number,
            open_ends=[tuple(end) for end in verdict.open_ends],
        )

    def _apply(self, applier: IndexApplier, spans: list[Span]) -> int:
        """Index the records of proven spans; returns how many."""
        applied = waiting = 0
        for span in spans:
            if not span.batches:
                continue
            data = self._segments.load(span.segment)
            for batch, records in span_records(span, data):
                applier.add_records(span.segment, records)
                waiting += len(records)
                if waiting >= REPLAY_COMMIT_RECORDS or batch is span.batches[-1]:
                    applier.commit(max(applier.mark, Position(span.segment, batch.end)))
                    applied, waiting = applied + waiting, 0
        return applied
