"""Bookies on a full disk in words: `octavo up`, `status`, `cluster health`, `topic create`."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from octavo.chaos.toxiproxy import wait_until
from octavo.cli.failures import ExitCode
from octavo.testing import LocalCluster

pytestmark = pytest.mark.process

FULL_AT_ONCE = {"disk_reserve_segments": 1_000_000_000}
"""More room is asked for than any disk has."""


def test_full_disks_are_named_with_what_to_do(tmp_path: pathlib.Path) -> None:
    def octavo(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "octavo", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)

    with LocalCluster(data=tmp_path / "q", bookie_settings=FULL_AT_ONCE) as cluster:
        at = ("-b", cluster.bootstrap_servers)
        status = octavo("status", "--data", str(cluster.data))
        assert status.returncode == ExitCode.UNAVAILABLE
        assert status.stdout.count("read-only") == 3
        assert f"bookie-1 is read-only: the disk of {cluster.data / 'bookie-1'} is" in status.stderr

        def health_says_so() -> bool:
            health = octavo("cluster", "health", *at)
            return (
                health.returncode == ExitCode.UNAVAILABLE
                and "3 read-only bookies: bookie-1, bookie-2, bookie-3" in health.stdout
                and "full: make room" in health.stderr
            )

        assert wait_until(health_says_so, 30.0)
        create = octavo("topic", "create", "t", *at)
        assert create.returncode == ExitCode.USAGE
        assert "0 bookies are there that take records" in create.stderr
        assert "read-only (a full disk)" in create.stderr
