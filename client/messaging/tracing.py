"""Spans of one client, and the context of a trace in the headers of records (F171, interface §4.2).

Made only for a client with `tracing=True`: without it nothing here runs and OpenTelemetry is not
loaded. Spans go to the tracer provider that the program set up; without one nothing is recorded and
nothing is carried. Names stand in `octavo.proto.tracing`.

    span             kind      lasts
    send TOPIC       producer  until the record, or all records of a `send_many`, have an outcome
    receive TOPIC    client    one reading call that gave records; links to those who sent them
    process TOPIC    consumer  the block of `trace_processing`
    commit           client    one request to the coordinator

A send that is refused for want of memory (BufferFull) has no span: `send` waits and tries again.
Nor has one above SPANS_MAX: a span is some 30 times as large as a small record, and buffer_memory
does not count it. OpenTelemetry has locks of its own, so a client that traces should not send from
signal handlers and finalisers, as others may.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import grpc

from octavo.client.messaging.records import Headers, Record
from octavo.client.messaging.user_code import ClientLog
from octavo.proto import tracing as t

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span

LINKS_MAX = 128
"""Senders that a `receive` span links to; records beyond it count in its message count."""
SPANS_MAX = 10_000
"""Sends of one client without an outcome that have spans; further ones have none and carry no
context."""
Attributes = dict[str, str | int]

_log = ClientLog("octavo.client")


def carried_by(headers: Headers) -> str:
    """The `traceparent` in a record's headers; empty without one, or with one too long to be one:
    a header is the user's, and what it holds goes once more beside the batch."""
    for name, value in headers:
        if name == t.TRACEPARENT:
            if value is None or len(value) > t.TRACEPARENT_CHARACTERS_MAX:
                return ""
            return value.decode("ascii", "replace")
    return ""


class Sending:
    """One record, or the records of one bulk send, until they have an outcome.

    Attributes:
        carried: the headers that give the span's context to whoever reads them; perhaps none.
    """

    __slots__ = ("_open", "_span", "carried")

    def __init__(self, span: Span, open_sends: deque[None]) -> None:
        self._span = span
        self._open: deque[None] | None = open_sends
        open_sends.append(None)
        self.carried = _carried(span)

    def delivered(self, partition: int) -> None:
        """They are acknowledged; -1: in several partitions."""
        if partition >= 0:
            self._span.set_attribute(t.PARTITION, str(partition))
        self._end()

    def counted(self, records: int) -> None:
        """So many were acknowledged."""
        self._span.set_attribute(t.MESSAGES, records)

    def failed(self, error: BaseException) -> None:
        """They were refused, given up, or never went in."""
        _note_error(self._span, error)
        self._end()

    def forgotten(self) -> None:
        """It is tried again, with a span of its own; this one is told to nobody."""
        counted, self._open = self._open, None  # once, also if a handler interrupted the end
        if counted is not None:
            counted.pop()

    def _end(self) -> None:
        self.forgotten()
        self._span.end()


