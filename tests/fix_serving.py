"""Fixtures: rig."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.serving_rig import Rig


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    yield made
    await made.close()
