"""What a client's loop says of callbacks that failed."""

from __future__ import annotations

import asyncio

import pytest

from octavo.client.messaging.sync.loop_thread import unhandled

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
