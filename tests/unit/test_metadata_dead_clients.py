"""A client known to be dead holds no lease in the embedded store (ADR 7)."""

from __future__ import annotations

import pathlib

import pytest

from octavo.metadata.connect import connect_store
from octavo.metadata.embedded_server import EmbeddedMetadataServer
from octavo.metadata.store import MetadataStore
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy

LEASE_S = 50.0
"""Far longer than the test: nothing here ends by running out."""


async def connect(port: int, name: str) -> MetadataStore:
    return await connect_store(
        f"embedded://127.0.0.1:{port}/octavo",
        client_name=name,
        session_timeout_s=LEASE_S,
        clock=SystemClock(),
        entropy=SystemEntropy(),
    )


async def test_sessions_of_a_dead_client_end_at_once_and_others_stay(
    tmp_path: pathlib.Path,
) -> None:
    server = EmbeddedMetadataServer(tmp_path, SystemClock())
    port = await server.start()
    dead, alive = await connect(port, "broker-1"), await connect(port, "broker-2")
    await dead.create("/octavo/one", b"1", ephemeral=True)
    await alive.create("/octavo/two", b"2", ephemeral=True)
    await server.end_sessions_of("broker-1")
    assert await alive.get("/octavo/one") is None
    assert await alive.get("/octavo/two") is not None
    for store in (dead, alive):
        await store.close()
    await server.stop()


@pytest.mark.parametrize("clients_are_dead", [True, False])
async def test_a_start_ends_old_sessions_only_when_their_processes_are_gone(
    tmp_path: pathlib.Path, clients_are_dead: bool
) -> None:
    server = EmbeddedMetadataServer(tmp_path, SystemClock())
    port = await server.start()
    old = await connect(port, "broker-1")
    await old.create("/octavo/one", b"1", ephemeral=True)
    await server.stop()
    again = EmbeddedMetadataServer(tmp_path, SystemClock())
    other_port = await again.start(clients_are_dead=clients_are_dead)
    reader = await connect(other_port, "reader")
    assert (await reader.get("/octavo/one") is None) is clients_are_dead
    for store in (reader, old):
        await store.close()
    await again.stop()
