"""A reading core and replies for it, for unit tests."""

from __future__ import annotations

from octavo.client.messaging.cluster.topic_lives import TopicView
from octavo.client.messaging.reading.buffers import Ends
from octavo.client.messaging.reading.reading_core import ReadingCore
from octavo.client.messaging.reading.readings import (
    Action,
    Answer,
    Plan,
    Reading,
    ReadingSettings,
)
from octavo.client.messaging.records import Record, TopicPartition
from octavo.proto import batch as batch_format
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.errors import (
    OctavoError,
)
from tests.broker_model import PartitionModel

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Core(ReadingCore):
    """With short names for what the tests below ask of its parts."""

    def plan(self, owner: str, now_s: float) -> Plan | None:
        return self.requests.plan(owner, now_s)

    def reading(self, where: TopicPartition) -> Reading:
        return self.buffers.reading(where)

    def take_records(self, count: int, ends: Ends | None = None) -> list[Record]:
        return self.buffers.take_records(count, ends)

    def take_error(self) -> OctavoError | None:
        return self.buffers.take_error()

    def at(self, where: TopicPartition, offset: int) -> None:
        self.seek(where, offset, 0.0)


def made(
    prefetch: int = 1 << 20,
    partition: int = 1 << 20,
    reset: str | int = "latest",
    views: dict[str, TopicView] | None = None,
) -> Core:
    settings = ReadingSettings(
        max_bytes=1 << 20,
        partition_bytes=1 << 20,
        prefetch_bytes=prefetch,
        prefetch_partition_bytes=partition,
        max_wait_ms=500,
        reset=reset,
    )
    core = Core(settings, views if views is not None else {}, SeededEntropy(1))
    core.assign([P0, P1], None, 0.0)
    for reading in core.readings.values():
        reading.owner = "a"
    return core


def log(*counts: int) -> PartitionModel:
    model = PartitionModel()
    number = 0
    for count in counts:
        values: list[bytes | None] = [b"%d" % (number + n) for n in range(count)]
        model.append(batch_format.encode([5] * count, [b"k"] * count, values), 9)
        number += count
    return model


def answer(core: Core, plan: Plan, models: dict[TopicPartition, PartitionModel]) -> None:
    answers: dict[TopicPartition, Answer] = {}
    for ask in plan.asks:
        batches, following = models[ask.reading.where].read(ask.offset, 1 << 20)
        answers[ask.reading.where] = Answer(batches, following, None)
    core.answered(plan, answers, 1.0)
    core.validate()


def only_p0(core: Core, position: int = 0) -> Reading:
    core.at(P0, position)
    core.reading(P1).paused = True
    return core.reading(P0)


def ask(core: Core, now: float = 0.0) -> Plan:
    plan = core.plan("a", now)
    assert plan is not None
    return plan


def refuse(core: Core, error: OctavoError, now: float = 10.0) -> list[Action]:
    return core.answered(ask(core, now), {P0: Answer([], 0, error)}, now)
