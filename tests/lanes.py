"""Which tests stay together when the suite runs in several processes (`make test`).

Each process takes the next test when it is free, so that a test that waits for a server leaves
the processor to one that computes. What is dear to make (a Spark session, a ZooKeeper, a cluster
of five processes, whatever a file makes once) exists once: its tests form a lane, which one
process runs. Lanes begin first, the longest at the front, because a lane that begins last is
waited for alone.

The process that hands out tests knows nothing of them but their names, so lanes are told from
names; `left_outside` finds a test that takes something dear and has a name without a lane.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

LANES = (
    (
        "spark",
        r"/test_pipelines\.py|/test_spark_(canary|compaction|exactly_once|files|live|sink|streams)\.py|test_spark_reads_large_records",
    ),
    ("zookeeper", r"\[zookeeper|/test_metadata_zookeeper\.py|_zookeeper\b"),
    (
        "cluster",
        r"/test_(cli_processes|codecs|first_hour_shell|killed_owners|metrics_processes)\.py",
    ),
    *(
        (name, rf"/test_{name}\.py")
        for name in (
            "cli_completion",
            "cli_export",
            "cli_screens",
            "cli_streams",
            "interpreter_flags",
            "sdk_closed_meanwhile",
            "sdk_failing_awaits",
            "sdk_group_awaits",
            "sdk_group_callbacks",
            "sdk_group_ends",
            "sdk_group_rows",
            "sdk_group_input",
            "sdk_groups",
            "spark_ways",
            "trees",
            "wheel",
        )
    ),
)
"""Names of lanes, and what the names of their tests hold."""
DEAR = ("spark", "zookeeper_server", "shared_cluster")
"""Fixtures of the session that hold processes of their own."""


class Lanes(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out one test at a time, and a lane as a whole."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return lane_of(nodeid) or nodeid


def lane_of(name: str) -> str | None:
    """The lane of a test by its full name; None for a test that any process may run."""
    return next((lane for lane, pattern in LANES if re.search(pattern, name)), None)


def left_outside(items: Iterable[pytest.Item]) -> list[str]:
    """Tests that take something dear, or made once for their file, and are in no lane."""
    return [item.nodeid for item in items if _takes_dear(item) and lane_of(item.nodeid) is None]


def _takes_dear(item: pytest.Item) -> bool:
    found: dict[str, tuple[pytest.FixtureDef[object], ...]]
    found = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    return any(
        name in DEAR or each.scope == "module" for name, made in found.items() for each in made
    )
