"""When a producer warns that its records are not acknowledged."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.client.messaging.producing.in_flight import InFlight, Partition
from octavo.client.messaging.producing.stall_watch import StallWatch
from octavo.runtime.errors import NotEnoughReplicas


@dataclass
class _Batch:
    count: int
    created_s: float
    acks: int = -1
    is_numbered: bool = True


def waiting_since(created_s: float) -> InFlight:
    return InFlight(_Batch(3, created_s), Partition("orders", 4))


def test_a_warning_after_the_time_and_again_after_as_long() -> None:
    watch = StallWatch(10.0)
    item = waiting_since(100.0)
    assert watch.look(item, 1, 109.9) is None
    assert watch.look(item, 2, 110.0) == (
        "a batch for orders-4 has waited 10 s for its acknowledgement (batches waiting: 2); "
        "no owner is known"
    )
    assert watch.look(item, 2, 119.9) is None
    assert watch.look(item, 2, 120.0) is not None


def test_it_says_why() -> None:
    item = waiting_since(0.0)
    item.partition.owner = "b1:7650"
    assert str(StallWatch().look(item, 1, 10.0)).endswith("; not sent yet")
    item.attempts, item.owner = 1, "b1:7650"
    assert str(StallWatch().look(item, 1, 10.0)).endswith("; b1:7650 has not answered")
    item.last_error = NotEnoughReplicas("1 of 2")
    assert "last error: [NOT_ENOUGH_REPLICAS] 1 of 2" in str(StallWatch().look(item, 1, 10.0))


def test_what_moves_again_is_forgotten() -> None:
    watch = StallWatch(10.0)
    assert watch.look(waiting_since(0.0), 1, 10.0) is not None
    assert watch.look(None, 0, 11.0) is None
    assert watch.look(waiting_since(1.0), 1, 12.0) is not None
