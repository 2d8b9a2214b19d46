"""Which tests one process runs when the suite runs in several."""

from __future__ import annotations

import pathlib

import pytest

from tests.lanes import LANES, lane_of, left_outside
from tests.tidy_rules import ROOT

UNIT = "tests/unit/test_ledger_quorum.py::test_w1"
SPARK = "tests/integration/test_spark_files.py::test_read[arrow]"
STORE = "tests/contract/test_metadata_store.py::test_m1"


@pytest.mark.parametrize(
    ("name", "lane"),
    [
        (UNIT, None),
        (SPARK, "spark"),
        (f"{STORE}[zookeeper]", "zookeeper"),
        (f"{STORE}[zookeeper-3]", "zookeeper"),
        (f"{STORE}[memory]", None),
        ("tests/e2e/test_wheel.py::test_other_pythons[3.12]", "wheel"),
    ],
)
def test_names_tell_the_lane(name: str, lane: str | None) -> None:
    assert lane_of(name) == lane


def test_every_lane_is_of_files_that_are_there() -> None:
    """A lane whose file was renamed would fall apart without a word."""
    names = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in names}
    for lane, _ in LANES:
        found = [
            name
            for name in names
            if lane_of(name) == lane or lane in texts[name]  # of some tests in the file only
        ]
        assert found, f"no test is in the lane {lane}"


SAMPLE = """
import pytest

@pytest.fixture(scope="module")
def dear(): return 1

@pytest.fixture
def cheap(): return 1

def test_through_another(wrapped): pass

@pytest.fixture
def wrapped(dear): return dear

def test_dear(dear): pass

def test_cheap(cheap): pass
"""


def test_what_is_dear_and_in_no_lane_is_found(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    items = pytester.getitems(SAMPLE)
    assert [pathlib.PurePath(name).name.rpartition("::")[2] for name in left_outside(items)] == [
        "test_through_another",
        "test_dear",
    ]
