"""Many schedules of kills, failed syncs and power cuts over a bookie: `make soak-power-cuts`.

The suite runs the first 200 (`tests/property/test_bookie_power_cuts.py`); this runs as many as
asked for, prints the tally, and ends with 1 and the trace of the first schedule that broke a
promise.
"""

from __future__ import annotations

import argparse
import asyncio
import pathlib
import sys
import tempfile

from octavo.runtime.telemetry import configure_logging
from tests.power_cuts import BrokenPromise, Schedule, Tally


async def run(first: int, schedules: int, lives: int) -> int:
    """Run the schedules; the exit code."""
    total = Tally()
    for seed in range(first, first + schedules):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            try:
                total.add(await Schedule(pathlib.Path(folder), seed).run(lives))
            except BrokenPromise as error:
                sys.stdout.write(f"{error}\npower cuts: broken by seed {seed}\n")
                return 1
    counts = " ".join(f"{name}={value}" for name, value in vars(total).items())
    sys.stdout.write(f"power cuts: schedules={schedules} {counts} broken=0\n")
    return 0


def main() -> None:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--schedules", type=int, default=5000)
    parser.add_argument("--lives", type=int, default=5, help="lives of the bookie in each")
    options = parser.parse_args()
    configure_logging("CRITICAL")
    sys.exit(asyncio.run(run(options.first, options.schedules, options.lives)))


if __name__ == "__main__":
    main()
