"""Which reports of load can be trusted: those whose number was seen to grow lately. Pure.

No clock of another machine is believed. A report that was there at the first look may be of any
age: it is not known until it changes. What is not known is not idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from octavo.metadata.load_reports import Load, LoadReport


class _Shown(NamedTuple):
    report: LoadReport
    since_s: float | None
    """When it was new; None: nobody here knows."""


class LoadBoard:
    """The newest report of each broker, and how old it is for us.

    Args:
        stale_after_s: a report that did not change for so long is not trusted any more.
    """

    def __init__(self, stale_after_s: float) -> None:
        self._stale_after_s = stale_after_s
        self._shown: dict[str, _Shown] = {}
        self._looked_s: float | None = None

    def looked(self, reports: Iterable[LoadReport], now_s: float) -> None:
        """All reports there are, as just read."""
        before, self._shown = self._shown, {}
        last_s, self._looked_s = self._looked_s, now_s
        if last_s is None or now_s - last_s > self._stale_after_s:
            before = {}
            last_s = None  # whatever is there may have been there for long
        for report in reports:
            known = before.get(report.broker_id)
            is_same = known is not None and _identity(known.report) == _identity(report)
            since_s = known.since_s if known is not None and is_same else now_s
            self._shown[report.broker_id] = _Shown(report, None if last_s is None else since_s)

    def fresh(self, now_s: float) -> Mapping[str, Load]:
        """The loads that can be trusted now, by broker."""
        return {
            broker: shown.report.load
            for broker, shown in self._shown.items()
            if shown.since_s is not None and now_s - shown.since_s <= self._stale_after_s
        }


def _identity(report: LoadReport) -> tuple[bytes, int]:
    return report.process_nonce, report.number
