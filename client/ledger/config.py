"""Bounds and timeouts of the ledger client, with units in their names."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.client.ledger.placement import DomainRule
from octavo.client.ledger.quorum_actions import QuorumLimits
from octavo.runtime.errors import ConfigError

MIB = 1024 * 1024


@dataclass(frozen=True)
class LedgerClientConfig:
    """Settings of one `LedgerClient` and of everything it opens."""

    client_name: str = "ledger-client"
    """Shown in the bookies' logs and with every recovery-open (RD-9)."""
    limits: QuorumLimits = field(default_factory=QuorumLimits)
    """Timeouts and bounds of one writing handle (§3)."""
    connect_timeout_s: float = 2.0
    """Dialling a bookie and its hello together."""
    request_timeout_s: float = 5.0
    """One read, fence or recovery add."""
    speculative_read_s: float = 2.0
    """RD-2: after this the next replica is asked too."""
    slow_replica_s: float = 30.0
    """How long a replica that was too slow is asked last."""
    read_max_bytes: int = 4 * MIB
    """Upper bound of one read reply."""
    read_parallel: int = 8
    """Entries fetched at once from striped ledgers (E > Qw)."""
    recovery_window: int = 8
    """Entries in flight in one recovery (R-4)."""
    recovery_timeout_s: float = 120.0
    """How long `recover_ledger` keeps trying before it raises."""
    retry_initial_s: float = 0.5
    retry_max_s: float = 30.0
    """R-8: back-off between recovery attempts."""
    reconnect_initial_s: float = 0.05
    reconnect_max_s: float = 2.0
    connection_in_flight_bytes: int = 64 * MIB
    """W-10: bytes sent to one bookie and not answered."""
    handle_in_flight_bytes: int = 64 * MIB
    """W-10: bytes of one handle, every copy counted, not answered."""
    process_in_flight_bytes: int = 512 * MIB
    """W-10: bytes of all handles, every copy counted, not answered."""
    quarantine_s: float = 60.0
    """How long a bookie that failed is avoided for new ensembles (3.4)."""
    replacement_retry_s: float = 5.0
    """How long a bookie that failed is not tried again as a replacement in an open ledger; twice
    as long after each further failure (C-2)."""
    replacement_retry_max_s: float = 60.0
    """Longest such pause."""
    min_domains_per_write_set: int = 2
    """3.8: fault domains every write set should span."""
    enforce_domains: bool = False
    """3.8: refuse placements that do not span them."""

    @property
    def domain_rule(self) -> DomainRule:
        """How far apart copies of an entry shall lie (3.8)."""
        return DomainRule(self.min_domains_per_write_set, self.enforce_domains)

    def __post_init__(self) -> None:
        smallest = min(
            self.connect_timeout_s,
            self.request_timeout_s,
            self.read_max_bytes,
            self.read_parallel,
            self.recovery_window,
            self.connection_in_flight_bytes,
            self.handle_in_flight_bytes,
            self.process_in_flight_bytes,
        )
        if smallest <= 0:
            raise ConfigError("ledger client timeouts and budgets must be positive")
