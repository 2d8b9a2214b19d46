"""kill -9 of drivers, workers, brokers and bookies under one streaming query: each row comes once.

A query of Spark reads files, gives each row another form and another partition every time it runs,
and writes to a topic. It is killed at random moments and started again on its checkpoint, as are
the Python workers of its tasks and the servers. At the end the topic holds f(row) of every row of
every file once, in rows of one attempt for each batch, and nothing is staged any more.
"""

from __future__ import annotations

import argparse
import collections
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field

from octavo import Client
from octavo.errors import UnknownTopic
from octavo.spark.staged import STAGING_PREFIX
from octavo.testing import LocalCluster

TOPIC = "soak"
PARTITIONS = 4
ROWS_PER_FILE = 2_000
LOOK_S = 0.05
STUCK_S = 300.0
"""Without a batch for so long the soak has failed."""
_PAUSE = threading.Event()

QUERY = """
import random, sys
from pyspark.sql import SparkSession, functions as F

source, checkpoint, servers = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2,8]")
    .config("spark.driver.memory", "1g")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.ui.enabled", "false")
    .config("spark.log.level", "OFF")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
attempt = F.lit(f"{random.randrange(1 << 40):x}")
rows = spark.readStream.option("maxFilesPerTrigger", 1).text(source)
rows = rows.repartition(random.randint(1, 4)).select(
    F.when(F.rand() < 0.5, F.col("value")).alias("key"),
    F.concat(F.lit("f("), F.col("value"), F.lit(") "), attempt).alias("value"),
)
query = (
    rows.writeStream.format("octavo")
    .option("octavo.bootstrap.servers", servers)
    .option("topic", "soak")
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
spark.stop()
"""


@dataclass
class Facts:
    """What happened."""

    kills: collections.Counter[str] = field(default_factory=collections.Counter[str])
    starts: int = 0
    wrong: list[str] = field(default_factory=list[str])
    lost: int = 0
    duplicated: int = 0
    orphans: int = 0
    batches: int = 0


