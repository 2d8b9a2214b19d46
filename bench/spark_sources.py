"""The same rows out of Octavo, Kafka and Parquet, by one Spark in one session, in turn.

`make bench-spark-sources`: flights as JSON, each copy made distinct, in as many partitions
everywhere. Octavo twice: closed ledgers of a cluster (three bookies, one broker), and exported
Arrow files. Kafka: one node of Maven Central's packages and Spark's own source of the same place.
Parquet: snappy, written and read by Spark. Each job runs once in each way before its clock counts,
then in turn, each round beginning with another way.

CPU is that of Spark's JVM and its Python workers; servers have a column of their own. The last
line is a verdict; the ratios in it are of medians of the same run.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from bench import fetch, report
from bench.campaign import say
from bench.spark_session import SparkProcesses, Stages, session
from bench.stats import spread
from bench.systems import Unavailable
from bench.systems.kafka import KafkaAlone
from bench.usage import family, look
from octavo import Client
from octavo.runtime.malloc import tune_malloc
from octavo.spark.export import export_topic
from octavo.testing import LocalCluster
from tools.demo import flights

TOPIC = "flights"
CONNECTOR = ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0")
"""The newest that Maven Central serves us; it runs in Spark 4.3 unchanged."""
CONNECTOR_JARS = ("spark-sql-kafka-", "spark-token-provider-", "kafka-clients-", "commons-pool2-")
"""Spark has all else that it depends on, in versions of its own."""
ALL = (
    "key binary, value binary, topic string, partition int, offset bigint, "
    "timestamp timestamp, timestampType int"
)
JOBS: Mapping[str, str] = {
    "all columns": ALL,
    "key and offset": "key binary, offset bigint",
    "count()": "offset bigint",
    "stream": ALL,
}
"""Job to the columns it is about."""
KAFKA_RATIO_MIN, PARQUET_CPU_MAX, COUNT_EXECUTOR_S_MAX = 5.0, 2.2, 0.5
STREAM_TIMEOUT_S = 300


class Pass(NamedTuple):
    """What one run of one job took."""

    wall_s: float
    executor_s: float
    jvm_s: float
    python_s: float
    servers_s: float

    @property
    def cpu_s(self) -> float:
        """Of Spark."""
        return self.jvm_s + self.python_s


class Way(NamedTuple):
    """One place that holds the rows."""

    batch: Callable[[str], DataFrame]
    """Of the columns in the schema that is given."""
    stream: Callable[[], DataFrame]
    servers: Callable[[], list[int]]


# --- the same rows everywhere --------------------------------------------------------------------


def rows_of(copy: int, source: flights.Flights) -> pa.Table:
    """One copy of all flights; each value says which copy it is of."""
    values = [b'{"copy":%d,%b' % (copy, value[1:]) for value in source.values]
    keys = [None if key is None else key.encode() for key in source.keys]
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def fill(client: Client, rows: int, partitions: int) -> None:
    """Send the rows to Octavo and close its ledgers."""
    source = flights.load()
    client.admin.create_topic(TOPIC, partitions=partitions)
    left, copy = rows, 0
    with client.producer() as producer:
        while left:
            table = rows_of(copy, source).slice(0, left)
            for partition in range(partitions):
                first = len(table) * partition // partitions
                end = len(table) * (partition + 1) // partitions
                part = table.slice(first, end - first)
                producer.send_arrow(TOPIC, part, key="key", partition=partition)
            left -= len(table)
            copy += 1
    for partition in range(partitions):
        client.admin.roll(TOPIC, partition)


def fill_kafka(spark: SparkSession, kafka: KafkaAlone, parquet: str, partitions: int) -> None:
    """The same rows to the same partitions, in batches as large and compressed as Octavo's."""
    kafka.create_topic(TOPIC, partitions)
    writer = spark.read.parquet(parquet).select("key", "value", "partition").write.format("kafka")
    for name, value in {
        "kafka.bootstrap.servers": kafka.endpoint()["servers"],
        "topic": TOPIC,
        "kafka.compression.type": "lz4",
        "kafka.batch.size": str(1 << 20),
        "kafka.linger.ms": "50",
        "kafka.max.request.size": str(4 << 20),
        "kafka.buffer.memory": str(64 << 20),
    }.items():
        writer = writer.option(name, value)
    writer.save()


# --- the ways ------------------------------------------------------------------------------------


