"""The name of one partition."""

from __future__ import annotations

import uuid
from typing import NamedTuple


class PartitionName(NamedTuple):
    """One partition of one life of a topic."""

    topic: str
    topic_id: uuid.UUID
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
