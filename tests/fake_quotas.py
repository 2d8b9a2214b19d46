"""Quotas of clients at a fake broker: what was set last is listed."""

from __future__ import annotations

from octavo.proto import broker_pb2 as pb
from octavo.proto import broker_pb2_grpc


class FakeQuotas(broker_pb2_grpc.BrokerServicer):
    """The requests about quotas."""

    async def ListQuotas(self, request, context):  # type: ignore[no-untyped-def]
        return pb.ListQuotasReply(defaults=pb.QuotaView(connections_max=0))

    async def SetQuota(self, request, context):  # type: ignore[no-untyped-def]
        return pb.SetQuotaReply(quota=request.quota)
