"""Has the decisions of `core` noted: by one broker, and by one record (ADR 40).

The registered broker with the lowest id decides; the others follow what moves, so that the next
one knows it. Two that think they are the first do no harm: of two decisions from one state of the
record one has no effect. A decision that was not noted is dropped, never made again: the next
evaluation looks at what is then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NamedTuple

from octavo.metadata.placements import Placed
from octavo.runtime.clock import Clock
from octavo.runtime.errors import OctavoError
from octavo.runtime.telemetry import get_logger
from octavo.serving.config import BrokerConfig
from octavo.serving.fleet import Fleet
from octavo.serving.placement import preferred_owners
from octavo.serving.shedding.board import LoadBoard
from octavo.serving.shedding.core import Forget, Move, Seen, Shedding, SheddingLimits

_log = get_logger("octavo.serving.shedding")


class Known(NamedTuple):
    """What is asked of the rest of the broker."""

    me: str
    confirm: Callable[[], Awaitable[bool]]
    """Ask the metadata store: whether this broker is registered."""
    certain: Callable[[], bool]
    """Whether it surely is, without asking: for a moment after `confirm`."""
    owners: Callable[[], Mapping[int, str]]
    """Who has each bundle, as far as is known."""
    suspected: Callable[[], Collection[str]]
    """Brokers that do not answer."""


class Shedder:
    """One broker's part in moving bundles from the busy to the idle."""

    def __init__(
        self, fleet: Fleet, board: LoadBoard, known: Known, config: BrokerConfig, clock: Clock
    ) -> None:
        self._fleet = fleet
        self._board = board
        self._known = known
        self._interval_s = config.shedding_interval_s
        self._clock = clock
        self._core = Shedding(limits_of(config))

    async def run(self) -> None:
        """For as long as the broker lives."""
        while True:
            await self._clock.sleep(self._interval_s)
            try:
                await self.step()
            except OctavoError as error:
                _log.info("nothing-shed", cause=error.cause)

    async def step(self) -> None:
        """One evaluation; raises what the metadata store raises."""
        fleet = self._fleet
        now_s = self._clock.monotonic()
        if not self._is_first() or not await self._known.confirm():
            placed = Placed(fleet.placements.brokers(), None)
            self._core.rested(self._seen(placed, now_s), now_s)
            return
        placed = await fleet.placements.read()
        now_s = self._clock.monotonic()
        decided = self._core.evaluate(self._seen(placed, now_s), now_s)
        if not decided or not self._known.certain():  # after a pause it is old
            return
        brokers = dict(placed.brokers)
        for action in decided:
            if isinstance(action, Move):
                brokers[action.bundle] = action.target
            else:
                brokers.pop(action.bundle, None)
        if await fleet.placements.replace(placed, brokers):
            self._tell(decided)
        else:
            _log.info("another-decided-first", dropped=len(decided))

    def _is_first(self) -> bool:
        live = [broker.broker_id for broker in self._fleet.brokers.live()]
        return live[:1] == [self._known.me]

    def _seen(self, placed: Placed, now_s: float) -> Seen:
        fleet = self._fleet
        eligible = fleet.eligible()
        registered = [broker.broker_id for broker in fleet.brokers.live()]
        marked = [broker for broker in registered if fleet.is_marked(broker)]
        wanted = preferred_owners(fleet.bundles, eligible, placed.brokers)
        return Seen(
            registered=frozenset(registered),
            eligible=frozenset(eligible).difference(marked),
            suspected=frozenset(self._known.suspected()),
            owners=dict(self._known.owners()),
            wanted=dict(enumerate(wanted)),
            placed=dict(placed.brokers),
            loads=self._board.fresh(now_s),
        )

    @staticmethod
    def _tell(decided: Collection[Move | Forget]) -> None:
        for action in decided:
            if isinstance(action, Move):
                _log.info(
                    "bundle-shed",
                    bundle=action.bundle,
                    source=action.source,
                    target=action.target,
                    usage=round(action.usage, 3),
                )
            else:
                _log.info("placement-forgotten", bundle=action.bundle)


def limits_of(config: BrokerConfig) -> SheddingLimits:
    """When bundles move, as a broker was told."""
    return SheddingLimits(
        above_average=config.shedding_above_average_percent / 100,
        overload=config.shedding_overload_percent / 100,
        hits=config.shedding_hits,
        grace_s=config.shedding_grace_s,
        moves_max=config.shedding_moves_max,
    )
