"""Fixtures: the SDK and its fake brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from octavo import AsyncClient
from tests.fake_broker import FakeCluster


@pytest.fixture
async def fake() -> AsyncIterator[FakeCluster]:
    cluster = FakeCluster(brokers=2)
    await cluster.start()
    cluster.create("orders", 3)
    cluster.create("one", 1)
    yield cluster
    await cluster.stop()


@pytest.fixture
async def client(fake: FakeCluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(fake.bootstrap, retry_backoff_ms=10) as client:
        yield client
