"""A RabbitMQ queue through pika's callback connection, publisher confirms outstanding."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

import pika
from pika.channel import Channel

from bench import pacing
from bench.drivers import (
    NEVER,
    POLL_TIMEOUT_S,
    MissedRecords,
    Visit,
    WriteSettings,
    complete,
)

WINDOW_RECORDS = 2_000
WINDOW_BYTES = 16 << 20
BURST = 100
"""Messages published before the loop may send them and read confirms."""
VISIT_RECORDS = 1_000
PERSISTENT = pika.BasicProperties(delivery_mode=2)


class RabbitQueueDriver:
    """One connection and one channel; its loop runs while a task is under way."""

    def __init__(self, port: int) -> None:
        self._error: str | None = None
        self._channel: Channel | None = None
        self._next_tag = 1
        self._outstanding: deque[int] = deque()
        """Delivery tags sent and not confirmed, in order."""
        self._confirmed: Callable[[int], None] | None = None
        """Called with each delivery tag that was confirmed."""
        self._connection = pika.SelectConnection(
            pika.ConnectionParameters("127.0.0.1", port, heartbeat=0),
            on_open_callback=lambda c: c.channel(on_open_callback=self._opened),
            on_open_error_callback=lambda _, error: self._fail(repr(error)),
            on_close_callback=lambda _, error: self._fail(repr(error)),
        )
        self._loop = self._connection.ioloop
        self._run()

    def _run(self) -> None:
        """Run the loop until something stops it; raises what went wrong."""
        self._loop.start()
        if self._error is not None:
            raise MissedRecords(self._error)

    def _fail(self, text: str) -> None:
        self._error = text
        self._loop.stop()

    def _opened(self, channel: Channel) -> None:
        self._channel = channel
        channel.add_on_close_callback(lambda _, error: self._fail(repr(error)))
        channel.confirm_delivery(self._confirm, callback=lambda _: self._loop.stop())

    def _confirm(self, frame: pika.frame.Method) -> None:
        if not isinstance(frame.method, pika.spec.Basic.Ack):
            self._fail("a message was rejected")
            return
        tag, every = frame.method.delivery_tag, frame.method.multiple
        while self._outstanding and every and self._outstanding[0] <= tag:
            self._tell(self._outstanding.popleft())
        if not every:
            if self._outstanding[0] == tag:
                self._outstanding.popleft()
            else:
                self._outstanding.remove(tag)
            self._tell(tag)

    def _tell(self, tag: int) -> None:
        if self._confirmed is not None:
            self._confirmed(tag)

    def _publish(self, topic: str, value: bytes) -> int:
        assert self._channel is not None
        self._channel.basic_publish("", topic, value, PERSISTENT)
        tag, self._next_tag = self._next_tag, self._next_tag + 1
        self._outstanding.append(tag)
        return tag

    # --- tasks -------------------------------------------------------------------------------

    def write(self, topic: str, values: Iterable[bytes], settings: WriteSettings) -> int:
        source: Iterator[bytes] = iter(values)
        acked, ended, asked = 0, False, False
        window = WINDOW_RECORDS

        def more() -> None:
            nonlocal ended, asked, window
            asked = False
            for _ in range(BURST):
                if ended or len(self._outstanding) >= window:
                    break
                value = next(source, None)
                if value is None:
                    ended = True
                    break
                window = max(min(WINDOW_RECORDS, WINDOW_BYTES // len(value)), 4)
                self._publish(topic, value)
            if ended and not self._outstanding:
                self._loop.stop()
            elif not ended and len(self._outstanding) < window:
                ask()

        def ask() -> None:
            nonlocal asked
            if not asked:
                asked = True
                self._loop.call_later(0, more)

        def confirmed(_: int) -> None:
            nonlocal acked
            acked += 1
            if not ended or not self._outstanding:
                ask()

        self._confirmed = confirmed
        ask()
        self._run()
        self._confirmed = None
        return acked

    def paced(
        self, topic: str, per_s: float, count: int, make: Callable[[float], bytes]
    ) -> list[float]:
        clock, samples, number = time.monotonic, [NEVER] * count, 0
        tags: dict[int, int] = {}
        schedule = pacing.soon(clock, per_s, count)

        def tick() -> None:
            nonlocal number
            while number < count and schedule.due(number) <= clock():
                tags[self._publish(topic, make(schedule.due(number)))] = number
                number += 1
            if number < count:
                self._loop.call_later(max(schedule.due(number) - clock(), 0), tick)

        def confirmed(tag: int) -> None:
            which = tags.pop(tag)
            samples[which] = clock() - schedule.due(which)
            if number == count and not tags:
                self._loop.stop()

        self._confirmed = confirmed
        self._loop.call_later(0, tick)
        self._run()
        self._confirmed = None
        return complete(samples)

    def follow(
        self, topic: str, count: int, ready: Callable[[], None], seen: Callable[[bytes], None]
    ) -> None:
        self._consume(topic, count, seen, ready)

    def _consume(
        self,
        topic: str,
        count: int,
        seen: Callable[[bytes], None],
        ready: Callable[[], None] | None = None,
    ) -> None:
        assert self._channel is not None
        got, last = 0, 0

        def take(_: Channel, __: object, ___: object, body: bytes) -> None:
            nonlocal got
            if got < count:
                got += 1
                seen(body)
            if got == count:
                self._loop.stop()

        def watch() -> None:
            nonlocal last
            if got == last:
                self._fail(f"{got} of {count} records came")
            last = got
            self._loop.call_later(POLL_TIMEOUT_S, watch)

        def started(_: object) -> None:
            if ready is not None:
                ready()
            self._loop.call_later(POLL_TIMEOUT_S, watch)

        self._channel.basic_consume(topic, take, auto_ack=True, callback=started)
        self._run()

    def read(self, topic: str, count: int, visit: Visit | None) -> tuple[int, int]:
        payload, kept = 0, list[bytes | None]()

        def seen(body: bytes) -> None:
            nonlocal payload
            payload += len(body)
            if visit is not None:
                kept.append(body)
                if len(kept) == VISIT_RECORDS:
                    visit(kept)
                    kept.clear()

        self._consume(topic, count, seen)
        if visit is not None and kept:
            visit(kept)
        return count, payload

    def read_arrow(self, topic: str, count: int, visit: Visit | None) -> tuple[int, int]:
        raise MissedRecords("this client has no Arrow")

    def close(self) -> None:
        if self._connection.is_open:
            self._connection.close()
            self._loop.start()


def connect(endpoint: Mapping[str, str]) -> RabbitQueueDriver:
    """From the endpoint of `bench.systems.rabbit`."""
    return RabbitQueueDriver(int(endpoint["amqp"]))
