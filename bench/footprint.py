"""w7, idle cost: 1,000 and 10,000 partitions on one broker, each written once, then left alone.

Each partition is loaded and has an open ledger; the measure is the broker's memory, its open file
descriptors and CPU while nothing happens. By itself: python -m bench.footprint --partitions 1000
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import threading
import time
from collections.abc import Sequence

from rich.console import Console

from bench import campaign, report, usage
from bench.stats import spread
from bench.systems.octavo import Octavo
from octavo import Client

IDLE_S = 5.0
PER_TOPIC = 1_000
WAVE = 200
"""Partitions that get their first record at the same time."""
FLUSH_TIMEOUT_S = 120.0


def measure(
    folder: pathlib.Path, counts: Sequence[int], idle_s: float = IDLE_S
) -> dict[str, float]:
    """Grow one cluster through `counts` partitions and look at it at each."""
    found: dict[str, float] = {}
    system = Octavo(folder)
    system.start()
    try:
        _look(system, 0, idle_s, found)
        have = 0
        with Client(system.endpoint()["servers"]) as client:
            for count in counts:
                began = time.monotonic()
                for first in range(have, count, PER_TOPIC):
                    _fill(client, f"idle-{first}", min(PER_TOPIC, count - first))
                have = count
                found[f"load_{count}_s"] = time.monotonic() - began
                _look(system, count, idle_s, found)
    finally:
        system.stop()
    return found


def _fill(client: Client, topic: str, partitions: int) -> None:
    client.admin.create_topic(topic, partitions=partitions, timeout=FLUSH_TIMEOUT_S)
    with client.producer(linger_ms=0) as producer:
        for first in range(0, partitions, WAVE):
            wave = range(first, min(first + WAVE, partitions))
            futures = [producer.send_nowait(topic, b"x" * 100, partition=p) for p in wave]
            for future in futures:
                future.result(FLUSH_TIMEOUT_S)


def _look(system: Octavo, count: int, idle_s: float, found: dict[str, float]) -> None:
    threading.Event().wait(idle_s / 2)
    groups = system.processes()
    before = {role: usage.look(pids) for role, pids in groups.items()}
    threading.Event().wait(idle_s)
    for role, pids in groups.items():
        after = usage.look(pids)
        found[f"idle_{count}_{role}_rss_mib"] = after.rss_bytes / usage.MIB
        found[f"idle_{count}_{role}_files"] = after.open_files
        cpu = after.cpu_s - before[role].cpu_s
        found[f"idle_{count}_{role}_cpu_percent"] = 100 * cpu / idle_s


def show(found: dict[str, float], counts: Sequence[int], screen: Console) -> None:
    """A table: one column per number of partitions."""
    columns = {}
    for count in (0, *counts):
        mark = f"idle_{count}_"
        columns[f"{count:,}"] = {
            name.removeprefix(mark): spread([value])
            for name, value in found.items()
            if name.startswith(mark)
        }
        if f"load_{count}_s" in found:
            columns[f"{count:,}"]["load_s"] = spread([found[f"load_{count}_s"]])
    rows = [
        report.Row(f"{role} {label}", f"{role}_{key}", pattern)
        for role in ("broker", "bookie", "metadata")
        for label, key, pattern in (
            ("memory, MiB", "rss_mib", "{:,.0f}"),
            ("open files", "files", "{:,.0f}"),
            ("CPU, % of a core", "cpu_percent", "{:,.1f}"),
        )
    ]
    rows.append(report.Row("to create, load and write each once, s", "load_s", "{:,.1f}"))
    report.show(
        "w7 idle partitions on one broker", list(columns), report.lines(rows, columns), screen
    )


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, nargs="+", default=[1_000, 10_000])
    args = parser.parse_args()
    with campaign.work_folder() as work:
        show(measure(work / "data", args.partitions), args.partitions, Console())
    return 0


if __name__ == "__main__":
    sys.exit(main())