def ways(
    spark: SparkSession, cluster: LocalCluster, kafka: KafkaAlone, folder: pathlib.Path
) -> dict[str, Way]:
    """How each of them is read; all options are the defaults."""
    parquet = str(folder / "parquet")

    def octavo(
        given: Mapping[str, str],
    ) -> tuple[Callable[[str], DataFrame], Callable[[], DataFrame]]:
        def batch(schema: str) -> DataFrame:
            return spark.read.format("octavo").schema(schema).options(**given).load()

        def stream() -> DataFrame:
            reader = spark.readStream.format("octavo").schema(ALL).options(**given)
            return reader.option("startingOffsets", "earliest").load()

        return batch, stream

    def columns(frame: DataFrame, schema: str) -> DataFrame:
        return frame.select(*(part.split()[0] for part in schema.split(", ")))

    live = {"octavo.bootstrap.servers": cluster.bootstrap_servers, "subscribe": TOPIC}
    files = {"path": str(folder / "export"), "subscribe": TOPIC}
    theirs = {"kafka.bootstrap.servers": kafka.endpoint()["servers"], "subscribe": TOPIC}
    theirs["startingOffsets"] = "earliest"
    stored = [entry.pid for entry in cluster.processes.values()]
    return {
        "parquet": Way(
            lambda schema: columns(spark.read.parquet(parquet), schema),
            lambda: spark.readStream.schema(ALL).parquet(parquet),
            list,
        ),
        "octavo, ledgers": Way(*octavo(live), lambda: family(stored)),
        "octavo, files": Way(*octavo(files), list),
        "kafka": Way(
            lambda schema: columns(spark.read.format("kafka").options(**theirs).load(), schema),
            lambda: spark.readStream.format("kafka").options(**theirs).load(),
            lambda: kafka.processes()["broker"],
        ),
    }


def run_job(job: str, way: Way, rows: int) -> None:
    """One job; raises RuntimeError when rows are missing."""
    if job == "stream":
        _stream(way, rows)
    elif job == "count()":
        found = way.batch(JOBS[job]).count()
        if found != rows:
            raise RuntimeError(f"{found} rows were counted, {rows} were written")
    else:
        way.batch(JOBS[job]).write.format("noop").mode("overwrite").save()


def _stream(way: Way, rows: int) -> None:
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = way.stream().writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", checkpoint).start()
        if not query.awaitTermination(STREAM_TIMEOUT_S):
            raise RuntimeError(f"a stream took longer than {STREAM_TIMEOUT_S} s")
        found = sum(progress["numInputRows"] for progress in query.recentProgress)
    if found != rows:
        raise RuntimeError(f"a stream brought {found} rows, {rows} were written")


def check_same(found: Mapping[str, Way], rows: int) -> None:
    """All ways hold the same rows: how many, their bytes and a sum of their checksums."""
    answers: dict[str, tuple[object, ...]] = {}
    for name, way in found.items():
        frame = way.batch("key binary, value binary, partition int")
        wanted = (
            "count(*)",
            "sum(crc32(value) + partition)",
            "sum(length(value))",
            "sum(crc32(key))",
        )
        (answer,) = frame.selectExpr(*wanted).collect()
        answers[name] = tuple(answer)
    if len(set(answers.values())) != 1 or any(answer[0] != rows for answer in answers.values()):
        raise RuntimeError(f"the rows differ: {answers}")


# --- measuring -----------------------------------------------------------------------------------


class Clock:
    """Times jobs; the session is that of all."""

    def __init__(self, spark: SparkSession) -> None:
        self._processes = SparkProcesses(spark)
        self._stages = Stages(spark)

    def time(self, job: str, way: Way, rows: int) -> Pass:
        """One run of it."""
        self._stages.executor_s()
        pids = way.servers()
        served, (jvm, python) = look(pids).cpu_s, self._processes.cpu_s()
        began = time.perf_counter()
        run_job(job, way, rows)
        wall = time.perf_counter() - began
        jvm_end, python_end = self._processes.cpu_s()
        return Pass(
            wall,
            self._stages.executor_s(),
            jvm_end - jvm,
            python_end - python,
            look(pids).cpu_s - served,
        )


def measure(
    clock: Clock, found: Mapping[str, Way], rows: int, rounds: int
) -> dict[tuple[str, str], list[Pass]]:
    """Passes by job and way; each ran once before."""
    passes: dict[tuple[str, str], list[Pass]] = {}
    names = list(found)
    for round_number in range(rounds + 1):
        turn = round_number % len(names)
        say("warming up" if not round_number else f"round {round_number} of {rounds}")
        for job in JOBS:
            for name in names[turn:] + names[:turn]:
                taken = clock.time(job, found[name], rows)
                if round_number:
                    passes.setdefault((job, name), []).append(taken)
    return passes


