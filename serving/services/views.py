"""How a broker describes topics, brokers and bookies to clients."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.metadata.bookies import BookieRegistration
from octavo.metadata.brokers import BrokerDirectory
from octavo.metadata.topics import Topic, is_internal
from octavo.proto import broker_pb2 as pb
from octavo.serving.config import BrokerConfig
from octavo.serving.ownership import Ownership
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
        gone = {one.partition: one.removed for one in topic.decommissioned}
        for partition in range(topic.partitions):
            owner = self._ownership.hint(self._registry.bundle(topic.topic_id, partition))
            info.partitions.add(
                partition=partition,
                owner_id=owner.broker_id if owner else "",
                owner_address=owner.address if owner else "",
                decommissioned=partition in gone,
                removed=gone.get(partition, False),
            )
        return info


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
