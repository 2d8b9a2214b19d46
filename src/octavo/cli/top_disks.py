"""What bookies tell `octavo top` of their disks: asked at their control ports, side by side.

Brokers do not know it. Owns how often a bookie counts its ledgers for us, for it looks through its
index to do so. Ctrl-C ends the calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import grpc

from octavo.proto.bookie_pb2 import InfoRequest, ListLedgersRequest
from octavo.proto.bookie_pb2_grpc import BookieControlStub
from octavo.proto.endpoints import open_blocking_channel

if TYPE_CHECKING:
    from octavo.client.messaging.api.descriptions import BookieDescription

BOOKIES_MAX = 100
"""Bookies that one look asks; the disks of others are not known."""
ANSWER_TIMEOUT_S = 1.0
"""How long a look waits for all of them together."""
LEDGERS_EVERY_S = 30.0
"""How often a bookie is asked to count its ledgers."""
_ABOVE_ALL = (1 << 63) - 1

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Disk:
    """Of one bookie, as it last measured it."""

    free_bytes: int
    total_bytes: int
    """0: not measured yet."""
    ledgers: int | None
    """Ledgers it has entries of, LEDGERS_EVERY_S ago at most; None: not known."""

    @property
    def used_bytes(self) -> int:
        """What nobody can write to any more, whoever uses it."""
        return self.total_bytes - self.free_bytes

    @property
    def full(self) -> float:
        """The part in use, 0 to 1."""
        return self.used_bytes / self.total_bytes if self.total_bytes else 0.0


class DiskWatch:
    """Asks again and again; keeps what was counted, and when.

    Args:
        now_s: a monotonic clock.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._counted: dict[str, tuple[float, int]] = {}
        """When, and how many ledgers, by control address."""

    def look(self, bookies: Sequence[BookieDescription], limit_s: float) -> dict[str, Disk]:
        """The disks of those that answer within `limit_s`, by id of the bookie."""
        chosen = [one for one in bookies[:BOOKIES_MAX] if one.control_address]
        limit_s = min(limit_s, ANSWER_TIMEOUT_S)
        began_s = self._now_s()
        self._counted = {
            one.control_address: counted
            for one in chosen
            if (counted := self._counted.get(one.control_address)) is not None
            and began_s - counted[0] < LEDGERS_EVERY_S
        }
        found: dict[str, Disk] = {}
        with ExitStack() as open_channels:
            stubs = {
                one: BookieControlStub(
                    open_channels.enter_context(open_blocking_channel(one.control_address))
                )
                for one in chosen
            }
            infos = {
                one: stub.Info.future(InfoRequest(), timeout=limit_s)
                for one, stub in stubs.items()
            }  # fmt: skip
            counts = {
                one: stub.ListLedgers.future(
                    ListLedgersRequest(above=_ABOVE_ALL, limit=1), timeout=limit_s
                )
                for one, stub in stubs.items()
                if one.control_address not in self._counted
            }
            for one, count in counts.items():
                listed = _answer(count)
                if listed is not None and listed.HasField("stored"):
                    self._counted[one.control_address] = (began_s, listed.stored)
            for one, call in infos.items():
                info = _answer(call)
                if info is not None and info.bookie_id == one.bookie_id:
                    counted = self._counted.get(one.control_address)
                    found[one.bookie_id] = Disk(
                        info.free_bytes, info.disk_total_bytes, counted[1] if counted else None
                    )
        return found


def _answer(call: grpc.Future[_T]) -> _T | None:
    """What came; None if nothing did in time, whatever the reason."""
    try:
        return call.result()
    except grpc.RpcError:
        return None
