"""The bound of a broker's connections: who comes too many is told, and gets in when one leaves."""

from __future__ import annotations

import resource
from collections.abc import AsyncGenerator, Generator

import grpc
import pytest

from octavo.proto import broker_pb2 as pb
from octavo.proto.broker_pb2_grpc import BrokerStub
from octavo.proto.endpoints import open_channel
from octavo.proto.errors import from_rpc_error
from octavo.runtime.errors import BrokerUnavailable, ConfigError
from tests.serving_server import Loopback

RECONNECT = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 100),
)


@pytest.fixture
async def loopback() -> AsyncGenerator[Loopback]:
    made = Loopback()
    yield made
    await made.close()


@pytest.fixture
def few_files() -> Generator[None]:
    """A soft limit below what a broker needs; what is open already stays open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def asked(channel: grpc.aio.Channel, *, patient: bool = False) -> None:
    stub = BrokerStub(channel)
    try:
        await stub.Metadata(pb.MetadataRequest(), timeout=10, wait_for_ready=patient)
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error, "broker-1") from error


async def test_one_connection_too_many_is_told_and_gets_in_when_another_leaves(
    loopback: Loopback,
) -> None:
    address = (await loopback.broker(connections_max=3)).address
    channels = [open_channel(address, *RECONNECT) for _ in range(4)]
    try:
        for channel in channels[:3]:
            await asked(channel)
        with pytest.raises(BrokerUnavailable, match="Socket closed") as caught:
            await asked(channels[3])
        assert "connections_max" in caught.value.hint
        assert caught.value.retriable
        await asked(channels[0])  # those that are in are served
        await channels[0].close()
        await asked(channels[3], patient=True)
    finally:
        for channel in channels:
            await channel.close()


@pytest.mark.usefixtures("few_files")
async def test_a_broker_without_descriptors_does_not_start_and_says_how_many_it_needs(
    loopback: Loopback,
) -> None:
    with pytest.raises(ConfigError, match="may open 300 files, a broker needs at least 320"):
        await loopback.broker()
