"""Members that end badly, on real processes: killed, stood still beyond their session, or closed
while nobody coordinates (F096, F105, F111, RB7, RB12, RB13, W3)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from octavo import AsyncClient, Client, Record, TopicPartition
from octavo.errors import RequestTimedOut
from octavo.testing import LocalCluster

pytestmark = pytest.mark.process
SESSION_S, INTERVAL_S = 2.0, 0.2
SETTINGS = {
    "group_min_session_timeout_ms": 100,
    "group_session_timeout_ms": int(SESSION_S * 1000),
    "group_heartbeat_interval_ms": int(INTERVAL_S * 1000),
}
PATIENCE_S = 30.0
SLACK_S = 8.0
"""Of what must be over by a time, on a busy machine."""

MEMBER = """
import asyncio, json, sys, time
from octavo import AsyncClient, Client
from octavo.errors import CommitFailed
servers, topic, how, pace_s = *sys.argv[1:4], float(sys.argv[4])

def say(what, **more):
    print(json.dumps({"what": what, "at_s": time.monotonic(), **more}), flush=True)

def hears(what):
    return lambda slots: say(what, slots=[one.partition for one in slots])

options = dict(group="g-" + topic, auto_offset_reset="earliest", enable_auto_commit=False,
               retry_backoff_ms=20, on_assign=hears("assign"), on_revoke=hears("revoke"),
               on_lost=hears("lost"))

def got(record):
    say("record", slots=[record.partition], offset=record.offset)

def outcome(error, asked_s):
    say("commit", asked_s=asked_s, error=getattr(error, "code", None))

def blocking():
    with Client(servers) as client, client.consumer(topic, **options) as consumer:
        for record in consumer:
            got(record)
            time.sleep(pace_s)
            asked_s = time.monotonic()
            try:
                consumer.commit({record.topic_partition: record.offset + 1})
                outcome(None, asked_s)
            except CommitFailed as error:
                outcome(error, asked_s)

async def asynchronous():
    async with AsyncClient(servers) as client, client.consumer(topic, **options) as consumer:
        async for record in consumer:
            got(record)
            await asyncio.sleep(pace_s)
            asked_s = time.monotonic()
            try:
                await consumer.commit({record.topic_partition: record.offset + 1})
                outcome(None, asked_s)
            except CommitFailed as error:
                outcome(error, asked_s)

def polling():
    with Client(servers) as client, client.consumer(topic, **options) as consumer:
        while True:
            for record in consumer.poll(1, timeout=0.5):
                got(record)
                time.sleep(pace_s)
                asked_s = time.monotonic()
                try:
                    consumer.commit()
                    outcome(None, asked_s)
                except CommitFailed as error:
                    outcome(error, asked_s)

say("begins")
asyncio.run(asynchronous()) if how == "async" else {"sync": blocking, "poll": polling}[how]()
"""


class Said(NamedTuple):
    what: str
    at_s: float
    slots: tuple[int, ...] = ()
    offset: int = -1
    error: str | None = None
    asked_s: float = 0.0
    """Of a commit: when it was begun."""


class Member:
    """A process that reads a topic in a group and says what it sees."""

    def __init__(self, cluster: LocalCluster, topic: str, how: str, pace_s: float) -> None:
        words = [cluster.bootstrap_servers, topic, how, str(pace_s)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", MEMBER, *words], stdout=subprocess.PIPE, text=True
        )
        self.said: list[Said] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = json.loads(line)
            self.said.append(Said(**found | {"slots": tuple(found.get("slots", ()))}))

    def stop(self) -> float:
        """Stop its process; when it stood still, by the machine's monotonic clock."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)
        return time.monotonic()

    def since(self, moment: int, what: str) -> list[Said]:
        return [one for one in self.said[moment:] if one.what == what]

    @property
    def owned(self) -> set[int]:
        found: set[int] = set()
        for one in list(self.said):
            if one.what == "assign":
                found |= {*one.slots}
            elif one.what in ("revoke", "lost"):
                found -= {*one.slots}
        return found

    def end(self) -> None:
        self.process.kill()
        self.process.wait(60)
        self._thread.join(60)
        if self.process.stdout is not None:
            self.process.stdout.close()


def until(condition: Callable[[], object], limit_s: float = PATIENCE_S) -> float:
    """Wait for it; when it was seen."""
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, "it did not come to it"
        threading.Event().wait(0.01)
    return time.monotonic()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(broker_settings=SETTINGS) as running:
        yield running


@pytest.fixture
def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    name = "".join(one if one.isalnum() else "-" for one in str(request.node.name))
    with Client(cluster.bootstrap_servers) as client, client.producer() as producer:
        client.admin.create_topic(name, partitions=2)
        for partition in range(2):
            producer.send_many(name, [b"%d" % n for n in range(400)], partition=partition)
    return name


@pytest.fixture
def pair(
    cluster: LocalCluster, topic: str, request: pytest.FixtureRequest
) -> Iterator[tuple[Member, Member]]:
    """Two members, one partition each; the first reads `request.param`'s way."""
    members = [Member(cluster, topic, str(getattr(request, "param", "sync")), 0.02)]
    try:
        until(lambda: len(members[0].owned) == 2)
        members.append(Member(cluster, topic, "poll", 0.02))
        until(lambda: all(len(one.owned) == 1 for one in members))
        for one in members:  # it reads and commits what it has now
            there = len(one.said)
            until(lambda one=one, there=there: len(one.since(there, "commit")) > 2)  # type: ignore[misc]
        yield members[0], members[1]
    finally:
        for one in members:
            one.end()


