"""How the records of one partition come to their end by what others know of it (R5, F027).

The groups that have consumed it, and the decision that it takes no new records. Limits by age and
size are `retention`'s.
"""

from __future__ import annotations

from octavo.serving import segments as lists
from octavo.serving.partition.chain import SegmentChain
from octavo.serving.partition.core import PartitionCore, PartitionStateName
from octavo.serving.partition.driver import PartitionDriver


class Emptying:
    """Of one open partition."""

    def __init__(self, core: PartitionCore, chain: SegmentChain, driver: PartitionDriver) -> None:
        self._core = core
        self._chain = chain
        self._driver = driver

    async def decommission(self) -> None:
        """Take no new batches from now on, and no later owner either (F027).

        What was taken before is kept and answered. Raises NotLeader, UnknownTopic,
        MetadataUnavailable or UnknownOutcome; asking again is safe.
        """
        await self._driver.change(lists.decommissioned)

    @property
    def is_decommissioned(self) -> bool:
        """Whether that is listed."""
        return self._chain.state.decommissioned

    @property
    def is_drained(self) -> bool:
        """Whether nothing is in the partition any more, and nothing will ever be."""
        log = self._core.log
        is_empty = not log.pending and log.log_start == log.high_watermark
        is_serving = self._core.state is PartitionStateName.SERVING
        return is_serving and is_empty and self.is_decommissioned

    def consumed(self, offset: int) -> None:
        """Every registered group has committed `offset` or more (R5): closed segments below it go.

        It counts once, at the next tick: a group that comes later begins where the log begins then.
        """
        self._core.retention.consumed(offset)
