"""The metadata of a local cluster for a tool: of one that runs where it is, of one that is down by
opening its folder, and of neither half."""

from __future__ import annotations

import dataclasses
import os
import pathlib

import psutil
import pytest

from octavo.metadata.connect import connect_store, parse_url
from octavo.metadata.embedded_server import EmbeddedMetadataServer
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import IllegalStateError
from octavo.supervisor.cluster_file import ClusterFile, ProcessEntry, folder_identity
from octavo.supervisor.folder_store import metadata_url_of
from octavo.supervisor.layout import METADATA_FOLDER
from octavo.supervisor.lock import DataDirLock

CLOCK, ENTROPY = SystemClock(), SystemEntropy()
EMBEDDED = "embedded://127.0.0.1:1/octavo"


def cluster(data: pathlib.Path, **changes: object) -> ClusterFile:
    found = ClusterFile(
        supervisor_pid=0,
        supervisor_started=0.0,
        bootstrap_servers="127.0.0.1:1",
        metadata=EMBEDDED,
        metadata_log="log",
        children=(),
        bookies=3,
        brokers=1,
        folder=folder_identity(data),
    )
    return dataclasses.replace(found, **changes)  # type: ignore[arg-type]  # pyright: ignore


async def test_a_cluster_that_is_down_is_served_to_the_tool_and_locked(
    tmp_path: pathlib.Path,
) -> None:
    folder = tmp_path / METADATA_FOLDER
    folder.mkdir()
    before = EmbeddedMetadataServer(folder, CLOCK)
    port = await before.start()
    store = await connect_store(
        f"embedded://127.0.0.1:{port}/octavo", client_name="a", clock=CLOCK, entropy=ENTROPY
    )
    await store.create("/octavo/lasting", b"1")
    await store.create("/octavo/dead", b"1", ephemeral=True)
    await before.stop()  # killed: its clients never closed their sessions
    await store.close()
    async with metadata_url_of(cluster(tmp_path), tmp_path, clock=CLOCK, entropy=ENTROPY) as url:
        assert parse_url(url).root == "/octavo"
        assert url != EMBEDDED
        with pytest.raises(IllegalStateError, match="is in use"):
            DataDirLock(tmp_path).acquire()
        tool = await connect_store(url, client_name="b", clock=CLOCK, entropy=ENTROPY)
        assert await tool.children("/octavo") == ["lasting"], "the sessions of the dead are over"
        await tool.close()
    lock = DataDirLock(tmp_path)
    lock.acquire()
    lock.release()


async def test_a_cluster_that_runs_is_asked_where_it_is(tmp_path: pathlib.Path) -> None:
    me = psutil.Process()
    runs = cluster(tmp_path, supervisor_pid=me.pid, supervisor_started=me.create_time())
    zookeeper = cluster(tmp_path, metadata="zk://zk-1:2181/octavo")
    for one in (runs, zookeeper):
        async with metadata_url_of(one, tmp_path, clock=CLOCK, entropy=ENTROPY) as url:
            assert url == one.metadata
    assert not (tmp_path / METADATA_FOLDER).exists()


async def test_nothing_is_opened_while_a_process_of_the_cluster_lives(
    tmp_path: pathlib.Path,
) -> None:
    left = ProcessEntry(
        role="bookie",
        name="bookie-2",
        pid=os.getpid(),
        started=psutil.Process().create_time(),
        address="",
        health_address="",
        log="",
        state="ready",
    )
    with pytest.raises(IllegalStateError, match="of its processes run still: bookie-2"):
        async with metadata_url_of(
            cluster(tmp_path, children=(left,)), tmp_path, clock=CLOCK, entropy=ENTROPY
        ):
            pass
    assert not (tmp_path / METADATA_FOLDER).exists()
