"""Claims of exclusive writers at the fake brokers (X32), by the seat that real owners have."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from octavo.proto import broker_pb2 as pb
from octavo.proto.errors import to_wire
from octavo.runtime.errors import OctavoError
from octavo.serving.partition.name import PartitionName
from octavo.serving.partition.writer_seat import WriterSeat
from tests.broker_model import PartitionModel

if TYPE_CHECKING:
    from tests.fake_broker import FakeBroker


def seat_in(model: PartitionModel, name: str, config: dict[str, str], lease_s: float) -> WriterSeat:
    """Who may write to a partition; its epoch outlives every owner here."""
    if model.seat is None:
        required = config.get("exclusive.writer") == "true"
        partition = PartitionName(name, uuid.UUID(int=0), 0)
        model.seat = WriterSeat(partition, lease_s=lease_s, required=required)
    return model.seat


def carry_out(seat: WriterSeat, request: pb.ClaimWriterRequest, now_s: float) -> None:
    """What an owner does with a claim; raises what it refuses."""
    token = request.writer
    if request.leave:
        seat.leave(token, request.held_epoch)
    elif request.held_epoch:
        seat.renew(token, request.held_epoch, now_s)
    else:
        seat.begin_claim(token, fence=request.fence, now_s=now_s)
        if seat.holder != token:
            seat.listed(seat.epoch + 1, token)
        seat.claimed(token, now_s)


async def claimed(
    broker: FakeBroker,
    find: Callable[[str, int, bytes], PartitionModel],
    request: pb.ClaimWriterRequest,
) -> pb.ClaimWriterReply:
    """The answer of `broker`."""
    cluster = broker.cluster
    await broker.faults.release_claims.wait()
    try:
        model = find(request.topic, request.partition, request.topic_id)
        seat = broker.seat_of(model, request.topic)
        carry_out(seat, request, cluster.clock.monotonic())
    except OctavoError as error:
        cluster.claims_refused += 1
        return pb.ClaimWriterReply(error=to_wire(error))
    cluster.claims_renewed += request.held_epoch > 0
    lease_ms = round(cluster.writer_lease_s * 1000)
    return pb.ClaimWriterReply(writer_epoch=seat.epoch, lease_ms=lease_ms)
