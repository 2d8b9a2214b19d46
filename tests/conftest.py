"""Fixtures live in fix_*.py, one topic per file; this lists them.

Hypothesis runs the same examples every time (a red build must mean a change, not luck), without
deadlines and without its own look at how long drawing takes (never a timed assertion, and a busy
machine draws slowly); `HYPOTHESIS_PROFILE=explore` draws new examples, `HYPOTHESIS_PROFILE=drawn`
those of `--hypothesis-seed=n`, which the other profiles ignore.

`make test` runs the suite in two processes, because half of it waits and the other half counts:
`tests/lanes.py` says which tests must stay in one of them.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer  # type: ignore[import-untyped]

import octavo
from tests.lanes import Lanes, left_outside

# Before anything loads gRPC: importing the package turns off its fork handlers.
assert octavo.__version__

# A shell starts background jobs with SIGINT ignored, and Python leaves it so: the tests of Ctrl-C,
# and the processes they start, must not depend on how the suite itself was started.
signal.signal(signal.SIGINT, signal.default_int_handler)

# These judge what tests do: what they assert holds under `python -O`, too.
pytest.register_assert_rewrite(
    "tests.collection_world",
    "tests.group_client",
    "tests.group_partition_plays",
    "tests.group_plays",
    "tests.group_shell",
    "tests.group_world",
    "tests.journal_world",
    "tests.member_world",
    "tests.partition_asked_world",
    "tests.partition_core_world",
    "tests.reading_model",
    "tests.reclaim_cuts",
    "tests.sender_world",
    "tests.slot_world",
)

pytest_plugins = [
    "pytester",
    "tests.fix_zookeeper",
    "tests.fix_cluster",
    "tests.fix_spark",
    "tests.fix_toxiproxy",
    "tests.fix_serving",
    "tests.fix_ledger",
    "tests.fix_sdk",
]

UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", UNTIMED, derandomize=True)
settings.register_profile("brief", UNTIMED, derandomize=True, max_examples=25)
settings.register_profile("explore", UNTIMED, max_examples=1000)
settings.register_profile("drawn", UNTIMED, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rewrite` writes into the scenario files what happened, to be read as a change of text."""
    parser.addoption("--rewrite", action="store_true", help="write what happened into the stories")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Lanes | None:
    """`--dist loadgroup` keeps the lanes of `tests/lanes.py` together."""
    return Lanes(config, log) if config.getoption("dist") == "loadgroup" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that takes something dear belongs to a lane, or each process makes it anew."""
    outside = left_outside(items)
    if outside:
        raise pytest.UsageError(f"name a lane in tests/lanes.py for: {', '.join(outside)}")


@pytest.fixture(autouse=True)
def _log_handlers_go_with_their_test() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """A server or command run in this process logs to the stderr of that moment, which is closed
    when its test ends: whatever another test logs later would be a complaint about that."""
    before = logging.root.handlers[:]
    yield
    for handler in logging.root.handlers[:]:
        if handler not in before and type(handler).__name__ == "StreamHandler":
            logging.root.removeHandler(handler)
