"""One ephemeral key of ours, kept alive across sessions (spec/ledger.md B-28, B-30, O-5).

`Registration` creates the key, notices when it disappears (session lost, lease run out) and
creates it again. A key held by another process nonce is never deleted: we wait until its session
has died. Bookies, brokers and the elected leader register through it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from octavo.metadata.settled import SettledWrites
from octavo.metadata.store import MetadataStore, SessionState
from octavo.runtime.clock import Clock
from octavo.runtime.errors import (
    IllegalStateError,
    KeyExists,
    MetadataCorrupt,
    MetadataRefused,
    MetadataUnavailable,
    OctavoError,
    UnknownOutcome,
)
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger

_log = get_logger("octavo.metadata.registration")

RETRY_S = 0.5
"""Pause between attempts while the store is away or the key is held by a dying session."""

TAKEN_WAIT_S = 30.0
"""How long the key of a previous process may outlive it before we give up (B-28)."""


class Registration:
    """Keeps `key` = `value` present, bound to the store's session, until `withdraw()`.

    `value` must contain a nonce unique to this process, so that equal bytes mean "ours".

    Args:
        renewed: gives the value of the next registration when this one is gone; without it the key
            is made again as it was.
        on_present: called after the key was made again.
    """

    def __init__(
        self,
        store: MetadataStore,
        key: str,
        value: bytes,
        *,
        clock: Clock,
        on_taken: Callable[[], None] | None = None,
        renewed: Callable[[], bytes] | None = None,
        on_present: Callable[[], None] | None = None,
    ) -> None:
        self.key = key
        self.value = value
        self._store = store
        self._clock = clock
        self._writes = SettledWrites(store, clock)
        self._on_taken = on_taken
        self._renewed = renewed
        self._on_present = on_present
        self._check = asyncio.Event()
        self._tasks = TaskOwner("registration")
        self._unsubscribe: list[Callable[[], None]] = []
        self.present = False
        """True while, as far as we know, our key exists."""

    async def establish(self, taken_wait_s: float = TAKEN_WAIT_S) -> None:
        """Create the key and start keeping it.

        Raises IllegalStateError when another process holds it.
        """
        await self._create(taken_wait_s)
        self._unsubscribe = [
            self._store.watch(self.key, self._on_key_event),
            self._store.on_session(self._on_session),
        ]
        self._check.set()  # it may have gone before the watch was set
        self._tasks.spawn(self._keep(), name=f"keep {self.key}")

    async def stands(self) -> bool:
        """Whether our key was there at some moment during the call; raises MetadataUnavailable."""
        value = self.value
        await self._store.barrier()
        found = await self._store.get(self.key)
        return found is not None and found.value == value

    async def abandon(self) -> None:
        """Stop keeping the key, which goes with the session."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._unsubscribe = []
        await self._tasks.close()
        self.present = False

    async def withdraw(self) -> None:
        """Stop keeping the key and delete it if it is still ours.

        Never raises for an absent store.
        """
        await self.abandon()
        try:
            found = await self._store.get(self.key)
            if found is not None and found.value == self.value:
                await self._store.delete(self.key, expected=found.version)
        except OctavoError as error:
            _log.info("withdraw-left-to-session", key=self.key, cause=str(error))

    def _on_key_event(self, _key: str) -> None:
        self._check.set()

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self.present = False
        self._check.set()

    async def _keep(self) -> None:
        while True:
            await self._check.wait()
            self._check.clear()
            if self._store.session_state is not SessionState.CONNECTED:
                continue
            try:
                found = await self._store.get(self.key)
                if found is not None and found.value == self.value:
                    self.present = True
                    continue
                self.present = False
                _log.warning("registering-again", key=self.key)
                if self._renewed is not None:
                    self.value = self._renewed()
                await self._create(TAKEN_WAIT_S)
                if self._on_present is not None:
                    self._on_present()
            except (
                IllegalStateError
            ):  # held by another process for too long, or our store is closed
                _log.error("registration-taken", key=self.key)
                if self._on_taken is not None:
                    self._on_taken()
                return
            except (MetadataUnavailable, MetadataRefused, MetadataCorrupt, UnknownOutcome) as error:
                _log.warning("registration-retry", key=self.key, cause=str(error))
                await self._clock.sleep(RETRY_S)
                self._check.set()

    async def _create(self, taken_wait_s: float) -> None:
        give_up = self._clock.monotonic() + taken_wait_s
        while True:
            try:
                await self._writes.create(self.key, self.value, ephemeral=True)
            except KeyExists:
                held_by = await self._held_by()
                if held_by == "nobody":
                    continue
                if held_by != "us":
                    if self._clock.monotonic() >= give_up:
                        raise IllegalStateError(
                            f"{self.key} is held by {held_by}",
                            hint="give each process its own id, or stop the other one",
                            key=self.key,
                        ) from None
                    await self._clock.sleep(RETRY_S)
                    continue
            self.present = True
            return

    async def _held_by(self) -> str:
        try:
            found = await self._writes.read(self.key)
        except MetadataCorrupt:  # M-7: it exists; its session's end removes it
            return "a damaged registration"
        if found is None:
            return "nobody"
        return "us" if found.value == self.value else "another process"
