"""Who coordinates a group, and what it is asked (group-protocol; groups §18).

A coordinator is remembered until it does not answer, or says that it is none: then any broker is
asked for it. Runs on the client's loop.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Protocol, TypeVar

from octavo.client.messaging.cluster.calls import Calls, GroupCall
from octavo.proto import broker_pb2, groups_pb2
from octavo.proto.errors import from_wire
from octavo.runtime.deadline import Deadline
from octavo.runtime.errors import BrokerUnavailable, RequestTimedOut
from octavo.runtime.errors_of_groups import CoordinatorNotAvailable, NotCoordinator

COORDINATORS_MAX = 10_000
"""Groups whose coordinator is remembered; beyond it the oldest is asked for again."""
_GONE = (NotCoordinator, CoordinatorNotAvailable, BrokerUnavailable, RequestTimedOut)


class _Reply(Protocol):
    """Of any call to a coordinator."""

    @property
    def error(self) -> broker_pb2.Error: ...


R = TypeVar("R", bound=_Reply)


class Coordinators:
    """Of the groups that one client has to do with."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._known: OrderedDict[str, str] = OrderedDict()

    async def of(self, group_id: str, timeout_s: float) -> str:
        """Address of the coordinator; raises OctavoError when nobody says it in time."""
        known = self._known.get(group_id)
        if known is not None and known not in self._calls.silent:
            return known
        request = groups_pb2.FindCoordinatorRequest(group_ids=[group_id])
        call: GroupCall[groups_pb2.FindCoordinatorReply] = lambda stub, limit_s: (  # noqa: E731
            stub.FindCoordinator(request, timeout=limit_s)
        )
        reply = await self._calls.any_of(
            lambda address, limit_s: self._calls.ask_group(address, call, limit_s), timeout_s
        )
        for found in reply.coordinators:
            if found.HasField("error"):
                raise from_wire(found.error)
            if found.group_id == group_id and found.address:
                self._known[group_id] = found.address
                if len(self._known) > COORDINATORS_MAX:
                    self._known.popitem(last=False)
                return found.address
        raise CoordinatorNotAvailable(f"nobody coordinates group {group_id!r} yet")

    async def ask(
        self, group_id: str, call: GroupCall[R], timeout_s: float, *, held_s: float = 0.0
    ) -> R:
        """One attempt at the coordinator; raises the error that it answers, or its silence.

        `held_s`: so long it may keep the request for reasons of its own, as it does heartbeats.
        """
        deadline = Deadline(self._calls.clock, timeout_s)
        address = await self.of(group_id, timeout_s)
        try:
            attempt = partial(self._calls.ask_group, address, call, deadline.left_s())
            reply = await self._calls.watched(address, attempt, held_s=held_s)
            if reply.error.code:
                raise from_wire(reply.error)
        except _GONE:
            if self._known.get(group_id) == address:
                del self._known[group_id]
            raise
        return reply

    async def insist(self, group_id: str, call: GroupCall[R], timeout_s: float) -> R:
        """The same again and again, until `timeout_s` is over, while the error may heal."""
        deadline = Deadline(self._calls.clock, timeout_s)
        limit_s = self._calls.request_timeout_s
        return await self._calls.retrying(
            lambda: self.ask(group_id, call, deadline.left_s(limit_s)), timeout_s
        )
