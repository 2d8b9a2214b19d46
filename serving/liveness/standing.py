"""Whether this process still is who the cluster takes it for, and how surely.

A broker is replaced in this order: its registration is deleted; LEASE_S and a margin pass; its
bundles are deleted, and others take them. So a process that saw its registration at some moment is
the one owner of what it holds for LEASE_S from the moment it asked, and says so without asking
again; later it must look first (design.md §12). Each time it registers anew it is another life with
another nonce: whoever still takes bundles of the earlier life away cannot meet those of this one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from octavo.metadata.brokers import BrokerInfo, BrokerRegistrar
from octavo.metadata.store import MetadataStore, SessionState
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import OctavoError
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger

LEASE_S = 0.5
"""How long a registration that was seen counts. Equal on all brokers of a cluster."""
LEASE_MARGIN_S = 0.1
"""Waited besides before bundles are taken: clocks of two machines run at different speeds."""
SESSION_SHARE = 3
"""Of a session shorter than usual only this part counts: the stores notice a cut after two thirds
of it at the latest, so that doubt begins before the session can have ended."""
PULSES = 2.5
"""Looks at the registration in one lease."""
CONFIRM_S = 1.0
"""How long the metadata store has to answer."""
FORMER_MAX = 16
"""Earlier lives of this process that are remembered: what they left is this one's to clear up."""

_log = get_logger("octavo.serving.standing")


class Standing:
    """The registration of one broker process, and what follows from it.

    Args:
        pause_s: a process that stood still for so long may have been replaced.
        replaced: called when this life is over and `me` is the next one: nothing is held any more.
    """

    def __init__(
        self,
        me: BrokerInfo,
        *,
        store: MetadataStore,
        clock: Clock,
        entropy: Entropy,
        session_timeout_s: float,
        pause_s: float,
    ) -> None:
        self.me = me
        """Who this process is now."""
        self.former: deque[bytes] = deque(maxlen=FORMER_MAX)
        """Nonces of earlier lives."""
        self.replaced: Callable[[], None] = lambda: None
        self.registered: Callable[[], None] = lambda: None
        """Called when a life begins."""
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._registrar: BrokerRegistrar | None = None
        self._lease_s = min(LEASE_S, session_timeout_s / SESSION_SHARE)
        self._pause_s = min(pause_s, session_timeout_s)
        self._tasks = TaskOwner("standing")
        self._pulse_s = clock.monotonic()
        """When this process ran last, and could have noticed that it was replaced."""
        self._confirmed_s = self._pulse_s - self._lease_s
        """When the registration was surely there."""
        self._confirming: asyncio.Task[bool] | None = None
        self._stopping = False

    async def begin(self, registrar: BrokerRegistrar) -> None:
        """Register; raises IllegalStateError when another process holds the id (B-28)."""
        self._registrar = registrar
        await registrar.register()
        await self.confirm()
        self._tasks.spawn(self._pulse(), name="pulse")

    async def close(self) -> None:
        """Nothing is certain any more. The registration stays: it is withdrawn by its owner."""
        self._stopping = True
        await self._tasks.close()

    def renew(self) -> BrokerInfo:
        """The registration is gone and made again: `me` is another life from now on."""
        self.former.append(self.me.process_nonce)
        self.me = replace(self.me, process_nonce=self._entropy.token())
        self._confirmed_s = self._clock.monotonic() - self._lease_s
        _log.warning("broker-was-replaced", broker=self.me.broker_id)
        self.replaced()
        return self.me

    @property
    def is_registered(self) -> bool:
        """Whether this life's registration exists, as far as is known."""
        return self._registrar is not None and self._registrar.present

    def is_paused(self) -> bool:
        """Whether the process stood still for so long that it may have been replaced (F148).

        Until the store said that it was not, nothing may be answered.
        """
        return self._clock.monotonic() - self._pulse_s >= self._pause_s

    def certain(self) -> bool:
        """Whether nobody else can own what is held here."""
        return self._clock.monotonic() - self._confirmed_s < self._lease_s

    async def confirm(self) -> bool:
        """Ask the store; True when this life stood at some moment during the call.

        Simultaneous callers share the question.
        """
        if self._stopping or self._store.session_state is not SessionState.CONNECTED:
            return False
        if self._confirming is None:
            self._confirming = self._tasks.spawn(self._ask_store(), name="confirm")
        task = self._confirming
        await asyncio.wait({task})
        return not task.cancelled() and task.result()

    async def _ask_store(self) -> bool:
        asked_s, life = self._clock.monotonic(), self.me.process_nonce
        try:
            if self._registrar is None:
                return False
            async with asyncio.timeout(CONFIRM_S):
                stands = await self._registrar.stands()
        except (OctavoError, TimeoutError):
            return False
        finally:
            self._confirming = None
        if not stands or self.me.process_nonce != life:
            return False
        self._confirmed_s = max(self._confirmed_s, asked_s)
        self._pulse_s = max(self._pulse_s, asked_s)
        return self._store.session_state is SessionState.CONNECTED

    async def _pulse(self) -> None:
        while True:
            await self._clock.sleep(self._lease_s / PULSES)
            if not self.is_paused():
                self._pulse_s = self._clock.monotonic()
            if self._store.session_state is SessionState.CONNECTED and self._confirming is None:
                self._confirming = self._tasks.spawn(self._ask_store(), name="confirm")
