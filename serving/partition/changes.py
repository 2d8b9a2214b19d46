"""Changes of one partition's list that others ask its owner for: a cleaner's (K7). Pure.

The owner writes its list one change at a time (ML-7), between rolls and trims. Those who ask wait
for each, so there are as many here as ask at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from octavo.metadata.ledger_record import LedgerMetadata
from octavo.metadata.partition_record import PartitionState
from octavo.runtime.errors import OctavoError
from octavo.serving.partition.actions import PROCEED, Action, AnswerChange, Change


class ListChanges:
    """What is to be listed, in the order in which it was asked for."""

    def __init__(self) -> None:
        self._waiting: deque[Change] = deque()

    def ask(
        self,
        wanted: Callable[[PartitionState], PartitionState],
        creates: LedgerMetadata | None = None,
    ) -> list[Action]:
        """`wanted` is to be made of the list, and with it a ledger that it names."""
        self._waiting.append(Change(wanted, creates))
        return [PROCEED]

    def next_change(self) -> Change | None:
        """What is to be written now."""
        return self._waiting[0] if self._waiting else None

    def done(self) -> list[Action]:
        """The oldest change is listed; nothing when it was answered meanwhile."""
        if not self._waiting:
            return []
        self._waiting.popleft()
        return [AnswerChange(None)]

    def answered(self, error: OctavoError) -> list[Action]:
        """Tell everybody who waits why it is not known whether their change is listed."""
        count = len(self._waiting)
        self._waiting.clear()
        return [AnswerChange(error)] * count
