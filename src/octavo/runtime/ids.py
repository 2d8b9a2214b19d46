"""Identifier types of the storage protocol, so that a ledger id is never passed for an entry id."""

from __future__ import annotations

import uuid
from typing import NamedTuple, NewType

LedgerId = NewType("LedgerId", int)
"""63-bit, increasing in allocation order across the cluster (ID-1)."""

EntryId = NewType("EntryId", int)
"""0..n inside one ledger; -1 stands for "none yet"."""

NO_ENTRY = EntryId(-1)


class Member(NamedTuple):
    """One slot of an ensemble: a bookie in one incarnation of its history (6.10, 6.11)."""

    bookie_id: str
    incarnation: uuid.UUID

    def __str__(self) -> str:
        return f"{self.bookie_id}@{self.incarnation}"

    @classmethod
    def parse(cls, text: str) -> Member:
        """Parse `bookie-id@incarnation`; raises ValueError."""
        bookie_id, _, incarnation = text.rpartition("@")
        if not bookie_id:
            raise ValueError(f"not an ensemble member: {text!r}")
        return cls(bookie_id, uuid.UUID(incarnation))
