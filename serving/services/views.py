"""How a broker describes topics, brokers and bookies to clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from octavo.metadata.bookies import BookieRegistration
from octavo.metadata.brokers import BrokerDirectory
from octavo.metadata.topics import Topic, is_internal
from octavo.proto import broker_pb2 as pb
from octavo.serving.config import BrokerConfig
from octavo.serving.ownership import Ownership
from octavo.serving.placement import BundleNumbers
from octavo.serving.topic_config import effective

_Said = tuple[int, ...]
"""Number and bundle, and of a partition that takes no new records whether it is removed."""


class _Told:
    """Partitions in the words of the protocol; those that have all in common once."""

    def __init__(self, tell: Callable[[int, int], pb.PartitionInfo]) -> None:
        self._tell = tell
        self._places: dict[_Said, int] = {}
        self.partitions: list[pb.PartitionInfo] = []

    def places(self, topic: Topic, bundles: Iterable[int]) -> list[int]:
        """Where in `partitions` those of a topic are, in order of their numbers."""
        every: list[_Said] = list(enumerate(bundles))
        for one in topic.decommissioned:
            every[one.partition] = (*every[one.partition], one.removed)
        places = self._places
        return [places[said] if said in places else self._new(said) for said in every]

    def _new(self, said: _Said) -> int:
        number, bundle, *removed = said
        info = self._tell(number, bundle)
        if removed:
            info.decommissioned, info.removed = True, bool(removed[0])
        place = self._places[said] = len(self.partitions)
        self.partitions.append(info)
        return place


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
        self._tell(info, topic, _Told(self._partition), shares=False)
        if with_effective:
            internal = is_internal(topic.name)
            info.effective.update(effective(topic.config, self._config, internal=internal))
        return info

    def page(self, topics: Iterable[Topic], *, more: bool, shares: bool) -> pb.ListTopicsReply:
        """Many topics, each as `of` tells it; `shares`: partitions apart, as the protocol says."""
        reply = pb.ListTopicsReply(more=more)
        told = _Told(self._partition)
        for topic in topics:
            self._tell(reply.topics.add(), topic, told, shares=shares)
        if shares:
            reply.partitions.extend(told.partitions)
        return reply

    def _tell(self, info: pb.TopicInfo, topic: Topic, told: _Told, *, shares: bool) -> None:
        info.name, info.topic_id = topic.name, topic.topic_id.bytes
        info.config.update(topic.config)
        info.created_ms = topic.created_ms
        places = told.places(topic, self._bundles.of(topic.topic_id, topic.partitions))
        if shares:
            info.shared.extend(places)
        else:
            info.partitions.extend([told.partitions[place] for place in places])

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
