"""Claims on one open partition: what the seat decides is listed (X32)."""

from __future__ import annotations

from dataclasses import replace

from octavo.metadata.partition_record import PartitionState
from octavo.runtime.clock import Clock
from octavo.serving.partition.core import PartitionCore
from octavo.serving.partition.driver import PartitionDriver


class Writers:
    """Of one open partition."""

    def __init__(self, core: PartitionCore, driver: PartitionDriver, clock: Clock) -> None:
        self._core = core
        self._seat = core.seat
        self._driver = driver
        self._clock = clock

    async def claim(self, token: bytes, *, fence: bool) -> int:
        """Make `token` the writer; returns its epoch. Asking again is safe.

        What a former writer sent and was taken lies in front of what the new one writes. Raises
        ExclusiveWriterBusy, ProducerFenced, NotLeader, UnknownTopic, MetadataUnavailable or
        UnknownOutcome: then it may have happened.
        """
        self._core.check_serving()
        self._seat.begin_claim(token, fence=fence, now_s=self._clock.monotonic())

        def wanted(state: PartitionState) -> PartitionState:
            if state.writer == token:
                return state  # listed by an earlier attempt
            return replace(state, writer_epoch=state.writer_epoch + 1, writer=token)

        try:
            await self._driver.change(wanted)
        except BaseException:
            self._seat.gave_up()
            raise
        return self._seat.claimed(token, self._clock.monotonic())

    def renew(self, token: bytes, epoch: int) -> int:
        """The writer lives; its epoch. Raises NotLeader, ProducerFenced."""
        self._core.check_serving()
        self._seat.renew(token, epoch, self._clock.monotonic())
        return epoch

    def leave(self, token: bytes, epoch: int) -> None:
        """The writer is done; the next one need not wait for its lease."""
        self._seat.leave(token, epoch)
