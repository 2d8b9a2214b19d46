"""`make bench`: durable writes beside the disk's own limit, publish latency, reads. Ratios, not
records.

One cluster of 3 bookies and 1 broker on this machine; client and servers share its cores.
"""

from __future__ import annotations

import pathlib
import statistics
import sys
import tempfile

from rich.console import Console
from rich.table import Table

from bench import limits, workloads
from octavo import Client
from octavo.testing import LocalCluster

KIB = 1024
MIB = 1024 * KIB
RUNS = 3
WRITE_BYTES = 192 * MIB
LIMIT_BYTES = 128 * MIB

progress = Console(stderr=True)


def main() -> int:
    """Run everything once and print one table and one line."""
    work = pathlib.Path(tempfile.mkdtemp(prefix="octavo-bench-"))
    values = workloads.incompressible(WRITE_BYTES // workloads.RECORD_BYTES)
    written: dict[int, list[float]] = {64 * KIB: [], MIB: []}
    disk: dict[int, list[float]] = {64 * KIB: [], MIB: []}
    with LocalCluster(bookies=3, brokers=1, data=work / "cluster") as cluster:
        bootstrap = cluster.bootstrap_servers
        with Client(bootstrap) as client:
            for topic in ("w64k", "w1m", "latency"):
                client.admin.create_topic(topic, partitions=4 if topic != "latency" else 1)
        for run in range(RUNS):
            for batch_bytes, topic in ((64 * KIB, "w64k"), (MIB, "w1m")):
                progress.print(f"run {run + 1}/{RUNS}: {batch_bytes // KIB} KiB batches")
                disk[batch_bytes].append(limits.fsync_mb_per_s(work, batch_bytes, LIMIT_BYTES))
                seconds = workloads.write(bootstrap, topic, values, batch_bytes=batch_bytes)
                written[batch_bytes].append(WRITE_BYTES / seconds / 1e6)
        progress.print("publish latency, 1,000/s open loop, linger 0")
        latency = workloads.publish_latency(bootstrap, "latency", per_s=1000, count=10_000)
        progress.print("reads")
        rows = workloads.read_rows(bootstrap, "w64k")
        arrow = workloads.read_arrow(bootstrap, "w64k", rows.rows)
    _report(written, disk, latency, rows, arrow)
    return 0


def _report(
    written: dict[int, list[float]],
    disk: dict[int, list[float]],
    latency: workloads.Latency,
    rows: workloads.ReadRate,
    arrow: workloads.ReadRate,
) -> None:
    table = Table(title=f"durable writes, RF 3, acks=all, 1 KiB incompressible, {RUNS} runs")
    for name in ("batch", "MB/s median", "min-max", "disk fsync MB/s", "disk / 3", "of disk / 3"):
        table.add_column(name, justify="right")
    for batch_bytes, speeds in written.items():
        median = statistics.median(speeds)
        limit = statistics.median(disk[batch_bytes])
        table.add_row(
            f"{batch_bytes // KIB} KiB",
            f"{median:.0f}",
            f"{min(speeds):.0f}-{max(speeds):.0f}",
            f"{limit:.0f}",
            f"{limit / 3:.0f}",
            f"{100 * median / (limit / 3):.0f} %",
        )
    screen = Console()
    screen.print(table)
    screen.print(
        f"publish p50 {latency.p50_ms:.2f} ms, p99 {latency.p99_ms:.2f} ms, "
        f"p99.9 {latency.p999_ms:.2f} ms at 1,000/s"
    )
    for name, rate in (("rows", rows), ("Arrow", arrow)):
        screen.print(
            f"read as {name}: {rate.payload_bytes / rate.seconds / 1e6:.0f} MB/s, "
            f"{rate.rows / rate.seconds:,.0f} rows/s"
        )
    print(
        f"bench: OK w1_64k_mbps={statistics.median(written[64 * KIB]):.0f} "
        f"w1_1m_mbps={statistics.median(written[MIB]):.0f} "
        f"disk3_64k_mbps={statistics.median(disk[64 * KIB]) / 3:.0f} "
        f"disk3_1m_mbps={statistics.median(disk[MIB]) / 3:.0f} "
        f"p50_ms={latency.p50_ms:.2f} p99_ms={latency.p99_ms:.2f} "
        f"read_mbps={rows.payload_bytes / rows.seconds / 1e6:.0f} "
        f"poll_arrow_ratio={(arrow.rows / arrow.seconds) / (rows.rows / rows.seconds):.1f}"
    )


if __name__ == "__main__":
    sys.exit(main())
