"""Which life of each topic's name this client knows (design.md §12, "Identity, not name"). Pure.

A topic that was deleted may be created again under its name: another topic, with another id.
Brokers learn of that one after the other, so metadata may tell of the old one after the new one was
seen; an id whose life is over never comes back.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from octavo.proto.batch import DEFAULT_RECORD_BYTES, MAX_BATCH_BYTES
from octavo.runtime.errors import InconsistentTopicId

DEAD_IDS_MAX = 1_000
"""Ids of lives that are over, remembered so that a broker behind the times is not believed."""


class TopicView(NamedTuple):
    """What is known of a topic."""

    name: str
    partitions: int
    owners: tuple[str, ...]
    """Address of each partition's owner; empty: not known."""
    batch_bytes_max: int = MAX_BATCH_BYTES
    """The largest batch the topic takes."""
    topic_id: bytes = b""
    created_ms: int = 0
    life: int = 0
    """Counts the lives of the name that this client has seen."""
    record_bytes_max: int = DEFAULT_RECORD_BYTES
    """The largest record it takes: key, value and headers."""
    decommissioned: frozenset[int] = frozenset()
    """Partitions that take no new records (F027)."""

    @property
    def writable(self) -> list[int]:
        """Partitions that take records, ascending (P2)."""
        return [number for number in range(self.partitions) if number not in self.decommissioned]


class TopicLives:
    """The newest life of each name that was seen, and those that are over."""

    def __init__(self) -> None:
        self._newest: dict[str, TopicView] = {}
        self._dead: OrderedDict[tuple[str, bytes], None] = OrderedDict()

    def admit(self, view: TopicView) -> TopicView | None:
        """`view` with the number of its life; None when that life is over.

        Partitions never shrink within one life (F026): fewer of them are told by a broker that has
        not heard of the newer ones (P7), or, where no id is told, another life.
        """
        if (view.name, view.topic_id) in self._dead:
            return None
        before = self._newest.get(view.name)
        life = 0
        if before is not None:
            is_same = view.topic_id == before.topic_id
            is_over = (view.name, before.topic_id) in self._dead
            if not is_same and not is_over and view.created_ms < before.created_ms:
                return None  # of a broker that has not heard of the newer one
            if is_same and view.topic_id and view.partitions < before.partitions:
                return None
            is_next = not is_same or view.partitions < before.partitions
            life = before.life + is_next
            if not is_same:
                self.over(view.name, before.topic_id)
            elif view.topic_id:  # never taken back: a broker may not have heard of it yet
                known = before.decommissioned
                view = view._replace(decommissioned=view.decommissioned | known)
        admitted = view._replace(life=life)
        self._newest[view.name] = admitted
        return admitted

    def over(self, name: str, topic_id: bytes) -> None:
        """The topic's owner said that another topic has the name: this one is gone for ever."""
        self._dead[name, topic_id] = None
        if len(self._dead) > DEAD_IDS_MAX:
            self._dead.popitem(last=False)


def created_again(name: str, fate: str) -> InconsistentTopicId:
    """The error of what belonged to a life that is over; `fate` says what became of it."""
    return InconsistentTopicId(
        f"topic {name!r} was deleted and created again: {fate}",
        hint="the topic of that name is another one now; decide whether it is meant, too",
        topic=name,
    )
