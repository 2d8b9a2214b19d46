"""The world of the delivery core finds faults that are planted in it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from octavo.client.messaging.producing.attempts import Attempts
from octavo.client.messaging.producing.in_flight import (
    InFlight,
    Partition,
    SenderSettings,
    State,
)
from octavo.client.messaging.producing.sender_core import SenderCore
from octavo.runtime.errors import (
    InvalidRecord,
    InvariantViolation,
    OctavoError,
)
from tests.sender_world import (
    LONG_NAMES,
    World,
    run,
    script,
)


def full_window(_: Partition, limits: SenderSettings) -> int:
    return limits.max_in_flight


def same_epoch(self: Partition, epoch: int) -> None:
    START_EPOCH(self, max(self.epoch, 0) if self.in_flight else epoch)


def always_in_place(self: SenderCore, partition: Partition) -> None:
    for hole in partition.holes:
        hole.loose, hole.refused = False, True
    SETTLE(self, partition)


def believes_every_gap(self: SenderCore, item: InFlight, error: OctavoError, now_s: float) -> None:
    del error
    self._stored(item, -1, True, now_s)  # pyright: ignore[reportPrivateUsage]


def gap_is_a_refusal(self: SenderCore, item: InFlight, error: OctavoError, now_s: float) -> None:
    del now_s
    self._attempts.fail(item, error)  # pyright: ignore[reportPrivateUsage]


def takes_lost_for_absent(
    self: SenderCore, item: InFlight, error: OctavoError, now_s: float, *, lost: bool = False
) -> None:
    RETRY(self, item, error, now_s, lost=lost)
    item.loose = False


def leaves_no_hole(*_: object, **__: object) -> None:
    """Sequences that were given up are forgotten."""


def numbers_again(self: Attempts, item: InFlight) -> None:
    ANSWERED(self, item)
    item.base_sequence = -1


def says_earlier_failed(self: Attempts, item: InFlight, *, proved: bool) -> None:
    del proved
    self.fail(item, InvalidRecord("was not stored"))


def newest_first(self: Attempts, item: InFlight, producer_id: int, now_s: float) -> None:
    waiting = [one for one in item.partition.in_flight if one.state is State.WAITING]
    SEND(self, waiting[-1], producer_id, now_s)


def forgets_a_completion(
    self: Attempts, item: InFlight, base_offset: int, *, duplicate: bool
) -> None:
    COMPLETE(self, item, base_offset, duplicate=duplicate)
    if duplicate:
        self.actions.pop()


START_EPOCH = Partition.start_epoch
SETTLE = SenderCore._settle  # pyright: ignore[reportPrivateUsage]
RETRY = SenderCore._retry  # pyright: ignore[reportPrivateUsage]
ANSWERED = Attempts.answered
SEND = Attempts.send
COMPLETE = Attempts.complete
PLANTED: tuple[tuple[type, str, Callable[..., object]], ...] = (
    (Partition, "window", full_window),
    (Partition, "start_epoch", same_epoch),
    (Partition, "leave_hole", leaves_no_hole),
    (SenderCore, "_settle", always_in_place),
    (SenderCore, "_out_of_order", believes_every_gap),
    (SenderCore, "_out_of_order", gap_is_a_refusal),
    (SenderCore, "_retry", takes_lost_for_absent),
    (Attempts, "answered", numbers_again),
    (Attempts, "overtaken", says_earlier_failed),
    (Attempts, "send", newest_first),
    (Attempts, "complete", forgets_a_completion),
)
SCRIPTS_MAX = 300
"""Scripts until a planted fault must be seen."""


@pytest.mark.parametrize(
    ("owner", "name", "fault"), [pytest.param(*one, id=one[2].__name__) for one in PLANTED]
)
def test_planted_faults_are_found(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, fault: Callable[..., object]
) -> None:
    """The world sees what a careless change would break."""
    monkeypatch.setattr(owner, name, fault)
    for seed in range(SCRIPTS_MAX):
        world = World()
        try:
            run(world, script(seed, LONG_NAMES[seed % 4]))
            world.heal()
            world.goes_on()
            world.judge()
            assert world.stopped is None
        except (AssertionError, InvariantViolation):
            return
    pytest.fail(f"not found in {SCRIPTS_MAX} scripts")
