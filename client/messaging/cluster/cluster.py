"""What all parts of one client share on its loop: connections and what is known of the cluster.

Owns the gRPC channels, the list of brokers, topic metadata and the search for partition owners
(F045, F046). Reads of `views` are allowed from any thread; everything else runs on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import grpc

from octavo.client.messaging.cluster.progress import PROBE_S, SilentBrokers
from octavo.client.messaging.cluster.search_pauses import search_pause_s
from octavo.client.messaging.cluster.topic_lives import TopicLives, TopicView
from octavo.client.messaging.config import ClientConfig
from octavo.client.messaging.user_code import ClientLog
from octavo.proto import broker_pb2 as pb
from octavo.proto.batch import DEFAULT_RECORD_BYTES, MAX_BATCH_BYTES, MAX_RECORD_BYTES
from octavo.proto.broker_pb2_grpc import BrokerStub
from octavo.proto.endpoints import open_channel
from octavo.proto.errors import from_rpc_error, from_wire
from octavo.runtime.clock import Clock
from octavo.runtime.deadline import Deadline
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import (
    BrokerUnavailable,
    IllegalStateError,
    InconsistentTopicId,
    NotLeader,
    OctavoError,
    RequestTimedOut,
    UnknownTopic,
)
from octavo.runtime.retry import Backoff
from octavo.runtime.tasks import TaskOwner

if TYPE_CHECKING:
    from octavo.proto.broker_pb2_grpc import BrokerAsyncStub

_log = ClientLog("octavo.client")
T = TypeVar("T")
ProduceCall = grpc.aio.StreamStreamCall[bytes, pb.ProduceReply]
FetchCall = grpc.aio.StreamStreamCall[pb.FetchRequest, bytes]

MESSAGE_BYTES_MAX = 64 << 20
"""gRPC message limit of both directions: above the largest fetch (G7)."""
FRAME_BYTES_MAX = 1 << 20
"""HTTP/2 frames the client accepts: the default of 16 KiB costs a tenth of a read's CPU."""
RECORD_LIMIT_SETTING = "max.message.bytes"
PRODUCE_METHOD = "/octavo.broker.Broker/Produce"
FETCH_METHOD = "/octavo.broker.Broker/Fetch"
REDIRECTS_MAX = 20
"""Longest chain of Lookup redirects that is followed."""
ATTEMPT_TIMEOUT_S = 5.0
"""One try against one broker when any broker will do; then the next is asked."""
ATTEMPT_MIN_S = 0.02
"""An attempt with less time than this would only say that it had none."""
COMPLETE_LOOKUPS = 16
"""Partitions looked up at a time so that each gets an owner."""
COMPLETE_ROUNDS_MAX = 30
SAY_WAITING_EVERY_S = 10.0
"""Whoever waits for a cluster hears at once why, and then no more often than this."""

_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.http2.max_frame_size", FRAME_BYTES_MAX),
)


Call = Callable[
    ["BrokerAsyncStub", float],  # pyright: ignore[reportGeneralTypeIssues]
    Awaitable[T],
]
"""One RPC against a stub with a timeout in seconds."""


def never_left(error: grpc.aio.AioRpcError) -> bool:
    """Whether a failed RPC surely reached nobody: there was no connection. False when in doubt."""
    details = error.details() or ""
    return error.code() is grpc.StatusCode.UNAVAILABLE and (
        "failed to connect" in details or "DNS resolution failed" in details
    )


def is_silence(error: OctavoError) -> bool:
    """Whether `error` only says that no broker answered, and not what one answered."""
    return isinstance(error, BrokerUnavailable | RequestTimedOut)


def with_answer(error: OctavoError, answered: OctavoError | None) -> OctavoError:
    """`error`; one that no broker gave becomes what a broker `answered` before it, and says both.

    An answer that is final, such as "no such topic", is only told: it may be out of date.
    """
    if answered is None or not is_silence(error):
        return error
    kind = type(answered) if answered.retriable else type(error)
    return kind(
        f"{answered.cause} (the last answer before the time ended; then {error.cause})",
        hint=answered.hint,
        **{**answered.details, **error.details},
    )


