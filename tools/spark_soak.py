"""kill -9 of drivers, workers, brokers and bookies under one streaming query: each row comes once.

A query of Spark reads files, gives each row another form and another partition every time it runs,
and writes to a topic. Its driver (with its JVM and workers) or one worker of its tasks is killed at
`--kills` random moments, a broker or a bookie at half as many beside them; a driver is started
again on the same checkpoint. Then the last commit of the checkpoint is taken away, twice, and the
batch run again in fewer and in more partitions. At the end the topic holds f(row) of every row of
every file once, in rows of one attempt for each batch, and nothing is staged any more.

What happens is told on standard error while it happens, the result in one line.
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
import time
from dataclasses import dataclass, field

from octavo import Client
from octavo.errors import UnknownTopic
from octavo.proto.sink_staging import STAGING_PREFIX
from octavo.testing import LocalCluster

TOPIC = "soak"
PARTITIONS = 4
ROWS_PER_FILE = 2_000
LOOK_S = 0.05
STUCK_S = 300.0
"""Without a batch for so long the soak has failed."""
WORKER_WAIT_S = 20.0
"""How long a worker to kill is waited for; the driver is killed when there is none."""
DOWN_MAX_S = 2.0
"""How long a server is down."""
SERVERS = ("broker-1", "broker-2", "bookie-1", "bookie-2", "bookie-3")
REPLAYS = ((1, 1), (7, 5))
"""Partitions of the rows and of shuffles when the last batch is run again: fewer and more than
while the query was killed."""
_PAUSE = threading.Event()

QUERY = """
import pathlib, random, sys
from pyspark.sql import SparkSession, functions as F

source, checkpoint, servers, partitions, shuffles, stop = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2,8]")
    .config("spark.driver.memory", "1g")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.ui.enabled", "false")
    .config("spark.log.level", "OFF")
    .config("spark.sql.shuffle.partitions", shuffles)
    .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
    .getOrCreate()
)
attempt = F.lit(f"{random.randrange(1 << 40):x}")
rows = spark.readStream.option("maxFilesPerTrigger", 1).text(source)
rows = rows.repartition(int(partitions)).select(
    F.when(F.rand() < 0.5, F.col("value")).alias("key"),
    F.concat(F.lit("f("), F.col("value"), F.lit(") "), attempt).alias("value"),
)
query = (
    rows.writeStream.format("octavo")
    .option("octavo.bootstrap.servers", servers)
    .option("topic", "soak")
    .option("checkpointLocation", checkpoint)
    .trigger(processingTime="0 seconds")
    .start()
)
while not query.awaitTermination(0.2):
    if pathlib.Path(stop).exists():
        query.processAllAvailable()
        query.stop()
        break
