"""Fixtures: real clusters of `octavo.testing`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from octavo.testing import LocalCluster


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[LocalCluster]:
    """Three bookies, one broker, for tests that break nothing; use topic names of your own."""
    with LocalCluster() as running:
        yield running


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    """Three bookies and one broker of a test's own, to be broken."""
    with LocalCluster() as running:
        yield running
