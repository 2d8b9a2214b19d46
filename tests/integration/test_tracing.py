"""Spans of clients and brokers over a real gRPC connection, and `trace_id` in logs (F171, F172)."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pyarrow as pa
import pytest
import pytest_asyncio
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from octavo.client.messaging import (
    AsyncClient,
    AsyncProducer,
    Client,
    Record,
    trace_processing,
)
from octavo.client.messaging import tracing as client_tracing
from octavo.errors import (
    BufferFull,
    InvalidPartition,
    MessageTooLarge,
    NotEnoughReplicas,
    OctavoError,
)
from octavo.runtime.telemetry import LineFormatter
from tests.group_brokers import QUICK
from tests.serving_server import Client as RawClient
from tests.serving_server import loopback

WAIT_S = 60.0


class Spans:
    """What was recorded."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def all(self, name: str = "") -> list[ReadableSpan]:
        return [one for one in self._exporter.get_finished_spans() if one.name.startswith(name)]

    def one(self, name: str) -> ReadableSpan:
        (found,) = self.all(name)
        return found

    async def later(self, name: str, count: int = 1) -> list[ReadableSpan]:
        """A broker's span ends after its answer left."""
        async with asyncio.timeout(WAIT_S):
            while len(self.all(name)) < count:  # noqa: ASYNC110  its exporter rings no bell
                await asyncio.sleep(0.01)
        return self.all(name)


@pytest.fixture
def spans() -> Iterator[Spans]:
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        provider = TracerProvider(shutdown_on_exit=False)
        trace.set_tracer_provider(provider)
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield Spans(exporter)
    exporter.shutdown()


@pytest_asyncio.fixture
async def broker(spans: Spans) -> AsyncIterator[RawClient]:
    async with loopback() as made:
        yield await made.broker("broker-1", tracing=True, **cast("dict[str, Any]", QUICK))


def context_of(span: ReadableSpan) -> trace.SpanContext:
    context: trace.SpanContext | None = span.context
    assert context is not None
    return context


def traceparent(span: ReadableSpan) -> str:
    context = context_of(span)
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def is_child(child: ReadableSpan, parent: ReadableSpan) -> bool:
    found = child.parent
    return (
        found is not None
        and found.span_id == context_of(parent).span_id
        and context_of(child).trace_id == context_of(parent).trace_id
    )


def headers_of(record: Record) -> dict[str, bytes | None]:
    return dict(record.headers)


async def read(client: AsyncClient, count: int) -> list[Record]:
    found: list[Record] = []
    async with client.reader("orders") as reader, asyncio.timeout(WAIT_S):
        while len(found) < count:
            found += await reader.poll()
    return found


async def test_f171_one_trace_from_the_sender_over_the_broker_to_who_processes(
    broker: RawClient, spans: Spans
) -> None:
    ours = trace.get_tracer("test")
    async with AsyncClient(broker.address, tracing=True, client_id="me") as client:
        await client.admin.create_topic("orders", partitions=1)
        async with client.producer() as producer:
            with ours.start_as_current_span("order"):
                await producer.send("orders", b"one", headers={"a": b"1"})
        (record,) = await read(client, 1)
        with trace_processing(record, group="billing") as working:
            assert trace.get_current_span() is working
    order, send, process = spans.one("order"), spans.one("send orders"), spans.one("process orders")
    (append,) = await spans.later("append orders")
    assert is_child(send, order)
    assert is_child(append, send)
    assert is_child(process, send)
    assert [link.context.span_id for link in process.links] == [context_of(send).span_id]
    assert headers_of(record) == {"a": b"1", "traceparent": traceparent(send).encode()}
    assert (send.kind, append.kind, process.kind) == (
        trace.SpanKind.PRODUCER,
        trace.SpanKind.SERVER,
        trace.SpanKind.CONSUMER,
    )
    assert attributes(send) == {
        "messaging.system": "octavo",
        "messaging.client.id": "me",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
    }
    assert attributes(append)["messaging.octavo.offset"] == record.offset == 0
    assert attributes(process)["messaging.consumer.group.name"] == "billing"
    receive = spans.one("receive orders")
    assert receive.kind is trace.SpanKind.CLIENT
    assert attributes(receive)["messaging.batch.message_count"] == 1
    assert [link.context.span_id for link in receive.links] == [context_of(send).span_id]
    assert receive.start_time is not None
    assert receive.end_time is not None
    assert receive.start_time <= receive.end_time


async def test_without_tracing_no_record_has_a_context_and_nobody_makes_spans(
    broker: RawClient, spans: Spans
) -> None:
    async with AsyncClient(broker.address) as client:
        await client.admin.create_topic("orders", partitions=1)
        async with client.producer() as producer:
            with trace.get_tracer("test").start_as_current_span("order"):
                await producer.send("orders", b"one")
                await producer.send_many("orders", [b"two", b"three"])
        records = await read(client, 3)
    assert [record.headers for record in records] == [()] * 3
    assert [one.name for one in spans.all()] == ["order"]


