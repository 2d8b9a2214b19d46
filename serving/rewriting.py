"""What a broker does with the closed segments of its partitions: compaction and tiering.

Owns both and their order of start and end; what each does is its own.
"""

from __future__ import annotations

from octavo.runtime.tasks import TaskOwner
from octavo.serving.compaction.rounds import CompactionRounds
from octavo.serving.partition.deps import PartitionDeps
from octavo.serving.registry import PartitionRegistry
from octavo.serving.tiering.rounds import TierRounds


class Rewriting:
    """Of one broker; `deps` are those of its partitions."""

    def __init__(self, registry: PartitionRegistry, deps: PartitionDeps) -> None:
        backend, config, clock, entropy = deps.backend, deps.config, deps.clock, deps.entropy
        self._tier = deps.tiered.root
        self._clock, self._tier_interval_s = clock, config.tier_check_interval_ms / 1000
        self.compaction = CompactionRounds(
            registry.shells, backend, config=config, clock=clock, entropy=entropy
        )
        self.tiering = TierRounds(
            registry.shells, backend, deps.tiered, config=config, clock=clock, entropy=entropy
        )

    def start(self, tasks: TaskOwner) -> None:
        """Look again and again, for as long as `tasks` live."""
        tasks.spawn(self.compaction.run(), name="compaction")
        if self._tier.path:
            tasks.spawn(self._tier.watch(self._clock, self._tier_interval_s), name="tier root")
            tasks.spawn(self.tiering.run(), name="tiering")

    async def close(self) -> None:
        """End what was asked for by request, and threads."""
        await self.compaction.close()
        await self.tiering.close()
