"""The quorum client: many bookies as one ledger (spec/ledger.md §3-§5). Start at DESIGN.md.

Brokers, autorecovery, Spark and tools use it; applications do not.
"""

from __future__ import annotations

from octavo.client.ledger.client import LedgerClient
from octavo.client.ledger.config import LedgerClientConfig
from octavo.client.ledger.quorum_actions import QuorumLimits
from octavo.client.ledger.reader import LedgerReader
from octavo.client.ledger.writer import LedgerWriter
from octavo.metadata.ledger_record import LedgerMetadata, LedgerState, Quorum

__all__ = [
    "LedgerClient",
    "LedgerClientConfig",
    "LedgerMetadata",
    "LedgerReader",
    "LedgerState",
    "LedgerWriter",
    "Quorum",
    "QuorumLimits",
]
