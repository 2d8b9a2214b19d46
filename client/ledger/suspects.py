"""Bookies that failed lately: when one may be tried again as a member of an open ledger (3.4, C-2).

Pure; time comes in. A registration outlives its bookie by a session timeout, so a dead bookie looks
like a spare. Without memory a writer with two of them would replace one by the other several times
a second, and each time is a write to the metadata store and a fragment in the record (M-6).

Quarantine is for new ensembles and ends by time alone; suspicion is for replacements in open ones:
a suspect rests first, twice as long with each new failure, and then needs an open connection.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.runtime.ids import Member


class _Record:
    """What is remembered of one bookie."""

    __slots__ = ("rest_until", "strikes")

    def __init__(self, strikes: int, rest_until: float) -> None:
        self.strikes = strikes
        self.rest_until = rest_until


class Suspects:
    """Shared by all handles of one process.

    Args:
        initial_s: how long a bookie rests after its first failure.
        max_s: longest rest; a bookie that did not fail for so long after a rest is forgotten.
    """

    def __init__(self, *, initial_s: float, max_s: float) -> None:
        self._initial_s = initial_s
        self._max_s = max(max_s, initial_s)
        self._records: dict[Member, _Record] = {}

    def __len__(self) -> int:
        return len(self._records)

    def failed(self, member: Member, now: float) -> None:
        """An ensemble's slot lost this bookie.

        Further failures before its rest is over are the same one: all handles see an outage.
        """
        self._forget_old(now)
        known = self._records.get(member)
        if known is not None and now < known.rest_until:
            return
        strikes = 0 if known is None else known.strikes + 1
        rest_s = min(self._initial_s * 2.0 ** min(strikes, 30), self._max_s)
        self._records[member] = _Record(strikes, now + rest_s)

    def is_suspect(self, member: Member, now: float) -> bool:
        """True while its failure is remembered: it needs proof that it answers."""
        known = self._records.get(member)
        return known is not None and now < known.rest_until + self._max_s

    def is_resting(self, member: Member, now: float) -> bool:
        """True while it is not even tried."""
        known = self._records.get(member)
        return known is not None and now < known.rest_until

    def forgive(self, bookie_ids: Iterable[str]) -> None:
        """These bookies registered anew: new processes, whatever the old ones did."""
        chosen = set(bookie_ids)
        self._records = {m: r for m, r in self._records.items() if m.bookie_id not in chosen}

    def _forget_old(self, now: float) -> None:
        """Bounds the memory by the bookies that failed within the last minutes."""
        self._records = {m: r for m, r in self._records.items() if self.is_suspect(m, now)}
