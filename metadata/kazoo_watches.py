"""Watches of ZooKeeper that are set again when they fired, which is all kazoo leaves to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import AsyncResult
from kazoo.protocol.states import EventType, WatchedEvent


class WatchArms:
    """Keeps one existence watch and one child watch set per key of interest.

    `armed` holds what is set on the server now; an event removes it and sets it again, unless
    the key was forgotten meanwhile or the connection is gone (then everything is set anew on
    reconnect).
    """

    def __init__(
        self,
        client: KazooClient,
        loop: asyncio.AbstractEventLoop,
        on_event: Callable[[str], None],
    ) -> None:
        self._client = client
        self._loop = loop
        self._on_event = on_event
        self._wanted: set[str] = set()
        # the same object each time, so that kazoo keeps one per key even if it is set twice
        self._callbacks: dict[tuple[str, bool], Callable[[WatchedEvent], None]] = {}
        self._armed: set[tuple[str, bool]] = set()  # key, is it the child watch

    def arm(self, key: str) -> None:
        """Watch `key` from now on."""
        self._wanted.add(key)
        self._set(key, children=False)
        self._set(key, children=True)

    def forget(self, key: str) -> None:
        """Do not set the watches of `key` again; those set fire once more into nothing."""
        self._wanted.discard(key)
        self._callbacks.pop((key, False), None)
        self._callbacks.pop((key, True), None)

    def clear(self) -> None:
        """The connection was replaced: nothing is set."""
        self._wanted.clear()
        self._armed.clear()

    def _set(self, key: str, *, children: bool) -> None:
        if (key, children) in self._armed:
            return
        self._armed.add((key, children))
        callback = self._callbacks.setdefault(
            (key, children), partial(self._in_kazoo_thread, key, children)
        )
        if children:
            result: AsyncResult[object] = self._client.get_children_async(key, watch=callback)
        else:
            result = self._client.exists_async(key, watch=callback)
        result.rawlink(partial(self._answered_in_kazoo_thread, key, children))

    def _answered_in_kazoo_thread(
        self, key: str, children: bool, result: AsyncResult[object]
    ) -> None:
        try:
            result.get(block=False)
        except KazooException:
            # no node: no child watch was set, the existence watch will tell; or no connection
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._armed.discard, (key, children))

    def _in_kazoo_thread(self, key: str, children: bool, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._on_fired, key, children)

    def _on_fired(self, key: str, children: bool) -> None:
        self._armed.discard((key, children))
        if key in self._wanted:
            self._set(key, children=False)
            self._set(key, children=True)
            self._on_event(key)
