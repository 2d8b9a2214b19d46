"""What a partition's core may ask of its surroundings."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class World(NamedTuple):
    """What a partition may ask of its surroundings; each question is answered at once."""

    live_bookies: Callable[[], int]
    """Writable bookies as last seen."""
    metadata_connected: Callable[[], bool]
    """Whether a roll could succeed: the metadata session is live."""
    certain: Callable[[], bool]
    """Whether the session surely lives: nobody else owns what this broker holds."""
