"""A bound on how long a client's request waits for a metadata store that is silent.

The metadata layer waits long and often, because what recovery and rolls read is worth it. A client
that asks is better told which part of the cluster does not answer, and where it is: it may ask
again. So what a request does is bounded here, by proof and not by time alone: work that takes long
goes on as long as the store answers, and ends with MetadataUnavailable once it does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from octavo.metadata.connect import parse_url
from octavo.metadata.store import MetadataStore
from octavo.runtime.clock import Clock
from octavo.runtime.errors import MetadataUnavailable, OctavoError
from octavo.runtime.tasks import TaskOwner

PATIENCE_S = 1.5
"""A request that took so long has the store asked whether it is there; again after as long."""
PROBE_S = 1.0
"""How long the store has to answer that."""

T = TypeVar("T")


class StoreAnswers:
    """Ends the waits of one broker's requests while its metadata store is silent.

    Args:
        metadata_url: names the store in errors.
    """

    def __init__(self, store: MetadataStore, metadata_url: str, clock: Clock) -> None:
        scheme, hosts, _ = parse_url(metadata_url)
        self._address = f"{scheme}://{hosts}"
        self._store = store
        self._clock = clock
        self._tasks = TaskOwner("store-answers")
        self._probing: asyncio.Task[bool] | None = None
        self._closed = False

    async def close(self) -> None:
        """End the questions under way; requests are not bounded any more."""
        self._closed = True
        await self._tasks.close()

    async def during(self, work: Awaitable[T]) -> T:
        """The result of `work`; MetadataUnavailable, with `address`, when the store falls silent.

        For reads, and for writes whose loss is harmless: `work` is cancelled then. Shared tasks
        that it waits for go on.
        """
        if self._closed:
            return await work
        limit = asyncio.timeout(None)
        try:
            async with limit:
                watcher = self._tasks.spawn(self._end_if_silent(limit), name="watch")
                try:
                    return await work
                finally:
                    watcher.cancel()
        except TimeoutError:
            if not limit.expired():
                raise
            raise self.silent() from None

    def silent(self) -> MetadataUnavailable:
        """The error that says that the store does not answer."""
        return MetadataUnavailable(
            f"the metadata store at {self._address} does not answer", address=self._address
        )

    async def _end_if_silent(self, limit: asyncio.Timeout) -> None:
        while True:
            await self._clock.sleep(PATIENCE_S)
            if not await self.answers():
                limit.reschedule(0.0)  # long ago: now
                return

    async def answers(self) -> bool:
        """Whether the store answers within PROBE_S; simultaneous callers share the question."""
        if self._probing is None:
            self._probing = self._tasks.spawn(self._probe(), name="probe")
        probing = self._probing
        await asyncio.wait({probing})
        return not probing.cancelled() and probing.result()

    async def _probe(self) -> bool:
        try:
            async with asyncio.timeout(PROBE_S):
                await self._store.barrier()
        except (OctavoError, TimeoutError):
            return False
        finally:
            self._probing = None
        return True
