"""How a broker describes topics, brokers and bookies to clients."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.metadata.bookies import BookieRegistration
from octavo.metadata.brokers import BrokerDirectory
from octavo.metadata.topics import Topic, is_internal
from octavo.proto import broker_pb2 as pb
from octavo.serving.config import BrokerConfig
from octavo.serving.ownership import Ownership
from octavo.serving.placement import BundleNumbers
from octavo.serving.registry import PartitionRegistry
from octavo.serving.topic_config import effective


class TopicViews:
    """Topics with their owners as last seen."""

    def __init__(
        self, registry: PartitionRegistry, ownership: Ownership, config: BrokerConfig
    ) -> None:
        self._config = config
        self._registry = registry
        self._ownership = ownership
        self._bundles = BundleNumbers(config.bundles)

    def of(self, topic: Topic, *, with_effective: bool = False) -> pb.TopicInfo:
        """One topic; an owner that is not known is empty.

        `with_effective`: with every setting as it works, set or by default.
        """
        info = pb.TopicInfo(
            name=topic.name,
            topic_id=topic.topic_id.bytes,
            config=dict(topic.config),
            created_ms=topic.created_ms,
        )
        if with_effective:
            internal = is_internal(topic.name)
            info.effective.update(effective(topic.config, self._config, internal=internal))
        for partition in range(topic.partitions):
            bundle = self._registry.bundle(topic.topic_id, partition)
            info.partitions.append(self._partition(partition, bundle))
        _mark_decommissioned(info, topic)
        return info

    def page(self, topics: Iterable[Topic], *, more: bool) -> pb.ListTopicsReply:
        """Many topics as `of` gives them, for a fraction of its time.

        Partitions of the same number and bundle are told in the same words, and bundles are known.
        """
        reply = pb.ListTopicsReply(more=more)
        told: dict[tuple[int, int], pb.PartitionInfo] = {}
        for topic in topics:
            info = reply.topics.add(
                name=topic.name, topic_id=topic.topic_id.bytes, created_ms=topic.created_ms,
                config=dict(topic.config),
            )  # fmt: skip
            partitions: list[pb.PartitionInfo] = []
            for place in enumerate(self._bundles.of(topic.topic_id, topic.partitions)):
                found = told.get(place)
                if found is None:
                    found = told[place] = self._partition(*place)
                partitions.append(found)
            info.partitions.extend(partitions)
            _mark_decommissioned(info, topic)
        return reply

    def _partition(self, partition: int, bundle: int) -> pb.PartitionInfo:
        owner = self._ownership.hint(bundle)
        return pb.PartitionInfo(
            partition=partition,
            owner_id=owner.broker_id if owner else "",
            owner_address=owner.address if owner else "",
        )


def _mark_decommissioned(info: pb.TopicInfo, topic: Topic) -> None:
    for one in topic.decommissioned:
        info.partitions[one.partition].decommissioned = True
        info.partitions[one.partition].removed = one.removed


def broker_infos(brokers: BrokerDirectory) -> list[pb.BrokerInfo]:
    """The brokers that live."""
    return [
        pb.BrokerInfo(broker_id=broker.broker_id, address=broker.address)
        for broker in brokers.live()
    ]


def bookie_infos(bookies: Iterable[BookieRegistration]) -> list[pb.BookieInfo]:
    """Bookies as they registered."""
    return [
        pb.BookieInfo(
            bookie_id=bookie.bookie_id,
            incarnation=str(bookie.incarnation),
            wire_address=bookie.wire_address,
            control_address=bookie.control_address,
            state=bookie.state,
        )
        for bookie in bookies
    ]
