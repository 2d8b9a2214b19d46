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
from octavo.serving.topic_config import effective

_Told = dict[tuple[int, int], pb.PartitionInfo]
"""By number and bundle."""


class TopicViews:
    """Topics with their owners as last seen."""

    def __init__(self, ownership: Ownership, config: BrokerConfig) -> None:
        self._config = config
        self._ownership = ownership
        self._bundles = BundleNumbers(config.bundles)

    def of(self, topic: Topic, *, with_effective: bool = False) -> pb.TopicInfo:
        """One topic; an owner that is not known is empty.

        `with_effective`: with every setting as it works, set or by default.
        """
        info = pb.TopicInfo()
        self._tell(info, topic, {})
        if with_effective:
            internal = is_internal(topic.name)
            info.effective.update(effective(topic.config, self._config, internal=internal))
        return info

    def page(self, topics: Iterable[Topic], *, more: bool) -> pb.ListTopicsReply:
        """Many topics, each as `of` tells it."""
        reply = pb.ListTopicsReply(more=more)
        told: _Told = {}
        for topic in topics:
            self._tell(reply.topics.add(), topic, told)
        return reply

    def _tell(self, info: pb.TopicInfo, topic: Topic, told: _Told) -> None:
        """`told`: partitions of the same number and bundle are told in the same words."""
        info.name, info.topic_id = topic.name, topic.topic_id.bytes
        info.config.update(topic.config)
        info.created_ms = topic.created_ms
        partitions: list[pb.PartitionInfo] = []
        for place in enumerate(self._bundles.of(topic.topic_id, topic.partitions)):
            found = told.get(place)
            if found is None:
                found = told[place] = self._partition(*place)
            partitions.append(found)
        info.partitions.extend(partitions)
        for one in topic.decommissioned:
            info.partitions[one.partition].decommissioned = True
            info.partitions[one.partition].removed = one.removed

    def _partition(self, partition: int, bundle: int) -> pb.PartitionInfo:
        owner = self._ownership.hint(bundle)
        return pb.PartitionInfo(
            partition=partition,
            owner_id=owner.broker_id if owner else "",
            owner_address=owner.address if owner else "",
        )


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
            fault_domain=bookie.fault_domain,
        )
        for bookie in bookies
    ]
