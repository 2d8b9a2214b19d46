"""A TCP proxy in front of a real server, to lose replies and connections on purpose."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from octavo.proto.endpoints import Listener


class TcpProxy:
    """Forwards one listening port to one target; its switches act on all connections at once."""

    def __init__(self, target_host: str, target_port: int) -> None:
        self._target = (target_host, target_port)
        self._listener: Listener | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._replies_flow = asyncio.Event()
        self._replies_flow.set()
        self._link = _flowing()
        """Of the connections made now; each keeps the one that it began with."""
        self._silent: list[asyncio.Event] = []
        self._refuse = False
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> TcpProxy:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self._listener = Listener(server, server.sockets[0].getsockname()[1])
        self.port = self._listener.port
        return self

    async def close(self) -> None:
        self.cut(refuse=True)  # also what was accepted and has not begun yet
        if self._listener is not None:
            await self._listener.close()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for writer in list(self._writers):
            with suppress(OSError):
                await writer.wait_closed()

    def hold_replies(self) -> None:
        """From now on nothing the server says arrives, while requests still do."""
        self._replies_flow.clear()

    @property
    def connections(self) -> int:
        """How many ends are open, two for each connection."""
        return len(self._writers)

    def fall_silent(self, *, frozen: bool) -> None:
        """From now on nothing passes on the present connections, in either direction, and none of
        them ends. New ones work (a half-open link), unless the server is `frozen`: they are made,
        and silent too."""
        self._link.clear()
        self._silent.append(self._link)
        if not frozen:
            self._link = _flowing()

    def cut(self, *, refuse: bool = False) -> None:
        """Reset every connection and drop what was held; `refuse` new ones until `restore()`."""
        self._refuse = refuse
        for writer in list(self._writers):
            writer.transport.abort()
        self._replies_flow.set()
        for link in self._silent:
            link.set()
        self._silent.clear()

    def restore(self) -> None:
        self._refuse = False

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._refuse:
            writer.transport.abort()
            return
        self._writers.add(writer)
        link = self._link
        try:
            up_reader, up_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(up_writer)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, up_writer, link, replies=False))
                group.create_task(self._pump(up_reader, writer, link, replies=True))
        finally:
            for end in (writer, up_writer):
                end.transport.abort()
                self._writers.discard(end)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        link: asyncio.Event,
        *,
        replies: bool,
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if replies:
                    await self._replies_flow.wait()
                await link.wait()
                if writer.transport.is_closing():
                    break
                writer.write(data)
                await writer.drain()
        await link.wait()  # a silent link does not even tell that one side left
        writer.transport.abort()
        self._writers.discard(writer)


def _flowing() -> asyncio.Event:
    link = asyncio.Event()
    link.set()
    return link
