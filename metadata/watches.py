"""Callbacks of one store: watched keys and session listeners. Shared by all stores.

Callbacks run from the event loop, one turn after the event, so that a failing one cannot harm
the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from octavo.metadata.store import SessionState, Unsubscribe

WatchCallback = Callable[[str], None]
SessionCallback = Callable[[SessionState], None]


class WatchTable:
    """Which callbacks want to hear of which keys."""

    def __init__(self) -> None:
        self._callbacks: dict[str, list[WatchCallback]] = {}

    def __len__(self) -> int:
        return len(self._callbacks)

    def add(self, key: str, callback: WatchCallback) -> bool:
        """Remember `callback`; True when `key` was not watched before."""
        callbacks = self._callbacks.setdefault(key, [])
        callbacks.append(callback)
        return len(callbacks) == 1

    def remove(self, key: str, callback: WatchCallback) -> bool:
        """Forget `callback`; True when `key` is not watched any more because of this call."""
        callbacks = self._callbacks.get(key)
        if callbacks is None or callback not in callbacks:
            return False
        callbacks.remove(callback)
        if callbacks:
            return False
        del self._callbacks[key]
        return True

    def watched(self) -> list[str]:
        """All watched keys."""
        return list(self._callbacks)

    def fire(self, key: str) -> None:
        """Have everyone called who watches `key`."""
        for callback in self._callbacks.get(key, ()):
            asyncio.get_running_loop().call_soon(self._deliver, key, callback)

    def _deliver(self, key: str, callback: WatchCallback) -> None:
        if callback in self._callbacks.get(key, ()):  # not unsubscribed meanwhile
            callback(key)

    def fire_all(self) -> None:
        """Have everyone called, after a reconnect during which changes may have been missed."""
        for key in self.watched():
            self.fire(key)

    def clear(self) -> None:
        """Forget everyone."""
        self._callbacks.clear()


class SessionListeners:
    """The session's state and who wants to hear of its changes."""

    def __init__(self, state: SessionState) -> None:
        self.state = state
        self._callbacks: list[SessionCallback] = []

    def add(self, callback: SessionCallback) -> Unsubscribe:
        """Call `callback(state)` at every change from now on."""
        self._callbacks.append(callback)

        def unsubscribe() -> None:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

        return unsubscribe

    def set(self, state: SessionState) -> None:
        """Change the state and tell everyone; the same state again is not a change."""
        if state is not self.state:
            self.state = state
            for callback in self._callbacks:
                asyncio.get_running_loop().call_soon(self._deliver, state, callback)

    def _deliver(self, state: SessionState, callback: SessionCallback) -> None:
        if callback in self._callbacks:
            callback(state)

    def clear(self) -> None:
        """Forget everyone."""
        self._callbacks.clear()
