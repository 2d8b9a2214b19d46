"""Dialling and listening: what was accepted is served, whatever moment the listener closes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import grpc
import pytest
import uvloop

from octavo.proto.endpoints import Listener, SocketNetwork, bind, grpc_server, open_channel
from octavo.runtime.errors import ConfigError

LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [
    asyncio.new_event_loop,
    uvloop.new_event_loop,
]
NAMES = ("asyncio", "uvloop")
DIALLED = 12


class _Counting(asyncio.BufferedProtocol):
    """Notes what it serves."""

    made: list[asyncio.BaseTransport]

    def __init__(self, made: list[asyncio.BaseTransport]) -> None:
        self.made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.made.append(transport)


async def _close_at(turns: int, close: Callable[[Listener], asyncio.Future[None]]) -> int:
    """Dial, close the listener after so many turns, then every served end; ends left hanging."""
    loop = asyncio.get_running_loop()
    errors: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    made: list[asyncio.BaseTransport] = []
    listener = await SocketNetwork().listen(lambda: _Counting(made), "127.0.0.1", 0)
    ends = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(DIALLED)]
    for _ in range(turns):
        await asyncio.sleep(0)
    await close(listener)
    for _ in range(8):
        await asyncio.sleep(0)
    for transport in made:
        transport.close()
    hanging = 0
    for end in ends:
        end.setblocking(False)
        try:
            async with asyncio.timeout(0.2):
                await loop.sock_recv(end, 1)
        except ConnectionError:
            pass
        except TimeoutError:
            hanging += 1
        finally:
            end.close()
    return hanging + len(errors)


def _rightly(listener: Listener) -> asyncio.Future[None]:
    return asyncio.ensure_future(listener.close())


@pytest.mark.parametrize("make_loop", LOOPS, ids=NAMES)
@pytest.mark.parametrize("turns", range(5))
def test_no_accepted_connection_is_lost_when_a_listener_closes(
    make_loop: Callable[[], asyncio.AbstractEventLoop], turns: int
) -> None:
    with asyncio.Runner(loop_factory=make_loop) as runner:
        assert runner.run(_close_at(turns, _rightly)) == 0


@pytest.mark.parametrize("make_loop", LOOPS, ids=NAMES)
def test_a_closed_listener_refuses_and_closes_again(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def body() -> None:
        made: list[asyncio.BaseTransport] = []
        listener = await SocketNetwork().listen(lambda: _Counting(made), "127.0.0.1", 0)
        where = f"127.0.0.1:{listener.port}"
        await SocketNetwork().dial(where, lambda: _Counting(made), "peer")
        await listener.close()
        await listener.close()
        with pytest.raises(OSError, match=r"refused|Connect call failed"):
            await SocketNetwork().dial(where, asyncio.BufferedProtocol, "peer")
        for transport in made:
            transport.close()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(body())


async def test_an_address_that_is_none_is_told_by_its_name() -> None:
    with pytest.raises(ConfigError, match="address of a bookie 'nowhere'"):
        await SocketNetwork().dial("nowhere", asyncio.BufferedProtocol, "address of a bookie")


async def test_a_taken_port_is_a_wrong_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            bind(grpc_server(), "127.0.0.1", port)


async def test_requests_of_thousands_of_clients_at_one_time_are_all_begun() -> None:
    """gRPC's own bound is 1,000; what is above it is CANCELLED without a word to the server."""

    async def answer(raw: bytes, _context: object) -> bytes:
        return raw

    server = grpc_server()
    port = bind(server, "127.0.0.1", 0)
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]]
    handlers = {"Echo": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", handlers),))
    await server.start()
    channel = open_channel(f"127.0.0.1:{port}")
    method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/s/Echo")
    try:
        calls = [method(b"%d" % number) for number in range(2_500)]
        replies = await asyncio.gather(*calls, return_exceptions=True)
    finally:
        await channel.close()
        await server.stop(0)
    assert [reply for reply in replies if not isinstance(reply, bytes)] == []