async def test_every_way_to_send_has_one_span_and_carries_its_context(
    broker: RawClient, spans: Spans
) -> None:
    async with AsyncClient(broker.address, tracing=True) as client:
        await client.admin.create_topic("orders", partitions=1)
        async with client.producer() as producer:
            early = producer.send_nowait("orders", b"before the topic is known")
            await early
            await producer.send_nowait("orders", b"after")
            await producer.send_many("orders", [b"a", b"b"], headers=[{"x": b"1"}, None])
            await producer.send_arrow("orders", pa.table({"value": [b"c", b"d", b"e"]}))
        records = await read(client, 7)
    sends = spans.all("send orders")
    assert [attributes(one).get("messaging.batch.message_count") for one in sends] == [
        None, None, 2, 3,
    ]  # fmt: skip
    carried = [client_tracing.carried_by(record.headers) for record in records]
    wanted = [traceparent(one) for one in sends]
    assert carried == [wanted[0], wanted[1], wanted[2], wanted[2], "", "", ""]
    assert headers_of(records[2])["x"] == b"1"
    receives = spans.all("receive orders")
    assert sum(int(str(attributes(one)["messaging.batch.message_count"])) for one in receives) == 7
    links = [link.context.span_id for one in receives for link in one.links]
    assert list(dict.fromkeys(links)) == [context_of(one).span_id for one in sends[:3]]


async def test_ids_and_contexts_go_together(broker: RawClient, spans: Spans) -> None:
    """X14: a partition goes by the last header, the id, so a context stands before it."""
    async with AsyncClient(broker.address, tracing=True) as client:
        await client.admin.create_topic("orders", partitions=1, config={"dedup.window.ms": "60000"})
        async with client.producer() as producer:
            for _ in range(2):
                await producer.send("orders", b"one", dedup_id="1")
                await producer.send_many("orders", [b"two", b"three"], dedup_ids=["2", "3"])
        records = await read(client, 3)
    assert [record.value for record in records] == [b"one", b"two", b"three"]
    sends = [traceparent(one) for one in spans.all("send orders")]
    carried = [client_tracing.carried_by(record.headers) for record in records]
    assert carried == [sends[0], sends[1], sends[1]]


async def test_what_fails_ends_its_span_with_the_error(broker: RawClient, spans: Spans) -> None:
    async with AsyncClient(broker.address, tracing=True) as client:
        await client.admin.create_topic("orders", partitions=1)
        async with client.producer() as producer:
            with pytest.raises(NotEnoughReplicas):
                await producer.send("orders", b"refused", min_insync_replicas=3)
            with pytest.raises(InvalidPartition):
                await producer.send("orders", b"nowhere", partition=7)
            with pytest.raises(MessageTooLarge):
                producer.send_nowait("orders", b"x" * (2 << 20))
            with pytest.raises(TypeError):
                await producer.send_many("orders", [object()])  # type: ignore[list-item]
    kinds = ["NotEnoughReplicas", "InvalidPartition", "MessageTooLarge", "TypeError"]
    sends = spans.all("send orders")
    assert [attributes(one)["error.type"] for one in sends] == kinds
    assert all(one.status.status_code is trace.StatusCode.ERROR for one in sends)
    (append,) = await spans.later("append orders")
    assert attributes(append)["error.type"] == "NotEnoughReplicas"
    assert is_child(append, sends[0])
    record = Record("t", 0, 1, None, b"", (), 0)
    with pytest.raises(ValueError, match="wrong"), trace_processing(record):
        raise ValueError("wrong")
    process = spans.one("process t")
    assert (attributes(process)["error.type"], process.parent) == ("ValueError", None)


def fill(producer: AsyncProducer) -> None:
    """Until it takes no more."""
    while True:
        producer.send_nowait("orders", b"x" * 1_000_000)


async def test_sends_above_the_bound_have_no_span_and_those_after_them_have_again(
    broker: RawClient, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_tracing, "SPANS_MAX", 2)
    async with AsyncClient(broker.address, tracing=True) as client:
        await client.admin.create_topic("orders", partitions=1)
        async with client.producer(linger_ms=60_000) as producer:
            first = [producer.send_nowait("orders", b"%d" % number) for number in range(4)]
            await producer.send_many("orders", [b"4", b"5"])
            assert all(future.done() for future in first)
            with pytest.raises(InvalidPartition):
                await producer.send("orders", b"nowhere", partition=7)
            await producer.send_many("orders", [b"6", b"7"])
        async with client.producer(buffer_memory=4 << 20, max_block_ms=1) as small:
            for _ in range(5):
                with pytest.raises(BufferFull):
                    fill(small)
                await small.flush()
        records = await read(client, 28)
    carried = [client_tracing.carried_by(record.headers) for record in records]
    assert [bool(one) for one in carried[:8]] == [True] * 2 + [False] * 4 + [True] * 2
    assert [bool(one) for one in carried[8:12]] == [True] * 2 + [False] * 2
    assert len(spans.all("send orders")) == 2 + 2 + 5 * 2


