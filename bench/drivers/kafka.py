"""Kafka through confluent-kafka, the fastest common Python client (librdkafka inside)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)

from bench import pacing
from bench.drivers import (
    NEVER,
    POLL_TIMEOUT_S,
    MissedRecords,
    Visit,
    WriteSettings,
    complete,
)

POLL_RECORDS = 10_000
QUEUE_RECORDS = 500_000
QUEUE_KIB = 32 << 10
SERVE_EVERY = 256
"""Records between two looks at delivery reports while sending."""


class KafkaDriver:
    """One producer per setting, a fresh consumer per read."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._producers: dict[WriteSettings, Producer] = {}
        self._acked = 0
        self._failed: list[KafkaError] = []

    def _producer(self, settings: WriteSettings) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self._servers,
                "acks": "all",
                # Its default, and in its favour: with idempotence its threads spin while they
                # wait for replies, which takes the CPU from the servers of a small machine.
                "enable.idempotence": False,
                "linger.ms": settings.linger_ms,
                "batch.size": settings.batch_bytes,
                "batch.num.messages": 1_000_000,
                "message.max.bytes": 8_000_000,
                "compression.type": settings.compression,
                "queue.buffering.max.messages": QUEUE_RECORDS,
                "queue.buffering.max.kbytes": settings.buffer_bytes // 1024,
            }
        )

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._acked += 1
        else:
            self._failed.append(error)

    def write(self, topic: str, values: Iterable[bytes], settings: WriteSettings) -> int:
        producer = self._producers.get(settings)
        if producer is None:
            producer = self._producers[settings] = self._producer(settings)
        self._acked = 0
        produce, poll, delivered = producer.produce, producer.poll, self._delivered
        number = -1
        for number, value in enumerate(values):
            while True:
                try:
                    produce(topic, value, on_delivery=delivered)
                    break
                except BufferError:
                    poll(0.05)
            if number % SERVE_EVERY == 0:
                poll(0)
        # Not flush(): while it waits, librdkafka's threads spin and take CPU from the servers.
        while self._acked + len(self._failed) <= number:
            poll(0.05)
        if self._failed:
            raise MissedRecords(f"{len(self._failed)} records failed: {self._failed[0]}")
        return self._acked

    def paced(
        self, topic: str, per_s: float, count: int, make: Callable[[float], bytes]
    ) -> list[float]:
        clock, pause = time.monotonic, threading.Event()
        samples = [NEVER] * count
        producer = self._producer(WriteSettings(65_536, 0, "none", 32 << 20))
        producer.produce(topic, make(clock()))
        producer.flush()
        stop = threading.Event()

        def serve() -> None:
            while not stop.is_set():
                producer.poll(0.1)

        server = threading.Thread(target=serve, name="delivery-reports", daemon=True)
        server.start()
        schedule = pacing.soon(clock, per_s, count)
        for number, due in enumerate(pacing.paced(schedule, clock, pause.wait)):

            def delivered(
                error: KafkaError | None, _: Message, number: int = number, due: float = due
            ) -> None:
                if error is None:
                    samples[number] = clock() - due

            producer.produce(topic, make(due), on_delivery=delivered)
        producer.flush()
        stop.set()
        server.join()
        return complete(samples)

    @contextmanager
    def _consumer(self, topic: str) -> Iterator[Consumer]:
        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": "bench",
                "enable.auto.commit": False,
                "check.crcs": True,
                "fetch.message.max.bytes": 4 << 20,
                "queued.max.messages.kbytes": QUEUE_KIB,
            }
        )
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        try:
            yield consumer
        finally:
            consumer.close()

    def follow(
        self, topic: str, count: int, ready: Callable[[], None], seen: Callable[[bytes], None]
    ) -> None:
        with self._consumer(topic) as consumer:
            consumer.poll(0.5)
            ready()
            for got in range(count):
                message = consumer.poll(POLL_TIMEOUT_S)
                if message is None or message.error() is not None:
                    raise MissedRecords(f"{got} of {count} records came")
                seen(message.value() or b"")

    def read(self, topic: str, count: int, visit: Visit | None) -> tuple[int, int]:
        rows = payload = 0
        value = Message.value
        with self._consumer(topic) as consumer:
            while rows < count:
                messages = consumer.consume(min(POLL_RECORDS, count - rows), 0.05)
                if not messages:
                    messages = consumer.consume(1, POLL_TIMEOUT_S)
                if not messages:
                    raise MissedRecords(f"{rows} of {count} records came")
                values = list(map(value, messages))
                rows += len(values)
                payload += sum(map(len, messages))
                if visit is not None:
                    visit(values)
        return rows, payload

    def read_arrow(self, topic: str, count: int, visit: Visit | None) -> tuple[int, int]:
        raise MissedRecords("this client has no Arrow")

    def close(self) -> None:
        for producer in self._producers.values():
            producer.flush()


def connect(endpoint: Mapping[str, str]) -> KafkaDriver:
    """From the endpoint of `bench.systems.kafka`."""
    return KafkaDriver(endpoint["servers"])