@contextmanager
def everything(rows: int, partitions: int) -> Iterator[tuple[SparkSession, dict[str, Way]]]:
    """Servers, rows and a session; raises Unavailable with what is missing."""
    kafka_jars = fetch.jars("spark-kafka", (CONNECTOR,))
    jars = [
        str(path)
        for path in sorted(pathlib.Path(kafka_jars).parent.iterdir())
        if path.name.startswith(CONNECTOR_JARS)
    ]
    with ExitStack() as stack:
        folder = pathlib.Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="octavo-bench-"))
        )
        kafka = KafkaAlone(folder / "kafka")
        kafka.folder.mkdir()
        kafka.prepare()
        spark = session({"spark.jars": ",".join(jars), "spark.driver.memory": "2g"})
        stack.callback(spark.stop)
        cluster = stack.enter_context(LocalCluster())
        say(f"writing {rows:,} rows to Octavo")
        with Client(cluster.bootstrap_servers) as client:
            fill(client, rows, partitions)
        say("exporting them, and writing Parquet")
        export_topic(cluster.bootstrap_servers, TOPIC, folder / "export")
        given = {"octavo.bootstrap.servers": cluster.bootstrap_servers, "subscribe": TOPIC}
        frame = spark.read.format("octavo").options(**given).load()
        frame.write.option("compression", "snappy").parquet(str(folder / "parquet"))
        say("writing them to Kafka")
        stack.callback(kafka.stop)
        kafka.start()
        fill_kafka(spark, kafka, str(folder / "parquet"), partitions)
        found = ways(spark, cluster, kafka, folder)
        check_same(found, rows)
        yield spark, found


# --- what comes of it ----------------------------------------------------------------------------


def show(passes: Mapping[tuple[str, str], list[Pass]], rows: int, screen: Console) -> None:
    """The table."""
    heads = ["rows/s", "CPU s of Spark", "JVM", "Python", "executor s", "CPU s of servers"]
    body: list[tuple[str, list[str]]] = []
    for (job, name), taken in passes.items():
        cells = [report.cell(spread([rows / one.wall_s for one in taken]), "{:,.0f}")]
        cells.append(report.cell(spread([one.cpu_s for one in taken]), "{:.2f}"))
        for figure in ("jvm_s", "python_s", "executor_s", "servers_s"):
            median = statistics.median(getattr(one, figure) for one in taken)
            cells.append(f"{median:.2f}")
        body.append((f"{job}: {name}", cells))
    report.show(f"{rows:,} rows: median (lowest–highest)", heads, body, screen)


def summary(passes: Mapping[tuple[str, str], list[Pass]]) -> tuple[bool, str]:
    """Whether the source is as cheap as it should be, and the last line."""

    def ratio(job: str, way: str, other: str, figure: Callable[[Pass], float]) -> float:
        ours, theirs = passes[job, way], passes[job, other]
        return statistics.median(map(figure, ours)) / statistics.median(map(figure, theirs))

    def wall(one: Pass) -> float:
        return one.wall_s

    def cpu(one: Pass) -> float:
        return one.cpu_s

    figures: dict[str, tuple[float, bool]] = {}
    for suffix, way in (("", "octavo, ledgers"), ("_files", "octavo, files")):
        kafka = 1 / ratio("all columns", way, "kafka", wall)
        parquet = ratio("all columns", way, "parquet", cpu)
        stream = 1 / ratio("stream", way, "kafka", wall)
        count = statistics.median(one.executor_s for one in passes["count()", way])
        figures[f"kafka_ratio{suffix}"] = kafka, kafka >= KAFKA_RATIO_MIN
        figures[f"parquet_cpu_ratio{suffix}"] = parquet, parquet <= PARQUET_CPU_MAX
        figures[f"stream_ratio{suffix}"] = stream, stream >= KAFKA_RATIO_MIN
        figures[f"count_executor_s{suffix}"] = count, count < COUNT_EXECUTOR_S_MAX
        figures[f"kafka_cpu_ratio{suffix}"] = ratio("all columns", way, "kafka", cpu), True
        figures[f"stream_parquet_cpu_ratio{suffix}"] = ratio("stream", way, "parquet", cpu), True
    # What a reader without any Python reaches beside Kafka's: more is hardly to be had here.
    figures["parquet_kafka_ratio"] = 1 / ratio("all columns", "parquet", "kafka", wall), True
    holds = all(met for _, met in figures.values())
    said = " ".join(f"{name}={value:.2f}" for name, (value, _) in figures.items())
    return holds, f"spark-sources: {'OK' if holds else 'FAILED'} {said}"


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="Octavo, Kafka and Parquet read by one Spark")
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="after one that warms up")
    parser.add_argument("--partitions", type=int, default=4)
    args = parser.parse_args()
    tune_malloc()
    try:
        with everything(args.rows, args.partitions) as (spark, found):
            passes = measure(Clock(spark), found, args.rows, args.rounds)
    except Unavailable as missing:
        print(f"spark-sources: {missing}", file=sys.stderr)
        return 2
    show(passes, args.rows, Console(width=max(Console().width, 140)))
    holds, line = summary(passes)
    print(line)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