async def test_traced_sends_that_nobody_looked_at_are_still_told_at_the_end(
    broker: RawClient,
) -> None:
    """U2: a span that follows a record is nobody who looked at its outcome."""
    async with AsyncClient(broker.address, tracing=True) as client:
        await client.admin.create_topic("orders", partitions=1)
        producer = client.producer()
        producer.send_nowait("orders", b"refused", min_insync_replicas=3)
        with pytest.raises(OctavoError, match="1 record"):
            await producer.close()


async def test_a_blocking_client_takes_the_span_of_its_caller(
    broker: RawClient, spans: Spans
) -> None:
    def work() -> None:
        with (
            Client(broker.address, tracing=True) as client,
            trace.get_tracer("test").start_as_current_span("order"),
        ):
            client.admin.create_topic("orders", partitions=1)
            with client.producer() as producer:
                producer.send("orders", b"one")
                producer.send_many("orders", [b"two", b"three"])
                producer.send_arrow("orders", pa.table({"value": [b"four"]}))
            with client.reader("orders") as reader:
                found: list[Record] = []
                while len(found) < 4:
                    found += reader.poll()

    await asyncio.to_thread(work)
    order = spans.one("order")
    sends = spans.all("send orders")
    assert [is_child(one, order) for one in sends] == [True] * 3
    assert all(is_child(one, order) for one in spans.all("receive orders"))
    (created,) = await spans.later("octavo.broker.Broker/CreateTopic")
    assert is_child(created, order)
    assert attributes(created)["server.address"] == "127.0.0.1"


async def test_commits_and_calls_about_groups_are_spans_of_client_and_coordinator(
    broker: RawClient, spans: Spans
) -> None:
    async with AsyncClient(broker.address, tracing=True) as client:
        await client.admin.create_topic("orders", partitions=1)
        async with client.producer() as producer:
            await producer.send("orders", b"one")
        with trace.get_tracer("test").start_as_current_span("work"):
            consumer = client.consumer("orders", group="billing", auto_offset_reset="earliest")
            async with consumer, asyncio.timeout(WAIT_S):
                while not await consumer.poll():
                    pass
                await consumer.commit()
    work = spans.one("work")
    commit = spans.all("commit")[0]
    assert attributes(commit)["messaging.consumer.group.name"] == "billing"
    assert attributes(commit)["messaging.operation.type"] == "settle"
    called = await spans.later("octavo.coordinator.Groups/CommitOffsets")
    assert is_child(called[0], commit)
    assert is_child(commit, work)
    calls = spans.all("octavo.")
    assert not [one.name for one in calls if one.name.endswith("Heartbeat")], "no end of them"
    receive = spans.one("receive orders")
    assert attributes(receive)["messaging.consumer.group.name"] == "billing"


class Log(logging.Handler):
    """Lines as a server writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(LineFormatter("json"))
        self.lines: list[dict[str, object]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))


@contextmanager
def logged() -> Generator[Log]:
    """Ours alone, so that records are handed to it as to a server's."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    made = Log()
    root.handlers[:] = [made]
    root.setLevel("INFO")
    try:
        yield made
    finally:
        root.handlers[:] = before
        root.setLevel(level)


@pytest.mark.parametrize("makes_spans", [True, False])
async def test_f172_a_brokers_log_lines_have_the_trace_id_with_or_without_spans(
    spans: Spans, *, makes_spans: bool
) -> None:
    with logged() as log:
        async with loopback() as made:
            broker = await made.broker(tracing=makes_spans)
            async with AsyncClient(broker.address, tracing=True) as client:
                with trace.get_tracer("test").start_as_current_span("order") as order:
                    await client.admin.create_topic("orders", partitions=1)
                    async with client.producer() as producer:
                        await producer.send("orders", b"one")
                    await client.admin.delete_topic("orders")
    trace_id = f"{order.get_span_context().trace_id:032x}"
    (deleted,) = [line for line in log.lines if line["event"] == "topic-deleted"]
    assert deleted["trace_id"] == trace_id
    assert list(deleted)[:6] == ["ts", "level", "component", "event", "topic", "trace_id"]
    (claimed,) = [line for line in log.lines if line["event"] == "partition-claimed"]
    assert "trace_id" not in claimed, "it serves whoever comes, and outlives the request"
    assert bool(spans.all("octavo.broker.Broker/DeleteTopic")) == makes_spans
