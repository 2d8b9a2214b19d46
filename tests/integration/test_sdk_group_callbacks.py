"""Callbacks that call back into their consumer, and callbacks that raise (RB11, X04).

In each of the three, by each call, on both flavours: the call does what it says or is refused with
a type, nothing waits for ever, and the member goes on, or is closed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import cast

import pytest

from octavo import AsyncClient, Client, TopicPartition
from octavo.client.messaging.api.options import GroupOptions
from octavo.errors import CommitFailed, IllegalStateError, OctavoError
from tests.group_client import RawMember
from tests.group_cluster import GroupCluster

PARTITIONS, RECORDS = 2, 4
CALLS = (
    "poll", "poll_arrow", "next", "commit", "commit_async", "committed", "position", "seek",
    "seek_to_end", "pause", "resume", "assignment", "subscribe", "unsubscribe", "assign", "close",
)  # fmt: skip
REFUSED = {"poll", "poll_arrow", "next", "unsubscribe", "assign"}
"""What a callback may not do; the error says so."""
MAY_FAIL = {
    ("on_lost", "commit"): CommitFailed,
    ("on_lost", "position"): IllegalStateError,
    ("on_lost", "seek"): IllegalStateError,
}
"""Of what is somebody else's by then."""
LIMIT_S = 60.0


class Mine(Exception):
    """What a callback of the user's raises."""


@pytest.fixture(scope="module")
def found() -> Iterator[GroupCluster]:
    made = GroupCluster()
    made.topic("t", PARTITIONS, records=RECORDS)
    yield made
    made.close()


class Story:
    """One consumer, and the callback that does something once."""

    def __init__(self, found: GroupCluster, flavour: str, callback: str, call: str) -> None:
        self.found, self.callback, self.call = found, callback, call
        self.group = f"{flavour}-{callback}-{call}"
        self.heard: list[str] = []
        self.outcome: object = None
        """Of the call: what it returned, or raised."""
        self.options: GroupOptions = {
            "auto_offset_reset": "earliest",
            "max_poll_interval_ms": 150 if callback == "on_lost" else 60_000,
        }
        self.joined: RawMember | None = None

    @property
    def wanted(self) -> bool:
        return self.heard[-1] == self.callback and self.heard.count(self.callback) == 1

    def judge(self) -> None:
        allowed = MAY_FAIL.get((self.callback, self.call))
        if self.call in REFUSED:
            assert isinstance(self.outcome, IllegalStateError), self.outcome
        elif isinstance(self.outcome, BaseException):
            assert allowed is not None, repr(self.outcome)
            assert isinstance(self.outcome, allowed), repr(self.outcome)

    def provoke(self, epoch: int) -> None:
        """What leads to the callback, once the member has joined."""
        if epoch <= 0 or "on_assign" not in self.heard:
            return
        if self.callback == "on_revoke" and self.joined is None:
            self.joined = self.found.join(f"m-{self.group}", "t", group=self.group)
        if self.callback == "on_lost" and self.callback not in self.heard:
            threading.Event().wait(0.3)  # the user's code is what takes long

    def check_order(self) -> None:
        """RB11: something is assigned first, and what went is not told twice."""
        assert self.heard[0] == "on_assign"
        assert self.heard.count(self.callback) >= 1


def words(consumer: object, call: str, slots: list[TopicPartition]) -> object:
    """The call with arguments that fit; of an async consumer to be awaited."""
    where = slots[0] if slots else TopicPartition("t", 0)
    method: Callable[..., object] = getattr(consumer, call if call != "next" else "poll")
    given: dict[str, tuple[object, ...]] = {
        "poll": (1, 0.1), "next": (1, None), "poll_arrow": (1, 0.1), "position": (where,),
        "seek": (where, 1), "subscribe": (["t"],), "assign": ([where],),
        "committed": (where,),
    }  # fmt: skip
    return method(*given.get(call, ()))


def blocking(story: Story) -> None:
    def hears(name: str) -> Callable[[list[TopicPartition]], None]:
        def callback(slots: list[TopicPartition]) -> None:
            story.heard.append(name)
            if story.wanted:
                try:
                    story.outcome = words(consumer, story.call, slots)
                except OctavoError as error:
                    story.outcome = error
                if story.call == "subscribe":
                    assert story.outcome is None
                raise Mine

        return callback

    raised = 0
    with Client(story.found.bootstrap, retry_backoff_ms=10) as client:
        consumer = client.consumer(
            "t",
            group=story.group,
            on_assign=hears("on_assign"),
            on_revoke=hears("on_revoke"),
            on_lost=hears("on_lost"),
            **story.options,
        )
        end_s = time.monotonic() + LIMIT_S
        while not raised:
            assert time.monotonic() < end_s, story.heard
            try:
                consumer.poll(timeout=0.1)
            except Mine:
                raised += 1
            story.provoke(consumer.group_metadata().epoch)
        story.judge()
        if story.joined is not None:
            story.found.leave(story.joined)
        if story.call == "close":
            with pytest.raises(IllegalStateError, match="closed"):
                consumer.poll()
        else:
            while len(consumer.assignment()) < PARTITIONS:
                assert time.monotonic() < end_s, story.heard
                consumer.poll(timeout=0.1)
        consumer.close()
    story.check_order()


NAMES = ("on_assign", "on_revoke", "on_lost")


async def asynchronous(story: Story) -> None:
    def hears(name: str) -> Callable[[list[TopicPartition]], object]:
        async def callback(slots: list[TopicPartition]) -> None:
            story.heard.append(name)
            if story.wanted:
                try:
                    call = cast("Awaitable[object]", words(consumer, story.call, slots))
                    story.outcome = await call
                except OctavoError as error:
                    story.outcome = error
                raise Mine

        return callback

    raised = 0
    async with (
        AsyncClient(story.found.bootstrap, retry_backoff_ms=10) as client,
        asyncio.timeout(LIMIT_S),
    ):
        consumer = client.consumer(
            "t",
            group=story.group,
            on_assign=hears("on_assign"),
            on_revoke=hears("on_revoke"),
            on_lost=hears("on_lost"),
            **story.options,
        )
        while not raised:
            try:
                await consumer.poll(timeout=0.1)
            except Mine:
                raised += 1
            story.provoke(consumer.group_metadata().epoch)
        story.judge()
        if story.joined is not None:
            story.found.leave(story.joined)
        if story.call == "close":
            with pytest.raises(IllegalStateError, match="closed"):
                await consumer.poll()
        else:
            while len(await consumer.assignment()) < PARTITIONS:
                await consumer.poll(timeout=0.1)
        await consumer.close()
    story.check_order()


@pytest.mark.parametrize("callback", NAMES)
@pytest.mark.parametrize("flavour", ["sync", "async"])
def test_rb11_x04_a_callback_calls_back_raises_and_the_member_goes_on(
    found: GroupCluster, flavour: str, callback: str
) -> None:
    for call in CALLS:
        story = Story(found, flavour, callback, call)
        try:
            if flavour == "sync":
                blocking(story)
            else:
                asyncio.run(asynchronous(story))
        except BaseException as error:
            error.add_note(f"{callback}: {call}, {story.heard}, {story.outcome!r}")
            raise
