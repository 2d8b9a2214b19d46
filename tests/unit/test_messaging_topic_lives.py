"""Lives of a topic's name as a client knows them, and what they mean for batches under way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from octavo.client.messaging.cluster.topic_lives import TopicLives, TopicView, created_again
from octavo.client.messaging.producing.actions import Complete, Fail, Send
from octavo.client.messaging.producing.in_flight import SenderSettings
from octavo.client.messaging.producing.sender_core import SenderCore
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.errors import DeliveryFailed, InconsistentTopicId, NotLeader, OctavoError

A, B = b"a" * 16, b"b" * 16


def view(topic_id: bytes, partitions: int = 3, created_ms: int = 0) -> TopicView:
    return TopicView("t", partitions, ("x",) * partitions, topic_id=topic_id, created_ms=created_ms)


def life(lives: TopicLives, given: TopicView) -> int | None:
    admitted = lives.admit(given)
    return None if admitted is None else admitted.life


def test_another_id_is_another_life_and_the_old_one_never_comes_back() -> None:
    lives = TopicLives()
    assert life(lives, view(A, created_ms=1)) == 0
    assert life(lives, view(A, partitions=6, created_ms=1)) == 0  # grown (P7)
    assert life(lives, view(B, created_ms=2)) == 1
    assert life(lives, view(A, created_ms=1)) is None  # a broker that is behind
    assert life(lives, view(B, created_ms=2)) == 1


def test_metadata_of_an_older_topic_are_not_believed_until_the_owner_says_so() -> None:
    lives = TopicLives()
    assert life(lives, view(B, created_ms=2)) == 0
    assert life(lives, view(A, created_ms=1)) is None
    lives.over("t", B)  # the owner refused B: clocks were apart
    assert life(lives, view(A, created_ms=1)) == 1


def test_f026_fewer_partitions_are_another_life_where_no_id_is_told() -> None:
    lives = TopicLives()
    assert life(lives, view(b"", partitions=6)) == 0
    assert life(lives, view(b"", partitions=3)) == 1


def test_p7_a_broker_that_has_not_heard_of_new_partitions_is_not_believed() -> None:
    lives = TopicLives()
    assert life(lives, view(A, partitions=3)) == 0
    assert life(lives, view(A, partitions=6)) == 0
    assert life(lives, view(A, partitions=3)) is None


def test_f027_a_broker_that_has_not_heard_of_a_decommissioned_partition_is_not_believed() -> None:
    lives = TopicLives()
    told = view(A)._replace(decommissioned=frozenset({1}))
    assert lives.admit(told) == told
    assert lives.admit(view(A)) == told
    grown = lives.admit(view(A, partitions=6))
    assert grown is not None
    assert grown.writable == [0, 2, 3, 4, 5]
    another = lives.admit(view(B, created_ms=2))
    assert another is not None
    assert another.writable == [0, 1, 2]


# --- batches under way ----------------------------------------------------------------------------


@dataclass(eq=False)
class Piece:
    count: int = 1
    created_s: float = 0.0
    acks: int = -1
    is_numbered: bool = True


class Sender:
    """A core with one partition and its first batch acknowledged, so that five may be in flight."""

    def __init__(self) -> None:
        self.core = SenderCore(SenderSettings(), SeededEntropy(1))
        self.partition = self.core.partition("t", 0)
        self.partition.owner = "broker"
        self.partition.topic_id = A
        self.outcomes: dict[Piece, Complete | OctavoError] = {}
        self.sent: list[Send] = []
        self.pieces: list[Piece] = []
        self.add()
        self.do(self.core.identity_granted(7, 0, 0.0))
        self.do(self.core.acknowledged(self.sent[-1].correlation, 0, False, 0.0))

    def do(self, actions: object) -> None:
        assert isinstance(actions, list)
        for action in cast("list[object]", actions):
            if isinstance(action, Send):
                self.sent.append(action)
            elif isinstance(action, Complete | Fail):
                assert isinstance(action.batch, Piece)
                outcome = action if isinstance(action, Complete) else action.error
                self.outcomes[action.batch] = outcome
        self.core.validate()

    def add(self) -> Piece:
        piece = Piece()
        self.pieces.append(piece)
        self.do(self.core.add(self.partition, piece, 0.0))
        return piece


def test_i5_an_owner_that_forgot_the_producer_proves_nothing() -> None:
    sender = Sender()
    first, second = sender.add(), sender.add()
    one, two = sender.sent[-2:]
    sender.do(sender.core.refused(one.correlation, NotLeader("moved"), 0.0))
    acknowledged = sender.core.acknowledged(two.correlation, 0, False, 0.0, proves_earlier=False)
    sender.do(acknowledged)
    assert isinstance(sender.outcomes[first], DeliveryFailed)
    assert "may or may not be stored" in str(sender.outcomes[first])
    assert isinstance(sender.outcomes[second], Complete)


def test_i5_an_owner_that_knew_the_producer_proves_the_earlier_ones() -> None:
    sender = Sender()
    first, _ = sender.add(), sender.add()
    sender.do(sender.core.acknowledged(sender.sent[-1].correlation, 2, False, 0.0))
    assert isinstance(sender.outcomes[first], Complete)


def test_batches_of_a_life_that_is_over_fail_and_nothing_more_is_sent() -> None:
    sender = Sender()
    first = sender.add()
    old = sender.partition
    assert sender.sent[-1].topic_id == A
    error = created_again("t", "it went")
    sender.do(sender.core.end_life([old], error))
    assert isinstance(sender.outcomes[first], InconsistentTopicId)
    assert not sender.core.room(old)
    sender.do(sender.core.acknowledged(sender.sent[-1].correlation, 5, False, 0.0))  # too late
    assert isinstance(sender.outcomes[first], InconsistentTopicId)
    sender.partition = sender.core.partition("t", 0)
    assert sender.partition is not old
    sender.partition.owner, sender.partition.topic_id = "broker", B
    sender.add()
    assert (sender.sent[-1].base_sequence, sender.sent[-1].topic_id) == (0, B)
