"""The batches that a producer has under delivery, and the actions that their fates lead to. Pure.

One table for all partitions: what was sent is found by the correlation of its latest attempt, what
is unresolved by its partition. Each batch leaves it once, with one outcome.
"""

from __future__ import annotations

from collections.abc import Iterator

from octavo.client.messaging.producing.actions import Action, Complete, Fail, FindOwner, Send
from octavo.client.messaging.producing.in_flight import (
    SEQUENCE_MASK,
    InFlight,
    Partition,
    SenderSettings,
    State,
)
from octavo.runtime.errors import DeliveryFailed, OctavoError
from octavo.runtime.invariant import invariant


class Attempts:
    """What is unresolved, the attempts that await an answer, and the actions not yet handed out."""

    def __init__(self, settings: SenderSettings) -> None:
        self.busy: dict[Partition, None] = {}
        """Partitions with unresolved batches."""
        self.actions: list[Action] = []
        self._settings = settings
        self._correlation = 0
        self._by_correlation: dict[int, InFlight] = {}

    def find(self, correlation: int) -> InFlight | None:
        """The batch whose latest attempt it is; None when that was given up."""
        return self._by_correlation.get(correlation)

    def sent_to(self, owner: str) -> list[InFlight]:
        """What awaits an answer of `owner`, oldest attempt first."""
        return [item for item in self._by_correlation.values() if item.owner == owner]

    def all(self) -> Iterator[InFlight]:
        """Everything unresolved."""
        return (item for partition in self.busy for item in partition.in_flight)

    def any_fate_unknown(self) -> bool:
        """Whether a numbered batch may be stored or not."""
        return any(
            item.base_sequence >= 0 and item.state is not State.PARKED for item in self.all()
        )

    def send(self, item: InFlight, producer_id: int, now_s: float) -> None:
        """Hand a batch to its owner's connection, with numbers if it has none."""
        partition = item.partition
        is_numbered = self._settings.idempotent and item.batch.is_numbered
        if is_numbered and item.base_sequence < 0:
            item.base_sequence = partition.next_sequence
            partition.next_sequence = (item.base_sequence + item.batch.count) & SEQUENCE_MASK
        self._correlation += 1
        item.correlation = self._correlation
        item.state = State.SENT
        item.owner = partition.owner
        item.sent_s = now_s
        item.attempts += 1
        self._by_correlation[item.correlation] = item
        self.actions.append(
            Send(
                owner=item.owner,
                correlation=item.correlation,
                batch=item.batch,
                topic=partition.topic,
                partition=partition.partition,
                producer_id=producer_id if is_numbered else -1,
                producer_epoch=partition.epoch if is_numbered else -1,
                base_sequence=item.base_sequence,
                topic_id=partition.topic_id,
                writer_epoch=partition.writer_epoch,
            )
        )

    def want_owner(self, partition: Partition) -> None:
        """Look for it also during back-off: the answer is there when that ends."""
        if not partition.finding:
            partition.finding = True
            avoid = partition.last_owner if partition.failures else ""
            self.actions.append(FindOwner(partition, avoid))

    def answered(self, item: InFlight) -> None:
        """No answer to its latest attempt is awaited any more; it is to be sent again."""
        self._by_correlation.pop(item.correlation, None)
        item.state = State.WAITING

    def complete(self, item: InFlight, base_offset: int, *, duplicate: bool) -> None:
        """It is stored."""
        self._remove(item)
        self.actions.append(Complete(item.batch, base_offset, duplicate))

    def fail(self, item: InFlight, error: OctavoError) -> None:
        """It is given up, and its sequences with it."""
        self._remove(item)
        self.actions.append(Fail(item.batch, error))

    def drop(self, item: InFlight, error: OctavoError, *, refused: bool) -> None:
        """It is given up; what it leaves behind in the sequences is a hole."""
        item.partition.leave_hole(item, refused=refused)
        self.fail(item, error)

    def give_up(self, item: InFlight, why: str) -> None:
        """Drop a batch whose fate is unknown and which must not be sent again."""
        item.loose = True
        error = DeliveryFailed(
            f"{item.batch.count} records to {item.partition} may or may not be stored: {why}",
            hint="read the topic to see what is stored before sending them again",
        )
        self.drop(item, error, refused=False)

    def overtaken(self, item: InFlight, *, proved: bool) -> None:
        """A later batch of its partition is stored; `proved`: by an owner that knew the producer,
        so that all in front of it are, too."""
        if not proved:
            self.give_up(item, "the owner did not know this producer any more (I10)")
        elif item.state is State.PARKED:  # one owner said no, another one stored a later one
            self.give_up(item, "an owner that stored a later batch contradicts another")
        else:
            self.complete(item, -1, duplicate=False)  # I5: the higher one proves it

    def _remove(self, item: InFlight) -> None:
        partition = item.partition
        partition.in_flight.remove(item)
        if self._by_correlation.get(item.correlation) is item:
            del self._by_correlation[item.correlation]
        if not partition.in_flight:
            self.busy.pop(partition, None)
            partition.muted = False

    def validate(self) -> None:
        """Check the table against the states of the batches in it."""
        for partition in self.busy:
            invariant(bool(partition.in_flight), "busy set is wrong")
        for item in self.all():
            known = self._by_correlation.get(item.correlation) is item
            invariant(known == (item.state is State.SENT), "correlation table is wrong")
