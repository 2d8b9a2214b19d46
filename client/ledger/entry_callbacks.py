"""Who is told what became of the entries of one ledger handle, in entry order (W-3, W-6, A4).

On the handle's loop; a callback that raises is logged and costs the others nothing.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from octavo.client.ledger.handle_errors import unknown_outcome
from octavo.runtime.errors import OctavoError
from octavo.runtime.ids import NO_ENTRY, EntryId, LedgerId

_log = logging.getLogger("octavo.ledger.writer")

OnDone = Callable[[EntryId, OctavoError | None], None]
OnFirstCopy = Callable[[EntryId], None]


class EntryCallbacks:
    """One callback for each entry above `resolved`, and those of first copies."""

    def __init__(self, ledger_id: LedgerId) -> None:
        self.resolved: EntryId = NO_ENTRY
        """Every entry up to here was told of."""
        self._ledger_id = ledger_id
        self._waiting: deque[OnDone] = deque()
        self.first_copies: deque[tuple[EntryId, OnFirstCopy]] = deque()
        """Whoever waits for no more than one copy."""

    def add(self, entry: EntryId, on_done: OnDone, on_first_copy: OnFirstCopy | None) -> None:
        """`entry`, the next one, was handed out."""
        self._waiting.append(on_done)
        if on_first_copy is not None:
            self.first_copies.append((entry, on_first_copy))

    def copied(self, through: EntryId) -> None:
        """Every entry up to `through` has at least one copy: provisional (A4)."""
        waiting = self.first_copies
        while waiting and waiting[0][0] <= through:
            entry, callback = waiting.popleft()
            callback(entry)

    def confirmed(self, lac: EntryId) -> None:
        """Every entry up to `lac` is confirmed."""
        waiting = self._waiting
        entry, self.resolved = self.resolved, lac
        for callback in [waiting.popleft() for _ in range(lac - entry)]:
            entry = EntryId(entry + 1)
            self._tell(callback, entry, None)

    def unknown(self, cause: OctavoError) -> None:
        """The handle stopped: of every other entry nobody knows (W-6)."""
        self.first_copies.clear()
        entry = self.resolved
        waiting, self._waiting = self._waiting, deque()
        for callback in waiting:
            entry = EntryId(entry + 1)
            self._tell(callback, entry, unknown_outcome(self._ledger_id, entry, cause))

    def _tell(self, callback: OnDone, entry: EntryId, error: OctavoError | None) -> None:
        try:
            callback(entry, error)
        except Exception:  # noqa: BLE001 - one sender's bug must not cost the others
            _log.exception("callback of entry %d of ledger %d failed", entry, self._ledger_id)
