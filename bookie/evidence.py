"""Carries the durable position of the log to where no lost segment takes it along (ADR 14).

The commit thread notes it in the directory's durable file; this task syncs that file by time, and
publishes the position in the cluster's cookie when the stream is idle, by time, and at a clean
stop: a disk that was rolled back as a whole is noticed by what the cluster remembers (B-23, B-27).
"""

from __future__ import annotations

import asyncio

from octavo.bookie.config import BookieConfig
from octavo.bookie.identity import Identity
from octavo.bookie.journal.durable_file import DurableFile
from octavo.bookie.journal.segment import Position
from octavo.bookie.journal.writer import JournalWriter
from octavo.runtime.clock import Clock
from octavo.runtime.errors import IllegalStateError, OctavoError
from octavo.runtime.telemetry import get_logger

FINISH_TIMEOUT_S = 5.0
"""How long a clean stop waits for the metadata store to take the last position."""

_log = get_logger("octavo.bookie.evidence")


class EvidenceKeeper:
    """Keeps the evidence of one bookie fresh."""

    def __init__(
        self,
        config: BookieConfig,
        journal: JournalWriter,
        file: DurableFile,
        identity: Identity,
        clock: Clock,
    ) -> None:
        self._interval_s = config.evidence_interval_s
        self._publish_s = config.evidence_publish_s
        self._journal = journal
        self._file = file
        self._identity = identity
        self._clock = clock
        self._rolled = asyncio.Event()
        self.counted = identity.cookie.boot_counter
        """The newest segment that the cookies count."""
        self._last_seen = self._published = journal.recorded
        self._published_s = clock.monotonic()
        self._away = False
        self._running = False

    def roll(self) -> None:
        """A new segment was begun: do a step at once."""
        self._rolled.set()

    async def run(self) -> None:
        """Step by time and at each roll until cancelled; OSError when the disk fails (B-8)."""
        self._running = True
        while True:
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._rolled.wait()
            except TimeoutError:
                pass  # time for a step
            self._rolled.clear()
            await self.step()

    async def step(self, *, last: bool = False) -> None:
        """Sync the durable file.

        Publish when the stream was idle since the last step, when it is time, or when this is the
        last step.
        """
        position = self._journal.recorded
        await asyncio.to_thread(self._file.sync)
        idle = position == self._last_seen
        self._last_seen = position
        due = self._clock.monotonic() - self._published_s >= self._publish_s
        try:
            if position.segment != self.counted:
                await self._identity.bump(position.segment)
                self.counted = position.segment
            if position != self._published and (idle or due or last):
                await self._publish(position)
        except IllegalStateError:
            raise  # another process goes by this identity (B-28)
        except OctavoError as error:
            # R7: an outage of the metadata store does not stop writes; the next step tries again.
            if not self._away:
                self._away = True
                _log.warning("evidence-not-published", cause=str(error))
        else:
            self._away = False

    async def finish(self) -> None:
        """After the stream has ended: the last position, so that a clean stop leaves no doubt.

        Does nothing if `run()` never began: a bookie that did not get its registration may be a
        copy, and must not speak for the one that has it (B-28).
        """
        if not self._running:
            return
        try:
            async with asyncio.timeout(FINISH_TIMEOUT_S):
                await self.step(last=True)
        except TimeoutError:
            _log.warning("evidence-not-published", cause="the metadata store does not answer")

    async def _publish(self, position: Position) -> None:
        await self._identity.publish(position)
        self._published = position
        self._published_s = self._clock.monotonic()
