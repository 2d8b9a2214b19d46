"""A server that starts for longer than its supervisor waits is ready once it is."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest

from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import NotReady
from octavo.supervisor.cluster_file import ClusterFile
from octavo.supervisor.spec import ClusterSpec
from octavo.supervisor.supervisor import Supervisor
from tests.bookie_rig import until


def state(cluster: ClusterFile, name: str) -> str:
    return next(child.state for child in cluster.children if child.name == name)


async def test_a_restart_that_takes_long_is_told_of_and_ends_well(tmp_path: pathlib.Path) -> None:
    spec = ClusterSpec(data_dir=tmp_path / "q", bookies=1, brokers=1, port=0)
    made = Supervisor(
        spec, clock=SystemClock(), entropy=SystemEntropy(), on_event=lambda _event: None
    )
    await made.start()
    try:
        made._spec = dataclasses.replace(spec, start_timeout_s=0.0)  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(NotReady, match="bookie-1 was not ready within 0 s"):
            await made.restart("bookie-1")
        assert state(made.cluster, "bookie-1") == "starting"
        await until(lambda: state(made.cluster, "bookie-1") == "ready")
    finally:
        await made.stop()
