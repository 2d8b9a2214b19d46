"""What a cleaner asks of the owner of a partition: a ledger to write, its place in the list (K7).

The change that names a new ledger in the trash creates it (ADR 61), and it stays there until the
list names it. So at any moment it is found again: the owner that comes next deletes it. This
broker's sweep leaves it alone while it is being written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo.metadata.ledger_record import LedgerMetadata
from octavo.metadata.partition_record import CleanMark, PartitionState
from octavo.proto.segments import Segment
from octavo.runtime.clock import Clock
from octavo.runtime.errors import NotLeader
from octavo.runtime.ids import LedgerId
from octavo.serving.compaction import lists
from octavo.serving.compaction.plan import Listed
from octavo.serving.ledger_backend import Writer
from octavo.serving.partition.chain import SegmentChain
from octavo.serving.partition.core import PartitionCore
from octavo.serving.partition.driver import PartitionDriver
from octavo.serving.partition.name import PartitionName


class ListRewrites:
    """One partition's list, for one cleaner at a time. Each call raises NotLeader or UnknownTopic
    once the partition is not served here."""

    def __init__(
        self,
        name: PartitionName,
        *,
        core: PartitionCore,
        chain: SegmentChain,
        driver: PartitionDriver,
        clock: Clock,
    ) -> None:
        self.name = name
        self._core = core
        self._chain = chain
        self._driver = driver
        self._clock = clock

    def listed(self) -> Listed:
        """The list as it is now."""
        core, state = self._core, self._chain.state
        core.check_serving()
        opened = core.segment
        follows = None
        if opened is not None and opened.last_durable_entry >= 0:
            follows = opened.described()
        return Listed(
            tuple(segment for segment in state.segments if segment.closed),
            follows,
            core.log.log_start,
            core.log.high_watermark,
            state.cleaned_to,
            state.clean_marks,
        )

    async def close_open(self) -> None:
        """Close the open segment, if it holds batches, and have a next one that begins durably.

        Raises what a roll raises, NotEnoughReplicas among it.
        """
        await self._driver.roll(renew=True)
        ledger = self._driver.ledger
        if ledger is None:
            raise NotLeader(f"{self.name}: no ledger took over from the one that was closed")
        await ledger.append_mark()  # acknowledged behind its snapshot (INV-4)

    async def new_ledger(self) -> Writer:
        """A ledger that is not listed yet; `release` it, whatever becomes of it.

        Raises NotEnoughReplicas when it would have fewer copies than it should, and as `change`.
        """
        draft = await self._chain.draft_reserved()
        ledger_id, now_ms = draft.ledger_id, self._clock.wall_ms()
        try:
            state = await self._change(
                lambda state: lists.reserved(state, ledger_id, now_ms), creates=draft
            )
            if not lists.is_reserved(state, ledger_id):
                raise NotLeader(f"{self.name}: ledger {ledger_id} could not be reserved")
        except BaseException:
            self.release(ledger_id)
            raise
        return self._chain.writer_of(draft)

    def release(self, ledger_id: LedgerId) -> None:
        """Nobody writes it any more: when it is not listed it goes with the trash."""
        self._chain.kept.discard(ledger_id)

    async def replace(self, old: Sequence[LedgerId], new: Segment) -> bool:
        """List `new` in the place of `old`; False: one of these is not listed any more."""
        now_ms = self._clock.wall_ms()
        state = await self._change(lambda state: lists.replaced(state, old, new, now_ms))
        is_listed = any(segment.ledger_id == new.ledger_id for segment in state.segments)
        if is_listed and new.end_offset is not None:
            self._driver.tail.drop_below(new.end_offset)  # it holds what the log does not any more
        return is_listed

    async def cleaned(self, cleaned_to: int, marks: Sequence[CleanMark]) -> None:
        """List how far a pass came, and since when what lies below is clean."""
        await self._change(lambda state: lists.cleaned(state, cleaned_to, marks))

    async def _change(
        self,
        wanted: Callable[[PartitionState], PartitionState],
        creates: LedgerMetadata | None = None,
    ) -> PartitionState:
        await self._driver.change(wanted, creates)
        return self._chain.state
