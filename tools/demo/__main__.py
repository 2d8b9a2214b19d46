"""Entry point of `make demo`.

Cluster up, stream with kills, proof, export, Spark, one closing line.
"""

from __future__ import annotations

import argparse
import pathlib
import shutil
import sys
import tempfile
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from octavo import Client
from octavo.runtime.errors import OctavoError
from octavo.spark.export import export_topic
from octavo.testing import LocalCluster
from tools.demo import analysis, flights
from tools.demo.members import SESSION_TIMEOUT_MS, GroupFacts
from tools.demo.proof import Verdict, judge
from tools.demo.stream import PARTITIONS, TOPIC, Streamed, stream

screen = Console(stderr=True)


class DemoFailed(Exception):
    """The run disproved a promise; the text says which."""


def main() -> int:
    """Run the demo; 0 only when every promise was proven."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--rows", type=int, default=None, help="fewer rows, for a quick look")
    parser.add_argument("--keep", action="store_true", help="keep the data folder")
    options = parser.parse_args()
    began = time.monotonic()
    work = pathlib.Path(tempfile.mkdtemp(prefix="octavo-demo-"))
    try:
        verdict, group, spark_rows = _run(work, options.rows)
    except (DemoFailed, OctavoError) as error:
        print(f"demo: FAILED {error}")
        screen.print(f"logs and data are kept in {work}")
        return 1
    except KeyboardInterrupt:
        print("demo: stopped")
        return 130
    if options.keep:
        screen.print(f"data is kept in {work}")
    else:
        shutil.rmtree(work)
    print(
        f"demo: OK produced={verdict.produced} consumed={verdict.consumed} lost={verdict.lost} "
        f"duplicated={verdict.duplicated} reordered={verdict.reordered} spark_rows={spark_rows} "
        f"group_processed={group.group_processed} group_repeated={group.group_repeated} "
        f"seconds={time.monotonic() - began:.0f}"
    )
    return 0


def _run(work: pathlib.Path, limit: int | None) -> tuple[Verdict, GroupFacts, int]:
    screen.print("reading 336,776 flights of 2013")
    source = flights.load(limit)
    expected = flights.totals(source.table)
    if limit is None and len(source.values) != flights.ROWS:
        raise DemoFailed(f"the source has {len(source.values)} rows, not {flights.ROWS}")
    screen.print("starting 3 bookies, 2 brokers and the embedded metadata store")
    settings = {
        "group_session_timeout_ms": SESSION_TIMEOUT_MS,
        "group_heartbeat_interval_ms": SESSION_TIMEOUT_MS // 3,
    }
    with LocalCluster(
        bookies=3, brokers=2, data=work / "cluster", broker_settings=settings
    ) as cluster:
        streamed = _stream_with_bars(cluster, source, work)
        verdict = judge(source.keys, source.values, streamed.acked, streamed.consumed)
        _show(verdict, streamed)
        if not verdict.ok or verdict.produced != len(source.values):
            raise DemoFailed(str(verdict))
        group = streamed.group
        if not group.ok or group.group_processed != verdict.produced:
            raise DemoFailed(str(group))
        lake = work / "lake"
        with Client(cluster.bootstrap_servers) as client:
            for number in range(PARTITIONS):
                client.admin.roll(TOPIC, number)
        report = export_topic(cluster.bootstrap_servers, TOPIC, lake)
        screen.print(f"exported {report.rows:,} rows in {len(report.files)} files")
        return verdict, group, _analyse(cluster.bootstrap_servers, str(lake), expected, report.rows)


def _stream_with_bars(
    cluster: LocalCluster, source: flights.Flights, work: pathlib.Path
) -> Streamed:
    total = len(source.values)
    columns = (
        TextColumn("{task.description:>9}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=screen) as bars:
        tasks = {name: bars.add_task(name, total=total) for name in ("acked", "consumed")}
        return stream(
            cluster, source, work, lambda name, done: bars.update(tasks[name], completed=done)
        )


def _analyse(bootstrap: str, lake: str, expected: flights.Totals, exported: int) -> int:
    screen.print("Spark computes the same aggregate twice")
    spark = analysis.session()
    try:
        live, live_rows = analysis.from_bookies(spark, bootstrap)
        files, file_rows = analysis.from_export(spark, lake)
    finally:
        spark.stop()
    if live != expected:
        raise DemoFailed("Spark over the bookies disagrees with pyarrow over the source")
    if files != expected:
        raise DemoFailed("Spark over the export disagrees with pyarrow over the source")
    if not live_rows == file_rows == exported:
        raise DemoFailed(f"row counts differ: {live_rows} live, {file_rows} exported")
    table = Table(title="flights per carrier: Spark (bookies) = Spark (export) = pyarrow (source)")
    for name in ("carrier", "flights", "miles", "minutes of arrival delay"):
        table.add_column(name, justify="right")
    for carrier, (count, miles, delay) in sorted(expected.items()):
        table.add_row(carrier, f"{count:,}", f"{miles:,}", f"{delay:,}")
    screen.print(table)
    return live_rows


def _show(verdict: Verdict, streamed: Streamed) -> None:
    table = Table(title="what happened, and what the data says")
    table.add_column("fact")
    table.add_column("value", justify="right")
    for text in streamed.faults:
        table.add_row(text, "done")
    for name, value in {**verdict._asdict(), **streamed.group._asdict()}.items():
        table.add_row(name, f"{value:,}")
    screen.print(table)


if __name__ == "__main__":
    sys.exit(main())
