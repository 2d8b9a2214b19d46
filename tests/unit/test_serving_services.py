"""Every method that the protocol names has one handler, and each handler is told who calls."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf.message import Message

from octavo.proto import broker_pb2 as pb
from octavo.proto import groups_pb2
from octavo.proto.endpoints import bind, grpc_server, open_channel
from octavo.proto.errors import from_rpc_error
from octavo.runtime.errors import InvalidRequest, OctavoError, UnknownTopic
from octavo.serving.server import GROUP_SERVICE, SERVICE
from octavo.serving.services.caller import Caller
from octavo.serving.services.rpc import unary
from tests.serving_server import loopback


async def test_each_method_of_the_protocol_is_of_one_service() -> None:
    async with loopback() as brokers:
        await brokers.broker()
        server = brokers.servers[0]
        services = server._services(server.ownership, "c")  # pyright: ignore[reportPrivateUsage]
        names = [name for service in services for name in service.handlers()]
    (described,) = pb.DESCRIPTOR.services_by_name.values()
    assert described.full_name == SERVICE
    assert sorted(names) == sorted(method.name for method in described.methods)


async def test_the_service_of_groups_is_whole() -> None:
    async with loopback() as brokers:
        await brokers.broker()
        server = brokers.servers[0]
        names = server._group_service.handlers()  # pyright: ignore[reportPrivateUsage]
    (described,) = groups_pb2.DESCRIPTOR.services_by_name.values()
    assert described.full_name == GROUP_SERVICE
    assert sorted(names) == sorted(method.name for method in described.methods)


class Answering:
    """One method on a socket of its own."""

    def __init__(self, error: OctavoError | None = None) -> None:
        self.callers: list[Caller] = []
        self._error = error

    async def answer(self, request: Message, caller: Caller) -> pb.RollReply:
        self.callers.append(caller)
        if self._error is not None:
            raise self._error
        assert isinstance(request, pb.RollRequest)
        return pb.RollReply(high_watermark=request.partition)

    async def asked(self, raw: bytes) -> pb.RollReply:
        server = grpc_server()
        port = bind(server, "127.0.0.1", 0)
        handlers = {"Roll": unary(pb.RollRequest, self.answer)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", handlers),))
        await server.start()
        channel = open_channel(f"127.0.0.1:{port}")
        try:
            method: grpc.aio.UnaryUnaryMultiCallable[bytes, pb.RollReply] = channel.unary_unary(
                "/s/Roll", response_deserializer=pb.RollReply.FromString
            )
            return await method(raw)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, "s") from error
        finally:
            await channel.close()
            await server.stop(0)


async def test_a_handler_is_told_who_calls() -> None:
    answering = Answering()
    reply = await answering.asked(pb.RollRequest(partition=7).SerializeToString())
    assert reply.high_watermark == 7
    (caller,) = answering.callers
    assert caller.peer.startswith("ipv4:127.0.0.1:")


async def test_garbage_is_an_invalid_request_and_reaches_no_handler() -> None:
    answering = Answering()
    with pytest.raises(InvalidRequest, match="malformed request"):
        await answering.asked(b"\xff\xff\xff")
    assert answering.callers == []


async def test_an_error_of_ours_reaches_the_caller_with_its_class_and_hint() -> None:
    answering = Answering(UnknownTopic("topic 'x' does not exist", hint="create it", topic="x"))
    with pytest.raises(UnknownTopic, match="topic 'x' does not exist") as caught:
        await answering.asked(b"")
    assert (caught.value.hint, caught.value.details["topic"]) == ("create it", "x")
