"""Claims of partitions that have one writer at a time (X32)."""

from __future__ import annotations

from octavo.metadata.topics import check_for_users
from octavo.proto import broker_pb2 as pb
from octavo.proto.errors import to_wire
from octavo.runtime.errors import OctavoError
from octavo.serving.config import BrokerConfig
from octavo.serving.partition.writers import Writers
from octavo.serving.registry import PartitionRegistry
from octavo.serving.services.caller import Caller
from octavo.serving.services.rpc import Handlers, unary
from octavo.serving.store_answers import StoreAnswers


class WriterService:
    """The request of a producer that wants to be alone. Errors travel in the reply's `Error`."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        registry: PartitionRegistry,
        store_answers: StoreAnswers,
    ) -> None:
        self._config = config
        self._registry = registry
        self._during = store_answers.during

    def handlers(self) -> Handlers:
        """See `Service`."""
        return {"ClaimWriter": unary(pb.ClaimWriterRequest, self.claim)}

    async def claim(self, request: pb.ClaimWriterRequest, _caller: Caller) -> pb.ClaimWriterReply:
        """Claim a partition, say that its writer lives, or leave it."""
        try:
            check_for_users(request.topic)
            shell = await self._registry.resolve_life(
                request.topic, request.partition, request.topic_id, self._config.load_wait_s
            )
            epoch = await self._during(self._carried_out(request, shell.writers))
        except OctavoError as refused:
            return pb.ClaimWriterReply(error=to_wire(refused))
        lease_ms = self._config.writer_lease_ms
        return pb.ClaimWriterReply(writer_epoch=epoch, lease_ms=lease_ms)

    @staticmethod
    async def _carried_out(request: pb.ClaimWriterRequest, writers: Writers) -> int:
        if request.leave:
            writers.leave(request.writer, request.held_epoch)
            return request.held_epoch
        if request.held_epoch:
            return writers.renew(request.writer, request.held_epoch)
        return await writers.claim(request.writer, fence=request.fence)
