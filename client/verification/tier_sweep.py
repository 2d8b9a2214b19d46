"""The files of a tier, partition by partition, as `octavo verify` looks at them (F088).

What is wrong is looked at once more before it is said: a file is written anew, a list is trimmed.
While the tier cannot be looked at nothing is said of its files but that, once.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Coroutine

from octavo.client.autorecovery.operator import Operator
from octavo.client.autorecovery.pace import Pace
from octavo.client.exports.manifest import FileEntry
from octavo.client.exports.tier_marker import TierMark
from octavo.client.verification.tier_files import Tier, TierTree, needs_files, said_of
from octavo.client.verification.totals import Finding, Totals, Verdict
from octavo.metadata.partition_record import PartitionState
from octavo.metadata.paths import Paths
from octavo.metadata.tier import TierCatalog
from octavo.metadata.topic_walk import walk_topics
from octavo.metadata.topics import PartitionCatalog
from octavo.runtime.errors import ConfigError, MetadataCorrupt, OctavoError, UnsupportedVersion

LOOKS_MAX = 4
"""At the files of a partition of which something is wrong each time, and another thing."""
PROBLEMS_TOLD_MAX = 20
Job = Coroutine[object, object, "list[Finding] | OctavoError"]


class TierSweep:
    """One verification's look at the tier.

    Args:
        tier_root: the brokers' `tier_root` as this machine sees it; empty: nobody said.
        read: read each byte of each file; else sizes are compared.
        totals: counts the files.
    """

    def __init__(
        self,
        operator: Operator,
        paths: Paths,
        partitions: PartitionCatalog,
        *,
        tier_root: str,
        read: bool,
        pace: Pace,
        totals: Totals,
    ) -> None:
        self._operator = operator
        self._paths = paths
        self._partitions = partitions
        self._tier_root = tier_root
        self._read = read
        self._pace = pace
        self._totals = totals
        self._turn = asyncio.Lock()
        self._tier: Tier | None = None
        self._is_refused = False
        """It is told that the tier cannot be looked at."""

    async def jobs(self) -> AsyncIterator[Job]:
        """A look at each partition of each topic."""
        async for walked in walk_topics(self._operator.store, self._paths):
            if walked.topic is not None and not walked.topic.deleting:
                for partition in range(walked.topic.partitions):
                    yield self._partition(walked.topic.name, walked.topic.topic_id, partition)

    async def _partition(
        self, topic: str, topic_id: uuid.UUID, partition: int
    ) -> list[Finding] | OctavoError:
        """An error that ends everything is a value: it is nobody's failed task."""
        sound: set[str] = set()
        said: list[str] = []
        try:
            for _ in range(LOOKS_MAX):
                before, said = said, []
                found = await self._partitions.read(topic_id, partition)
                if found is None or not needs_files(found.state):
                    return []
                tier = await self._usable()
                if isinstance(tier, Finding):
                    return [tier]
                if tier is None:
                    return []
                said = await self._look(tier.tree(topic, found.state), found.state, sound)
                if not said or said == before:
                    break
            if said and (tier := await self._usable(again=True)) is not self._tier:
                return [tier] if isinstance(tier, Finding) else []
        except (MetadataCorrupt, UnsupportedVersion):
            return []  # told with the list
        except OctavoError as error:
            return error
        self._totals.files += len(sound)
        if not said:
            return []
        more = len(said) - PROBLEMS_TOLD_MAX
        told = (*said[:PROBLEMS_TOLD_MAX], *((f"and {more} more",) if more > 0 else ()))
        return [Finding(f"files of {topic}-{partition}", Verdict.WRONG, told)]

    async def _look(self, tree: TierTree, state: PartitionState, sound: set[str]) -> list[str]:
        """What is wrong now; `sound` are the files that were looked at, and grow."""
        try:
            plan = await asyncio.to_thread(tree.plan, state)
        except OctavoError as error:
            return [f"which files there are is not known: {error.cause}"]
        said = [*plan.problems]
        for entry in plan.files:
            if entry.file not in sound:
                problem = await self._check(tree, state, entry)
                if problem:
                    said.append(problem)
                else:
                    sound.add(entry.file)
        return said

    async def _check(self, tree: TierTree, state: PartitionState, entry: FileEntry) -> str:
        size_bytes = entry.bytes + entry.index_bytes if self._read else 0
        await self._pace.spend(size_bytes)
        try:
            await asyncio.to_thread(tree.check, entry, read=self._read)
        except OctavoError as error:
            return said_of(state, entry, error)
        self._totals.read_bytes += size_bytes
        return ""

    async def _usable(self, *, again: bool = False) -> Tier | Finding | None:
        """The tier; a finding: why it cannot be looked at; None: that is told already."""
        async with self._turn:
            if self._is_refused:
                return None
            if self._tier is not None and not again:
                return self._tier
            try:
                tier = self._tier or await self._found()
                await asyncio.to_thread(tier.require)
            except OctavoError as error:
                self._is_refused = True
                why = f"files of segments were not looked at: {error.cause}"
                texts = (why, error.hint) if error.hint else (why,)
                return Finding("tier", Verdict.UNKNOWN, texts)
            self._tier = tier
            return tier

    async def _found(self) -> Tier:
        if not self._tier_root:
            raise ConfigError(
                "topics have records in files of a tier, and nobody said where it is",
                hint="--tier-root, the brokers' tier_root as this machine sees it",
            )
        operator = self._operator
        catalog = TierCatalog(operator.store, self._paths, operator.clock)
        mark = TierMark(await operator.cookies.stored_cluster_id(), await catalog.tier_id())
        return Tier(self._tier_root, mark)