def committed(cluster: LocalCluster, topic: str) -> dict[int, int]:
    with Client(cluster.bootstrap_servers) as client:
        offsets = client.admin.list_group_offsets(f"g-{topic}")
        return {one.partition: one.offset for one in offsets}


def test_f096_f111_who_is_killed_is_replaced_at_what_it_committed(
    cluster: LocalCluster, topic: str, pair: tuple[Member, Member]
) -> None:
    first, second = pair
    (gone,) = first.owned
    first.process.kill()
    killed_s = time.monotonic()
    first.end()
    there = len(second.said)
    at = committed(cluster, topic)[gone]
    assert first.since(0, "commit")[-1].error is None
    last = [one for one in first.said if one.what == "record" and one.slots == (gone,)][-1]
    assert at in (last.offset, last.offset + 1), "all but the last one, which may be stored unseen"
    until(lambda: gone in second.owned)
    (assigned,) = [one for one in second.since(there, "assign") if gone in one.slots]
    assert assigned.at_s - killed_s < SESSION_S + SLACK_S
    until(lambda: any(one.slots == (gone,) for one in second.since(there, "record")))
    resumed = next(one for one in second.since(there, "record") if one.slots == (gone,))
    assert resumed.offset == at, "none before, none left out"


@pytest.mark.parametrize("pair", ["sync", "async", "poll"], indirect=True)
def test_w3_rb7_rb12_who_stood_still_hands_out_and_commits_nothing_of_before(
    cluster: LocalCluster, topic: str, pair: tuple[Member, Member]
) -> None:
    """The record at hand when it stood still is the last of the old epoch; its commit fails."""
    first, second = pair
    (gone,) = first.owned
    stopped_s = first.stop()
    there, others = len(first.said), len(second.said)
    until(lambda: gone in second.owned)
    until(lambda: any(one.slots == (gone,) for one in second.since(others, "record")))
    until(lambda: len(second.since(others, "commit")) > 3)
    epoch_before = committed(cluster, topic)[gone]
    first.process.send_signal(signal.SIGCONT)
    until(lambda: first.since(there, "assign"))
    until(lambda: len(first.since(there, "commit")) > 3)
    lost = first.since(there, "lost")
    assert [one.slots for one in lost] == [(gone,)], "once, and of everything"
    before = [one for one in first.said if stopped_s < one.at_s < lost[0].at_s]
    records = [one for one in before if one.what == "record"]
    assert len(records) <= 1, "it was about to hand that one out when it stood still"
    commits = [one for one in before if one.what == "commit" and one.asked_s > stopped_s]
    assert all(one.error for one in commits), commits
    assert committed(cluster, topic)[gone] >= epoch_before, "nothing went back"
    until(lambda: len(first.owned) == 1 and len(second.owned) == 1)


@pytest.mark.parametrize("fate", ["killed", "frozen"])
def test_rb13_closing_while_nobody_coordinates_ends_in_time_and_says_what_is_unknown(
    fate: str,
) -> None:
    with LocalCluster(bookies=1, brokers=1, broker_settings=SETTINGS) as own:
        with Client(own.bootstrap_servers) as client:
            client.admin.create_topic("t", partitions=2)
            with client.producer() as producer:
                producer.send_many("t", [b"x"] * 10)
            readers = [
                client.consumer(
                    "t",
                    group=name,
                    auto_offset_reset="earliest",
                    auto_commit_interval_ms=600_000,  # else a slow test has nothing to commit
                )
                for name in ("moved", "short", "block", "asleep")
            ]
            for reader in readers:
                seen: list[Record] = []
                until(lambda r=reader, s=seen: s.extend(r.poll(timeout=0.1)) or len(s) == 10)  # type: ignore[misc]
            moved, short, block, asleep = readers
            asleep.commit()
            own.kill("broker-1") if fate == "killed" else own.freeze("broker-1")
            for reader, limit_s in ((moved, None), (short, 0.3)):
                began_s = time.monotonic()
                with pytest.raises(RequestTimedOut, match="may or may not be stored") as unknown:
                    reader.close(limit_s)
                assert time.monotonic() - began_s < (limit_s or 1.0) + SLACK_S
                assert "come again" in unknown.value.hint
                reader.close()
            with pytest.raises(RequestTimedOut, match="'block'"), block:
                pass
            began_s = time.monotonic()
            asleep.close()  # everything is stored: nothing is unknown
            assert time.monotonic() - began_s < 1.0 + SLACK_S
        if fate == "frozen":
            own.thaw("broker-1")


async def test_rb13_an_async_member_that_is_closed_while_nobody_coordinates(
    cluster: LocalCluster, topic: str
) -> None:
    async with AsyncClient(cluster.bootstrap_servers) as client:
        consumer = client.consumer(
            topic,
            group="async",
            auto_offset_reset="earliest",
            auto_commit_interval_ms=600_000,  # else a slow test has nothing to commit
        )
        while not await consumer.poll(timeout=0.2):
            pass
        assert len(await consumer.assignment()) == 2
        assert isinstance((await consumer.assignment())[0], TopicPartition)
        cluster.freeze("broker-1")
        try:
            began_s = time.monotonic()
            with pytest.raises(RequestTimedOut, match="may or may not be stored"):
                await consumer.close()
            assert time.monotonic() - began_s < 1.0 + SLACK_S
        finally:
            cluster.thaw("broker-1")
