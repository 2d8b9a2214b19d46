"""The supervisor's socket: who is obeyed, who is believed, and what a lost answer means."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import pathlib
import socket

import pytest

from octavo.runtime.errors import ConfigError, IllegalStateError, UnknownOutcome
from octavo.supervisor.cluster_file import ClusterFile, folder_identity
from octavo.supervisor.control import (
    REQUEST_BYTES_MAX,
    Answer,
    ControlServer,
    Tell,
    address_of,
    ask,
    is_supported,
)

pytestmark = pytest.mark.skipif(not is_supported(), reason="needs Linux")


@pytest.fixture
def cluster(tmp_path: pathlib.Path) -> ClusterFile:
    return ClusterFile(
        supervisor_pid=os.getpid(),
        supervisor_started=0.0,
        bootstrap_servers="",
        metadata="",
        metadata_log="log",
        children=(),
        bookies=1,
        brokers=1,
        folder=folder_identity(tmp_path),
    )


async def obey(words: list[str], tell: Tell) -> None:
    if words == ["hang"]:
        await asyncio.Event().wait()
    if words != ["restart", "bookie-1"]:
        raise ConfigError("no", hint="try yes")
    tell(Answer("ready", "bookie-1", "it is ready"))


async def asked(cluster: ClusterFile, *words: str, timeout_s: float = 30.0) -> list[Answer]:
    server = ControlServer(cluster.folder, obey)
    await server.start()
    try:
        return await asyncio.to_thread(lambda: list(ask(cluster, list(words), timeout_s)))
    finally:
        await server.close()


async def test_a_request_is_obeyed_with_words_on_the_way(cluster: ClusterFile) -> None:
    assert await asked(cluster, "restart", "bookie-1") == [
        Answer("ready", "bookie-1", "it is ready"),
        Answer("done", "", ""),
    ]


async def test_a_refusal_keeps_cause_and_hint(cluster: ClusterFile) -> None:
    assert await asked(cluster, "nonsense") == [Answer("failed", "", "no", "try yes")]


async def test_no_end_in_time_is_an_unknown_outcome(cluster: ClusterFile) -> None:
    with pytest.raises(UnknownOutcome, match="may still go on"):
        await asked(cluster, "hang", timeout_s=0.2)


async def test_closing_ends_the_requests_under_way(cluster: ClusterFile) -> None:
    """A restart must not start a child again while the supervisor stops."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def hang(words: list[str], tell: Tell) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    server = ControlServer(cluster.folder, hang)
    await server.start()
    asking = asyncio.create_task(asyncio.to_thread(lambda: list(ask(cluster, ["x"], 30.0))))
    await begun.wait()
    await server.close()
    assert ended.is_set()
    with pytest.raises(UnknownOutcome, match="may still go on"):
        await asking
    with pytest.raises(IllegalStateError, match="takes no requests"):
        list(ask(cluster, ["x"], 1.0))


async def test_only_the_supervisor_of_the_file_is_believed(cluster: ClusterFile) -> None:
    other = dataclasses.replace(cluster, supervisor_pid=1)
    with pytest.raises(IllegalStateError, match="another process"):
        await asked(other, "restart", "bookie-1")


def test_nobody_there_is_said_before_anything_is_sent(cluster: ClusterFile) -> None:
    with pytest.raises(IllegalStateError, match="takes no requests"):
        list(ask(cluster, ["restart", "bookie-1"], 1.0))


async def test_a_line_without_end_is_not_kept(cluster: ClusterFile) -> None:
    server = ControlServer(cluster.folder, obey)
    await server.start()

    def send() -> bytes:
        with socket.socket(socket.AF_UNIX) as end:
            end.settimeout(30)
            end.connect(address_of(cluster.folder))
            try:
                end.sendall(b"x" * (REQUEST_BYTES_MAX * 100))
            except (BrokenPipeError, ConnectionResetError):
                return b""
            try:
                return end.recv(100)
            except ConnectionResetError:
                return b""

    try:
        assert await asyncio.to_thread(send) == b""
    finally:
        await server.close()
