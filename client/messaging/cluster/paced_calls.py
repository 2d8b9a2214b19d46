"""Unary calls to one broker, made no faster than its quota of this client allows (X24, ADR 52).

Stands between gRPC's stubs and a channel: every call says which client it is of, waits while the
broker asked for a pause, and is made again when it was refused for coming too early (then nothing
was done). What keeps sessions alive never waits here (`proto.client_ids.is_counted`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import grpc
from google.protobuf.message import Message

from octavo.client.messaging.cluster.throttles import Throttle
from octavo.proto.client_ids import CLIENT_ID_KEY, is_counted, throttle_ms_of
from octavo.proto.errors import from_rpc_error
from octavo.runtime.clock import Clock
from octavo.runtime.deadline import Deadline
from octavo.runtime.errors import Throttled

ATTEMPT_MIN_S = 0.001
"""A call is never given less: it would end before it was sent."""
PAUSE_MIN_MS = 10
"""A call that was refused is not made again sooner, whatever the broker says."""
_PAUSE_DETAIL = "throttle_ms"
_QUOTA_DETAIL = "quota"


class PacedChannel:
    """What stubs take for a channel; one throttle for all calls."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        address: str,
        client_id: str,
        throttle: Throttle,
        clock: Clock,
    ) -> None:
        self.stream_stream = channel.stream_stream
        self._channel = channel
        self._address = address
        self._client_id = client_id
        self._metadata = ((CLIENT_ID_KEY, client_id.encode()),)
        self._throttle = throttle
        self._clock = clock

    def unary_unary(self, method: str, **terms: Any) -> Callable[..., object]:
        """A method, as stubs ask for it: called with a request and `timeout` in seconds."""
        multi: grpc.aio.UnaryUnaryMultiCallable[Message, Message]
        multi = self._channel.unary_unary(method, **terms)
        name = method.rpartition("/")[2]

        async def call(request: Message, *, timeout: float) -> Message:
            deadline = Deadline(self._clock, timeout)
            while True:
                if is_counted(name, request.ByteSize()):
                    await self._pause(deadline)
                left_s = max(deadline.left_s(), ATTEMPT_MIN_S)
                attempt = multi(request, timeout=left_s, metadata=self._metadata)
                try:
                    reply = await attempt
                except grpc.aio.AioRpcError as error:
                    refused = from_rpc_error(error, self._address)
                    if not isinstance(refused, Throttled) or _QUOTA_DETAIL not in refused.details:
                        raise
                    self._told(max(int(refused.details.get(_PAUSE_DETAIL, 0)), PAUSE_MIN_MS))
                    if self._throttle.left_s >= deadline.left_s():
                        raise refused from None  # its caller need not fear that it was done
                    continue
                trailing = cast(
                    "Iterable[tuple[str, str | bytes]]", await attempt.trailing_metadata()
                )
                self._told(throttle_ms_of(trailing))
                return reply

        return call

    def _told(self, throttle_ms: int) -> None:
        self._throttle.told(throttle_ms, self._client_id)

    async def _pause(self, deadline: Deadline) -> None:
        """Wait until a call may be made; Throttled, at once, when that is too late for it."""
        left_s = self._throttle.left_s
        if not left_s:
            return
        if left_s >= deadline.left_s():
            raise Throttled(
                f"{self._address} asks client {self._client_id!r} to make no call for another "
                f"{left_s:.3g} s, which is longer than this one may take; it was not made",
                hint="call less often, or raise the quota: `octavo quotas set`",
            )
        await self._throttle.over()
