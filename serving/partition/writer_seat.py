"""Who may write to a partition that has one writer at a time (X32, ADR 59). Pure.

The partition's list says who holds it: an epoch that only grows, and the holder's token. A claim
is one compare-and-set of that list by the owner, so it outlives every owner, and an owner that lost
its office cannot make one. Batches carry the epoch: one of an earlier epoch is refused for good.

A lease says whether the holder seems to live. It is kept in memory and renewed by the holder; an
owner that has just loaded the partition gives it a whole one. Leases decide only who must wait:
that two do not write is decided by the epoch.
"""

from __future__ import annotations

import math

from octavo.runtime.errors import IllegalStateError, InvalidRequest, NotLeader, OctavoError
from octavo.runtime.errors_of_writers import (
    ExclusiveWriterBusy,
    ExclusiveWriterRequired,
    ProducerFenced,
)
from octavo.serving.partition.name import PartitionName

TOKEN_BYTES = 16
BUSY_PAUSE_MS = 500
"""Whoever waits for the seat asks again after so long."""


class WriterSeat:
    """Of one partition.

    Args:
        lease_s: how long a holder counts as alive after it was heard of.
        required: whether the topic takes batches of its exclusive writer only.
    """

    def __init__(self, name: PartitionName, *, lease_s: float, required: bool) -> None:
        self.required = required
        self.epoch = 0
        """Of the list: it grows with each claim; 0: nobody ever claimed."""
        self.holder = b""
        """Token of the last that claimed."""
        self._name = name
        self._lease_s = lease_s
        self._lease_until_s = -math.inf
        self._claiming = b""
        """Token of the one whose claim is being listed."""

    def loaded(self, epoch: int, holder: bytes, now_s: float) -> None:
        """The partition is served from now on; its holder may have been heard of by another."""
        self.epoch, self.holder = epoch, holder
        if holder:
            self._lease_until_s = now_s + self._lease_s

    def listed(self, epoch: int, holder: bytes) -> None:
        """A list was published."""
        self.epoch, self.holder = epoch, holder

    # --- claims ---------------------------------------------------------------------------------

    def renew(self, token: bytes, epoch: int, now_s: float) -> None:
        """The holder lives. Raises ProducerFenced when somebody else claimed since."""
        self._check_epoch(epoch)
        if token != self.holder:
            raise self._fenced(epoch)
        self._lease_until_s = now_s + self._lease_s

    def leave(self, token: bytes, epoch: int) -> None:
        """The holder needs it no longer; one that was fenced already has nothing to leave."""
        if token == self.holder and epoch == self.epoch:
            self._lease_until_s = -math.inf

    def begin_claim(self, token: bytes, *, fence: bool, now_s: float) -> None:
        """Whether `token` may be listed now; then `claimed` or `gave_up` follows.

        `fence`: take it from whoever holds it. Raises ExclusiveWriterBusy, IllegalStateError when
        the topic has no exclusive writer, InvalidRequest.
        """
        if len(token) != TOKEN_BYTES:
            raise InvalidRequest(f"a writer's token has {TOKEN_BYTES} bytes, not {len(token)}")
        if not self.required:
            raise IllegalStateError(
                f"topic {self._name.topic!r} has no exclusive writer: anybody may write to it",
                hint="set exclusive.writer=true of the topic, or use access_mode='shared'",
            )
        if self._claiming and self._claiming != token:
            raise self._busy("another writer is about to take it")
        left_s = self._lease_until_s - now_s
        if token != self.holder and left_s > 0 and not fence:
            raise self._busy(f"its writer was heard of less than {self._lease_s:g} s ago")
        self._claiming = token

    def claimed(self, token: bytes, now_s: float) -> int:
        """The claim is listed; returns its epoch. Raises ProducerFenced: it was for a moment."""
        self._claiming = b""
        if token != self.holder:
            raise self._fenced(0)
        self._lease_until_s = now_s + self._lease_s
        return self.epoch

    def gave_up(self) -> None:
        """The claim failed, or nobody knows."""
        self._claiming = b""

    def _busy(self, why: str) -> ExclusiveWriterBusy:
        return ExclusiveWriterBusy(f"{self._name} has a writer: {why}", throttle_ms=BUSY_PAUSE_MS)

    # --- batches --------------------------------------------------------------------------------

    def check(self, epoch: int) -> None:
        """Raise unless a batch of this epoch may be written; 0: its producer claimed nothing."""
        if not self.required:
            return
        if epoch <= 0:
            raise ExclusiveWriterRequired(
                f"{self._name} takes records of its exclusive writer only: the topic has "
                "exclusive.writer=true"
            )
        self._check_epoch(epoch)

    def _check_epoch(self, epoch: int) -> None:
        if epoch > self.epoch:  # claimed of another owner: this one is not it any more
            raise NotLeader(f"{self._name}: writer epoch {epoch} is not known here")
        if epoch < self.epoch:
            raise self._fenced(epoch)

    def _fenced(self, epoch: int) -> OctavoError:
        return ProducerFenced(
            f"{self._name}: another writer took it over, with epoch {self.epoch}; "
            + (f"this one's was {epoch}" if epoch else "this one's claim was too late"),
            writer_epoch=self.epoch,
        )
