"""The programs of `examples/pipelines`, on sample data, twice in a row each."""

from __future__ import annotations

import argparse
import json
import pathlib
import signal
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import pytest

from examples.pipelines import dedupe, history, page_views, running, sample_data, sessions, table
from octavo import Client
from octavo.spark.export import export_topic
from octavo.testing import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.process]

VISITS = 2
"""Each time that sample data is added."""


class Program(Protocol):
    """A module of `examples/pipelines`."""

    __name__: str

    def run(self, spark: SparkSession, arguments: argparse.Namespace) -> None: ...

    def parse(self, argv: list[str] | None = None) -> argparse.Namespace: ...


class Pipelines:
    """The programs on one cluster; each module has the topics to itself."""

    def __init__(self, spark: SparkSession, client: Client, bootstrap: str) -> None:
        self.spark = spark
        self.client = client
        self.bootstrap = bootstrap

    def run(self, program: Program, *given: str) -> None:
        program.run(self.spark, program.parse(["--bootstrap", self.bootstrap, *given]))

    def values(self, topic: str) -> list[dict[str, object]]:
        with self.client.reader(topic, start="earliest") as reader:
            return [json.loads(record.value or b"{}") for record in reader.read_to_end()]


@pytest.fixture(scope="module")
def pipelines(spark: SparkSession, shared_cluster: LocalCluster) -> Iterator[Pipelines]:
    """On sample data: two visits."""
    handler = signal.getsignal(signal.SIGINT)  # the programs set one of their own
    with Client(shared_cluster.bootstrap_servers) as client:
        sample_data.main(["--bootstrap", shared_cluster.bootstrap_servers, "--visits", f"{VISITS}"])
        yield Pipelines(spark, client, shared_cluster.bootstrap_servers)
    signal.signal(signal.SIGINT, handler)


def test_clicks_without_repeats_then_sessions_and_views(
    pipelines: Pipelines, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exactly once over two runs with one checkpoint; what is open waits for later clicks."""

    def run(program: Program) -> str:
        pipelines.run(program, "--checkpoint", str(tmp_path / program.__name__))
        return capsys.readouterr().out

    assert run(dedupe).endswith("took 440 clicks; clicks-once holds 400\n")
    sample_data.add(pipelines.bootstrap, VISITS)
    assert run(dedupe).endswith("took 440 clicks; clicks-once holds 800\n")
    ids = [str(one["id"]) for one in pipelines.values("clicks-once")]
    assert sorted(ids) == sorted(f"click-{n}" for n in range(800))

    assert run(sessions).endswith("took 800 clicks; sessions holds 30\n")
    found = pipelines.values("sessions")  # of the last visit nobody knows whether it is over
    assert {one["clicks"] for one in found} == {20}
    assert {one["first_page"] for one in found} == {"/"}
    assert len({(one["user"], one["start"]) for one in found}) == 30

    assert run(page_views).endswith("took 800 clicks; page-views has had 12 windows\n")
    found = pipelines.values("page-views")
    assert Counter(str(one["page"]) for one in found) == dict.fromkeys(sample_data.PAGES, 3)
    assert {one["views"] for one in found} == {50}


def test_a_table_of_the_last_rows(pipelines: Pipelines, tmp_path: pathlib.Path) -> None:
    """Deleted ones are not in it; a batch that runs again changes nothing."""

    def rows() -> list[tuple[str, str]]:
        current = table.Table(tmp_path / "t")
        frame = pipelines.spark.read.parquet(current.version(current.current() or 0))
        return sorted((row.id, row.city) for row in frame.collect())

    def want() -> list[tuple[str, str]]:
        """What the source makes of all changes."""
        reader = pipelines.spark.read.format("octavo").option("compacted", "true")
        reader = reader.option("dropTombstones", "true").option("subscribe", "customers")
        frame = reader.option("octavo.bootstrap.servers", pipelines.bootstrap).load()
        return sorted(
            (bytes(row.key).decode(), json.loads(row.value)["city"]) for row in frame.collect()
        )

    given = ("--table", str(tmp_path / "t"))
    pipelines.run(table, *given)
    first = rows()
    assert first == want()
    for name in ("0", ".0.crc"):  # as if Spark had died before it wrote that
        (tmp_path / "t" / "_checkpoint" / "commits" / name).unlink()
    sample_data.add(pipelines.bootstrap, VISITS)
    pipelines.run(table, *given)
    assert rows() == want() != first


def test_history_then_live_while_the_export_grows_and_ledgers_go(
    pipelines: Pipelines, tmp_path: pathlib.Path
) -> None:
    """Each offset once, whatever moves from the cluster to the lake meanwhile."""
    client, bootstrap = pipelines.client, pipelines.bootstrap
    topic, lake = "history", str(tmp_path / "lake")
    client.admin.create_topic(topic, partitions=2)
    sent = 0

    def more(count: int) -> None:
        nonlocal sent
        with client.producer() as producer:
            for number in range(sent, sent + count):
                producer.send_nowait(topic, b"%d" % number, partition=number % 2)
        sent += count

    def into_the_lake() -> None:
        """All there is; the cluster forgets it."""
        for partition in range(2):
            client.admin.roll(topic, partition)
        export_topic(bootstrap, topic, lake)
        for partition, end in client.admin.list_offsets(topic).items():
            client.admin.delete_records(topic, partition, end or 0)

    given = ["--bootstrap", bootstrap, "--lake", lake, "--source", topic, "--follow"]
    arguments = history.parse([*given, "--table", str(tmp_path / "table")])
    more(100)
    into_the_lake()
    more(100)
    query = history.start(pipelines.spark, arguments)
    try:
        query.processAllAvailable()
        for _ in range(2):
            more(50)
            into_the_lake()
            more(50)
            query.processAllAvailable()
        running.stop_on_interrupt()
        signal.raise_signal(signal.SIGINT)  # Ctrl-C
        assert running.rows_taken(query) == sent
        assert not query.isActive
    finally:
        running._interrupted.clear()  # pyright: ignore[reportPrivateUsage]
        query.stop()
    rows = pipelines.spark.read.parquet(str(tmp_path / "table")).collect()
    assert sorted(int(row.click) for row in rows) == list(range(sent))
    assert len({(row.partition, row.offset) for row in rows}) == len(rows) == 400