class Cluster:
    """Connections and metadata of one client."""

    def __init__(
        self,
        servers: tuple[str, ...],
        config: ClientConfig,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self.config = config
        self.clock = clock
        self.entropy = entropy
        self.views: dict[str, TopicView] = {}
        self.max_record_bytes = MAX_RECORD_BYTES
        self.cluster_id = ""
        self.tasks = TaskOwner("octavo-client")
        self._bootstrap = servers
        self._brokers: list[str] = []
        self._preferred = 0
        self._watchers: list[Callable[[TopicView], None]] = []
        self._completing: set[str] = set()
        """Topics whose missing owners are being asked for."""
        self._lives = TopicLives()
        self._silent = SilentBrokers()
        self._probes: dict[str, asyncio.Task[bool]] = {}
        self._searching = 0
        self._channels: dict[str, tuple[grpc.aio.Channel, BrokerAsyncStub]] = {}
        self._refreshing: dict[str, asyncio.Task[OctavoError | None]] = {}
        self._refresher_started = False
        self._said_s = -SAY_WAITING_EVERY_S
        self._closed = False

    async def close(self) -> None:
        """Close every connection. Calls under way in other tasks end with IllegalStateError."""
        self._closed = True
        try:
            await self.tasks.close()
        finally:  # also when it is cancelled; closing a channel waits for nothing
            channels, self._channels = self._channels, {}
            for channel, _ in channels.values():
                await channel.close()

    # --- connections ----------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise IllegalStateError once the client is closed."""
        if self._closed:
            raise IllegalStateError("the client was closed during the call")

    def _check_not_closed_meanwhile(self) -> None:
        """Tell who was not cancelled itself that closing ended what it waited for.

        A task that is being cancelled must end by that: one that retries would take an error for
        one more failure, go on, and closing would wait for it for ever.
        """
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            self.check_open()

    def stub(self, address: str) -> BrokerAsyncStub:
        """The stub of one broker; connects on first use."""
        found = self._channels.get(address)
        if found is None:
            channel = open_channel(
                address, *_CHANNEL_OPTIONS, use_http_proxy=self.config.use_http_proxy
            )
            found = self._channels[address] = (channel, BrokerStub(channel))
        return found[1]

    def fetch_stream(self, address: str) -> FetchCall:
        """A new Fetch stream to one broker; its replies are the bytes `proto.fetch_wire` reads."""
        self.stub(address)
        method: grpc.aio.StreamStreamMultiCallable[pb.FetchRequest, bytes] = self._channels[
            address
        ][0].stream_stream(FETCH_METHOD, request_serializer=pb.FetchRequest.SerializeToString)
        return method()

    def produce_stream(self, address: str) -> ProduceCall:
        """A new Produce stream to one broker; its messages come from `proto.produce_wire`."""
        self.stub(address)
        method: grpc.aio.StreamStreamMultiCallable[bytes, pb.ProduceReply] = self._channels[
            address
        ][0].stream_stream(PRODUCE_METHOD, response_deserializer=pb.ProduceReply.FromString)
        return method()

    def _addresses(self) -> list[str]:
        known = list(dict.fromkeys([*self._brokers, *self._bootstrap]))
        turn = self._preferred % len(known)
        return self._silent.last(known[turn:] + known[:turn])

    def backoff(self) -> Backoff:
        """Delays between attempts, as configured."""
        return Backoff(
            self.entropy,
            initial_s=self.config.retry_backoff_ms / 1000,
            max_s=self.config.retry_backoff_max_ms / 1000,
        )

    @property
    def request_timeout_s(self) -> float:
        """How long one request may take."""
        return self.config.request_timeout_ms / 1000

    async def ask(self, address: str, call: Call[T], timeout_s: float) -> T:
        """One RPC to one broker; raises OctavoError."""
        self.check_open()
        try:
            reply = await call(self.stub(address), max(timeout_s, 0.001))
        except (asyncio.CancelledError, grpc.aio.UsageError):
            self._check_not_closed_meanwhile()  # closing the channel cancels what is under way
            raise
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                self._silent.fell_silent(address)
            raise from_rpc_error(error, address) from error
        self._silent.answered(address)
        return reply

    async def responds(self, address: str) -> bool:
        """Whether a broker answers a trifle within PROBE_S; simultaneous callers share the try."""
        return await self._shared(self._probe(address))

    async def _shared(self, task: asyncio.Task[T]) -> T:
        """The result of a task that others wait for too."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                self._check_not_closed_meanwhile()  # closing ended the task, nobody the caller
            raise

    def _probe(self, address: str) -> asyncio.Task[bool]:
        task = self._probes.get(address)
        if task is None or task.done():  # done: cancelled before it began
            task = self.tasks.spawn(self._try(address), name=f"probe {address}")
            self._probes[address] = task
        return task

    async def _try(self, address: str) -> bool:
        request = pb.MetadataRequest()  # names no topic: answered without a look into any store
        try:
            await self.ask(
                address, lambda stub, limit: stub.Metadata(request, timeout=limit), PROBE_S
            )
        except OctavoError as error:
            _log.info("broker %s does not answer: %s", address, error.cause)
            self._silent.fell_silent(address)
            return False
        finally:
            self._probes.pop(address, None)
        return True

    async def ask_any(
        self, call: Call[T], timeout_s: float, attempt_s: float = ATTEMPT_TIMEOUT_S
    ) -> T:
        """One RPC to whichever broker answers, until `timeout_s` is over.

        Raises BrokerUnavailable naming every address tried and why it failed; its detail
        `unanswered` counts attempts that may have reached a broker which then said nothing.
        """
        deadline = Deadline(self.clock, timeout_s)
        backoff = self.backoff()
        failures: dict[str, str] = {}
        unanswered = 0
        while True:
            for address in self._addresses():
                if failures and deadline.passed:
                    break
                try:
                    return await self.ask(address, call, deadline.left_s(attempt_s))
                except (BrokerUnavailable, RequestTimedOut) as error:
                    failures[address] = error.cause
                    unanswered += isinstance(error, RequestTimedOut)
                    self._preferred += 1
            tried = "; ".join(failures.values())
            delay = backoff.next_s()
            if deadline.left_s() <= delay:
                raise BrokerUnavailable(
                    f"no broker answered within {timeout_s:.3g} s: {tried}", unanswered=unanswered
                )
            self.say_waiting(f"no broker answers yet: {tried}", deadline)
            await self.clock.sleep(delay)

    def say_waiting(self, why: str, deadline: Deadline) -> None:
        """Warn that something is waited for, at once but not again and again."""
        now_s = self.clock.monotonic()
        if now_s - self._said_s >= SAY_WAITING_EVERY_S and deadline.left_s() > 1.0:
            self._said_s = now_s
            _log.warning("%s (trying for another %.3g s)", why, deadline.left_s())

    # --- metadata -------------------------------------------------------------------------------

    def _note(self, reply: pb.MetadataReply) -> None:
        if self.cluster_id and reply.cluster_id and reply.cluster_id != self.cluster_id:
            _log.warning(
                "broker %s belongs to cluster %s, not %s",
                reply.answering_broker,
                reply.cluster_id,
                self.cluster_id,
            )
        self.cluster_id = self.cluster_id or reply.cluster_id
        self._brokers = [broker.address for broker in reply.brokers if broker.address]
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
                )
                admitted = self._lives.admit(view)
                if admitted is not None:
                    self._know(admitted)
            elif from_wire(topic.error).code == UnknownTopic.code:
                self.views.pop(topic.name, None)

    def watch(self, callback: Callable[[TopicView], None]) -> Callable[[], None]:
        """Call back with every view that arrives; returns what ends it.

        While anybody watches, partitions without a known owner (of a fresh topic, or on the move)
        are looked up, which makes a broker take them: nobody goes on as if only the partitions
        first seen existed, or waits for an owner that nobody causes.
        """
        self._watchers.append(callback)
        return lambda: self._watchers.remove(callback)

    def _know(self, view: TopicView) -> None:
        self.views[view.name] = view
        for callback in list(self._watchers):
            callback(view)
        if self._watchers and "" in view.owners and view.name not in self._completing:
            self._completing.add(view.name)
            task = self.tasks.spawn(self._complete(view.name), name="find-owners")
            task.add_done_callback(lambda _: self._completing.discard(view.name))

    async def _complete(self, name: str) -> None:
        """Cause the missing owners; after COMPLETE_ROUNDS_MAX the next metadata begin anew."""
        backoff = self.backoff()
        for _ in range(COMPLETE_ROUNDS_MAX):
            await self.clock.sleep(backoff.next_s())  # they may be loading already
            await self.refresh_quietly(name)
            missing = self._ownerless(name)
            while missing and self._watchers:
                some = missing[:COMPLETE_LOOKUPS]
                async with asyncio.TaskGroup() as group:
                    for number in some:
                        group.create_task(self._cause_owner(name, number))
                await self.refresh_quietly(name)  # whoever took one took its whole bundle
                missing = self._ownerless(name)
                if set(missing) >= set(some):
                    break  # nobody could be found for these: later again
            if not missing or not self._watchers:
                return

    def _ownerless(self, name: str) -> list[int]:
        view = self.views.get(name)
        return [] if view is None else [p for p, owner in enumerate(view.owners) if not owner]

    async def _cause_owner(self, name: str, partition: int) -> None:
        deadline = Deadline(self.clock, self.request_timeout_s)
        try:
            await self._lookup(name, partition, deadline)
        except OctavoError as error:
            _log.debug("no owner of %s-%s yet: %s", name, partition, error)

    async def metadata(
        self, topics: Iterable[str], *, all_topics: bool = False, timeout_s: float | None = None
    ) -> pb.MetadataReply:
        """Ask any broker and remember the answer."""
        request = pb.MetadataRequest(topics=topics, all_topics=all_topics)
        reply = await self.ask_any(
            lambda stub, limit: stub.Metadata(request, timeout=limit),
            self.request_timeout_s if timeout_s is None else timeout_s,
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
        self.check_open()
        self._start_refresher()
        limit_s = self.request_timeout_s if timeout_s is None else timeout_s
        task = self._refreshing.get(name)
        if task is None or task.done():  # done: cancelled before it began
            # The shared request outlives a short caller: whoever joins it may have more time.
            task = self.tasks.spawn(
                self._refresh_topic(name, self.request_timeout_s), name="refresh"
            )
            self._refreshing[name] = task
        done, _ = await asyncio.wait((task,), timeout=limit_s)
        if not done:
            raise RequestTimedOut(f"metadata of {name!r} not known within {limit_s:.3g} s")
        if task.cancelled():
            self.check_open()
            raise BrokerUnavailable(f"the request for metadata of {name!r} was cancelled")
        error = task.result()
        if error is not None:
            raise error
        view = self.views.get(name)
        if view is None or view.partitions == 0:
            raise UnknownTopic(f"topic {name!r} does not exist")
        return view

    async def topic(self, name: str, timeout_s: float) -> TopicView:
        """Metadata of a topic, cached; UNKNOWN_TOPIC is retried until `timeout_s` (F031)."""
        found = self.views.get(name)
        if found is not None:
            return found
        deadline = Deadline(self.clock, timeout_s)
        return await self.retrying(
            lambda: self.refresh(name, deadline.left_s()), timeout_s, also=UnknownTopic
        )

    async def retrying(
        self,
        attempt: Callable[[], Awaitable[T]],
        timeout_s: float,
        also: type[OctavoError] | None = None,
    ) -> T:
        """Repeat `attempt` with back-off while its error is retriable (or is `also`).

        When the time ends an attempt without an answer, the error is the last one answered.
        """
        deadline = Deadline(self.clock, timeout_s)
        backoff = self.backoff()
        answered: OctavoError | None = None
        while True:
            try:
                return await attempt()
            except OctavoError as error:
                again = error.retriable or (also is not None and isinstance(error, also))
                delay = backoff.next_s()
                if not again or deadline.left_s() <= delay:
                    raise with_answer(error, answered) from error.__cause__
                if not is_silence(error):
                    answered = error
                if also is not None and isinstance(error, also):
                    self.say_waiting(error.cause, deadline)
                last = error
            await self.clock.sleep(delay)
            if deadline.left_s() < ATTEMPT_MIN_S:  # it slept longer than it was told
                raise with_answer(last, answered) from last.__cause__

    async def refresh_quietly(self, name: str, timeout_s: float = ATTEMPT_TIMEOUT_S) -> None:
        """Warm the cache; a failure only means that the next use asks again."""
        try:
            await self.refresh(name, min(timeout_s, ATTEMPT_TIMEOUT_S))
        except OctavoError as error:
            _log.debug("metadata of %s not yet known: %s", name, error)

    def _start_refresher(self) -> None:
        if not self._refresher_started:
            self._refresher_started = True
            self.tasks.spawn(self._refresh_for_ever(), name="metadata-age")

    async def _refresh_for_ever(self) -> None:
        """F121: metadata never gets older than metadata_max_age_ms."""
        while True:
            await self.clock.sleep(self.config.metadata_max_age_ms / 1000)
            names = list(self.views)
            if not names:
                continue
            try:
                await self.metadata(names)
            except OctavoError as error:
                _log.warning("metadata refresh failed, will try again: %s", error)

    # --- owners ---------------------------------------------------------------------------------

    async def find_owner(
        self, topic: str, partition: int, *, avoid: str = "", timeout_s: float | None = None
    ) -> str:
        """Address of the partition's owner by fresh metadata, else by Lookup (O-2).

        `avoid` is an address that just failed: metadata naming it again is not trusted. All of it
        takes `timeout_s` at most, the request timeout by default.
        """
        limit_s = self.request_timeout_s if timeout_s is None else timeout_s
        deadline = Deadline(self.clock, limit_s)
        view = await self.refresh(topic, limit_s)
        owner = view.owners[partition] if partition < view.partitions else ""
        if owner and owner != avoid and owner not in self._silent:
            return owner
        owner = await self._lookup(topic, partition, deadline)
        self._check_answers(owner, topic, partition)
        return owner

    def _check_answers(self, owner: str, topic: str, partition: int) -> None:
        """Raise BrokerUnavailable for a broker that fell silent; a try on the side clears it."""
        if owner in self._silent:
            self._probe(owner)
            raise BrokerUnavailable(f"{owner} should serve {topic}-{partition} and does not answer")

    async def pause_search(self, error: OctavoError, backoff: Backoff) -> None:
        """Wait before a producer looks for an owner again after `error`."""
        self._searching += 1
        try:
            await self.clock.sleep(search_pause_s(backoff.next_s(), error, self._searching))
        finally:
            self._searching -= 1

    async def _lookup(self, topic: str, partition: int, deadline: Deadline) -> str:
        view = self.views.get(topic)
        topic_id = b"" if view is None else view.topic_id
        request = pb.LookupRequest(topic=topic, partition=partition, topic_id=topic_id)
        left_s = deadline.left_s()
        reply = await self.ask_any(
            lambda stub, limit: stub.Lookup(request, timeout=limit), left_s, attempt_s=left_s
        )
        for _ in range(REDIRECTS_MAX):
            if reply.HasField("error"):
                error = from_wire(reply.error)
                if isinstance(error, InconsistentTopicId):
                    self.life_is_over(topic, topic_id)
                raise error
            if not reply.redirect:
                if reply.owner_address:
                    return reply.owner_address
                break
            self._check_answers(reply.owner_address, topic, partition)
            reply = await self.ask(
                reply.owner_address,
                lambda stub, limit: stub.Lookup(request, timeout=limit),
                deadline.left_s(),
            )
        raise NotLeader(f"no owner of {topic}-{partition} found within {REDIRECTS_MAX} redirects")

    async def owner(self, topic: str, partition: int, timeout_s: float | None = None) -> str:
        """The remembered owner, else `find_owner`."""
        view = self.views.get(topic)
        known = view.owners[partition] if view is not None and partition < view.partitions else ""
        if known and known not in self._silent:
            return known
        return await self.find_owner(topic, partition, timeout_s=timeout_s)

    def life_is_over(self, topic: str, topic_id: bytes) -> None:
        """An owner refused this id: learn which topic has the name now."""
        if not topic:
            return
        self._lives.over(topic, topic_id)
        view = self.views.get(topic)
        if view is None or view.topic_id == topic_id:
            self.views.pop(topic, None)
            self.tasks.spawn(self.refresh_quietly(topic), name="refresh")

    def owner_is(self, topic: str, partition: int, address: str) -> None:
        """Remember an owner learnt elsewhere; empty forgets it."""
        view = self.views.get(topic)
        if view is not None and partition < view.partitions:
            owners = list(view.owners)
            owners[partition] = address
            self.views[topic] = view._replace(owners=tuple(owners))
