"""When a bookie stops and resumes taking ordinary adds (spec/ledger.md §6.13, B-9): a pure gauge.

Fed with free space, allocation failures and sync durations; answers what may be written. Who
measures and who tells the metadata store is `octavo.bookie.server`.
"""

from __future__ import annotations

from octavo.bookie.config import BookieConfig

RECOVERY_RESERVE_SEGMENTS = 1.2
"""Recovery adds are taken until free space falls below this many segments."""
HYSTERESIS = 1.25
"""The reserve must be exceeded by this factor before the bookie is writable again."""


INDEX_RESERVE_MEMTABLES = 4
"""Kept free on the disk of the index, where that is another one than the segments': what is in
memory must be flushed, and RocksDB merges what it flushed before."""
INDEX_RECOVERY_MEMTABLES = 2
"""Recovery adds are taken until less than this is free there."""


class DiskGauge:
    """One disk that a bookie needs: full or not, with hysteresis (6.13).

    Args:
        reserve_bytes: less free space means full; 0: only the part in use counts.
        recovery_bytes: less free space refuses recovery adds, too.
    """

    def __init__(
        self, config: BookieConfig, *, reserve_bytes: float, recovery_bytes: float
    ) -> None:
        self._config = config
        self._reserve_bytes = reserve_bytes
        self._recovery_bytes = recovery_bytes
        self.full = False
        self.warn = False
        self.free_bytes = 0
        self.total_bytes = 0
        """0 before the first measurement."""
        self.recovery_allowed = True

    def observe(self, free_bytes: int, total_bytes: int) -> None:
        """A measurement of the file system."""
        used = 1 - free_bytes / total_bytes if total_bytes else 1.0
        config, reserve_bytes = self._config, self._reserve_bytes
        self.free_bytes, self.total_bytes = free_bytes, total_bytes
        self.warn = used >= config.disk_warn_ratio
        self.recovery_allowed = not reserve_bytes or free_bytes >= self._recovery_bytes
        if used >= config.disk_read_only_ratio or free_bytes < reserve_bytes:
            self.full = True
        elif used < config.disk_writable_ratio and free_bytes >= reserve_bytes * HYSTERESIS:
            self.full = False


class SpaceGauge:
    """Decides writable or read-only for all disks together: the fullest one decides."""

    def __init__(self, config: BookieConfig) -> None:
        self._config = config
        reserve_bytes = config.disk_reserve_segments * config.segment_bytes
        self.data = DiskGauge(
            config,
            reserve_bytes=reserve_bytes,
            recovery_bytes=RECOVERY_RESERVE_SEGMENTS * config.segment_bytes,
        )
        """The disk of the segments."""
        self.index: DiskGauge | None = None
        """The disk of the index, where it has a folder of its own."""
        if config.index_dir is not None:
            kept = config.memtable_bytes if reserve_bytes else 0
            self.index = DiskGauge(
                config,
                reserve_bytes=INDEX_RESERVE_MEMTABLES * kept,
                recovery_bytes=INDEX_RECOVERY_MEMTABLES * kept,
            )
        self._stalled = False

    @property
    def _disks(self) -> list[DiskGauge]:
        return [self.data] if self.index is None else [self.data, self.index]

    def free_bytes(self) -> dict[str, int]:
        """Free space for the log, by what it is kept for."""
        named = {"free_bytes": self.data, "index_free_bytes": self.index}
        return {name: disk.free_bytes for name, disk in named.items() if disk is not None}

    @property
    def writable(self) -> bool:
        """True while ordinary adds are taken."""
        return not self._stalled and not any(disk.full for disk in self._disks)

    @property
    def recovery_allowed(self) -> bool:
        """False when even recovery adds would eat the space kept for fences."""
        return all(disk.recovery_allowed for disk in self._disks)

    @property
    def warn(self) -> bool:
        """True while a disk fills up."""
        return any(disk.warn for disk in self._disks)

    def allocation_failed(self) -> None:
        """There was no space (ENOSPC): read-only until a measurement of each disk differs."""
        for disk in self._disks:
            disk.full = True

    def observe_sync(self, running_s: float | None) -> None:
        """How long the sync in progress has taken, None when there is none (B-9)."""
        self._stalled = running_s is not None and running_s >= self._config.sync_read_only_s
