"""`make bench-peers`: Octavo and its peers on this machine, in one call, in turn, in one table."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from bench import bench, campaign
from bench.plan import PLANS
from bench.rounds import ALL_CELLS
from bench.systems.kafka import Kafka, KafkaFlush
from bench.systems.nats import Nats, NatsAlways
from bench.systems.octavo import Octavo
from bench.systems.pulsar import Pulsar
from bench.systems.rabbit import RabbitQuorum, RabbitStream

SYSTEMS = {
    made.name: made
    for made in (Octavo, KafkaFlush, Kafka, NatsAlways, Nats, RabbitQuorum, RabbitStream, Pulsar)
}


def main() -> int:
    """Run, print one table, write bench/results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", choices=sorted(PLANS), default="peers")
    parser.add_argument("--rounds", type=int, default=0, help="instead of the plan's number")
    parser.add_argument("--only", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--cells", nargs="+", default=list(ALL_CELLS), help="workloads to run")
    args = parser.parse_args()
    plan = PLANS[args.plan]
    plan = plan._replace(rounds=args.rounds or plan.rounds)
    with campaign.work_folder() as work:
        chosen = [SYSTEMS[name] for name in args.only]
        found = campaign.run("Octavo and its peers", chosen, plan, args.cells, work)
    found.finish(Console(width=max(Console().width, 64 + 17 * len(found.systems))))
    if "octavo" in found.systems:
        print(bench.summary(found))
    failed = any(result.failures for result in found.systems.values())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
