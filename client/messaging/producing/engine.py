"""One producer as its doors use it: an intake for any thread, a delivery on one loop, and an end.

Sync and async producers are thin layers over it. What may be called where is in the types:
`intake` takes records on any thread; everything else, `delivery` above all, is for the loop.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial

from octavo.client.messaging.cluster.cluster import Cluster
from octavo.client.messaging.config import ProducerConfig
from octavo.client.messaging.producing.delivery import Delivery
from octavo.client.messaging.producing.futures import Completion
from octavo.client.messaging.producing.lost_records import UNCLOSED
from octavo.runtime.errors import DeliveryFailed, FlushTimeout, ProducerClosed


class ProducerEngine:
    """Everything behind one producer. Made on its loop."""

    def __init__(self, cluster: Cluster, config: ProducerConfig) -> None:
        self._clock = cluster.clock
        self._max_block_s = config.max_block_ms / 1000
        self._closing: asyncio.Future[None] | None = None
        self.pid = os.getpid()
        self.delivery = Delivery(cluster, config)
        self.intake = self.delivery.intake
        self.early = self.delivery.early
        UNCLOSED.add(self)

    async def space(self, size_bytes: int) -> None:
        """Wait on the loop for memory, up to max_block_ms; BufferFull when it does not come."""
        intake, loop = self.intake, self.intake.loop
        accumulator = intake.accumulator
        deadline_s = self._clock.monotonic() + self._max_block_s
        while True:
            freed = asyncio.Event()
            wake = partial(loop.call_soon_threadsafe, freed.set)
            with accumulator.lock:
                if intake.closed is not None or accumulator.free_bytes >= size_bytes:
                    return
                accumulator.expedite_all()
                intake.wake()
                left_s = deadline_s - self._clock.monotonic()
                if left_s <= 0:
                    raise intake.buffer_full(self._max_block_s)
                accumulator.on_space(wake)
            try:
                async with asyncio.timeout(left_s):
                    await freed.wait()
            except TimeoutError:
                continue
            finally:
                accumulator.off_space(wake)

    async def flush(self, timeout_s: float | None) -> None:
        """Wait until every record appended before the call is acknowledged or failed.

        Raises FlushTimeout with the number of records still open. Failures are reported by the
        futures of the records.
        """
        intake = self.intake
        deadline_s = None if timeout_s is None else self._clock.monotonic() + timeout_s
        await self.early.all_drained(timeout_s)
        intake.expedite_all()
        self.delivery.look()
        with intake.accumulator.lock:
            waiting: list[Completion] = [*intake.accumulator.waiting()]
        waiting += list(intake.aside)
        for batch in waiting:
            left_s = None if deadline_s is None else deadline_s - self._clock.monotonic()
            try:
                async with asyncio.timeout(left_s):
                    await batch.wait_async()
            except TimeoutError:
                remaining = sum(item.records for item in waiting if not item.done)
                raise FlushTimeout(
                    f"{remaining} records were not acknowledged within {timeout_s:g} s",
                    hint="they are still being sent; flush again or close",
                    remaining=remaining,
                ) from None

    def unacknowledged(self) -> int:
        """Records that were accepted and neither acknowledged nor failed; any thread."""
        return self.delivery.unacknowledged()

    def untold(self) -> int:
        """Records that are open, or failed and nobody looked at their futures; any thread."""
        return self.delivery.unacknowledged() + self.delivery.failures.records()

    async def close(self, timeout_s: float | None) -> None:
        """Wait for what was accepted, then accept nothing more and release everything.

        What is not acknowledged after `timeout_s` fails and the call raises FlushTimeout with the
        count; failures that no future was asked about are raised too (U2: no silent loss).
        A cancelled close releases everything at once; a second close waits for the first.
        """
        if self._closing is None:
            self._closing = self.intake.loop.create_future()
        elif not self._closing.done():
            await asyncio.wait((self._closing,), timeout=timeout_s)
            return
        else:
            return
        try:
            await self.flush(timeout_s)
        except FlushTimeout as late:
            late.hint = "they may or may not be stored: the producer is closed"
            raise
        finally:
            self.intake.shut(ProducerClosed("closed by the application"))
            try:
                await self._release()
            finally:
                self._closing.set_result(None)
        self.delivery.failures.raise_unseen()

    async def _release(self) -> None:
        UNCLOSED.discard(self)
        await self.delivery.release(
            DeliveryFailed(
                "the producer was closed before the record was acknowledged; it may or may not be "
                "stored"
            )
        )
