"""Whether `tier_root` is there, answers, and is this cluster's (ADR 75).

Looked at when a broker starts, and again and again. Whatever is wrong with it, nothing is written,
removed or believed there until it is right again: what cannot be looked at is unknown, never gone.
One line in the log says what is wrong when that changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from octavo.client.exports.tier_marker import TierMark, check_mark, make_mark, read_mark
from octavo.metadata.tier import TierCatalog
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import ConfigError, OctavoError, StorageFailed
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger
from octavo.runtime.workers import DetachedPool

LOOK_TIMEOUT_S = 10.0
"""A file system that takes longer to show a small file does not answer."""

_log = get_logger("octavo.serving.tiering")


class TierRoot:
    """The folder `path` of one broker; empty: it was told of none, and nothing is ever wrong."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.problem: OctavoError | None = None
        """Why the folder is not to be used now."""
        self._wanted = TierMark("", "")
        self._catalog: TierCatalog | None = None
        self._entropy: Entropy | None = None
        self._threads = DetachedPool("tier-root", 1, 0)
        self._tasks = TaskOwner("tier-root")
        self._owed: asyncio.Task[TierMark | OctavoError | None] | None = None
        self._turn = asyncio.Lock()

    async def begin(self, cluster_id: str, catalog: TierCatalog, entropy: Entropy) -> None:
        """From now on it is known whose folder it is to be; the first broker marks it.

        Raises ConfigError when it belongs to another cluster. What else is wrong with it keeps no
        broker from serving what is on bookies.
        """
        self._wanted = TierMark(cluster_id, "")
        self._catalog, self._entropy = catalog, entropy
        await self.look()
        if isinstance(self.problem, ConfigError):
            raise self.problem

    async def watch(self, clock: Clock, interval_s: float) -> None:
        """Look for ever."""
        while True:
            await clock.sleep(interval_s)
            await self.look()

    async def look(self) -> None:
        """Find out what is wrong with it now; never raises."""
        if not self.path or self._catalog is None:
            return
        async with self._turn:
            await self._look(self._catalog)

    async def _look(self, catalog: TierCatalog) -> None:
        before, self.problem = self.problem, await self._problem(catalog)
        said = "" if before is None else before.cause
        if self.problem is None:
            if before is not None:
                _log.info("tier-root-usable-again", tier_root=self.path)
        elif self.problem.cause != said:
            _log.error("tier-root-unusable", cause=self.problem.cause, hint=self.problem.hint)

    @property
    def is_silent(self) -> bool:
        """Whether its file system owes an answer to the last look."""
        return self._owed is not None and not self._owed.done()

    def require(self) -> None:
        """Raise what is wrong with it, as of the last look."""
        if self.problem is not None:
            raise self.problem

    def check(self) -> None:
        """Raise what is wrong with it now; blocking, for threads."""
        if self.path and self._wanted.cluster_id:
            check_mark(self.path, read_mark(self.path), self._wanted)

    async def _problem(self, catalog: TierCatalog) -> OctavoError | None:
        try:
            found = await self._asked(read_mark, self.path)
            if not self._wanted.tier_id:
                found = await self._agree(found, catalog)
            check_mark(self.path, found, self._wanted)
        except OctavoError as error:
            return error
        return None

    async def _agree(self, found: TierMark | None, catalog: TierCatalog) -> TierMark | None:
        """Learn which tier is the cluster's, or begin it; the marker that is there then.

        The marker is made first: who dies behind it is followed by one who finds it.
        """
        tier_id = await catalog.tier_id()
        if not tier_id:
            if found is None and self._entropy is not None:
                fresh = self._wanted._replace(tier_id=self._entropy.uuid().hex)
                found = await self._asked(make_mark, self.path, fresh)
            check_mark(self.path, found, self._wanted)
            if found is not None:
                tier_id = await catalog.name(found.tier_id)
        self._wanted = self._wanted._replace(tier_id=tier_id)
        return found

    async def _asked(self, call: Callable[..., TierMark | None], *args: object) -> TierMark | None:
        """What the file system says within `LOOK_TIMEOUT_S`; while it owes an answer it is not
        asked again."""
        if self._owed is None or self._owed.done():
            self._owed = self._tasks.spawn(self._answer(call, *args), name="look")
            await asyncio.wait({self._owed}, timeout=LOOK_TIMEOUT_S)
            if self._owed.done():
                found = self._owed.result()
                if isinstance(found, OctavoError):
                    raise found
                return found
        raise StorageFailed(
            f"the file system of tier_root {self.path} does not answer",
            hint="look at it: df, dmesg, the network to its server",
        )

    async def _answer(
        self, call: Callable[..., TierMark | None], *args: object
    ) -> TierMark | OctavoError | None:
        """An error is a value: nobody may be left to hear it."""
        try:
            return await self._threads.run(call, *args)
        except OctavoError as error:
            return error

    async def close(self) -> None:
        """End; a question that is not answered is not waited for."""
        await self._tasks.close()
        await self._threads.close(0.0)
