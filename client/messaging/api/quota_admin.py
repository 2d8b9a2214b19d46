"""Administration of quotas: what each client id may use of a broker (X24)."""

from __future__ import annotations

from octavo.client.messaging.api.changes import Change, ask_any
from octavo.client.messaging.api.descriptions import ClientQuota, quota_of
from octavo.client.messaging.api.fleet_admin import DEFAULT_TIMEOUT_S, AsyncFleetAdmin
from octavo.client.messaging.api.replies import check_reply
from octavo.client.messaging.reading.limits import INT64_MAX, check_whole
from octavo.proto import broker_pb2 as pb


class AsyncQuotaAdmin(AsyncFleetAdmin):
    """The part of `client.admin` that knows of quotas.

    A quota is per broker and per client id, over all streams of that id: a client that uses three
    brokers may use three times as much.
    """

    async def list_quotas(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> list[ClientQuota]:
        """The default of the broker that answers, under the id "", and then, by id, every client
        with quotas of its own."""
        request = pb.ListQuotasRequest()
        cluster = self._binding.cluster()

        async def attempt() -> pb.ListQuotasReply:
            reply = await ask_any(
                cluster, lambda stub, limit: stub.ListQuotas(request, timeout=limit), timeout
            )
            check_reply(reply)
            return reply

        reply = await cluster.calls.retrying(attempt, timeout)
        return [quota_of(reply.defaults), *map(quota_of, reply.clients)]

    async def set_quota(
        self,
        client_id: str,
        *,
        bytes_in_per_s: int | None = None,
        bytes_out_per_s: int | None = None,
        requests_per_s: int | None = None,
        connections_max: int | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> ClientQuota:
        """Change what a client id may use of each broker; returns all that it has of its own.

        None leaves a value as it is, 0 sets no limit. Counts at every broker at once, for clients
        that are connected too; connections that are open stay open. A client over its rate is
        slowed down, and one that goes on is answered THROTTLED; further connections are refused.
        Raises InvalidConfig, InvalidRequest.
        """
        quota = pb.QuotaView(client_id=client_id)
        if bytes_in_per_s is not None:
            quota.bytes_in_per_s = check_whole("bytes_in_per_s", bytes_in_per_s, INT64_MAX)
        if bytes_out_per_s is not None:
            quota.bytes_out_per_s = check_whole("bytes_out_per_s", bytes_out_per_s, INT64_MAX)
        if requests_per_s is not None:
            quota.requests_per_s = check_whole("requests_per_s", requests_per_s, INT64_MAX)
        if connections_max is not None:
            quota.connections_max = check_whole("connections_max", connections_max, INT64_MAX)
        return await self._change(pb.SetQuotaRequest(quota=quota), timeout)

    async def unset_quota(self, client_id: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """Take back what a client id has of its own: the brokers' default counts for it again."""
        quota = pb.QuotaView(client_id=client_id)
        await self._change(pb.SetQuotaRequest(quota=quota, remove=True), timeout)

    async def _change(self, request: pb.SetQuotaRequest, timeout_s: float) -> ClientQuota:
        what = f"changing the quotas of client {request.quota.client_id!r}"
        change = Change(self._binding.cluster(), what, timeout_s)

        async def attempt() -> ClientQuota:
            reply = await change.ask(lambda stub, limit: stub.SetQuota(request, timeout=limit))
            check_reply(reply)
            return quota_of(reply.quota)

        return await change.settle(attempt)
