"""What the partitions of a broker share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from octavo.metadata.topics import PartitionCatalog
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy
from octavo.serving.cache import TailCache
from octavo.serving.cold import ColdReader
from octavo.serving.config import BrokerConfig
from octavo.serving.ledger_backend import LedgerBackend
from octavo.serving.tiering.reads import TierReads


@dataclass(frozen=True)
class PartitionDeps:
    """What all partitions of a broker share."""

    backend: LedgerBackend
    catalog: PartitionCatalog
    config: BrokerConfig
    clock: Clock
    entropy: Entropy
    tail_cache: TailCache
    cold: ColdReader
    tiered: TierReads
    live_bookies: Callable[[], int]
    """Writable bookies as last seen."""
    metadata_connected: Callable[[], bool]
    """Whether a roll could succeed: the metadata session is live."""
    certain: Callable[[], bool]
    """Whether the session surely lives: nobody else owns what this broker holds."""
    confirm: Callable[[], Awaitable[bool]]
    """Ask the metadata store whether it does."""
