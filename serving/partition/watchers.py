"""Who waits for more to read, or for the partition to go away (F1)."""

from __future__ import annotations

from collections.abc import Callable


class Watchers:
    """Called in no particular order; each looks for itself whether there is anything for it."""

    def __init__(self) -> None:
        self._callbacks: set[Callable[[], None]] = set()

    def add(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever more can be read or the partition goes away."""
        self._callbacks.add(callback)

    def remove(self, callback: Callable[[], None]) -> None:
        """Stop calling `callback`."""
        self._callbacks.discard(callback)

    def wake(self) -> None:
        """Make everybody who waits look again."""
        if self._callbacks:
            for callback in tuple(self._callbacks):
                callback()

    def clear(self) -> None:
        """Nobody is called any more."""
        self._callbacks.clear()
