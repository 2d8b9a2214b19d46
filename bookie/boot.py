"""From a directory to a store that may serve: lock, cookies, replay, new segment (spec/ledger.md
§6.8, §6.11).

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
from octavo.bookie.faults import from_os_error
from octavo.bookie.identity import (
    ACCEPT_HINT,
    COOKIE_FILE,
    DIRECTORY_ROLE,
    FIRST_COOKIE_FILE,
    LOCK_FILE,
    BootKind,
    DirectoryLock,
    Identity,
)
from octavo.bookie.journal.durable_file import DURABLE_FILE, DurableFile
from octavo.bookie.journal.item import CommittedGroup, RetiredSegment
from octavo.bookie.journal.replay import Evidence, Verdict, judge, span_records
from octavo.bookie.journal.segment import START, Position, Record, SegmentHeader
from octavo.bookie.journal.writer import (
    JournalOptions,
    JournalWriter,
    segment_name,
    segment_number,
)
from octavo.bookie.storage.index import EntryIndex, IndexApplier
from octavo.metadata.bookies import CookieCatalog
from octavo.runtime.clock import Clock
from octavo.runtime.disk import Disk
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import HistoryInDoubt, StorageFailed
from octavo.runtime.telemetry import get_logger

STREAM = 0
"""The one append stream of a process; scale a host by processes (P-5)."""

JOURNAL_DIR = "journal"
INDEX_DIR = "index"

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
    index: EntryIndex
    journal: JournalWriter
    durable_file: DurableFile
    journal_dir: pathlib.Path


def _is_empty(names: list[str]) -> bool:
    own = {LOCK_FILE, FIRST_COOKIE_FILE, f".{COOKIE_FILE}.tmp", f".{FIRST_COOKIE_FILE}.tmp"}
    return not set(names) - own


class Booter:
    """Runs the boot of one data directory.

    Args:
        claim: makes sure that no other process serves under this id, or raises; awaited before the
            identity in the metadata store is created or replaced (B-28).
    """

    def __init__(
        self,
        config: BookieConfig,
        disk: Disk,
        cookies: CookieCatalog,
        *,
        clock: Clock,
        entropy: Entropy,
        claim: Callable[[], Awaitable[None]],
    ) -> None:
        self._config = config
        self._disk = disk
        self._claim = claim
        self._cookies = cookies
        self._clock = clock
        self._entropy = entropy
        self._data_dir = config.data_dir
        self._journal_dir = config.data_dir / JOURNAL_DIR
        self._index_dir = config.data_dir / INDEX_DIR
        self._durable_file = DurableFile(config.data_dir, disk)
        self._renewed = False
        """This boot took a new incarnation: damaged history may be salvaged under it (B-25)."""

    async def boot(self, callbacks: Callbacks) -> Booted:
        """Open everything; raises StorageFailed with a cause and a hint when it must not serve."""
        try:
            await asyncio.to_thread(self._disk.make_dir, self._data_dir)
            lock = await asyncio.to_thread(DirectoryLock, self._data_dir)
        except OSError as error:
            raise from_os_error(f"the data folder {self._data_dir}", error) from error
        try:
            return await self._boot_locked(lock, callbacks)
        except OSError as error:
            lock.release()
            raise from_os_error(f"the start in {self._data_dir} failed", error) from error
        except BaseException:
            lock.release()
            raise

    async def _boot_locked(self, lock: DirectoryLock, callbacks: Callbacks) -> Booted:
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
        if judgement.kind is BootKind.DOUBTFUL:
            await self._renew(identity, [judgement.cause])
        elif judgement.kind is BootKind.RENEWED:
            self._renewed = True
            _log.error("renewal-goes-on", incarnation=str(identity.cookie.incarnation))
        elif judgement.kind is BootKind.NEW:
            await self._claim()
            await identity.create()
        await asyncio.to_thread(self._disk.make_dir, self._journal_dir)
        index = await self._open_index(identity, normal=judgement.kind is BootKind.NORMAL)
        try:
            normal = judgement.kind is BootKind.NORMAL
            evidence = await asyncio.to_thread(self._evidence, identity, normal)
            journal = await self._replay(identity, index, uuid.UUID(instance), callbacks, evidence)
            await identity.bump_directory(journal.segment)
        except BaseException:
            await asyncio.to_thread(self._durable_file.close)
            await asyncio.to_thread(index.close)
            raise
        return Booted(lock, identity, index, journal, self._durable_file, self._journal_dir)

    def _evidence(self, identity: Identity, normal: bool) -> list[Evidence | None]:
        """What is known of the log from outside of it; None stands for evidence that must be there
        and is not."""
        if not normal:
            return []
        return [*identity.evidence(), self._durable_file.read()]

    async def _renew(self, identity: Identity, causes: list[str]) -> None:
        """B-23, B-25: refuse, or take a new incarnation when the operator said so; at most once a
        boot."""
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

    async def _open_index(self, identity: Identity, *, normal: bool) -> EntryIndex:
        """The index of this directory; a lost one makes the history doubtful (B-23)."""
        try:
            index = await self._new_index()
        except StorageFailed as error:
            await self._renew(identity, [error.cause])
            return await self._replace_index()
        found = await asyncio.to_thread(index.identity)
        if found is None:
            known = not normal
        else:
            known = found.decode("ascii", "replace") in identity.known_directories
        if known:
            return index
        try:
            await self._renew(identity, ["the index is missing or of another directory"])
        except BaseException:
            await asyncio.to_thread(index.close)
            raise
        if found is None:
            return index
        await asyncio.to_thread(index.close)
        return await self._replace_index()

    async def _new_index(self) -> EntryIndex:
        return await asyncio.to_thread(EntryIndex, self._index_dir, self._config.memtable_bytes)

    async def _replace_index(self) -> EntryIndex:
        """Put an unusable index aside; the journal gives a new one (R5)."""
        aside = self._index_dir.with_name(f"{INDEX_DIR}.damaged-{self._clock.wall_ms()}")
        await asyncio.to_thread(self._index_dir.rename, aside)
        return await self._new_index()

    async def _replay(
        self,
        identity: Identity,
        index: EntryIndex,
        instance_id: uuid.UUID,
        callbacks: Callbacks,
        evidence: list[Evidence | None],
    ) -> JournalWriter:
        mark = await asyncio.to_thread(index.mark, STREAM)
        numbers = await asyncio.to_thread(self._numbers)
        known = [proof for proof in evidence if proof is not None]
        verdict = await self._judge(mark, numbers, instance_id, known)
        problems = list(verdict.problems)
        if len(known) < len(evidence):
            problems.append(f"the file {DURABLE_FILE!r} is missing or damaged")
        if problems and not self._renewed:
            await self._renew(identity, problems)
            verdict = await self._judge(mark, numbers, instance_id, known)
        cookie = identity.cookie
        config = self._config
        journal = JournalWriter(
            self._journal_dir,
            self._disk,
            SegmentHeader(STREAM, instance_id, cookie.incarnation, uuid.UUID(int=0), 0, 0, START),
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
        used = [identity.cookie.boot_counter, *(proof.position.segment for proof in known)]
        number = max([*numbers, *used, verdict.durable.segment]) + 1
        directory = cookie.directories[DIRECTORY_ROLE].encode()
        await asyncio.to_thread(self._make_durable, index, verdict, journal, number, directory)
        return journal

    async def _judge(
        self,
        mark: Position | None,
        numbers: list[int],
        instance_id: uuid.UUID,
        evidence: list[Evidence],
    ) -> Verdict:
        return await asyncio.to_thread(
            judge,
            mark or START,
            numbers,
            self._load,
            instance_id,
            evidence=evidence,
            salvage=self._renewed,
        )

    def _numbers(self) -> list[int]:
        found = (segment_number(name) for name in self._disk.list(self._journal_dir))
        return sorted(number for number in found if number is not None)

    def _load(self, number: int) -> bytes:
        return self._disk.read(self._journal_dir / segment_name(number))

    def _make_durable(
        self,
        index: EntryIndex,
        verdict: Verdict,
        journal: JournalWriter,
        next_number: int,
        identity: bytes,
    ) -> None:
        """Apply what is proven, write the rest again into the next segment, apply that, move the
        mark behind it, flush: then replay is done (B-5, B-14, B-17, ADR 14)."""
        applier = IndexApplier(index, STREAM)
        replayed = 0
        for span in verdict.spans:
            if not span.batches:
                continue
            data = self._load(span.segment)
            for batch, records in span_records(span, data):
                for record in records:
                    applier.add_record(span.segment, record)
                replayed += len(records)
                applier.commit(max(applier.mark, Position(span.segment, batch.end)))
        tail: list[list[Record]] = []
        for span in verdict.tail:
            tail += [records for _, records in span_records(span, self._load(span.segment))]
        for record in journal.open(next_number, verdict.durable, tail):
            applier.add_record(next_number, record)
        self._durable_file.create(journal.durable)
        applier.set_identity(identity)
        applier.commit(journal.durable)
        index.flush()
        for end in verdict.open_ends:
            self._trim(end)
        _log.info(
            "replayed",
            records=replayed,
            written_again=sum(map(len, tail)),
            segments=len(verdict.spans),
            segment=next_number,
            open_ends=[tuple(end) for end in verdict.open_ends],
        )

    def _trim(self, end: Position) -> None:
        """Give back the preallocated zeros of a segment that a crash left open; keep every other
        byte."""
        data = self._load(end.segment)
        self._disk.truncate(
            self._journal_dir / segment_name(end.segment),
            max(end.offset, len(data.rstrip(b"\0"))),
        )
