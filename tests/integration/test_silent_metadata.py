"""A fresh client of a cluster whose metadata store is frozen is told so, and by which address."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Awaitable

import pytest

from octavo import AsyncClient, Client
from octavo.runtime.errors import OctavoError
from octavo.testing import LocalCluster

pytestmark = pytest.mark.process

TIMEOUT_S = 10.0
SOON_S = 60.0
NAMED = re.compile(r"metadata store at (embedded://)?127\.0\.0\.1:\d+ ")


async def said(call: Awaitable[object]) -> str:
    try:
        async with asyncio.timeout(SOON_S):
            return f"answered: {await call}"
    except OctavoError as error:
        return str(error)


async def told(bootstrap: str) -> list[str]:
    """What every kind of call says."""
    async with AsyncClient(bootstrap) as client:
        admin = client.admin

        async def send() -> object:
            async with client.producer(max_block_ms=int(TIMEOUT_S * 1000)) as producer:
                return await producer.send("orders", b"v")

        health = await admin.cluster_health(timeout=TIMEOUT_S)
        assert not health.metadata_connected
        return [
            health.metadata_error,
            *await asyncio.gather(
                said(admin.list_offsets("orders", timeout=TIMEOUT_S)),
                said(admin.describe_topic("orders", timeout=TIMEOUT_S)),
                said(admin.describe_log("orders", 0, timeout=TIMEOUT_S)),
                said(admin.list_topics(timeout=TIMEOUT_S)),
                said(admin.create_topic("other", timeout=TIMEOUT_S)),
                said(send()),
            ),
        ]


def test_a_fresh_client_hears_that_the_metadata_store_is_silent(cluster: LocalCluster) -> None:
    bootstrap = cluster.bootstrap_servers
    with Client(bootstrap) as client:
        client.admin.create_topic("orders", partitions=1)
    cluster.restart("broker-1")  # remembers nothing
    store = cluster.cluster.supervisor_pid  # hosts the metadata
    os.kill(store, signal.SIGSTOP)
    try:
        answers = asyncio.run(told(bootstrap))
    finally:
        os.kill(store, signal.SIGCONT)
    for answer in answers:
        assert NAMED.search(answer), answers
    with Client(bootstrap) as client:
        assert client.admin.list_offsets("orders", timeout=30.0) == {0: 0}
