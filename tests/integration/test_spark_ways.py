"""The ways a Spark program is started: each is a program of its own, as a user starts it.

Executors as processes of their own, `spark-submit` from another folder, Spark Connect, proxies in
the environment, interpreters of workers that have no Octavo.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from typing import NamedTuple

import pytest

from octavo import Client
from octavo.spark.export import export_topic
from octavo.testing import LocalCluster
from tests.fix_spark import SPARK_CONFIG, java_problem

pytestmark = [pytest.mark.spark, pytest.mark.process]

TOPIC = "ways"
ROWS = 1000
SCRIPTS = sysconfig.get_path("scripts")
NOBODY = "http://127.0.0.1:9"
PROXIES = {
    name: NOBODY
    for lower in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")
    for name in (lower, lower.upper())
}
PROGRAM = """
import json, sys
from pyspark.sql import SparkSession

config, register, reads = json.loads(sys.argv[1])
builder = SparkSession.builder
for key, value in config.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
if register:
    from octavo.spark.source import OctavoSource

    spark.dataSource.register(OctavoSource)
for options in reads:
    try:
        frame = spark.read.format("octavo").options(**options).load()
        row = frame.selectExpr("count(*) n", "sum(cast(cast(value as string) as int)) s").first()
        print("READ", json.dumps([row.n, row.s]))
    except Exception as error:
        print("READ", json.dumps(str(error)))
"""
COMPACTED_AND_STREAMED = """
from octavo.spark import compact

def tell(frame):
    row = frame.selectExpr("count(*) n", "sum(cast(cast(value as string) as int)) s").first()
    print("READ", json.dumps([row.n, row.s]))

rows = spark.read.format("octavo").options(**reads[1]).load()
tell(compact(rows.withColumn("key", rows.partition.cast("string").cast("binary"))))
stream = spark.readStream.format("octavo").options(**{**reads[1], "startingOffsets": "earliest"})
servers = {"octavo.bootstrap.servers": reads[1]["octavo.bootstrap.servers"]}
(
    stream.load().select("value").writeStream.format("octavo")
    .options(**servers, topic="ways-copy", checkpointLocation=sys.argv[2] + "/checkpoint")
    .trigger(availableNow=True).start().awaitTermination()
)
copy = {**servers, "subscribe": "ways-copy"}
tell(spark.read.format("octavo").options(**copy).load())
"""


class Lake(NamedTuple):
    """A topic of a running cluster: its first half exported too."""

    bootstrap: str
    root: pathlib.Path

    def files(self, **more: str) -> dict[str, str]:
        return {"path": str(self.root), "subscribe": TOPIC, **more}

    def live(self, **more: str) -> dict[str, str]:
        return {"octavo.bootstrap.servers": self.bootstrap, "subscribe": TOPIC, **more}


@pytest.fixture(scope="module")
def lake(shared_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    problem = java_problem()
    if problem is not None:
        pytest.fail(problem, pytrace=False)
    root = tmp_path_factory.mktemp("lake")
    with Client(shared_cluster.bootstrap_servers) as client:
        client.admin.create_topic(TOPIC, partitions=2)
        with client.producer() as producer:
            for n in range(ROWS):
                producer.send_nowait(TOPIC, b"%d" % n, partition=n % 2)
                if n == ROWS // 2 - 1:
                    producer.flush()
                    for partition in range(2):
                        client.admin.roll(TOPIC, partition)
                    export_topic(shared_cluster.bootstrap_servers, TOPIC, root)
    return Lake(shared_cluster.bootstrap_servers, root)


HALF = [ROWS // 2, sum(range(ROWS // 2))]
ALL = [ROWS, sum(range(ROWS))]


@pytest.fixture(scope="module")
def bare_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH whose `python3` has none of our packages, nor pyspark."""
    folder = tmp_path_factory.mktemp("bare")
    venv = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(venv, check=True, timeout=180)
    return f"{folder / 'bin'}:{os.environ['PATH']}"


def run(
    folder: pathlib.Path,
    *reads: Mapping[str, str],
    launcher: str = sys.executable,
    python: str | None = sys.executable,
    register: bool = False,
    config: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    more: str = "",
    more_lines: int = 0,
) -> list[object]:
    """What each read gave, [count, sum] or the text of its error, in a program of its own.

    `more`: what the program does then, which gives so many lines.
    """
    program = folder / "program.py"
    program.write_text(f"{PROGRAM}\n{more}\nspark.stop()\n")
    env = {**os.environ, "PYTHONSAFEPATH": "1", **(environ or {})}
    env.pop("PYSPARK_PYTHON", None)
    if python is not None:
        env["PYSPARK_PYTHON"] = python
    settings = {**SPARK_CONFIG, **(config or {})}
    settings = {key: value for key, value in settings.items() if value}
    done = subprocess.run(
        [launcher, str(program), json.dumps([settings, register, list(reads)]), str(folder)],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    lines = [line.partition("READ ")[2] for line in done.stdout.splitlines() if "READ " in line]
    assert done.returncode == 0, done.stderr[-4000:]
    assert len(lines) == len(reads) + more_lines, done.stderr[-4000:]
    return [json.loads(line) for line in lines]


def test_submitted_to_executors_of_their_own_behind_proxies(
    lake: Lake, tmp_path: pathlib.Path
) -> None:
    """`spark-submit` in a folder that knows nothing of us; each executor is a JVM with its own
    workers. Nothing of ours asks a proxy, whatever the environment of driver and executors says."""
    whole = json.dumps({TOPIC: "earliest"})
    reads = [lake.files(), lake.live(), lake.live(path=str(lake.root), startingOffsets=whole)]
    config = {
        "spark.master": "local-cluster[2,1,1024]",
        "spark.executor.memory": "512m",
        **{f"spark.executorEnv.{name}": value for name, value in PROXIES.items()},
    }
    found = run(
        tmp_path,
        *reads,
        launcher=f"{SCRIPTS}/spark-submit",
        config=config,
        environ=PROXIES,
    )
    assert found == [HALF, ALL, ALL]


def test_spark_connect(lake: Lake, tmp_path: pathlib.Path) -> None:
    """The client pickles the class; the server plans, reads and runs a stream, exactly once."""
    with Client(lake.bootstrap) as client:
        client.admin.create_topic("ways-copy", partitions=2)
    wrong = json.dumps({"wayss": "earliest"})
    words = lake.live(startingOffsets=json.dumps({TOPIC: "earliest"}))
    found = run(
        tmp_path,
        lake.files(),
        words,
        lake.live(startingOffsets=wrong),
        register=True,
        config={**dict.fromkeys(SPARK_CONFIG, ""), "spark.remote": "local[2]"},
        environ={"SPARK_LOCAL_IP": "127.0.0.1"},
        more=COMPACTED_AND_STREAMED,
        more_lines=2,
    )
    assert found[:2] == [HALF, ALL]
    assert "wayss" in str(found[2])
    last_of_each_partition = [2, 2 * ROWS - 3]
    assert found[3:] == [last_of_each_partition, ALL]


def test_python3_without_octavo_is_named_with_the_setting(
    lake: Lake, tmp_path: pathlib.Path, bare_path: str
) -> None:
    """It fails in the unpickler of the worker, before any module of ours could be imported."""
    (said,) = run(tmp_path, lake.files(), python=None, register=True, environ={"PATH": bare_path})
    assert "PYSPARK_PYTHON" in str(said)
    assert f"{bare_path.partition(':')[0]}/python3" in str(said)
    assert "No module named 'octavo'" in str(said)
