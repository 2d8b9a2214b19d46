"""What a delivery waits for others to say: who owns a partition, and which producer id it has.

Loop only. Batches time out on their own meanwhile; `never_sent` says then what they waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo.client.messaging.cluster.cluster import Cluster
from octavo.client.messaging.producing.actions import Action
from octavo.client.messaging.producing.batches import Batch
from octavo.client.messaging.producing.in_flight import Partition
from octavo.client.messaging.producing.sender_core import NOT_WRITTEN, SenderCore
from octavo.client.messaging.user_code import ClientLog
from octavo.proto import broker_pb2 as pb
from octavo.proto.errors import from_wire
from octavo.runtime.errors import DeliveryFailed, OctavoError

_log = ClientLog("octavo.client")


class Searches:
    """Answers FindOwner and RequestIdentity, however long it takes.

    `answered(actions, now_s)` carries out what the core makes of an answer.
    """

    def __init__(
        self,
        cluster: Cluster,
        core: SenderCore,
        answered: Callable[[Sequence[Action], float], None],
    ) -> None:
        self._cluster = cluster
        self._core = core
        self._answered = answered
        self._owner_errors: dict[tuple[str, int], OctavoError] = {}
        """Why the partitions that search their owner have none; at most one for each of them."""
        self._identity_error: OctavoError | None = None
        """Why there is no producer id."""

    async def find_owner(self, partition: Partition, avoid: str) -> None:
        """Ask until the owner of `partition` is known; `avoid` just failed."""
        cluster, core = self._cluster, self._core
        backoff = cluster.calls.backoff()
        key = (partition.topic, partition.partition)
        while core.fatal is None and not partition.ended:
            try:
                owner = await cluster.owners.find(*key, avoid=avoid)
            except OctavoError as error:
                _log.info("no owner of %s yet: %s", partition, error.cause)
                self._owner_errors[key] = error
                await cluster.owners.pause_search(error, backoff)
                continue
            self._owner_errors.pop(key, None)
            now_s = cluster.clock.monotonic()
            self._answered(core.owner_found(partition, owner, now_s), now_s)
            return

    async def get_identity(self) -> None:
        """Ask until a broker grants a producer id."""
        cluster, core = self._cluster, self._core
        request = pb.InitProducerIdRequest()
        backoff = cluster.calls.backoff()
        while core.fatal is None:
            try:
                reply = await cluster.calls.ask_any(
                    lambda stub, limit: stub.InitProducerId(request, timeout=limit),
                    cluster.calls.request_timeout_s,
                )
                if reply.HasField("error"):
                    raise from_wire(reply.error)
            except OctavoError as error:
                _log.info("no producer id yet: %s", error.cause)
                self._identity_error = error
                await cluster.clock.sleep(backoff.next_s())
                continue
            self._identity_error = None
            now_s = cluster.clock.monotonic()
            granted = core.identity_granted(reply.producer_id, reply.producer_epoch, now_s)
            self._answered(granted, now_s)
            return

    def never_sent(self, batch: Batch, limit_s: float) -> OctavoError:
        """The error of a batch that expired before it was sent, with what it waited for."""
        key = (batch.topic, batch.partition)
        error = self._owner_errors.get(key) or self._identity_error
        error = error or self._core.partition(*key).refusal
        kind = type(error) if isinstance(error, NOT_WRITTEN) else DeliveryFailed
        return kind(
            f"{batch.count} records to {batch.topic}-{batch.partition} waited {limit_s:g} s "
            "(delivery_timeout_ms) and were never sent"
            + (f"; last error: {error}" if error is not None else ""),
            hint="check that the partition's broker can be reached",
        )
