"""`make bench-quick`: under a minute, one round, ends with the one line `bench: OK …`."""

from __future__ import annotations

import sys

from rich.console import Console

from bench import bench, campaign
from bench.plan import PLANS
from bench.systems.octavo import Octavo

CELLS = ("w1", "w2", "w3", "w5", "verify")


def main() -> int:
    """Run and print."""
    plan = PLANS["tiny" if "--tiny" in sys.argv[1:] else "quick"]
    with campaign.work_folder() as work:
        found = campaign.run("Octavo, quick", [Octavo], plan, CELLS, work)
    found.finish(Console(width=max(Console().width, 100)))
    print(bench.summary(found))
    return 1 if found.systems["octavo"].failures else 0


if __name__ == "__main__":
    sys.exit(main())
