"""The loop thread of a sync client: how it begins, ends, and what it says of failed callbacks."""

from __future__ import annotations

import asyncio

import pytest

from octavo.client.messaging.sync.loop_thread import LoopThread, unhandled
from octavo.runtime.errors import IllegalStateError

POLLER = "Exception in callback functools.partial(<bound method PollerCompletionQueue._handle_ev"


@pytest.mark.parametrize(
    ("message", "error", "is_said"),
    [
        (POLLER, RuntimeError("Event loop is closed"), False),
        (POLLER, RuntimeError("something else"), True),
        ("Exception in callback of ours", RuntimeError("Event loop is closed"), True),
    ],
)
def test_only_late_events_of_grpc_for_closed_loops_are_not_said(
    caplog: pytest.LogCaptureFixture, message: str, error: Exception, is_said: bool
) -> None:
    loop = asyncio.new_event_loop()
    try:
        unhandled(loop, {"message": message, "exception": error})
    finally:
        loop.close()
    assert bool(caplog.records) is is_said


class StoppedWhileItStarts(LoopThread):
    """Another thread's `stop` comes when the loop is not to be seen yet, or just is."""

    def __init__(self, *, seen: bool) -> None:
        super().__init__("test", lambda _: self.stop() if seen else None)
        if not seen:
            made = self._new_loop

            def new_loop() -> asyncio.AbstractEventLoop:
                self.stop()
                return made()

            self._new_loop = new_loop


@pytest.mark.parametrize("seen", [False, True])
def test_b11_a_call_that_starts_the_loop_while_the_client_closes_ends(*, seen: bool) -> None:
    thread = StoppedWhileItStarts(seen=seen)
    ran: list[str] = []

    async def call() -> None:
        ran.append("ran")

    with pytest.raises(IllegalStateError, match="closed"):
        thread.run(call())
    assert thread.join(timeout_s=10)
    assert ran == []
