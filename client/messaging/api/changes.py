"""A change of the cluster that is asked for, and asked for again, until its fate is known (M-3)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import grpc

from octavo.client.messaging.cluster.calls import Call, never_left
from octavo.client.messaging.cluster.cluster import Cluster
from octavo.runtime.deadline import Deadline
from octavo.runtime.errors import BrokerUnavailable, RetriableError, Throttled, UnknownOutcome
from octavo.runtime.errors_of_groups import CoordinatorLoadInProgress, CoordinatorNotAvailable

if TYPE_CHECKING:
    from octavo.proto.broker_pb2_grpc import BrokerAsyncStub

T = TypeVar("T")
_NOTHING_DONE = (
    BrokerUnavailable,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    Throttled,
)
"""Say that a coordinator did nothing. NotCoordinator is not here: one that lost its partition
tells it whoever waits for a record whose fate it does not know."""


class Change:
    """One change of the cluster, its deadline, and whether it may have happened (M-3)."""

    def __init__(self, cluster: Cluster, what: str, timeout_s: float) -> None:
        self.deadline = Deadline(cluster.clock, timeout_s)
        self.unsure = False
        """Whether an attempt may have reached a broker whose answer was lost."""
        self._cluster = cluster
        self._what = what

    async def ask(self, call: Call[T]) -> T:
        """One attempt against any broker."""

        async def noted(stub: BrokerAsyncStub, limit: float) -> T:
            try:
                return await call(stub, limit)
            except grpc.aio.AioRpcError as error:
                self.unsure |= not never_left(error)
                raise
            except asyncio.CancelledError:  # also when the broker fell silent over it
                self.unsure = True
                raise

        return await ask_any(self._cluster, noted, self.deadline.left_s())

    @contextmanager
    def noting(self) -> Generator[None]:
        """Around one attempt at a coordinator of groups: what it fails with may leave it unsure."""
        try:
            yield
        except RetriableError as error:
            if isinstance(lost := error.__cause__, grpc.aio.AioRpcError):
                self.unsure |= not never_left(lost)
            else:
                self.unsure |= not isinstance(error, _NOTHING_DONE)
            raise

    async def settle(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat `attempt` until the deadline; UnknownOutcome where its fate stays open."""

        async def noted() -> T:
            try:
                return await attempt()
            except UnknownOutcome:  # a broker's word: it began
                self.unsure = True
                raise

        try:
            return await self._cluster.calls.retrying(noted, self.deadline.left_s())
        except UnknownOutcome:
            raise
        except RetriableError as error:  # it says nothing of an earlier attempt
            if not self.unsure:
                raise
            raise UnknownOutcome(
                f"{self._what} was not finished within {self.deadline.timeout_s:g} s and may "
                f"still go on: {error.cause}",
                hint="look again later; asking once more does no harm",
            ) from error


async def ask_any(cluster: Cluster, call: Call[T], timeout_s: float) -> T:
    """One RPC to any broker that may take its whole time."""
    return await cluster.calls.ask_any(call, timeout_s, attempt_s=timeout_s)
