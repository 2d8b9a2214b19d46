"""Apache Kafka: KRaft nodes on loopback; three with RF 3 and min.insync.replicas 2, or one."""

from __future__ import annotations

import pathlib
import re
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bench import fetch
from bench.systems import System, free_ports, port_open, wait_until
from bench.systems.child import Child, stop_all

if TYPE_CHECKING:  # an extra: it may be missing when this module is imported
    from confluent_kafka.admin import AdminClient

VERSION = "4.4.0"
ARTIFACTS = (
    ("org.apache.kafka", "kafka_2.13", VERSION),
    ("org.apache.kafka", "kafka-tools", VERSION),
)
NODES = 3
START_TIMEOUT_S = 90.0
TOOL_TIMEOUT_S = 180.0
NATIVE_RECORDS_MAX = 400_000
JVM = (
    # What Kafka's own start script sets.
    "-Xms1G",
    "-Xmx1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
_PRODUCED = re.compile(r"([\d.]+) records/sec \(([\d.]+) MB/sec\).*?([\d.]+) ms 99th", re.DOTALL)
MIB_IN_MB = 1.048576


class Kafka(System):
    """Default flush: an acknowledged record is in the memory of all in-sync nodes, not on disk."""

    name = "kafka"
    setting = "page cache, no fsync"
    driver = "kafka"
    has_lz4 = True
    settle_steps_min = 6
    settle_steps_max = 15
    nodes = NODES
    flush_messages = 0
    """`log.flush.interval.messages`; 0 leaves Kafka's default: never."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        self._children: list[Child] = []
        self._ports: list[int] = []
        self._java = "java"
        self._classes = ""

    def prepare(self) -> None:
        self._java = fetch.java()
        fetch.need_package("confluent_kafka", "confluent-kafka")
        self._classes = fetch.jars("kafka", ARTIFACTS)

    def start(self) -> None:
        ports = free_ports(2 * self.nodes)
        self._ports = ports[: self.nodes]
        voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(ports[self.nodes :], 1))
        cluster = uuid.uuid4().hex[:22]
        for number in range(1, self.nodes + 1):
            node = self.folder / f"kafka-{number}"
            node.mkdir(parents=True)
            config = node / "server.properties"
            config.write_text(
                "\n".join(self._properties(number, ports, voters, node)) + "\n", encoding="utf-8"
            )
            self._tool("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config))
            self._children.append(
                Child(
                    f"kafka-{number}",
                    [self._java, *JVM, "-cp", self._classes, "kafka.Kafka", str(config)],
                    node,
                )
            )
        wait_until(self._all_listen, START_TIMEOUT_S, "Kafka to listen")
        wait_until(self._all_joined, START_TIMEOUT_S, "all Kafka brokers")

    def _properties(
        self, number: int, ports: Sequence[int], voters: str, node: pathlib.Path
    ) -> list[str]:
        here = f"PLAINTEXT://127.0.0.1:{ports[number - 1]}"
        lines = [
            "process.roles=broker,controller",
            f"node.id={number}",
            f"controller.quorum.voters={voters}",
            f"listeners={here},CONTROLLER://127.0.0.1:{ports[self.nodes + number - 1]}",
            f"advertised.listeners={here}",
            "controller.listener.names=CONTROLLER",
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            f"log.dirs={node / 'data'}",
            f"default.replication.factor={self.nodes}",
            f"offsets.topic.replication.factor={self.nodes}",
            f"transaction.state.log.replication.factor={self.nodes}",
            f"min.insync.replicas={min(2, self.nodes)}",
            "auto.create.topics.enable=false",
            "message.max.bytes=8388608",
            "replica.fetch.max.bytes=8388608",
        ]
        if self.flush_messages:
            lines.append(f"log.flush.interval.messages={self.flush_messages}")
        return lines

    def _all_listen(self) -> bool:
        for child in self._children:
            child.check()
        return all(map(port_open, self._ports))

    def _all_joined(self) -> bool:
        return len(self._admin().list_topics(timeout=5).brokers) == self.nodes

    def _admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self._servers, "log_level": 0})

    def stop(self) -> None:
        stop_all(self._children)
        self._children = []

    @property
    def _servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    def endpoint(self) -> Mapping[str, str]:
        return {"servers": self._servers}

    def processes(self) -> Mapping[str, list[int]]:
        return {"broker": [pid for child in self._children for pid in child.pids]}

    def create_topic(self, name: str, partitions: int) -> None:
        from confluent_kafka.admin import NewTopic

        topic = NewTopic(name, num_partitions=partitions, replication_factor=self.nodes)
        admin = self._admin()
        for future in admin.create_topics([topic]).values():
            future.result()

        def has_leaders() -> bool:
            found = admin.list_topics(name, timeout=5).topics[name].partitions
            return len(found) == partitions and all(p.leader > 0 for p in found.values())

        wait_until(has_leaders, START_TIMEOUT_S, f"leaders of {name}")

    def versions(self) -> Mapping[str, str]:
        import confluent_kafka

        return {
            "kafka": VERSION,
            "confluent-kafka": str(confluent_kafka.__version__),
            "librdkafka": str(confluent_kafka.libversion()[0]),
        }

    # --- its own load tools ------------------------------------------------------------------

    def _tool(self, main_class: str, *words: str) -> str:
        done = subprocess.run(
            [self._java, "-Xmx512M", "-cp", self._classes, main_class, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TOOL_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{main_class}: {(done.stderr or done.stdout).strip()[-300:]}")
        return done.stdout

    def native(self, seconds: float, mbps: float) -> Mapping[str, float]:
        """kafka-producer-perf-test with 64 KiB batches, then kafka-consumer-perf-test."""
        count = max(min(int(mbps * 1e6 / 1024 * seconds), NATIVE_RECORDS_MAX), 5_000)
        self.create_topic("native", 8)
        said = self._tool(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", "native", "--record-size", "1024", "--throughput", "-1"),
            *("--num-records", str(count + count // 4), "--warmup-records", str(count // 4)),
            *("--bootstrap-server", self._servers, "--command-property", "acks=all"),
            *("batch.size=65536", "linger.ms=5", "compression.type=none"),
        )
        found = _PRODUCED.findall(said)
        if not found:
            raise RuntimeError(f"kafka-producer-perf-test said nothing usable: {said[-200:]}")
        return {"native_w1_64k_mbps": float(found[-1][1]) * MIB_IN_MB}


class KafkaFlush(Kafka):
    """fsync of every batch before it counts: the durability that Octavo always gives."""

    name = "kafka-flush"
    setting = "fsync per batch"
    flush_messages = 1


class KafkaAlone(Kafka):
    """One node, driven by Kafka's own tools only: no Python client is needed."""

    name = "kafka-alone"
    setting = "one node, page cache"
    nodes = 1

    def prepare(self) -> None:
        self._java = fetch.java()
        self._classes = fetch.jars("kafka", ARTIFACTS)

    def _all_joined(self) -> bool:
        return True  # it listens

    def create_topic(self, name: str, partitions: int) -> None:
        self._tool(
            "org.apache.kafka.tools.TopicCommand",
            *("--bootstrap-server", self._servers, "--create", "--topic", name),
            *("--partitions", str(partitions), "--replication-factor", "1"),
        )
