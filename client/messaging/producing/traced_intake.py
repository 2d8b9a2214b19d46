"""The intake of a producer whose client traces: sends have spans, records carry their context.

A class of its own, so that a producer without tracing does not even ask whether there is any.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from octavo.client.messaging.producing.futures import Repeatable, SendFuture
from octavo.client.messaging.producing.intake import Intake
from octavo.client.messaging.producing.serializers import header_list
from octavo.client.messaging.producing.terms import Terms
from octavo.client.messaging.records import NO_HEADERS
from octavo.client.messaging.tracing import ClientTracing, Sending, with_context
from octavo.runtime.errors import BufferFull


class TracedIntake(Intake):
    """See `Intake`."""

    def __init__(self, tracing: ClientTracing, *given: Any) -> None:
        super().__init__(*given)
        self.tracing = self._tracing = tracing

    def send(
        self,
        topic: str,
        value: object,
        key: object,
        partition: int | None,
        headers: object,
        timestamp_ms: int | None,
        expedite: bool,
        block_s: float,
        terms: Terms,
        dedup_id: bytes | str | None,
    ) -> SendFuture:
        """As of any intake."""

        def go(carrying: object) -> SendFuture:
            return super(TracedIntake, self).send(
                topic,
                value,
                key,
                partition,
                carrying,
                timestamp_ms,
                expedite,
                block_s,
                terms,
                dedup_id,
            )

        return traced_send(self._tracing, topic, headers, go)


def traced_send(
    tracing: ClientTracing, topic: str, headers: object, send: Callable[[object], SendFuture]
) -> SendFuture:
    """What `send` returns, given the headers with the context of a span that ends with it."""
    sending = tracing.sending(topic)
    if sending is None:
        return send(headers)
    try:
        given = header_list(headers) if headers else NO_HEADERS
        future = send(with_context(given, sending.carried))
    except BufferFull:
        sending.forgotten()  # the caller waits for memory, and sends again
        raise
    except BaseException as error:
        sending.failed(error)
        raise
    future.completion.follow(Repeatable(partial(_ended, sending, future)))
    return future


def _ended(sending: Sending, future: SendFuture) -> None:
    done = future.completion
    if done.error is not None:
        sending.failed(done.error)
    else:
        sending.delivered(done.partition)
