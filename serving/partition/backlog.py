"""What the backlog of one partition means for who writes to it (F162). Pure.

Measured from time to time (`backlog_rounds`), never by the batch: a batch meets one flag. What is
not known refuses nothing.
"""

from __future__ import annotations

from octavo.runtime.errors import BacklogQuotaExceeded, OctavoError, Throttled
from octavo.serving.backlog import EVICT, HOLD, REFUSE, Backlog, BacklogQuota
from octavo.serving.partition.name import PartitionName

CHECK_OVER_S = 2.0
"""A backlog that is over its quota, or may be by what came in since, is measured so often."""
HOLD_MS = 2_000
"""For how long a held producer sends nothing to the partition: it is measured once meanwhile."""
_HINT = "let its groups catch up (`octavo group lag`), or raise the quota: `octavo topic set`"


class BacklogGate:
    """Of one partition that is served.

    Args:
        interval_s: between two measurements while nothing suggests that the quota is passed.
        spread: 0..1, part of it after which is measured first.
    """

    def __init__(
        self, name: PartitionName, quota: BacklogQuota, *, interval_s: float, spread: float
    ) -> None:
        self.quota = quota
        self.known: Backlog | None = None
        """As it was measured last; None: not known."""
        self.excess: str | None = None
        """What of it is too much, in words."""
        self.is_shut = False
        """Whether new batches are to wait, or are refused: what each of them meets."""
        self._name = name
        self._interval_s = interval_s
        self._spread = spread
        self._measured_s: float | None = None
        self._bytes_in = 0
        """Of the partition, when it was measured last."""
        self._oldest: tuple[int, int] | None = None

    @property
    def evicts(self) -> bool:
        """Whether groups are to be moved on."""
        return self.excess is not None and self.quota.policy == EVICT

    def refusal(self) -> OctavoError:
        """What a batch gets that came while it is shut; it was not written."""
        cause = f"{self._name}: what its slowest group has not read exceeds the topic's quota"
        if self.excess is not None:
            cause += f": {self.excess}"
        if self.quota.policy == HOLD:
            return Throttled(cause, hint=_HINT, throttle_ms=HOLD_MS, quota="backlog")
        return BacklogQuotaExceeded(cause, hint=_HINT)

    def adopt(self, quota: BacklogQuota) -> None:
        """The topic was altered: measure soon, and go by what is known until then."""
        if quota != self.quota:
            self.quota = quota
            self._measured_s, self._spread = None, 0.0
            self._judge(None if quota.is_off else self.known)

    def is_due(self, now_s: float, bytes_in: int) -> bool:
        """Whether to measure now; `bytes_in`: what the partition took since it is served."""
        if self.quota.is_off:
            return False
        if self._measured_s is None:
            self._measured_s = now_s - self._interval_s * (1 - self._spread)
        passed_s = now_s - self._measured_s
        if passed_s >= self._interval_s:
            return True
        return passed_s >= CHECK_OVER_S and self._may_be_over(bytes_in)

    def _may_be_over(self, bytes_in: int) -> bool:
        known, limit = self.known, self.quota.size_bytes
        if self.excess is not None:
            return True
        came = bytes_in - self._bytes_in
        return limit >= 0 and (known.size_bytes if known else 0) + came > limit

    def measured(self, found: Backlog | None, now_s: float, bytes_in: int) -> None:
        """What was found; None: it could not be, and then nothing is refused."""
        self._measured_s, self._bytes_in = now_s, bytes_in
        self._judge(found)

    def _judge(self, found: Backlog | None) -> None:
        self.known = found
        self.excess = None if found is None else found.excess(self.quota)
        self.is_shut = self.excess is not None and self.quota.policy in (HOLD, REFUSE)

    def append_ms_at(self, offset: int) -> int | None:
        """When the record there was appended, if it was told before."""
        return self._oldest[1] if self._oldest is not None and self._oldest[0] == offset else None

    def remember(self, offset: int, append_ms: int) -> None:
        """So that it is not read again while the slowest group stays there."""
        self._oldest = (offset, append_ms)
