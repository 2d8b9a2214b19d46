"""Answers about the end of a log, proved while the broker's session is in doubt (design.md §12).

An owner whose lease may have run out may have a successor that acknowledged more: "this is the
end", "nothing is there", "that sequence does not follow" would be lies. What such an owner can
still prove by itself is that nobody had taken over at the moment of the question: by a mark, an
entry without records, that Qa bookies acknowledge after the question was asked. A successor fences
first (ledger §8.3, point 1), and then no entry of the old ledger is acknowledged any more. Without
a proof the answer is NOT_LEADER. What lies below the end is immutable and needs none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from octavo.runtime.clock import Clock
from octavo.runtime.errors import NotLeader, OctavoError
from octavo.runtime.tasks import TaskOwner

PROOF_S = 1.0
"""How long a question waits for its proof."""
MARK_PAUSE_S = 0.05
"""Between two marks of one partition: questions that come meanwhile share the next one."""


class EndProof:
    """Proves the end of one partition's log, one mark at a time for all who ask.

    Args:
        certain: whether the session surely lives right now.
        confirm: ask the metadata store; True when the session lives.
        mark: append a mark to the open ledger and wait for its acknowledgement; raises OctavoError.
    """

    def __init__(
        self,
        name: str,
        *,
        certain: Callable[[], bool],
        confirm: Callable[[], Awaitable[bool]],
        mark: Callable[[], Awaitable[object]],
        tasks: TaskOwner,
        clock: Clock,
    ) -> None:
        self._name = name
        self._certain = certain
        self._confirm = confirm
        self._mark = mark
        self._tasks = tasks
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()
        self._gathering: asyncio.Task[OctavoError | None] | None = None
        """Sends its mark soon: whoever asks now may share it."""

    async def prove(self) -> None:
        """Return if this broker was the owner at some moment during the call; else NotLeader."""
        if self._certain() or await self._confirm():
            return
        if self._gathering is None:
            self._gathering = self._tasks.spawn(self._send_mark(), name="mark")
        task = self._gathering
        await asyncio.wait({task}, timeout=PROOF_S)
        error: OctavoError | None = None
        if not task.done():
            cause = f"bookies did not confirm it within {PROOF_S:g} s"
        elif task.cancelled():
            cause = "the partition was given up"
        else:
            error = task.result()
            if error is None:
                return
            cause = error.cause
        raise NotLeader(
            f"the end of {self._name} is not known while the session is in doubt: {cause}"
        ) from error

    async def _send_mark(self) -> OctavoError | None:
        await self._clock.sleep(MARK_PAUSE_S)
        async with self._one_at_a_time:
            self._gathering = None
            try:
                await self._mark()
            except OctavoError as error:
                return error
        return None
