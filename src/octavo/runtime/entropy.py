"""Randomness as a value that is passed in: unpredictable in production, seeded in tests."""

from __future__ import annotations

import os
import random
import uuid
from typing import Protocol, TypeVar

T = TypeVar("T")


class Entropy(Protocol):
    """Source of random values; no module below this one calls `random` or `os.urandom`."""

    def token(self) -> bytes:
        """16 random bytes (creator tokens M-3, nonces B-28)."""
        ...

    def uuid(self) -> uuid.UUID:
        """A random version-4 uuid (incarnations, topic ids)."""
        ...

    def uniform(self, low: float, high: float) -> float:
        """A float in [low, high] (jitter)."""
        ...

    def below(self, n: int) -> int:
        """An int in [0, n)."""
        ...

    def shuffled(self, items: list[T]) -> list[T]:
        """A new list with the items in random order."""
        ...


class SeededEntropy:
    """Reproducible entropy: the same seed gives the same values."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def token(self) -> bytes:
        return self._random.randbytes(16)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self._random.randbytes(16), version=4)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def below(self, n: int) -> int:
        return self._random.randrange(n)

    def shuffled(self, items: list[T]) -> list[T]:
        out = list(items)
        self._random.shuffle(out)
        return out


class SystemEntropy(SeededEntropy):
    """Entropy seeded by the operating system; tokens come straight from it."""

    def __init__(self) -> None:
        super().__init__(int.from_bytes(os.urandom(16), "big"))

    def token(self) -> bytes:
        return os.urandom(16)

    def uuid(self) -> uuid.UUID:
        return uuid.uuid4()
