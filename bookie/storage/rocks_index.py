"""The index in RocksDB: the only module that opens one.

Its own log is off; one column family; flushes keep the order of batches. Reads use explicit
iterators and check their status: dictionary-style iteration of the binding ends early and silently
on damage.
"""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Iterator

import rocksdict

from octavo.bookie.faults import from_rocksdb
from octavo.bookie.storage.frozen_index import FrozenIndex
from octavo.bookie.storage.index import Batch, OnDamage
from octavo.bookie.storage.keyed_index import KeyedIndex
from octavo.runtime.errors import StorageDamaged, StorageFailed

FROZEN_BUFFER_BYTES = 1 << 20
"""Write buffer of an index that is only read."""


class RocksIndex(KeyedIndex):
    """One open RocksDB."""

    def __init__(
        self,
        path: pathlib.Path,
        write_buffer_bytes: int,
        *,
        on_damage: OnDamage,
        read_only: bool = False,
    ) -> None:
        super().__init__(str(path), on_damage)
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(write_buffer_bytes)
        options.set_max_background_jobs(2)
        options.set_keep_log_file_num(3)
        options.set_paranoid_checks(True)
        table = rocksdict.BlockBasedOptions()
        table.set_bloom_filter(10, False)
        table.set_format_version(5)
        table.set_block_cache(rocksdict.Cache(32 << 20))
        options.set_block_based_table_factory(table)
        self._write_options = rocksdict.WriteOptions()
        # The stub calls this property a method.
        setattr(self._write_options, "disable_wal", True)  # noqa: B010
        try:
            access = (
                rocksdict.AccessType.read_only() if read_only else rocksdict.AccessType.read_write()
            )
            self._db = rocksdict.Rdict(str(path), options=options, access_type=access)
        except Exception as error:
            raise from_rocksdb("the index cannot be opened", str(path), error) from error

    def close(self) -> None:
        """Flush and close."""
        try:
            self._db.close()
        except Exception as error:
            raise from_rocksdb("closing the index failed", self.name, error) from error

    def _failed(self, what: str, error: Exception) -> StorageFailed:
        failed = from_rocksdb(what, self.name, error)
        if isinstance(failed, StorageDamaged):
            self._on_damage(failed)
        return failed

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None: no such key."""
        try:
            value: bytes | None = self._db.get(key)
        except Exception as error:
            raise self._failed("an index read failed", error) from error
        return value

    def scan(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys from `low` to below `high` with values; raises when the iterator ended early."""
        options = rocksdict.ReadOptions()
        options.set_iterate_upper_bound(high)
        options.set_verify_checksums(True)
        try:
            iterator = self._db.iter(options)
            iterator.seek(low)
            while iterator.valid():
                yield iterator.key(), iterator.value()
                iterator.next()
            iterator.status()
        except Exception as error:
            raise self._failed("an index scan failed", error) from error

    def new_batch(self) -> Batch:
        """An empty batch for `write()`."""
        return rocksdict.WriteBatch(raw_mode=True)

    def write(self, batch: Batch) -> None:
        """Apply a batch, made by `new_batch()`, atomically."""
        try:
            assert isinstance(batch, rocksdict.WriteBatch)
            self._db.write(batch, self._write_options)
        except Exception as error:
            raise self._failed("an index write failed", error) from error

    def flush(self) -> None:
        """Make everything applied so far survive a crash (blocking)."""
        try:
            self._db.flush(True)
        except Exception as error:
            raise self._failed("an index flush failed", error) from error


class RocksEngine:
    """The IndexEngine of bookies that run."""

    def open(
        self, folder: pathlib.Path, write_buffer_bytes: int, on_damage: OnDamage
    ) -> RocksIndex:
        """The index in `folder`, an empty one if there is none (blocking)."""
        return RocksIndex(folder, write_buffer_bytes, on_damage=on_damage)

    def open_frozen(self, folder: pathlib.Path, on_damage: OnDamage) -> FrozenIndex:
        """The index in `folder` as it is, which nothing changes (6.13)."""
        return FrozenIndex(
            RocksIndex(folder, FROZEN_BUFFER_BYTES, on_damage=on_damage, read_only=True), on_damage
        )

    def put_aside(self, folder: pathlib.Path, now_ms: int) -> None:
        """Keep the closed index of `folder`; older ones that were kept go (blocking)."""
        for old in folder.parent.glob(f"{folder.name}.damaged-*"):
            shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(folder.with_name(f"{folder.name}.damaged-{now_ms}"))
