"""Quotas of clients: what each may use of a broker (X24)."""

from __future__ import annotations

from octavo.metadata.quotas import QuotaLimits
from octavo.proto import broker_pb2 as pb
from octavo.proto.errors import to_wire
from octavo.runtime.errors import OctavoError
from octavo.serving.quotas.changes import QuotaChanges
from octavo.serving.services.caller import Caller
from octavo.serving.services.rpc import Handlers, unary
from octavo.serving.store_answers import StoreAnswers


class QuotaService:
    """The requests about quotas.

    Args:
        default: what this broker gives to clients without quotas of their own.
    """

    def __init__(
        self, changes: QuotaChanges, default: QuotaLimits, store_answers: StoreAnswers
    ) -> None:
        self._changes = changes
        self._default = default
        self._during = store_answers.during

    def handlers(self) -> Handlers:
        """See `Service`."""
        return {
            "ListQuotas": unary(pb.ListQuotasRequest, self.list_quotas),
            "SetQuota": unary(pb.SetQuotaRequest, self.set_quota),
        }

    async def list_quotas(
        self, _request: pb.ListQuotasRequest, _caller: Caller
    ) -> pb.ListQuotasReply:
        """This broker's default, and every client with values of its own."""
        try:
            stored = await self._during(self._changes.read())
        except OctavoError as error:
            return pb.ListQuotasReply(error=to_wire(error))
        clients = [_view(client_id, limits) for client_id, limits in sorted(stored.clients.items())]
        return pb.ListQuotasReply(defaults=_view("", self._default), clients=clients)

    async def set_quota(self, request: pb.SetQuotaRequest, _caller: Caller) -> pb.SetQuotaReply:
        """Change or take back what one client has of its own; every broker follows."""
        client_id = request.quota.client_id
        try:
            if request.remove:
                await self._during(self._changes.unset(client_id))
                return pb.SetQuotaReply(quota=pb.QuotaView(client_id=client_id))
            limits = await self._during(self._changes.set(client_id, _limits(request.quota)))
        except OctavoError as error:
            return pb.SetQuotaReply(error=to_wire(error))
        return pb.SetQuotaReply(quota=_view(client_id, limits))


def _view(client_id: str, limits: QuotaLimits) -> pb.QuotaView:
    return pb.QuotaView(client_id=client_id, **limits._asdict())


def _limits(view: pb.QuotaView) -> QuotaLimits:
    return QuotaLimits(
        view.bytes_in_per_s if view.HasField("bytes_in_per_s") else None,
        view.bytes_out_per_s if view.HasField("bytes_out_per_s") else None,
        view.requests_per_s if view.HasField("requests_per_s") else None,
        view.connections_max if view.HasField("connections_max") else None,
    )
