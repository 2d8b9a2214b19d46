"""Where sinks stage, by name: their clients write there and brokers sweep it (ADR 67, ADR 74).

A sink stages in a topic of its own. Its name is made of the digest of the sink's id, by which the
record of the sink is found as well, and of a generation: once a topic is swept as a whole, the sink
goes on in one of the next generation, so that nobody mistakes the one for the other.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

STAGING_PREFIX = "spark-staging-"
_DIGITS = 32
_DIRECTORY_DIGITS = 3
_NAME = re.compile(rf"{STAGING_PREFIX}([0-9a-f]{{{_DIGITS}}})(?:-([1-9][0-9]{{0,8}}))?")


class StagingName(NamedTuple):
    """What the name of a staging topic says."""

    digest: str
    """The beginning of the sink's digest."""
    generation: int


def sink_digest(sink_id: str) -> str:
    """64 hexadecimal digits."""
    return hashlib.sha256(sink_id.encode()).hexdigest()


def split_sink_digest(digest: str) -> tuple[str, str]:
    """Directory and name, or beginning of the name, of a sink's record (L-1)."""
    return digest[:_DIRECTORY_DIGITS], digest[_DIRECTORY_DIGITS:]


def staging_topic(sink_id: str, generation: int = 0) -> str:
    """The topic in which a sink stages its batches."""
    name = STAGING_PREFIX + sink_digest(sink_id)[:_DIGITS]
    return f"{name}-{generation}" if generation else name


def parse_staging_topic(topic: str) -> StagingName | None:
    """What the name says; None: it is not that of a staging topic."""
    found = _NAME.fullmatch(topic)
    return None if found is None else StagingName(found[1], int(found[2] or 0))