spark.stop()
"""


@dataclass
class Facts:
    """What happened."""

    kills: collections.Counter[str] = field(default_factory=collections.Counter[str])
    starts: int = 0
    failures: int = 0
    """Starts that were needed because the query ended with an error of its own."""
    replays: int = 0
    wrong: list[str] = field(default_factory=list[str])
    lost: int = 0
    duplicated: int = 0
    orphans: int = 0
    batches: int = 0


def deck(kills: int, rng: random.Random) -> list[tuple[str, str]]:
    """What is struck, in order: a driver or a worker, and which server beside it ("": none).

    Every second strike has a server; brokers and bookies take turns.
    """
    victims = ["driver" if number % 5 < 3 else "worker" for number in range(kills)]
    rng.shuffle(victims)
    servers = rng.sample(SERVERS, len(SERVERS))
    brokers = [name for name in servers if name.startswith("broker")]
    bookies = [name for name in servers if name.startswith("bookie")]
    found: list[tuple[str, str]] = []
    for number, victim in enumerate(victims):
        kind = brokers if number % 4 == 0 else bookies
        found.append((victim, "" if number % 2 else kind[number // 4 % len(kind)]))
    return found


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
        self._stop = folder / "stop"
        self.source.mkdir()
        self.files = 0
        self._query: subprocess.Popen[bytes] | None = None
        self._began_s = time.monotonic()

    def tell(self, what: str) -> None:
        """One line of progress."""
        print(
            f"{time.monotonic() - self._began_s:6.1f} s  batches={self.batches()}/{self.files}  "
            f"{what}",
            file=sys.stderr,
            flush=True,
        )

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

    def start(self, partitions: int = 0, shuffles: int = 2) -> None:
        """Start the query on its checkpoint, in a process group of its own."""
        env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONSAFEPATH": "1"}
        words = (self.source, self.checkpoint, self.cluster.bootstrap_servers)
        many = (partitions or self.rng.randint(2, 4), shuffles)
        command = [sys.executable, self._program, *words, *map(str, many), self._stop]
        with self._log.open("ab") as log:
            self._query = subprocess.Popen(
                command, env=env, stdout=log, stderr=log, start_new_session=True
            )
        self.facts.starts += 1

    def ended(self) -> bool:
        """Whether the query has ended well; it is started again when it failed."""
        assert self._query is not None
        code = self._query.poll()
        if code:
            self.tell(f"the query ended with {code}, started again")
            self.facts.failures += 1
            self.start()
        return code == 0

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

    def strike(self, victim: str, server: str) -> None:
        """One kill -9 of the query, and of a server at the same time."""
        if server:
            self.cluster.kill(server)
            self.facts.kills[server.split("-")[0]] += 1
        waited_s = 0.0
        while victim == "worker" and not self.kill_worker():
            _PAUSE.wait(LOOK_S)
            waited_s += LOOK_S
            victim = "driver" if waited_s > WORKER_WAIT_S else victim
        if victim == "driver":
            self.kill_driver()
        self.facts.kills[victim] += 1
        self.tell(f"killed {victim} {server}")
        if server:
            _PAUSE.wait(self.rng.random() * DOWN_MAX_S)
            self.cluster.restart(server)

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
        """All kills, then to the end, one batch more, which sweeps what was left staged, and the
        last batch once more in fewer and in more partitions."""
        self.add_files(3)
        self.start()
        self.until(1)
        for victim, server in deck(kills, self.rng):
            self.add_files(2)
            self.until(self.batches() + self.rng.randint(0, 2))
            _PAUSE.wait(self.rng.random() * 1.5)
            if self.facts.wrong:
                return
            self.strike(victim, server)
        self.add_files(1)
        self.drain()
        for partitions, shuffles in REPLAYS:
            if not self.facts.wrong:
                self.replay(partitions, shuffles)

    def drain(self) -> None:
        """Have the query end when it has written what is there.

        Not until there are as many batches: Spark puts a file that it had noted when it was
        killed into the batch of the next one.
        """
        self._stop.touch()
        waited_s = 0.0
        while not self.facts.wrong and not self.ended():
            _PAUSE.wait(LOOK_S)
            waited_s += LOOK_S
            if waited_s > STUCK_S:
                self.facts.wrong.append(f"the query does not end: see {self._log}")
        self._stop.unlink()
        self.tell("the query has written what is there")

    def replay(self, partitions: int, shuffles: int) -> None:
        """Take the last commit out of the checkpoint, as if the driver died before it."""
        commits, before = self.checkpoint / "commits", self.batches()
        last = max(int(name.name) for name in commits.iterdir() if name.name.isdigit())
        for name in (f"{last}", f".{last}.crc"):
            (commits / name).unlink()
        self.start(partitions, shuffles)
        self.drain()
        if self.batches() != before:
            self.facts.wrong.append(f"batch {last} was not run again: see {self._log}")
        self.facts.replays += 1
        self.tell(f"batch {last} was run again in {partitions} partitions")

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
    began_s = time.monotonic()
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
    struck = facts.kills["driver"] + facts.kills["worker"]
    if struck != args.kills:
        facts.wrong.append(f"{struck} kills of {args.kills}")
    bad = bool(facts.wrong) or facts.lost or facts.duplicated or facts.orphans
    kinds = ",".join(f"{kind}:{count}" for kind, count in sorted(facts.kills.items()))
    print(
        f"spark: {'WRONG' if bad else 'OK'} batches={facts.batches} kills={facts.kills.total()} "
        f"lost={facts.lost} duplicated={facts.duplicated} orphans={facts.orphans} "
        f"rows={soak.files * ROWS_PER_FILE} starts={facts.starts} failures={facts.failures} "
        f"killed={kinds} replays={facts.replays} seed={args.seed} "
        f"seconds={time.monotonic() - began_s:.0f}"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
