"""The page of metrics over HTTP: what it answers, and that nobody who asks can hold anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest

from octavo.metrics import catalogue
from octavo.metrics import page as pages
from octavo.metrics.page import CONNECTIONS_MAX, MetricsPage
from octavo.metrics.readings import Readings
from octavo.runtime.clock import SystemClock
from octavo.runtime.errors import ConfigError
from octavo.runtime.sockets import established
from tests.metrics_client import GET, asked, page_of

WAIT_S = 30.0


@asynccontextmanager
async def shown(*sources: pages.Source) -> AsyncGenerator[MetricsPage]:
    page = MetricsPage("bookie", version="9.9", clock=SystemClock())
    page.add(*sources)
    await page.start("127.0.0.1", 0)
    try:
        yield page
    finally:
        await page.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - nothing tells the test of it
            await asyncio.sleep(0.002)


async def test_a_page_says_what_its_server_knows_and_names_the_rest() -> None:
    async def queue(readings: Readings) -> None:
        readings.add(catalogue.JOURNAL_QUEUE_ENTRIES, 12)

    async with shown(queue) as page:
        found = await page_of(page.address)
    assert found.value("octavo_bookie_journal_queue_entries") == 12
    assert found.value("octavo_build_info", version="9.9", server="bookie") == 1
    assert found.value("octavo_metrics_failures_total") == 0
    assert found.value("process_resident_memory_bytes") > 0
    assert found.families.keys() == {m.name for m in catalogue.of_server("bookie")}


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\n\r\n", b"200"),
        (b"GET /metrics?x=1 HTTP/1.0\r\nA: b\r\n\r\n", b"200"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"200"),
        (b"GET / HTTP/1.1\r\n\r\n", b"200"),
        (b"GET /other HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"\x16\x03\x01 hello\r\n\r\n", b"400"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"GET /" + b"x" * pages.REQUEST_BYTES_MAX + b"\r\n\r\n", b"431"),
        (b"GET /" + b"x" * 4 * pages.REQUEST_BYTES_MAX, b"431"),
    ],
)
async def test_requests_are_answered_by_their_status(request_line: bytes, status: bytes) -> None:
    async with shown() as page:
        reply = await asked(page.address, request_line)
        assert reply.startswith(b"HTTP/1.1 " + status + b" "), reply[:80]
        head, _, body = reply.partition(b"\r\n\r\n")
        assert b"Connection: close" in head
        assert bool(body) != request_line.startswith(b"HEAD")
        assert (await asked(page.address, GET)).startswith(b"HTTP/1.1 200 ")  # it goes on


async def test_prometheus_gets_openmetrics_when_it_asks_for_it() -> None:
    accept = b"Accept: application/openmetrics-text;version=1.0.0\r\n\r\n"
    async with shown() as page:
        reply = await asked(page.address, b"GET /metrics HTTP/1.1\r\n", accept)
    assert b"Content-Type: application/openmetrics-text" in reply
    assert reply.endswith(b"# EOF\n")


async def test_a_part_that_fails_is_left_out_and_counted() -> None:
    async def broken(_: Readings) -> None:
        raise ValueError("planted")

    async def other(readings: Readings) -> None:
        readings.add(catalogue.LEDGERS, 4)

    async with shown(broken, other) as page:
        assert (await page_of(page.address)).value("octavo_metrics_failures_total") == 1
        found = await page_of(page.address)
        assert found.value("octavo_metrics_failures_total") == 2
        assert found.value("octavo_bookie_ledgers") == 4


async def test_who_asks_while_a_page_is_made_gets_that_one() -> None:
    looks = 0
    go_on = asyncio.Event()

    async def slow(_: Readings) -> None:
        nonlocal looks
        looks += 1
        await go_on.wait()

    async with shown(slow) as page:
        asking = [asyncio.ensure_future(page.text()) for _ in range(5)]
        await until(lambda: looks == 1)
        asking[0].cancel()  # who goes away takes nothing from the others
        go_on.set()
        replies = await asyncio.gather(*asking[1:])
        assert looks == 1
        assert len(set(replies)) == 1
        await asked(page.address, GET)
        assert looks == 2


async def test_silent_clients_make_room_for_one_that_asks() -> None:
    async with shown() as page:
        port = int(page.address.rpartition(":")[2])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
        await until(lambda: page.connections == CONNECTIONS_MAX)
        assert (await asked(page.address, GET)).startswith(b"HTTP/1.1 200 ")
        first, rest = silent[0][0], silent[1:]
        assert await asyncio.wait_for(_end_of(first), WAIT_S) == b""  # the oldest, no other
        for reader, writer in rest:
            writer.write(GET)
            assert (await asyncio.wait_for(reader.read(), WAIT_S)).startswith(b"HTTP/1.1 200 ")
        for _, writer in silent:
            writer.close()


async def test_a_client_that_never_reads_is_dropped_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "CONNECTION_S", 0.1)

    async def large(readings: Readings) -> None:
        for number in range(60_000):  # more than sockets take
            readings.add(catalogue.REFUSED_ADDS, number, f"{number:040}")

    async with shown(large) as page:
        port = int(page.address.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(GET)
        await until(lambda: page.connections == 1)
        await until(lambda: page.connections == 0)
        writer.close()
        del reader
        silent = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(silent[0].read(), WAIT_S) == b""
        silent[1].close()


async def test_a_closed_page_leaves_nobody_waiting() -> None:
    async with shown() as page:
        port = int(page.address.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: page.connections == 1)
    assert await asyncio.wait_for(_end_of(reader), WAIT_S) == b""
    writer.close()
    with pytest.raises(OSError, match=str(port)):
        await asyncio.open_connection("127.0.0.1", port)


async def _end_of(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def test_pages_of_one_process_are_apart_and_share_no_port() -> None:
    async def mine(readings: Readings) -> None:
        readings.add(catalogue.LEDGERS, 1)

    async def yours(readings: Readings) -> None:
        readings.add(catalogue.LEDGERS, 2)

    async with shown(mine) as one, shown(yours) as two:
        assert (await page_of(one.address)).value("octavo_bookie_ledgers") == 1
        assert (await page_of(two.address)).value("octavo_bookie_ledgers") == 2
        third = MetricsPage("bookie", version="1", clock=SystemClock())
        with pytest.raises(ConfigError, match="cannot listen"):
            await third.start("127.0.0.1", int(one.address.rpartition(":")[2]))
        await third.close()


async def test_without_a_port_there_is_no_page_and_numbers_all_the_same() -> None:
    page = MetricsPage("broker", version="1", clock=SystemClock())
    await page.start("127.0.0.1", None)
    text, _ = await page.text()
    assert page.address == ""
    assert b"octavo_build_info" in text
    await page.close()


async def test_the_lag_of_a_blocked_loop_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.metrics.loop_lag.LOOK_S", 0.01)
    async with shown() as page:
        await until(lambda: sum(page.lag.seconds.counts) > 0)
        before = sum(page.lag.seconds.counts)
        blocked = asyncio.get_running_loop().time() + 0.15
        while asyncio.get_running_loop().time() < blocked:
            pass  # what a handler that computes does to everybody else
        await until(lambda: sum(page.lag.seconds.counts) > before)
        found = await page_of(page.address)
    count = found.value("octavo_loop_lag_seconds_count")
    assert found.value("octavo_loop_lag_seconds_bucket", le="0.05") < count


async def test_connections_of_a_port_are_counted() -> None:
    async with shown() as page:
        port = int(page.address.rpartition(":")[2])
        assert established(port) == 0
        made = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await until(lambda: page.connections == 3)
        assert established(port) == 3
        for _, writer in made:
            writer.close()