class ClientTracing:
    """The spans of one client. Raises ConfigError when OpenTelemetry is not installed."""

    def __init__(self, client_id: str) -> None:
        self._api = t.opentelemetry()
        self._tracer = t.tracer(self._api)
        self._client: Attributes = {t.SYSTEM: t.SYSTEM_NAME, t.CLIENT_ID: client_id}
        self._open: deque[None] = deque()
        """One for each send without an outcome: a count that any thread may change, without a
        lock."""
        self._told = False

    def interceptors(self) -> Sequence[grpc.aio.ClientInterceptor]:
        """They give unary calls the present span's context."""
        return (t.CallTracing(self._api),)

    def sending(self, topic: str) -> Sending | None:
        """Begin the span of a send; its parent is the present span of the caller's thread. None
        above SPANS_MAX."""
        if len(self._open) >= SPANS_MAX:
            if not self._told:
                self._told = True
                _log.warning("%d sends have no outcome yet: others have no spans", SPANS_MAX)
            return None
        span = self._tracer.start_span(
            f"send {topic}",
            kind=self._api.SpanKind.PRODUCER,
            attributes=self._of("send", "send", topic),
        )
        return Sending(span, self._open)

    def now_ns(self) -> int:
        """When a reading call began, for `received`."""
        return time.time_ns()

    def received(self, records: Sequence[Record], began_ns: int, group_id: str | None) -> None:
        """The span of a reading call that gave these records."""
        parents = (carried_by(record.headers) for record in records if record.headers)
        places = {(record.topic, record.partition) for record in records}
        self._received(places, len(records), parents, began_ns, group_id)

    def received_columns(
        self, places: set[tuple[str, int]], records: int, began_ns: int, group_id: str | None
    ) -> None:
        """The same of an Arrow poll, whose records are not opened: no links."""
        self._received(places, records, (), began_ns, group_id)

    def _received(
        self,
        places: set[tuple[str, int]],
        records: int,
        parents: Iterable[str],
        began_ns: int,
        group_id: str | None,
    ) -> None:
        topics = {topic for topic, _ in places}
        topic = topics.pop() if len(topics) == 1 else ""
        attributes = self._of("receive", "receive", topic, group_id)
        attributes[t.MESSAGES] = records
        if len(places) == 1:
            attributes[t.PARTITION] = str(next(iter(places))[1])
        span = self._tracer.start_span(
            f"receive {topic}".rstrip(),
            kind=self._api.SpanKind.CLIENT,
            attributes=attributes,
            links=_links(self._api, parents),
            start_time=began_ns,
        )
        span.end()

    @contextmanager
    def committing(self, group_id: str) -> Generator[None]:
        """The span of a request that commits offsets; present while it is under way."""
        with self._tracer.start_as_current_span(
            "commit",
            kind=self._api.SpanKind.CLIENT,
            attributes=self._of("commit", "settle", "", group_id),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except BaseException as error:
                _note_error(span, error)
                raise

    def _of(
        self, operation: str, kind: str, topic: str = "", group_id: str | None = None
    ) -> Attributes:
        found = {**self._client, t.OPERATION: operation, t.OPERATION_TYPE: kind}
        if topic:
            found[t.DESTINATION] = topic
        if group_id is not None:
            found[t.GROUP] = group_id
        return found


def trace_processing(record: Record, *, group: str | None = None) -> AbstractContextManager[Span]:
    """A span for what a program does with one record: `with trace_processing(record): ...`.

    It links to the span that sent the record, and belongs to its trace unless there is a present
    span. An exception ends it as failed and goes on. Raises ConfigError when OpenTelemetry is not
    installed.
    """
    return _processing(t.opentelemetry(), record, group)


@contextmanager
def _processing(api: Any, record: Record, group: str | None) -> Generator[Span]:
    attributes: Attributes = {
        t.SYSTEM: t.SYSTEM_NAME,
        t.OPERATION: "process",
        t.OPERATION_TYPE: "process",
        t.DESTINATION: record.topic,
        t.PARTITION: str(record.partition),
        t.OFFSET: record.offset,
    }
    if group is not None:
        attributes[t.GROUP] = group
    links = _links(api, [carried_by(record.headers)])
    context = None
    if links and not api.get_current_span().get_span_context().is_valid:
        context = api.set_span_in_context(api.NonRecordingSpan(links[0].context))
    with t.tracer(api).start_as_current_span(
        f"process {record.topic}",
        context=context,
        kind=api.SpanKind.CONSUMER,
        attributes=attributes,
        links=links,
        record_exception=True,
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except BaseException as error:
            _note_error(span, error)
            raise


def with_context(headers: Headers, carried: Headers) -> Headers:
    """A record's headers and the context; those who propagate one by themselves keep theirs."""
    if not carried or any(name == t.TRACEPARENT for name, _ in headers):
        return headers
    return [*headers, *carried]


def _carried(span: Span) -> Headers:
    context = span.get_span_context()
    text = t.traceparent_of(context)
    if not text:
        return ()
    state = context.trace_state.to_header()
    if not state or len(state) > t.TRACESTATE_CHARACTERS_MAX:
        return ((t.TRACEPARENT, text.encode()),)
    return ((t.TRACEPARENT, text.encode()), (t.TRACESTATE, state.encode()))


def _links(api: Any, parents: Iterable[str]) -> list[Link]:
    """One for each sender, in their order."""
    found: dict[t.TraceParent, None] = {}
    for text in parents:
        parent = t.parse_traceparent(text)
        if parent is not None:
            found[parent] = None
            if len(found) == LINKS_MAX:
                break
    return [api.Link(t.remote_context(api, parent)) for parent in found]


def _note_error(span: Span, error: BaseException) -> None:
    """What went wrong, by the name of its class; its text is the status'."""
    api = t.opentelemetry()
    span.set_attribute(t.ERROR_TYPE, type(error).__name__)
    span.set_status(api.Status(api.StatusCode.ERROR, str(error)))
