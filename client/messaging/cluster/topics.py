"""What a client knows of topics: their newest views, by name, and whom that concerns.

Reads of `views` are allowed from any thread; everything else runs on the client's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from octavo.client.messaging.cluster.calls import ATTEMPT_TIMEOUT_S, Calls
from octavo.client.messaging.cluster.topic_lives import TopicLives, TopicView
from octavo.client.messaging.user_code import ClientLog
from octavo.proto import broker_pb2 as pb
from octavo.proto.batch import DEFAULT_RECORD_BYTES, MAX_BATCH_BYTES, MAX_RECORD_BYTES
from octavo.proto.errors import from_wire
from octavo.runtime.deadline import Deadline
from octavo.runtime.errors import BrokerUnavailable, OctavoError, RequestTimedOut, UnknownTopic

_log = ClientLog("octavo.client")

RECORD_LIMIT_SETTING = "max.message.bytes"


class Topics:
    """Views of topics, asked for once however many want them, and never older than configured."""

    def __init__(self, calls: Calls) -> None:
        self.views: dict[str, TopicView] = {}
        self.max_record_bytes = MAX_RECORD_BYTES
        self.cluster_id = ""
        self._calls = calls
        self._listeners: list[Callable[[TopicView], None]] = []
        self._lives = TopicLives()
        self._refreshing: dict[str, asyncio.Task[OctavoError | None]] = {}
        self._refresher_started = False

    def listen(self, callback: Callable[[TopicView], None]) -> None:
        """Call back with every view that arrives, for as long as the client lives."""
        self._listeners.append(callback)

    def _note(self, reply: pb.MetadataReply) -> None:
        if self.cluster_id and reply.cluster_id and reply.cluster_id != self.cluster_id:
            _log.warning(
                "broker %s belongs to cluster %s, not %s",
                reply.answering_broker,
                reply.cluster_id,
                self.cluster_id,
            )
        self.cluster_id = self.cluster_id or reply.cluster_id
        self._calls.brokers_are([broker.address for broker in reply.brokers if broker.address])
        if reply.max_record_bytes:
            self.max_record_bytes = min(MAX_RECORD_BYTES, reply.max_record_bytes)
        for topic in reply.topics:
            if not topic.HasField("error"):
                parts = sorted(topic.partitions, key=lambda item: item.partition)
                owners = tuple(part.owner_address for part in parts)
                limit = topic.config.get(RECORD_LIMIT_SETTING, "")
                view = TopicView(
                    topic.name,
                    len(parts),
                    owners,
                    int(limit or MAX_BATCH_BYTES),
                    topic.topic_id,
                    topic.created_ms,
                    record_bytes_max=int(limit or DEFAULT_RECORD_BYTES),
                    decommissioned=frozenset(
                        part.partition for part in parts if part.decommissioned
                    ),
                )
                admitted = self._lives.admit(view)
                if admitted is not None:
                    self._know(admitted)
            elif from_wire(topic.error).code == UnknownTopic.code:
                self.views.pop(topic.name, None)

    def _know(self, view: TopicView) -> None:
        self.views[view.name] = view
        for callback in self._listeners:
            callback(view)

    async def metadata(
        self,
        topics: Iterable[str],
        *,
        with_effective: bool = False,
        timeout_s: float | None = None,
    ) -> pb.MetadataReply:
        """Ask any broker and remember the answer."""
        request = pb.MetadataRequest(topics=topics, with_effective=with_effective)
        reply = await self._calls.ask_any(
            lambda stub, limit: stub.Metadata(request, timeout=limit),
            self._calls.request_timeout_s if timeout_s is None else timeout_s,
        )
        self._note(reply)
        return reply

    async def _refresh_topic(self, name: str, timeout_s: float) -> OctavoError | None:
        """The shared request behind `refresh`; its error is a value because many wait for it."""
        try:
            reply = await self.metadata([name], timeout_s=timeout_s)
        except OctavoError as error:
            return error
        finally:
            self._refreshing.pop(name, None)
        for topic in reply.topics:
            if topic.name == name and topic.HasField("error"):
                return from_wire(topic.error)
        return None

    async def refresh(self, name: str, timeout_s: float | None = None) -> TopicView:
        """Fresh metadata of one topic; simultaneous callers share a request."""
        self._calls.check_open()
        self._start_refresher()
        limit_s = self._calls.request_timeout_s if timeout_s is None else timeout_s
        task = self._refreshing.get(name)
        if task is None or task.done():  # done: cancelled before it began
            # The shared request outlives a short caller: whoever joins it may have more time.
            task = self._calls.tasks.spawn(
                self._refresh_topic(name, self._calls.request_timeout_s), name="refresh"
            )
            self._refreshing[name] = task
        done, _ = await asyncio.wait((task,), timeout=limit_s)
        if not done:
            raise RequestTimedOut(f"metadata of {name!r} not known within {limit_s:.3g} s")
        if task.cancelled():
            self._calls.check_open()
            raise BrokerUnavailable(f"the request for metadata of {name!r} was cancelled")
        error = task.result()
        if error is not None:
            raise error
        view = self.views.get(name)
        if view is None or view.partitions == 0:
            raise UnknownTopic(f"topic {name!r} does not exist")
        return view

    async def get(self, name: str, timeout_s: float) -> TopicView:
        """Metadata of a topic, cached; UNKNOWN_TOPIC is retried until `timeout_s` (F031)."""
        found = self.views.get(name)
        if found is not None:
            return found
        deadline = Deadline(self._calls.clock, timeout_s)
        return await self._calls.retrying(
            lambda: self.refresh(name, deadline.left_s()), timeout_s, also=UnknownTopic
        )

    async def refresh_quietly(self, name: str, timeout_s: float = ATTEMPT_TIMEOUT_S) -> None:
        """Warm the cache; a failure only means that the next use asks again."""
        try:
            await self.refresh(name, min(timeout_s, ATTEMPT_TIMEOUT_S))
        except OctavoError as error:
            _log.debug("metadata of %s not yet known: %s", name, error)

    def _start_refresher(self) -> None:
        if not self._refresher_started:
            self._refresher_started = True
            self._calls.tasks.spawn(self._refresh_for_ever(), name="metadata-age")

    async def _refresh_for_ever(self) -> None:
        """F121: metadata never gets older than metadata_max_age_ms."""
        while True:
            await self._calls.clock.sleep(self._calls.config.metadata_max_age_ms / 1000)
            names = list(self.views)
            if not names:
                continue
            try:
                await self.metadata(names)
            except OctavoError as error:
                _log.warning("metadata refresh failed, will try again: %s", error)

    def life_is_over(self, topic: str, topic_id: bytes) -> None:
        """An owner refused this id: learn which topic has the name now."""
        if not topic:
            return
        self._lives.over(topic, topic_id)
        view = self.views.get(topic)
        if view is None or view.topic_id == topic_id:
            self.views.pop(topic, None)
            self._calls.tasks.spawn(self.refresh_quietly(topic), name="refresh")

    def owner_is(self, topic: str, partition: int, address: str) -> None:
        """Remember an owner learnt elsewhere; empty forgets it."""
        view = self.views.get(topic)
        if view is not None and partition < view.partitions:
            owners = list(view.owners)
            owners[partition] = address
            self.views[topic] = view._replace(owners=tuple(owners))
