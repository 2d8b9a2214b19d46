"""Two brokers that serve lives of one topic, well or badly, to a ReadingCore. Pure."""

from __future__ import annotations

import random

from octavo.client.messaging.reading.readings import Answer
from octavo.client.messaging.records import TopicPartition
from octavo.proto import batch as batch_format
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import (
    InconsistentTopicId,
    NotEnoughReplicas,
    NotLeader,
    OffsetOutOfRange,
    RequestTimedOut,
    UnknownTopic,
)
from tests.broker_model import PartitionModel

BROKERS = ("a", "b")
PARTITION = 250
"""Bytes that are asked for and buffered of a partition: two batches and more."""


class Life:
    """One topic that had the name."""

    def __init__(self, number: int, partitions: int) -> None:
        self.number = number
        self.topic_id = b"id-%d" % number
        self.logs = [PartitionModel() for _ in range(partitions)]

    def append(self, partition: int, count: int) -> None:
        log = self.logs[partition]
        values: list[bytes | None] = [
            b"%d:%d:%d" % (self.number, partition, log.end + n) for n in range(count)
        ]
        stamps = [log.end + n for n in range(count)]
        log.append(batch_format.encode(stamps, [b""] * count, values), 1)

    def cut(self, partition: int) -> None:
        """Lose the last records, as no healthy cluster does."""
        log = self.logs[partition]
        header = batch_format.decode_header(log.batches[-1]) if log.batches else None
        control = batch_format.BatchFlags.CONTROL
        if header and not header.flags & control and header.base_offset >= log.log_start:
            log.batches.pop()
            log.end = header.base_offset

    def next_record(self, partition: int, offset: int) -> int | None:
        """The first offset at or after `offset` that holds a record for users."""
        if partition >= len(self.logs):
            return None
        for batch in self.logs[partition].batches:
            header = batch_format.decode_header(batch)
            control = header.flags & batch_format.BatchFlags.CONTROL
            if header.next_offset > offset and not control:
                return max(offset, header.base_offset)
        return None


class Brokers:
    """What is stored and who owns it. `rough` is how badly they behave, from 0 (never) to 1."""

    def __init__(self, choices: random.Random, rough: float) -> None:
        self.random = choices
        self.rough = rough
        self.lives = [Life(0, 2)]
        self.deleted = False
        self.owner = {n: BROKERS[n % 2] for n in range(3)}

    @property
    def life(self) -> Life:
        return self.lives[-1]

    def chance(self, probability: float) -> bool:
        """Whether something bad of this probability happens."""
        return self.random.random() < probability * self.rough

    def has(self, partition: int) -> bool:
        """Whether the topic exists and has this partition."""
        return not self.deleted and partition < len(self.life.logs)

    def offset(self, life: Life, partition: int, policy: str | int) -> int:
        """Where a reading begins (F6)."""
        log = life.logs[partition]
        if policy in ("earliest", "latest"):
            return log.log_start if policy == "earliest" else log.end
        late = log.offset_at(int(policy))
        return log.end if late is None else late

    def answer(self, address: str, where: TopicPartition, offset: int, topic_id: bytes) -> Answer:
        """What the broker says of one partition."""
        life, number = self.life, where.partition
        if not self.has(number):
            return Answer([], 0, UnknownTopic("gone"))
        if self.chance(0.08):
            return Answer([], 0, self.random.choice([NotEnoughReplicas, RequestTimedOut])("later"))
        if self.owner[number] != address:
            if self.chance(0.2):
                return Answer([], 0, OffsetOutOfRange("a stale owner's word"))
            hint = "" if self.chance(0.3) else self.random.choice(BROKERS)
            return Answer(
                [],
                0,
                NotLeader("moved", owner_address=hint if self.rough else self.owner[number]),
            )
        if topic_id and topic_id != life.topic_id:
            return Answer([], 0, InconsistentTopicId("another topic"))
        log = life.logs[number]
        if self.chance(0.05) or not log.log_start <= offset <= log.end:
            return Answer([], 0, OffsetOutOfRange("no"))
        batches, following = log.read(offset, PARTITION)
        sent: list[Buffer] = list(batches)
        if sent and self.chance(0.1):
            spoilt = self.random.randrange(len(sent))
            whole = bytes(sent[spoilt])
            sent[spoilt] = whole[:-1] + bytes([whole[-1] ^ 1])
        if not sent:
            following = max(following, log.end)
        return Answer(sent, following, None, life.topic_id)

    def change(self) -> None:
        """What happens at the brokers without anybody being told."""
        number = self.random.randrange(len(self.life.logs))
        log = self.life.logs[number]
        roll = self.random.random()
        if roll < 0.6:
            self.life.append(number, self.random.randint(1, 4))
        elif roll < 0.7:
            log.append_control(1)
        elif roll < 0.78 and log.end:
            log.trim(self.random.randint(log.log_start, log.end))
        elif roll < 0.82:
            self.life.cut(number)
        elif roll < 0.94:
            self.owner[number] = self.random.choice(BROKERS)
        elif roll < 0.96:
            self.deleted = True
        else:
            self.recreate()

    def recreate(self) -> None:
        self.deleted = False
        self.lives.append(Life(self.life.number + 1, self.random.randint(1, 3)))
        for number in range(len(self.life.logs)):
            for _ in range(self.random.randint(0, 3)):
                self.life.append(number, self.random.randint(1, 3))
