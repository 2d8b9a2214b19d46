"""Fixtures: the real Toxiproxy server, one per test session."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from octavo.chaos.toxiproxy import ToxiproxyMissing, ToxiproxyServer


@pytest.fixture(scope="session")
def toxiproxy_session() -> Iterator[ToxiproxyServer]:
    """A running server; without one tests are skipped here and fail in CI (R10)."""
    server = ToxiproxyServer()
    try:
        server.start()
    except ToxiproxyMissing as missing:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(missing))
    yield server
    server.stop()


@pytest.fixture
def toxiproxy(toxiproxy_session: ToxiproxyServer) -> Iterator[ToxiproxyServer]:
    """The server without links; links of a test are gone after it."""
    before = set(toxiproxy_session.links())
    yield toxiproxy_session
    for name in set(toxiproxy_session.links()) - before:
        toxiproxy_session.remove(name)
