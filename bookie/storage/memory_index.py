"""An index in memory that loses, at a crash, what RocksDB without its log may lose.

For simulators and tests that run the real bookie. What was flushed survives; of the batches behind
it any number may, in their order and each whole, as when a memtable filled up.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from octavo.bookie.storage.frozen_index import FrozenIndex
from octavo.bookie.storage.index import Batch, OnDamage
from octavo.bookie.storage.keyed_index import KeyedIndex
from octavo.bookie.storage.sorted_pairs import GONE, MemoryBatch, SortedPairs
from octavo.runtime.errors import StorageDamaged, StorageUnavailable


@dataclass
class _Files:
    """What a folder holds."""

    kept: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    """What survives a crash."""
    behind: list[Mapping[bytes, bytes]] = field(default_factory=list[Mapping[bytes, bytes]])
    """Batches that were written after that."""
    is_open: bool = False

    def keep(self, batches: int) -> None:
        """The first so many batches survive; the others are gone."""
        for changes in self.behind[:batches]:
            self.kept.update(changes)
        self.behind = []


class MemoryIndex(KeyedIndex):
    """One open index of a MemoryEngine."""

    def __init__(
        self, name: str, files: _Files, on_damage: OnDamage, *, read_only: bool = False
    ) -> None:
        super().__init__(name, on_damage)
        self._files: _Files | None = files
        self._read_only = read_only
        self._pairs = SortedPairs(files.kept)

    def _opened(self) -> _Files:
        if self._files is None:
            raise StorageUnavailable(f"{self.name}: the index is already closed")
        return self._files

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None: no such key."""
        self._opened()
        value = self._pairs.get(key)
        return None if value is GONE else value

    def scan(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys from `low` to below `high` in order with values, as of this call."""
        self._opened()
        return iter([pair for pair in self._pairs.between(low, high) if pair[1] is not GONE])

    def new_batch(self) -> Batch:
        """An empty batch for `write()`."""
        return MemoryBatch()

    def write(self, batch: Batch) -> None:
        """Apply a batch, made by `new_batch()`, atomically."""
        files = self._opened()
        assert isinstance(batch, MemoryBatch)
        if self._read_only:
            raise StorageUnavailable(f"{self.name}: the index is opened without writing")
        self._pairs.update(batch.changes)
        files.behind.append(dict(batch.changes))

    def flush(self) -> None:
        """Make everything applied so far survive a crash."""
        files = self._opened()
        files.keep(len(files.behind))

    def close(self) -> None:
        """Flush and close; nothing when it is closed already."""
        if self._files is not None:
            self._files.keep(len(self._files.behind))
            self._files.is_open = False
            self._files = None


class MemoryEngine:
    """An IndexEngine whose folders exist in memory only."""

    def __init__(self) -> None:
        self._folders: dict[pathlib.Path, _Files] = {}

    def open(
        self, folder: pathlib.Path, write_buffer_bytes: int, on_damage: OnDamage
    ) -> MemoryIndex:
        """The index in `folder`, an empty one if there is none."""
        del write_buffer_bytes  # nothing is written out when it is full
        files = self._folders.setdefault(folder, _Files())
        if files.is_open:
            raise StorageUnavailable(f"{folder}: lock hold by current process")
        files.is_open = True
        return MemoryIndex(str(folder), files, on_damage)

    def open_frozen(self, folder: pathlib.Path, on_damage: OnDamage) -> FrozenIndex:
        """The index in `folder` as it is, which nothing changes (6.13)."""
        found = self._folders.get(folder)
        if found is None:
            raise StorageDamaged(f"{folder} holds no index", file=str(folder))
        files = _Files(dict(found.kept))
        return FrozenIndex(MemoryIndex(str(folder), files, on_damage, read_only=True), on_damage)

    def put_aside(self, folder: pathlib.Path, now_ms: int) -> None:
        """Keep the closed index of `folder`; older ones that were kept go."""
        kept = f"{folder.name}.damaged-"
        for old in [old for old in self._folders if old.name.startswith(kept)]:
            del self._folders[old]
        if folder in self._folders:
            self._folders[folder.with_name(f"{kept}{now_ms}")] = self._folders.pop(folder)

    def crash(self, folder: pathlib.Path, into: pathlib.Path, batches: int = 0) -> None:
        """What a crash at this instant leaves of `folder`, as the index of the folder `into`.

        `batches`: so many of those that were written since the last flush survive.
        """
        files = self._folders.get(folder, _Files())
        left = _Files(dict(files.kept), list(files.behind))
        left.keep(batches)
        self._folders[into] = left
