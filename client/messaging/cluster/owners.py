"""Who owns a partition: remembered, told by metadata, or found by Lookup (F045, F046, O-2).

Runs on the client's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from octavo.client.messaging.cluster.calls import Calls
from octavo.client.messaging.cluster.search_pauses import search_pause_s
from octavo.client.messaging.cluster.topic_lives import TopicView
from octavo.client.messaging.cluster.topics import Topics
from octavo.client.messaging.user_code import ClientLog
from octavo.proto import broker_pb2 as pb
from octavo.proto.errors import from_wire
from octavo.runtime.deadline import Deadline
from octavo.runtime.errors import BrokerUnavailable, InconsistentTopicId, NotLeader, OctavoError
from octavo.runtime.retry import Backoff

_log = ClientLog("octavo.client")

REDIRECTS_MAX = 20
"""Longest chain of Lookup redirects that is followed."""
COMPLETE_LOOKUPS = 16
"""Partitions looked up at a time so that each gets an owner."""
COMPLETE_ROUNDS_MAX = 30


class Owners:
    """Finds owners, and causes those that are missing while somebody watches."""

    def __init__(self, calls: Calls, topics: Topics) -> None:
        self._calls = calls
        self._topics = topics
        self._watchers: list[Callable[[TopicView], None]] = []
        self.completing: set[str] = set()
        """Topics whose missing owners are being asked for."""
        self._searching = 0
        topics.listen(self._told)

    def watch(self, callback: Callable[[TopicView], None]) -> Callable[[], None]:
        """Call back with every view that arrives; returns what ends it.

        While anybody watches, partitions without a known owner (of a fresh topic, or on the move)
        are looked up, which makes a broker take them: nobody goes on as if only the partitions
        first seen existed, or waits for an owner that nobody causes.
        """
        self._watchers.append(callback)
        return lambda: self._watchers.remove(callback)

    def _told(self, view: TopicView) -> None:
        for callback in list(self._watchers):
            callback(view)
        if self._watchers and "" in view.owners and view.name not in self.completing:
            self.completing.add(view.name)
            task = self._calls.tasks.spawn(self._complete(view.name), name="find-owners")
            task.add_done_callback(lambda _: self.completing.discard(view.name))

    async def _complete(self, name: str) -> None:
        """Cause the missing owners; after COMPLETE_ROUNDS_MAX the next metadata begin anew."""
        backoff = self._calls.backoff()
        for _ in range(COMPLETE_ROUNDS_MAX):
            await self._calls.clock.sleep(backoff.next_s())  # they may be loading already
            await self._topics.refresh_quietly(name)
            missing = self._ownerless(name)
            while missing and self._watchers:
                some = missing[:COMPLETE_LOOKUPS]
                async with asyncio.TaskGroup() as group:
                    for number in some:
                        group.create_task(self._cause_owner(name, number))
                await self._topics.refresh_quietly(name)  # whoever took one took its whole bundle
                missing = self._ownerless(name)
                if set(missing) >= set(some):
                    break  # nobody could be found for these: later again
            if not missing or not self._watchers:
                return

    def _ownerless(self, name: str) -> list[int]:
        view = self._topics.views.get(name)
        return [] if view is None else [p for p, owner in enumerate(view.owners) if not owner]

    async def _cause_owner(self, name: str, partition: int) -> None:
        deadline = Deadline(self._calls.clock, self._calls.request_timeout_s)
        try:
            await self._lookup(name, partition, deadline)
        except OctavoError as error:
            _log.debug("no owner of %s-%s yet: %s", name, partition, error)

    async def find(
        self, topic: str, partition: int, *, avoid: str = "", timeout_s: float | None = None
    ) -> str:
        """Address of the partition's owner by fresh metadata, else by Lookup (O-2).

        `avoid` is an address that just failed: metadata naming it again is not trusted. All of it
        takes `timeout_s` at most, the request timeout by default.
        """
        limit_s = self._calls.request_timeout_s if timeout_s is None else timeout_s
        deadline = Deadline(self._calls.clock, limit_s)
        view = await self._topics.refresh(topic, limit_s)
        owner = view.owners[partition] if partition < view.partitions else ""
        if owner and owner != avoid and owner not in self._calls.silent:
            return owner
        owner = await self._lookup(topic, partition, deadline)
        self._check_answers(owner, topic, partition)
        return owner

    def _check_answers(self, owner: str, topic: str, partition: int) -> None:
        """Raise BrokerUnavailable for a broker that fell silent; a try on the side clears it."""
        if owner in self._calls.silent:
            self._calls.probe(owner)
            raise BrokerUnavailable(f"{owner} should serve {topic}-{partition} and does not answer")

    async def pause_search(self, error: OctavoError, backoff: Backoff) -> None:
        """Wait before a producer looks for an owner again after `error`."""
        self._searching += 1
        try:
            delay_s = search_pause_s(backoff.next_s(), error, self._searching)
            await self._calls.clock.sleep(delay_s)
        finally:
            self._searching -= 1

    async def _lookup(self, topic: str, partition: int, deadline: Deadline) -> str:
        view = self._topics.views.get(topic)
        topic_id = b"" if view is None else view.topic_id
        request = pb.LookupRequest(topic=topic, partition=partition, topic_id=topic_id)
        left_s = deadline.left_s()
        reply = await self._calls.ask_any(
            lambda stub, limit: stub.Lookup(request, timeout=limit), left_s, attempt_s=left_s
        )
        for _ in range(REDIRECTS_MAX):
            if reply.HasField("error"):
                error = from_wire(reply.error)
                if isinstance(error, InconsistentTopicId):
                    self._topics.life_is_over(topic, topic_id)
                raise error
            if not reply.redirect:
                if reply.owner_address:
                    return reply.owner_address
                break
            self._check_answers(reply.owner_address, topic, partition)
            reply = await self._calls.watched(
                reply.owner_address, partial(self._ask, reply.owner_address, request, deadline)
            )
        raise NotLeader(f"no owner of {topic}-{partition} found within {REDIRECTS_MAX} redirects")

    async def _ask(
        self, address: str, request: pb.LookupRequest, deadline: Deadline
    ) -> pb.LookupReply:
        return await self._calls.ask(
            address, lambda stub, limit: stub.Lookup(request, timeout=limit), deadline.left_s()
        )

    async def of(self, topic: str, partition: int, timeout_s: float | None = None) -> str:
        """The remembered owner, else `find`."""
        view = self._topics.views.get(topic)
        known = view.owners[partition] if view is not None and partition < view.partitions else ""
        if known and known not in self._calls.silent:
            return known
        return await self.find(topic, partition, timeout_s=timeout_s)
