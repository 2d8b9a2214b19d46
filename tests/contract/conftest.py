"""The metadata stores that the contract suites judge, one after the other."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import AsyncIterator

import pytest

from octavo.metadata.store import MetadataStore
from tests.contract.metadata_harness import (
    EmbeddedHarness,
    MemoryHarness,
    MetadataHarness,
    ZookeeperHarness,
)
from tests.fix_zookeeper import ZookeeperServer

_roots = itertools.count()

IMPLEMENTATIONS = [
    "memory",
    "embedded",
    pytest.param("zookeeper", marks=pytest.mark.zookeeper),
]


@pytest.fixture(params=IMPLEMENTATIONS)
async def harness(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path
) -> AsyncIterator[MetadataHarness]:
    made: MetadataHarness
    if request.param == "memory":
        made = MemoryHarness()
    elif request.param == "embedded":
        made = await EmbeddedHarness(tmp_path).start()
    else:
        server: ZookeeperServer = request.getfixturevalue("zookeeper_server")
        made = ZookeeperHarness(server.port)
    yield made
    await made.close()


@pytest.fixture
async def store(harness: MetadataHarness) -> MetadataStore:
    return await harness.connect()


@pytest.fixture
async def other(harness: MetadataHarness) -> MetadataStore:
    return await harness.connect()


@pytest.fixture
def root() -> str:
    """A place no other test uses: ZooKeeper is shared by all."""
    return f"/contract-{next(_roots)}"
