"""How another process asks a running supervisor for something: `octavo restart NAME`.

A socket in Linux's abstract namespace, named by the folder's identity: a copy of the folder has
another one, nothing lies in the folder that a backup would stumble over, and the kernel removes it
with the supervisor. Both ends ask the kernel who the other is: only the supervisor's own user and
root are obeyed, and only the supervisor that cluster.json names is believed. One request a
connection, a line of words; the answers are JSON lines like those of `octavo.testing`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Generator
from typing import NamedTuple, cast

from octavo.proto.endpoints import Listener, listen_unix
from octavo.runtime.errors import IllegalStateError, OctavoError, UnknownOutcome
from octavo.supervisor.cluster_file import ClusterFile

REQUEST_BYTES_MAX = 4096
REQUEST_TIMEOUT_S = 5.0
CONNECTIONS_MAX = 16
_CREDENTIALS = struct.Struct("3i")
"""Pid, uid and gid of the other end, as SO_PEERCRED gives them."""
_ENDS = ("done", "failed")


class Answer(NamedTuple):
    """One line of an answer; `event` "done" or "failed" is the last one."""

    event: str
    name: str
    text: str
    hint: str = ""


Tell = Callable[[Answer], None]
Obey = Callable[[list[str], Tell], Awaitable[None]]
"""Does what the words of a request say, telling on the way; raises OctavoError."""


def is_supported() -> bool:
    """Whether this system has what is needed."""
    return sys.platform == "linux"


def address_of(folder: str) -> str:
    """Where the supervisor of the folder with this identity listens."""
    return f"\0octavo-supervisor/{folder}"


class ControlServer:
    """The supervisor's end, from `start` to `close`."""

    def __init__(self, folder: str, obey: Obey) -> None:
        self._address = address_of(folder)
        self._obey = obey
        self._listener: Listener | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._closed = False

    async def start(self) -> None:
        """Listen. Raises OSError when somebody else does."""
        self._listener = await listen_unix(self._serve, self._address, REQUEST_BYTES_MAX)

    async def close(self) -> None:
        """Take no more requests, and end those under way: who asked finds the outcome unknown."""
        self._closed = True
        if self._listener is not None:
            await self._listener.close()
        serving = list(self._serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a connection is served in a task")
        self._serving.add(task)
        try:
            if not self._closed:
                await self._answer(reader, writer)
        except (OSError, ValueError, TimeoutError):
            pass  # it went away, sent a line without end, or nothing: there is nobody to tell
        finally:
            self._serving.discard(task)
            writer.close()
            try:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    await writer.wait_closed()
            except (OSError, TimeoutError):
                writer.transport.abort()  # it reads no answer

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = cast("socket.socket", writer.get_extra_info("socket"))

        def tell(answer: Answer) -> None:
            if not writer.is_closing():
                writer.write(json.dumps(answer._asdict()).encode() + b"\n")

        if _peer(peer).uid not in (0, os.geteuid()):
            tell(Answer("failed", "", "only the user of `octavo up` may ask this"))
        elif len(self._serving) > CONNECTIONS_MAX:
            tell(Answer("failed", "", "too many requests at a time", "ask again later"))
        else:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                words = (await reader.readline()).decode("utf-8", "replace").split()
            try:
                await self._obey(words, tell)
            except OctavoError as error:
                tell(Answer("failed", "", error.cause, error.hint))
            except OSError as error:
                tell(Answer("failed", "", str(error)))
            else:
                tell(Answer("done", "", ""))
        await writer.drain()


class _Peer(NamedTuple):
    pid: int
    uid: int
    gid: int


def _peer(end: socket.socket) -> _Peer:
    raw = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _Peer(*_CREDENTIALS.unpack(raw))


def ask(cluster: ClusterFile, words: list[str], timeout_s: float) -> Generator[Answer]:
    """Send a request to the supervisor of `cluster`; its answers, the last one is an end.

    Raises IllegalStateError when nothing was sent, UnknownOutcome when no end came: what was asked
    for may still go on.
    """
    if not is_supported():
        raise IllegalStateError("this needs Linux", hint="kill -HUP of the supervisor starts all")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
        end.settimeout(timeout_s)
        try:
            end.connect(address_of(cluster.folder))
        except OSError as error:
            raise IllegalStateError(
                f"the supervisor (pid {cluster.supervisor_pid}) takes no requests: {error}",
                hint=f"read {cluster.metadata_log}",
            ) from error
        if _peer(end).pid != cluster.supervisor_pid:
            raise IllegalStateError("another process answers in the supervisor's place")
        with contextlib.suppress(OSError), end.makefile("rb") as lines:  # without an end: below
            end.sendall(" ".join(words).encode() + b"\n")
            for line in lines:
                answer = Answer(**json.loads(line))
                yield answer
                if answer.event in _ENDS:
                    return
    raise UnknownOutcome(
        f"no answer about `{' '.join(words)}` within {timeout_s:.0f} s: it may still go on",
        hint="`octavo status` shows how it is",
    )
