"""`make bench`: Octavo's workloads w1 to w8, with the machine's own limits beside them.

One cluster of three bookies and one broker; client processes and servers share this machine.
"""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from bench import campaign, footprint
from bench.plan import PLANS
from bench.report import Report, gather
from bench.systems.octavo import Octavo

CELLS = ("w1", "w1_many", "w2", "w3", "w4", "w6", "w5", "verify")
IDLE_PARTITIONS = (1_000, 10_000)


def summary(found: Report) -> str:
    """The last line: `bench: OK name=value …`, or what failed."""
    octavo = found.systems["octavo"]
    measured = gather(octavo.runs)
    limits = gather(found.limits)

    def part(name: str, key: str, pattern: str) -> str:
        spread = measured.get(key) or limits.get(key)
        return f"{name}={pattern.format(spread.median) if spread else 'missing'}"

    state = "FAILED" if octavo.failures else "OK"
    parts = (
        part("w1_64k_mbps", "w1_64k_mbps", "{:.0f}"),
        part("w1_1m_mbps", "w1_1m_mbps", "{:.0f}"),
        part("relay_mbps", "relay_64k_mbps", "{:.0f}"),
        part("disk3_mbps", "disk3_1m_mbps", "{:.0f}"),
        part("w2_rps", "w2_rps", "{:.0f}"),
        part("w3_p99_ms", "w3_p99_ms", "{:.2f}"),
        part("poll_rps", "w5_json_rows_rps", "{:.0f}"),
        part("poll_arrow_rps", "w5_json_arrow_rps", "{:.0f}"),
        part("poll_arrow_ratio", "poll_arrow_ratio", "{:.1f}"),
    )
    return f"bench: {state} {' '.join(parts)}"


def main() -> int:
    """Run, print the tables, write bench/results, end with the summary line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", choices=sorted(PLANS), default="standard")
    parser.add_argument("--rounds", type=int, default=0, help="instead of the plan's number")
    parser.add_argument("--cells", nargs="+", default=list(CELLS), help="workloads to run")
    parser.add_argument("--no-idle", action="store_true", help="leave out the idle partitions")
    args = parser.parse_args()
    plan = PLANS[args.plan]
    plan = plan._replace(rounds=args.rounds or plan.rounds)
    screen = Console(width=max(Console().width, 120))
    with campaign.work_folder() as work:
        found = campaign.run("Octavo", [Octavo], plan, args.cells, work)
        if not args.no_idle:
            campaign.say("idle partitions")
            found.extra = footprint.measure(work / "idle", IDLE_PARTITIONS)
    found.finish(screen)
    if found.extra:
        footprint.show(found.extra, IDLE_PARTITIONS, screen)
    print(summary(found))
    return 1 if found.systems["octavo"].failures else 0


if __name__ == "__main__":
    sys.exit(main())
