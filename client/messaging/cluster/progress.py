"""The client's own progress clock: does a stream with requests outstanding still move?

A peer that is frozen, or that sits behind a half-open link, ends nothing. Whoever waits for it must
notice by himself: no byte for SILENT_S, and no answer to a question on the side within PROBE_S,
means that the stream is given up and another broker is asked who owns the partitions. A broker that
is only slow answers the question and is waited for, as long as it takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from octavo.runtime.clock import Clock
from octavo.runtime.errors import BrokerUnavailable

SILENT_S = 1.0
"""No byte on a stream that owes an answer for this long: the broker is asked on the side."""
PROBE_S = 1.2
"""How long it has for that. Together a little more than the 2.1 s after which a silent owner is
replaced (ADR 34): the client looks for the next owner when there is one."""
SILENT_BROKERS_MAX = 1_000
"""Addresses remembered as silent; beyond it the oldest one is forgotten."""


class ProgressClock:
    """What one stream is owed and when it moved last. Pure."""

    def __init__(self) -> None:
        self.heard_s = 0.0
        """When the stream moved last, or began to owe something."""
        self.owed = 0
        """Requests without an answer."""
        self.asked_now = asyncio.Event()
        self._patience_s = SILENT_S

    def asked(self, now_s: float, *, long_poll_s: float = 0.0) -> None:
        """A request was sent; the peer may keep it for `long_poll_s` without being silent."""
        if not self.owed:
            self.heard_s = now_s
            self._patience_s = SILENT_S + long_poll_s
            self.asked_now.set()
        self.owed += 1

    def heard(self, now_s: float, answers: int) -> None:
        """Something arrived that answers so many requests."""
        self.heard_s = now_s
        self.owed = max(0, self.owed - answers)

    def cleared(self) -> None:
        """The stream ended: nothing is owed on it any more."""
        self.owed = 0

    def excused(self, now_s: float) -> None:
        """The peer lives, it is only slow."""
        self.heard_s = max(self.heard_s, now_s)

    def silent_in(self, now_s: float) -> float | None:
        """Seconds until the peer counts as silent (0 or less: it does); None: it owes nothing."""
        return self.heard_s + self._patience_s - now_s if self.owed else None


async def until_silent(
    address: str,
    progress: ProgressClock,
    clock: Clock,
    responds: Callable[[str], Awaitable[bool]],
) -> BrokerUnavailable:
    """Return once the peer is silent: why its stream must be given up. Cancellable.

    A pause of this process looks like silence of the peer; the question on the side tells them
    apart.
    """
    while True:
        left_s = progress.silent_in(clock.monotonic())
        if left_s is None:
            progress.asked_now.clear()
            await progress.asked_now.wait()
        elif left_s > 0:
            await clock.sleep(left_s)
        else:
            before_s = progress.heard_s
            if await responds(address):
                progress.excused(clock.monotonic())
            elif progress.heard_s == before_s and progress.owed:
                silent_s = clock.monotonic() - before_s
                return BrokerUnavailable(f"{address}: nothing was heard for {silent_s:.1f} s")


class SilentBrokers:
    """Brokers that did not answer when they were asked last: asked last, trusted last."""

    def __init__(self) -> None:
        self._silent: dict[str, None] = {}

    def __contains__(self, address: str) -> bool:
        return address in self._silent

    def fell_silent(self, address: str) -> None:
        """It did not answer."""
        self._silent[address] = None
        if len(self._silent) > SILENT_BROKERS_MAX:
            del self._silent[next(iter(self._silent))]

    def answered(self, address: str) -> None:
        """It did."""
        self._silent.pop(address, None)

    def last(self, addresses: list[str]) -> list[str]:
        """The same addresses, silent ones behind the others."""
        if not self._silent:
            return addresses
        return sorted(addresses, key=self._silent.__contains__)
