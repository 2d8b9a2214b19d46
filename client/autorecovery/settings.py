"""Settings of autorecovery, alike in a bookie's process and alone; units in their names."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from octavo.runtime.config import FrozenSettings

MIB = 1 << 20


class RepairSettings(FrozenSettings):
    """When copies are missed, and how fast they are made again (spec/ledger.md §7)."""

    lost_delay_s: float = Field(default=600.0, ge=0)
    """A bookie that is away for so long is taken for lost: its copies are made elsewhere (A-1)."""
    audit_interval_s: float = Field(default=300.0, gt=0)
    """Longest time between two looks at every ledger; a bookie that comes back or is lost is looked
    at at once."""
    audit_recheck_s: float = Field(default=30.0, gt=0)
    """The same while copies are known to be missing."""
    audit_ledgers_per_s: int = Field(default=500, ge=1)
    """Ledgers that one look reads in a second (G-6 is alike)."""
    fleet_poll_s: float = Field(default=2.0, gt=0)
    """How often the auditor looks at the bookies, and workers for work."""
    repair_workers: int = Field(default=2, ge=0, le=64)
    """Ledgers that one process repairs at a time; 0: it repairs none."""
    repair_bytes_per_s: int = Field(default=20 * MIB, ge=MIB)
    """What one process copies in a second, over all its workers (A-9)."""
    open_fragment_grace_s: float = Field(default=30.0, ge=0)
    """How long a writer has to replace a lost bookie before its ledger is closed (A-6)."""


class AutorecoveryConfig(RepairSettings):
    """Configuration of a process that does nothing else (prefix OCTAVO_AUTORECOVERY_)."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix="OCTAVO_AUTORECOVERY_", env_parse_none_str="none"
    )

    name: str = "autorecovery"
    """Shown in logs and in the auditor's reports."""
    metadata_url: str = "embedded://127.0.0.1:7660/octavo"
    """`zk://host:2181/octavo`, or `embedded://host:port/octavo` of an `octavo up`."""
    metadata_session_timeout_s: float = Field(default=30.0, gt=0)
    """A process that is silent for so long loses its locks (A-9)."""
