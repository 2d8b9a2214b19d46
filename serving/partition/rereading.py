"""Reads of a partition whose list changes while they wait for storage (R4, K7, F088).

A view is what the list was at one moment. A trim, a cleaner or the tier may take a ledger out of
the list, and the trash may delete it, before a read of that view comes to it: what the read meets
then says nothing of the partition as it is now, and the view of now is read instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from octavo.runtime.errors import OctavoError
from octavo.runtime.ids import LedgerId
from octavo.serving.partition.read_path import ReadView

RELISTED_MAX = 3
"""Views that one read takes in the place of others."""

T = TypeVar("T")


async def reread(
    take: Callable[[], ReadView],
    read: Callable[[ReadView], Awaitable[T]],
    view: ReadView | None = None,
) -> T:
    """`read` of a view; of a new one where it failed and something it could read left the list.

    `view` is one that was just taken. `read` is begun again from its start, so it may keep nothing
    of a try that failed. Raises what it raises of a view that still is as it was, and what `take`
    raises (NotLeader). Cancelling it cancels the read.
    """
    if view is None:
        view = take()
    for _ in range(RELISTED_MAX):
        try:
            return await read(view)
        except OctavoError:
            now = take()
            if _still_names(now, view):
                raise
            view = now
    return await read(view)


def _still_names(now: ReadView, then: ReadView) -> bool:
    """Whether everything is still where the older view says."""
    return now.log_start == then.log_start and _places(then) <= _places(now)


def _places(view: ReadView) -> set[tuple[LedgerId, bool]]:
    """Ledgers of records, and whether files are all that is left of them.

    An open one that was closed meanwhile is where it was.
    """
    places = {(one.ledger_id, one.in_ledger) for one in view.segments}
    if view.opened is not None:
        places.add((view.opened.ledger_id, True))
    return places
