"""What the sender core asks of the delivery."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.client.messaging.producing.in_flight import Deliverable, Partition
from octavo.runtime.errors import OctavoError


@dataclass(frozen=True, slots=True)
class Send:
    """Encode (with these numbers) or re-send the batch on the connection to `owner`."""

    owner: str
    correlation: int
    batch: Deliverable
    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    topic_id: bytes = b""
    writer_epoch: int = 0

    @property
    def acks(self) -> int:
        """Whose promise the batch waits for; 0: nobody answers (A4)."""
        return self.batch.acks


@dataclass(frozen=True, slots=True)
class Complete:
    """The batch is stored."""

    batch: Deliverable
    base_offset: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class Fail:
    """The batch is given up; its error says whether it may be stored."""

    batch: Deliverable
    error: OctavoError


@dataclass(frozen=True, slots=True)
class FindOwner:
    """Learn the owner of a partition, then call `owner_found`."""

    partition: Partition
    avoid: str
    """The address that just failed; empty when none did."""


@dataclass(frozen=True, slots=True)
class RequestIdentity:
    """Ask any broker for a producer id, then call `identity_granted`."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The producer cannot go on; all batches have been failed."""

    error: OctavoError


Action = Send | Complete | Fail | FindOwner | RequestIdentity | Stop
