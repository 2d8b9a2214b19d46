"""Administration of sinks: what Spark writes exactly once, and what is left of it (ADR 74)."""

from __future__ import annotations

from octavo.client.messaging.api.changes import Change, ask_any
from octavo.client.messaging.api.descriptions import SinkDescription, sink_of
from octavo.client.messaging.api.fleet_admin import DEFAULT_TIMEOUT_S
from octavo.client.messaging.api.quota_admin import AsyncQuotaAdmin
from octavo.client.messaging.api.replies import check_reply
from octavo.proto import broker_pb2 as pb
from octavo.runtime.deadline import Deadline
from octavo.runtime.errors import InvalidRequest

SINKS_PAGE = 500
"""Sinks asked for at a time."""


class AsyncSinkAdmin(AsyncQuotaAdmin):
    """The part of `client.admin` that knows of sinks.

    A sink is a query of Spark, known by its checkpoint, or a batch write, known by its `txnId`. The
    cluster remembers each for as long as it may come again, which nobody but its user knows.
    """

    async def list_sinks(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> list[SinkDescription]:
        """Every sink, by id. It is the whole list, or an error."""
        cluster, found, after = self._binding.cluster(), list[SinkDescription](), ""
        deadline = Deadline(cluster.clock, timeout)
        while True:
            request = pb.ListSinksRequest(after=after, limit=SINKS_PAGE)

            async def attempt(request: pb.ListSinksRequest = request) -> pb.ListSinksReply:
                reply = await ask_any(
                    cluster,
                    lambda stub, limit: stub.ListSinks(request, timeout=limit),
                    deadline.left_s(),
                )
                check_reply(reply)
                return reply

            reply = await cluster.calls.retrying(attempt, deadline.left_s())
            found += map(sink_of, reply.sinks)
            after = reply.next
            if not after:
                return sorted(found, key=lambda one: one.sink_id)

    async def describe_sink(
        self, sink_id: str, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> SinkDescription:
        """One sink. Raises InvalidRequest when the cluster knows none of that id."""
        request = pb.DescribeSinkRequest(sink_id=sink_id)
        cluster = self._binding.cluster()

        async def attempt() -> pb.DescribeSinkReply:
            reply = await ask_any(
                cluster, lambda stub, limit: stub.DescribeSink(request, timeout=limit), timeout
            )
            check_reply(reply)
            return reply

        reply = await cluster.calls.retrying(attempt, timeout)
        if not reply.state.known:
            raise InvalidRequest(
                f"there is no sink {sink_id!r}", hint="`octavo sink list` shows those there are"
            )
        return sink_of(reply.state)

    async def end_sink(
        self, sink_id: str, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> SinkDescription:
        """Have a sink decide nothing any more, for ever; returns what is known of it then.

        A batch that was decided and not published is given up, though some of its rows may be in
        their topic; brokers delete what it staged. Its query fails with SINK_ENDED from then on.
        Raises InvalidRequest when the cluster knows none of that id.
        """
        request = pb.EndSinkRequest(sink_id=sink_id)
        change = Change(self._binding.cluster(), f"ending sink {sink_id!r}", timeout)

        async def attempt() -> SinkDescription:
            reply = await change.ask(lambda stub, limit: stub.EndSink(request, timeout=limit))
            check_reply(reply)
            return sink_of(reply.state)

        return await change.settle(attempt)
