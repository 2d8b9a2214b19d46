"""Cost of partitions: write throughput at 1, 10, 100 and 1,000 partitions under one total load.

The same producer sends the same records as fast as they are acknowledged, over more and more
partitions: once keyless, where whole batches go to one partition after the other, and once with
each record to the next partition, as evenly hashed keys do, where batches shrink as partitions
grow. Writes bench/cost_curve.png and prints the numbers.
Usage: python -m bench.cost_curve [--seconds 4] [--rounds 3] [--partitions 1 10 100 1000]
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Sequence

from rich.console import Console

from bench import campaign, crew, machine, report
from bench.payloads import PayloadSpec
from bench.plan import KIB, LINGER_MS, MIB
from bench.stats import Spread, spread
from bench.systems.octavo import Octavo

PICTURE = pathlib.Path(__file__).resolve().parent / "cost_curve.png"
BYTES_MAX = 512 * MIB
BUFFER_BYTES = 64 * MIB
WARMUP_S = 2.0
OPENING_RECORDS = 4

MODES = {"whole batches in turn": False, "each record to the next partition": True}

Curves = dict[str, dict[int, Spread]]


def measure(work: pathlib.Path, counts: Sequence[int], seconds: float, rounds: int) -> Curves:
    """MB/s by mode and number of partitions; in each round everything once, in turn."""
    runs: dict[str, dict[int, list[float]]] = {
        mode: {count: [] for count in counts} for mode in MODES
    }
    for number in range(rounds):
        system = Octavo(work / f"round-{number}")
        system.folder.mkdir()
        system.start()
        try:
            for count in counts:
                system.create_topic(f"curve-{count}", count)
                campaign.say(f"round {number + 1} of {rounds}: open {count} partitions")
                crew.run([_opening(system, count)], work / "workers.log")
                for mode, each_next in MODES.items():
                    campaign.say(f"round {number + 1} of {rounds}: {count} partitions, {mode}")
                    job = _job(system, count, seconds, each_next)
                    (result,) = crew.run([job], work / "workers.log")
                    speed = result["bytes"] / crew.span_s([result]) / 1e6
                    runs[mode][count].append(speed)
        finally:
            system.stop()
    return {
        mode: {count: spread(speeds) for count, speeds in by_count.items()}
        for mode, by_count in runs.items()
    }


def _job(system: Octavo, partitions: int, seconds: float, each_next: bool) -> dict[str, object]:
    return {
        "driver": system.driver,
        "endpoint": dict(system.endpoint()),
        "task": "write",
        "topic": f"curve-{partitions}",
        "payload": PayloadSpec(KIB, 1)._asdict(),
        "settings": {
            "batch_bytes": 64 * KIB,
            "linger_ms": LINGER_MS,
            "compression": "none",
            "buffer_bytes": BUFFER_BYTES,
            "spread": each_next,
        },
        "bytes_max": BYTES_MAX,
        "warm_topic": "",
        "warmup_s": WARMUP_S,
        "seconds": seconds,
    }


def _opening(system: Octavo, partitions: int) -> dict[str, object]:
    """A few records to every partition: the first of each opens a ledger, which is not the load."""
    job = _job(system, partitions, float("inf"), each_next=True)
    return {**job, "bytes_max": OPENING_RECORDS * partitions * KIB, "warmup_s": 0.0}


def draw(found: Curves, about: str) -> None:
    """The small plot: median with lowest and highest."""
    import matplotlib as mpl  # an extra: only drawing needs it

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(5.2, 3.2), layout="constrained")
    counts: list[int] = []
    for (mode, curve), marker in zip(found.items(), "os", strict=False):
        counts = list(curve)
        medians = [each.median for each in curve.values()]
        low = [each.median - each.low for each in curve.values()]
        high = [each.high - each.median for each in curve.values()]
        axes.errorbar(counts, medians, yerr=[low, high], marker=marker, capsize=3, label=mode)
    axes.legend(fontsize=8)
    axes.set_xscale("log")
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("partitions that share the load")
    axes.set_ylabel("durable writes, MB/s")
    axes.set_title(f"1 KiB records, RF 3, acks=all\n{about}", fontsize=8)
    axes.grid(alpha=0.3)
    figure.savefig(PICTURE, dpi=130)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 10, 100, 1_000])
    args = parser.parse_args()
    with campaign.work_folder() as work:
        found = measure(work, args.partitions, args.seconds, args.rounds)
        about = machine.describe(work)
    draw(found, f"{about['processor']}, {about['cores']} cores, {about['date']}")
    rows = [report.Row(f"{mode}, MB/s", mode, "{:,.0f}") for mode in found]
    columns = {
        f"{count:,}": {mode: curve[count] for mode, curve in found.items()}
        for count in args.partitions
    }
    body = report.lines(rows, columns)
    report.show("cost of partitions, by their number", list(columns), body, Console())
    print(f"written: {PICTURE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
