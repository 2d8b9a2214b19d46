"""Completions and futures: resolved in bulk, waited for from anywhere."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from octavo.client.messaging.producing.futures import Completion, SendFuture
from octavo.client.messaging.records import RecordMetadata
from octavo.runtime.errors import DeliveryFailed, RequestTimedOut


def pending() -> Completion:
    completion = Completion("t", 3)
    completion.timestamps_ms = [10, 11]
    return completion


def test_result_of_each_record() -> None:
    completion = pending()
    futures = [SendFuture(completion, 0), SendFuture(completion, 1)]
    assert not futures[0].done()
    completion.succeed(100)
    assert futures[1].result() == ("t", 3, 101, 11, False)
    assert futures[0].exception() is None
    assert "acknowledged" in repr(futures[0])


def test_unknown_offset_stays_unknown() -> None:
    completion = pending()
    completion.succeed(-1)
    assert SendFuture(completion, 1).result().offset == -1


def test_the_first_outcome_stays() -> None:
    completion = pending()
    completion.fail(DeliveryFailed("x"))
    completion.succeed(5)
    with pytest.raises(DeliveryFailed):
        SendFuture(completion, 0).result()


def test_waiting_ends_with_a_timeout_and_the_send_goes_on() -> None:
    future = SendFuture(pending(), 0)
    with pytest.raises(RequestTimedOut):
        future.result(timeout=0)
    assert not future.done()


def test_waiting_from_another_thread() -> None:
    completion = pending()
    results: list[int] = []
    thread = threading.Thread(
        target=lambda: results.append(SendFuture(completion, 0).result(30).offset)
    )
    thread.start()
    completion.succeed(7)
    thread.join(30)
    assert results == [7]


def test_callbacks_run_once_also_when_late_and_one_failing_does_not_stop_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    completion = pending()
    future = SendFuture(completion, 1)
    seen: list[int] = []

    def boom(_: SendFuture) -> None:
        raise ValueError("user error")

    future.add_done_callback(boom)
    future.add_done_callback(lambda done: seen.append(done.result().offset))
    with caplog.at_level(logging.ERROR):
        completion.succeed(0)
    future.add_done_callback(lambda done: seen.append(done.result().offset))
    assert seen == [1, 1]
    assert "callback" in caplog.text


async def test_await_from_a_loop_resolved_by_another_thread() -> None:
    completion = pending()
    future = SendFuture(completion, 0)

    async def waiter() -> int:
        return (await future).offset

    tasks = [asyncio.ensure_future(waiter()) for _ in range(3)]
    await asyncio.sleep(0)
    thread = threading.Thread(target=lambda: completion.succeed(5))
    thread.start()
    assert await asyncio.gather(*tasks) == [5, 5, 5]
    thread.join()
    assert (await future).offset == 5


async def test_cancelling_one_waiter_leaves_the_send_alone() -> None:
    completion = pending()

    async def waiter() -> None:
        await SendFuture(completion, 0)

    task = asyncio.ensure_future(waiter())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    completion.succeed(1)
    assert (await SendFuture(completion, 0)).offset == 1


async def test_await_raises_the_error() -> None:
    completion = pending()
    completion.fail(DeliveryFailed("too late"))
    with pytest.raises(DeliveryFailed, match="too late"):
        await SendFuture(completion, 0)


def test_only_looking_at_the_outcome_counts_as_seen() -> None:
    completion = pending()
    assert not completion.observed
    future = SendFuture(completion, 0)
    future.done()
    assert not completion.observed
    completion.succeed(1)
    future.exception()
    assert completion.observed


def test_what_is_told_of_a_record_is_a_tuple_of_five_with_duplicate_last() -> None:
    done = Completion("t", 3)
    done.timestamps_ms = [70, 80]
    future = SendFuture(done, 1)
    done.succeed(5)
    meta = future.result(0)
    topic, partition, offset, *_ = meta
    assert (topic, partition, offset) == ("t", 3, 6)
    assert meta == ("t", 3, 6, 80, False)
    assert meta == RecordMetadata("t", 3, 6, 80), "who makes one by hand needs no fifth"
    assert meta != meta._replace(duplicate=True)
    assert meta._asdict()["duplicate"] is False
    assert repr(meta).endswith("duplicate=False)")
