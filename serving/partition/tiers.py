"""What tiering asks of the owner of a partition: changes of its list, and what it needs to decide.

Each change is one of the owner's, between rolls and trims (ML-7); another owner's list refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from octavo.metadata.partition_record import PartitionState
from octavo.runtime.clock import Clock
from octavo.runtime.ids import LedgerId
from octavo.serving.partition.chain import SegmentChain
from octavo.serving.partition.core import PartitionCore
from octavo.serving.partition.driver import PartitionDriver
from octavo.serving.tiering import lists


class OpenPart(NamedTuple):
    """What is not closed yet."""

    size_bytes: int = 0
    snapshot: LedgerId | None = None
    """The open ledger, when its first entry is durable."""


class ListTiers:
    """One partition's list. Each call raises NotLeader or UnknownTopic once the partition is not
    served here, and what a change raises."""

    def __init__(
        self, core: PartitionCore, chain: SegmentChain, driver: PartitionDriver, clock: Clock
    ) -> None:
        self._core = core
        self._chain = chain
        self._driver = driver
        self._clock = clock

    def state(self) -> PartitionState:
        """The list as it is now."""
        self._core.check_serving()
        return self._chain.state

    def open_part(self) -> OpenPart:
        """The open segment."""
        opened = self._core.segment
        if opened is None:
            return OpenPart()
        has_snapshot = opened.last_durable_entry >= 0
        return OpenPart(opened.size_bytes, opened.ledger_id if has_snapshot else None)

    async def copied(self, ledger_ids: Collection[LedgerId], version: int) -> None:
        """List that files hold these segments from manifest version `version` on."""
        await self._change(lambda state: lists.copied(state, ledger_ids, version))

    async def free(self, ledger_ids: Collection[LedgerId]) -> int:
        """Put the ledgers of these segments into the trash that may go; how many went."""
        now_ms, snapshot = self._clock.wall_ms(), self.open_part().snapshot
        before = self.state()
        after = await self._change(
            lambda state: lists.freed(state, ledger_ids, now_ms=now_ms, open_snapshot=snapshot)
        )
        there = {one.ledger_id for one in before.segments if one.in_ledger}
        return sum(1 for one in after.segments if one.ledger_id in there and not one.in_ledger)

    async def objects_removed(self, ledger_ids: Collection[LedgerId]) -> None:
        """List that no manifest names files of these trashed segments any more."""
        await self._change(lambda state: lists.without_objects(state, ledger_ids))

    async def _change(self, wanted: Callable[[PartitionState], PartitionState]) -> PartitionState:
        await self._driver.change(wanted)
        return self._chain.state