class Soak:
    """One query over one cluster."""

    def __init__(self, cluster: LocalCluster, folder: pathlib.Path, seed: int) -> None:
        self.cluster = cluster
        self.rng = random.Random(seed)
        self.facts = Facts()
        self.source = folder / "in"
        self.checkpoint = folder / "checkpoint"
        self._program = folder / "query.py"
        self._program.write_text(QUERY)
        self._log = folder / "query.log"
        self.source.mkdir()
        self.files = 0
        self._seen = 0
        """Files that were there when the query was started last."""
        self._query: subprocess.Popen[bytes] | None = None

    def add_files(self, count: int) -> None:
        """Each becomes a batch."""
        for number in range(self.files, self.files + count):
            rows = "\n".join(f"{number}/{row}" for row in range(ROWS_PER_FILE))
            hidden = self.source / f".{number}"
            hidden.write_text(rows)
            hidden.rename(self.source / f"{number:05}.txt")
        self.files += count

    def batches(self) -> int:
        """How many Spark has committed."""
        commits = self.checkpoint / "commits"
        if not commits.exists():
            return 0
        return sum(name.name.isdigit() for name in commits.iterdir())

    def start(self) -> None:
        """Start the query on its checkpoint, in a process group of its own."""
        env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONSAFEPATH": "1"}
        servers = self.cluster.bootstrap_servers
        self._seen = self.files
        command = [sys.executable, self._program, self.source, self.checkpoint, servers]
        with self._log.open("ab") as log:
            self._query = subprocess.Popen(
                command, env=env, stdout=log, stderr=log, start_new_session=True
            )
        self.facts.starts += 1

    def ended(self) -> bool:
        """Whether the query has ended; it is started again when it failed."""
        assert self._query is not None
        code = self._query.poll()
        if code is None:
            return False
        if code == 0:
            return True
        self.facts.kills["query failed"] += 0 if code < 0 else 1
        self.start()
        return False

    def kill_driver(self) -> None:
        """The query's Python, its JVM and their workers at once."""
        assert self._query is not None
        os.killpg(self._query.pid, signal.SIGKILL)
        self._query.wait()
        self.start()

    def kill_worker(self) -> bool:
        """One Python worker of a task; False when there is none."""
        assert self._query is not None
        listed = subprocess.run(
            ["ps", "-o", "pid=,args=", "-g", str(self._query.pid)],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        workers = [line.split()[0] for line in listed.splitlines() if "pyspark.daemon" in line]
        if len(workers) < 2:  # the first is the daemon that forks them
            return False
        try:
            os.kill(int(self.rng.choice(workers[1:])), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def strike(self) -> None:
        """One kill -9."""
        kind = self.rng.choice(("driver", "driver", "worker", "broker", "bookie"))
        if kind == "worker" and not self.kill_worker():
            kind = "driver"
        if kind == "driver":
            self.kill_driver()
        elif kind != "worker":
            name = f"{kind}-{self.rng.randint(1, 2 if kind == 'broker' else 3)}"
            self.cluster.kill(name)
            _PAUSE.wait(self.rng.random() * 2)
            self.cluster.restart(name)
        self.facts.kills[kind] += 1

    def until(self, batches: int) -> bool:
        """Wait for so many batches; False when none came for STUCK_S, or the query ended."""
        waited_s, seen = 0.0, self.batches()
        while self.batches() < batches:
            if self.ended():
                return False
            _PAUSE.wait(LOOK_S)
            waited_s += LOOK_S
            if self.batches() > seen:
                waited_s, seen = 0.0, self.batches()
            if waited_s > STUCK_S:
                self.facts.wrong.append(f"no batch for {STUCK_S:g} s: see {self._log}")
                return False
        return True

    def run(self, kills: int) -> None:
        """All kills, then to the end, and one batch more, which sweeps what was left staged."""
        self.add_files(3)
        self.start()
        for _ in range(kills):
            self.add_files(3)
            self.until(self.batches() + self.rng.randint(0, 2))
            _PAUSE.wait(self.rng.random() * 1.5)
            if self.facts.wrong:
                return
            if self.ended():
                self.start()
            self.strike()
        for _ in range(2):
            self.drain()
            self.add_files(1)
            self.start()
        self.drain()

    def drain(self) -> None:
        """Until a query that saw every file at its start has ended well.

        Not until there are as many batches: Spark puts a file that it had noted when it was
        killed into the batch of the next one.
        """
        waited_s = 0.0
        while not self.facts.wrong:
            if self.ended():
                if self._seen == self.files:
                    return
                self.start()
            _PAUSE.wait(LOOK_S)
            waited_s += LOOK_S
            if waited_s > STUCK_S:
                self.facts.wrong.append(f"the query does not end: see {self._log}")

    def judge(self, client: Client) -> None:
        """What the topic holds against what the files hold."""
        found: collections.Counter[str] = collections.Counter()
        attempts: dict[str, set[str]] = {}
        with client.reader(TOPIC, start="earliest") as reader:
            for record in reader.read_to_end():
                row, attempt = (record.value or b"").decode().split(" ")
                found[row] += 1
                attempts.setdefault(row[2:].split("/")[0], set()).add(attempt)
        wanted = {f"f({n}/{row})" for n in range(self.files) for row in range(ROWS_PER_FILE)}
        facts = self.facts
        facts.lost = len(wanted - found.keys())
        facts.duplicated = sum(count - 1 for count in found.values())
        if found.keys() - wanted:
            facts.wrong.append(f"{len(found.keys() - wanted)} rows that no file holds")
        mixed = [batch for batch, marks in attempts.items() if len(marks) > 1]
        if mixed:
            facts.wrong.append(f"batches {mixed} are of several attempts")
        facts.batches = self.batches()
        for topic in client.admin.list_topics():
            if topic.name.startswith(STAGING_PREFIX):
                facts.orphans += _left_staged(client, topic.name)


def _left_staged(client: Client, topic: str) -> int:
    """Records of a staging topic that were not swept."""
    try:
        log = client.admin.describe_log(topic, 0)
    except UnknownTopic:
        return 0
    return log.high_watermark - log.log_start


def main() -> int:
    """Run and print one line; 0 when each row is there once and nothing is left staged."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(bookies=3, brokers=2, data=pathlib.Path(folder) / "data") as cluster,
        Client(cluster.bootstrap_servers) as client,
    ):
        client.admin.create_topic(TOPIC, PARTITIONS)
        soak = Soak(cluster, pathlib.Path(folder), args.seed)
        soak.run(args.kills)
        if not soak.facts.wrong:
            soak.judge(client)
    facts = soak.facts
    for one in facts.wrong:
        print(one)
    bad = bool(facts.wrong) or facts.lost or facts.duplicated or facts.orphans
    kinds = ",".join(f"{kind}:{count}" for kind, count in sorted(facts.kills.items()) if count)
    print(
        f"spark: {'WRONG' if bad else 'OK'} batches={facts.batches} kills={args.kills} "
        f"lost={facts.lost} duplicated={facts.duplicated} orphans={facts.orphans} "
        f"rows={soak.files * ROWS_PER_FILE} starts={facts.starts} killed={kinds} seed={args.seed}"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
