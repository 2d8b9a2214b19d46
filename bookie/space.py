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


class SpaceGauge:
    """Decides writable or read-only, with hysteresis."""

    def __init__(self, config: BookieConfig) -> None:
        self._config = config
        self._reserve_bytes = config.disk_reserve_segments * config.segment_bytes
        self._full = False
        self._stalled = False
        self.free_bytes = 0
        self.total_bytes = 0
        """0 before the first measurement."""
        self.recovery_allowed = True
        """False when even recovery adds would eat the space kept for fences."""
        self.warn = False

    @property
    def writable(self) -> bool:
        """True while ordinary adds are taken."""
        return not self._full and not self._stalled

    def observe_space(self, free_bytes: int, total_bytes: int) -> None:
        """A measurement of the data directory's file system."""
        used = 1 - free_bytes / total_bytes if total_bytes else 1.0
        config = self._config
        self.free_bytes = free_bytes
        self.total_bytes = total_bytes
        self.warn = used >= config.disk_warn_ratio
        self.recovery_allowed = free_bytes >= RECOVERY_RESERVE_SEGMENTS * config.segment_bytes or (
            config.disk_reserve_segments == 0
        )
        if used >= config.disk_read_only_ratio or free_bytes < self._reserve_bytes:
            self._full = True
        elif used < config.disk_writable_ratio and free_bytes >= self._reserve_bytes * HYSTERESIS:
            self._full = False

    def allocation_failed(self) -> None:
        """A segment could not be allocated (ENOSPC): read-only until a measurement differs."""
        self._full = True

    def observe_sync(self, running_s: float | None) -> None:
        """How long the sync in progress has taken, None when there is none (B-9)."""
        self._stalled = running_s is not None and running_s >= self._config.sync_read_only_s
