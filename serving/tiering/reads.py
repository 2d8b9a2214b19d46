"""Reads of segments that lie in exported files (F078, F088): batches for fetches, times, headers.

Like a cold read of a ledger: about one piece is read around what is asked for, and the next one is
begun while the first is sent. Pieces are rebuilt in threads; those in memory and those being read
are bounded (BP-2). Every error is one of `octavo.serving.tiering.files`, so retriable; also that of
a file system that hangs, for whose sake no other partition of a fetch waits longer than
`READ_TIMEOUT_S`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from octavo.proto.batch import BatchHeader, decode_header
from octavo.proto.segments import Segment
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import OctavoError, ReadUnknown
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.workers import DetachedPool
from octavo.serving.budget import ByteBudget
from octavo.serving.cold import ColdRead
from octavo.serving.config import BrokerConfig
from octavo.serving.partition.name import PartitionName
from octavo.serving.tiering.root import TierRoot

if TYPE_CHECKING:
    from octavo.serving.tiering.files import TierFiles

T = TypeVar("T")
PLACES_MAX = 10_000
"""Offsets of which is known in which piece they begin."""
THREADS = 4
"""Reads of files at a time."""
READ_TIMEOUT_S = 20.0
"""What is not read by then is READ_UNKNOWN; it goes on, and who asks again may find it."""
CLOSE_TIMEOUT_S = 5.0
WAITING_MAX = 64
"""Reads that wait for a thread; beyond it callers wait before they count as such."""
_Key = tuple[int, int]
"""Ledger and offset."""


class _Piece(NamedTuple):
    """Batches that were read at once."""

    batches: Sequence[tuple[BatchHeader, Buffer]]
    size_bytes: int


class TierReads:
    """Shared by all partitions of one broker."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._piece_bytes = config.cold_chunk_bytes
        self._cache_bytes = config.cold_cache_bytes
        self._files: TierFiles | None = None
        self._budget = ByteBudget(config.cold_read_budget_bytes)
        self.root = TierRoot(config.tier_root)
        self._tasks = TaskOwner("tier-reads")
        self._threads = DetachedPool("tier-read", THREADS, WAITING_MAX)
        """Of its own: a file system that hangs holds nobody else's threads, and no end."""
        self._loading: dict[_Key, asyncio.Task[_Piece | OctavoError]] = {}
        self._pieces: OrderedDict[_Key, _Piece] = OrderedDict()
        self._used_bytes = 0
        self._places: OrderedDict[_Key, tuple[_Key, int]] = OrderedDict()
        """Where in a piece a reader goes on that did not take all of it."""
        self.reads = 0
        """Pieces that were read."""
        self.read_bytes = 0
        self.failures = 0

    async def files(self) -> TierFiles:
        """The files of this broker; they load Arrow, which takes 0.3 s, beside the loop."""
        if self._files is None:
            module = await asyncio.to_thread(import_module, "octavo.serving.tiering.files")
            if self._files is None:  # nobody was faster
                made: TierFiles = module.TierFiles(self.root, self._config.tier_open_files)
                self._files = made
        return self._files

    async def close_idle(self, now_s: float, idle_s: float) -> None:
        """Close files that nobody reads."""
        if self._files is not None:
            await asyncio.to_thread(self._files.close_idle, now_s, idle_s)

    async def close(self) -> None:
        """End what is being read, and close all files."""
        await self._tasks.close()
        await self.root.close()
        if await self._threads.close(CLOSE_TIMEOUT_S) and self._files is not None:
            await asyncio.to_thread(self._files.close)

    # --- reading ------------------------------------------------------------------------------

    async def read_segment(
        self,
        name: PartitionName,
        segment: Segment,
        offset: int,
        max_bytes: int,
        *,
        at_least_one: bool,
    ) -> ColdRead:
        """Batches of a segment from the one with `offset` on; raises ReadUnknown."""
        end = segment.end_offset if segment.end_offset is not None else segment.base_offset
        batches: list[Buffer] = []
        size, at = 0, offset
        while at < end:
            found = self._known(segment, at)
            if found is None:
                if batches:
                    break
                begins: _Key = (segment.ledger_id, at)
                found = begins, 0, await self._load(name, segment, at)
            key, index, piece = found
            if not piece.batches[index:]:
                at = end  # the rest of the segment holds no batch
                break
            for header, payload in piece.batches[index:]:
                if size + len(payload) > max_bytes and (batches or not at_least_one):
                    self._place(segment, at, key, index)
                    return self._answer(name, segment, batches, at, size)
                batches.append(payload)
                size += len(payload)
                at = header.next_offset
                index += 1
        return self._answer(name, segment, batches, at, size)

    def _answer(
        self, name: PartitionName, segment: Segment, batches: list[Buffer], at: int, size: int
    ) -> ColdRead:
        if batches:
            self.warm_segment(name, segment, at)
        return ColdRead(batches, at, size)

    def warm_segment(self, name: PartitionName, segment: Segment, offset: int) -> None:
        """Begin what `read_segment` will need, without waiting, as far as the budget allows."""
        is_over = segment.end_offset is None or offset >= segment.end_offset
        if is_over or self._known(segment, offset) or (segment.ledger_id, offset) in self._loading:
            return
        if self._budget.try_take(self._piece_bytes):
            self._begin(name, segment, offset)

    async def header_in(
        self, name: PartitionName, segment: Segment, offset: int
    ) -> BatchHeader | None:
        """The header of the batch with `offset`, or of the next one; None: the segment has none
        behind it. Raises ReadUnknown."""
        files = await self.files()
        return await self._counted(name, files.header, name, segment, offset)

    async def batches_for_time(
        self, name: PartitionName, segment: Segment, timestamp_ms: int, first: int
    ) -> AsyncGenerator[tuple[BatchHeader, Buffer], None]:
        """Batches from the first one on that has a record at or after this time and ends above
        offset `first`; raises ReadUnknown."""
        files = await self.files()
        first = max(first, segment.base_offset)
        at = await self._counted(name, files.offset_for_time, name, segment, timestamp_ms, first)
        if at is not None:
            async for found in self.batches_from(name, segment, at):
                yield found

    async def batches_from(
        self, name: PartitionName, segment: Segment, offset: int
    ) -> AsyncGenerator[tuple[BatchHeader, Buffer], None]:
        """The batches of a segment from the one with `offset` on; raises ReadUnknown."""
        end = segment.end_offset if segment.end_offset is not None else segment.base_offset
        while offset < end:
            piece = await self._load(name, segment, offset)
            if not piece.batches:
                return
            for header, payload in piece.batches:
                yield header, payload
                offset = header.next_offset

    # --- pieces -------------------------------------------------------------------------------

    def _known(self, segment: Segment, offset: int) -> tuple[_Key, int, _Piece] | None:
        """The piece in memory with `offset`, and which of its batches begins there."""
        key, index = self._places.get((segment.ledger_id, offset), ((segment.ledger_id, offset), 0))
        piece = self._pieces.get(key)
        if piece is None:
            return None
        self._pieces.move_to_end(key)
        return key, index, piece

    def _place(self, segment: Segment, offset: int, key: _Key, index: int) -> None:
        self._places[(segment.ledger_id, offset)] = key, index
        self._places.move_to_end((segment.ledger_id, offset))
        while len(self._places) > PLACES_MAX:
            self._places.popitem(last=False)

    async def _load(self, name: PartitionName, segment: Segment, offset: int) -> _Piece:
        """A piece that begins with the batch of `offset`; one read serves all who ask."""
        key = (segment.ledger_id, offset)
        piece = self._pieces.get(key)
        if piece is not None:
            return piece
        async with self._in_time(name):
            made = await self._loaded(name, segment, offset)
        if isinstance(made, OctavoError):
            raise made
        return made

    async def _loaded(
        self, name: PartitionName, segment: Segment, offset: int
    ) -> _Piece | OctavoError:
        key = (segment.ledger_id, offset)
        task = self._loading.get(key)
        if task is None:
            await self._budget.take(self._piece_bytes)
            task = self._loading.get(key)
            if task is None:
                task = self._begin(name, segment, offset)
            else:  # somebody was faster while the budget was awaited
                self._budget.release(self._piece_bytes)
        return await asyncio.shield(task)

    @asynccontextmanager
    async def _in_time(self, name: PartitionName) -> AsyncGenerator[None]:
        """Raise ReadUnknown where the file system takes too long, or is known to."""
        if self.root.is_silent:
            self.failures += 1
            raise self._late(name)
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                yield
        except TimeoutError as error:
            self.failures += 1
            raise self._late(name) from error

    def _late(self, name: PartitionName) -> ReadUnknown:
        return ReadUnknown(
            f"records of {name} are in exported files, and the file system of tier_root "
            f"{self.root.path} does not answer",
            hint="look at it: df, dmesg, the network to its server",
        )

    def _begin(
        self, name: PartitionName, segment: Segment, offset: int
    ) -> asyncio.Task[_Piece | OctavoError]:
        key = (segment.ledger_id, offset)
        task: asyncio.Task[_Piece | OctavoError] = self._tasks.spawn(
            self._read(name, segment, offset), name=f"tier read {key}"
        )
        self._loading[key] = task
        return task

    async def _read(
        self, name: PartitionName, segment: Segment, offset: int
    ) -> _Piece | OctavoError:
        """An error is a value, so that read-ahead may ignore it."""
        key = (segment.ledger_id, offset)
        try:
            files = await self.files()
            found = await self._threads.run(files.batches, name, segment, offset, self._piece_bytes)
            batches = [(decode_header(one.batch), one.batch) for one in found]
        except OctavoError as error:
            self.failures += 1
            return error
        finally:
            self._budget.release(self._piece_bytes)
            del self._loading[key]
        piece = _Piece(batches, sum(len(one) for _, one in batches))
        self.reads += 1
        self.read_bytes += piece.size_bytes
        self._keep(key, piece)
        return piece

    def _keep(self, key: _Key, piece: _Piece) -> None:
        self._pieces[key] = piece
        self._used_bytes += piece.size_bytes
        while self._used_bytes > self._cache_bytes and len(self._pieces) > 1:
            _, gone = self._pieces.popitem(last=False)
            self._used_bytes -= gone.size_bytes

    async def _counted(self, name: PartitionName, call: Callable[..., T], *args: object) -> T:
        async with self._in_time(name):
            try:
                return await self._threads.run(call, *args)
            except ReadUnknown:
                self.failures += 1
                raise
