"""Code of the user's that a consumer calls: callbacks of assignments, outcomes of commits.

Called where the user is: inside an async reading call, or on the thread of a blocking one. At the
end of a blocking consumer, which may not take long, on a thread of its own.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from octavo.client.messaging.membership.tickets import Outcome
from octavo.client.messaging.membership.values import Duty, Task, places
from octavo.client.messaging.records import TopicPartition
from octavo.client.messaging.user_code import ClientLog
from octavo.runtime.errors import ConfigError
from octavo.runtime.workers import Worker

OnChange = Callable[[list[TopicPartition]], object]
"""A callback of partitions that came or went; that of an async consumer may be async."""

_log = ClientLog("octavo.client")


class CallbackDue(Exception):
    """To a blocking reading call: run this on your thread, then go on."""

    def __init__(self, duty: Duty | Outcome) -> None:
        super().__init__("a callback is due")
        self.duty = duty


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What the user wants to hear of; without `on_lost`, `on_revoke` hears of what is lost, too."""

    on_assign: OnChange | None = None
    on_revoke: OnChange | None = None
    on_lost: OnChange | None = None

    def __post_init__(self) -> None:
        for name in ("on_assign", "on_revoke", "on_lost"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise ConfigError(f"{name}={given!r} cannot be called", hint="give it a function")

    def run(self, duty: Duty | Outcome) -> Awaitable[object] | None:
        """Call what is due; an async one is to be awaited. Raises what it raises."""
        if isinstance(duty, Outcome):
            for call in duty.calls:
                _told(call, duty)
            return None
        chosen = {
            Task.ASSIGNED: self.on_assign,
            Task.REVOKED: self.on_revoke,
            Task.LOST: self.on_lost or self.on_revoke,
        }[duty.task]
        made = None if chosen is None else chosen(places(duty.slots))
        return made if inspect.isawaitable(made) else None

    async def run_here(self, duty: Duty | Outcome) -> None:
        """In the caller's task."""
        running = self.run(duty)
        if running is not None:
            await running

    async def run_apart(self, duty: Duty | Outcome) -> None:
        """On a thread of its own; whoever does not wait any longer leaves it running."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def end(error: BaseException | None) -> None:
            if over.done():
                _log.warning("a callback went on after the end of its consumer: %r", error)
            elif isinstance(error, Exception):
                over.set_exception(error)
            else:
                over.set_result(None)

        def body() -> None:
            self.run(duty)
            worker.tell(end, None)

        worker = Worker("octavo-last-callback", body, end)
        worker.start(asyncio.get_running_loop())
        await over


def _told(call: Callable[..., object], outcome: Outcome) -> None:
    """An interceptor or callback of a commit changes nothing by raising (X44)."""
    try:
        call(outcome.offsets, outcome.error)
    except Exception:  # noqa: BLE001 - said in the log
        _log.exception("a callback of a commit failed")
