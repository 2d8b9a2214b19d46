"""`make burst`: a spike of traffic while every consumer is stopped (F001), on real processes.

Three bookies and one broker; a group reads a topic that is written at `--per-s`. Then the group
stops, ten times as much is written for `--seconds`, the group is back and reads what was left.
Then a backlog quota is set while the group is stopped again: sends go on to the limit, behind it
they wait and are told THROTTLED in the end. Everything that was acknowledged must be there once,
and nothing else.

The last line is `burst: OK …`; it says FAILED, and the command ends with 1, unless that is so.
Usage: python -m tools.burst [--seconds 60] [--per-s 100]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from typing import NamedTuple

from bench import campaign, pacing
from bench.stats import Latency, latency
from octavo import AsyncClient
from octavo.client.messaging.api.producer import AsyncProducer
from octavo.errors import OctavoError, Throttled
from octavo.testing import LocalCluster

TOPIC, GROUP = "orders", "billing"
VALUE_BYTES = 1_000
SPIKE = 10
CALM_S = 5.0
LIMIT_BYTES = 2_000_000
"""Of the quota; each partition has one of its own."""
PATIENCE_MS = 6_000
"""For how long sends behind the limit wait."""
DRAIN_S = 300.0
POLL_S = 0.5


class Run(NamedTuple):
    """What became of everything."""

    acknowledged: int
    held: int
    """Sends that were told THROTTLED in the end."""
    held_after: int
    """The same once all was read again."""
    lost: int
    twice: int
    strange: int
    """Read, and never acknowledged."""
    spike: Latency
    """Of sends in the spike, from when each was due."""
    drained_s: float


class Story:
    """What was sent and read."""

    def __init__(self, client: AsyncClient, per_s: float) -> None:
        self._client = client
        self._per_s = per_s
        self.acknowledged: set[bytes] = set()
        self.held = 0
        self.read: dict[tuple[int, int], bytes] = {}
        """By partition and offset: a group may be given a record again."""
        self._number = 0

    async def write(self, producer: AsyncProducer, per_s: float, seconds: float) -> list[float]:
        """Send so many a second; raises what a send fails with, but for Throttled."""
        samples: list[float] = []

        async def send(value: bytes, due: float) -> None:
            try:
                await producer.send(TOPIC, value)
            except Throttled:
                self.held += 1
                return
            self.acknowledged.add(value)
            samples.append(time.monotonic() - due)

        schedule = pacing.soon(time.monotonic, per_s, int(per_s * seconds))
        sends: list[asyncio.Future[None]] = []
        async for due in pacing.paced_async(schedule, time.monotonic, asyncio.sleep):
            value = (b"%d:" % self._number).ljust(VALUE_BYTES, b"x")
            self._number += 1
            sends.append(asyncio.ensure_future(send(value, due)))
        await asyncio.gather(*sends)
        return samples

    async def follow(self, *, until_drained: bool) -> None:
        """The group reads, until it is cancelled or nothing is left."""
        async with self._client.consumer(
            TOPIC, group=GROUP, auto_offset_reset="earliest", enable_auto_commit=False
        ) as consumer:
            quiet = False
            while not (until_drained and quiet):
                records = await consumer.poll(timeout=POLL_S)
                for record in records:
                    self.read[record.partition, record.offset] = record.value or b""
                if records:
                    await consumer.commit()
                elif until_drained and await consumer.assignment():
                    lag = await consumer.lag()
                    quiet = not any(lag.values())

    async def beside(self, producer: AsyncProducer, seconds: float) -> None:
        """Writing and reading as on any day."""
        follows = asyncio.ensure_future(self.follow(until_drained=False))
        await self.write(producer, self._per_s, seconds)
        follows.cancel()
        await asyncio.wait({follows})


async def tell(servers: str, args: argparse.Namespace) -> Run:
    """The story."""
    async with AsyncClient(servers) as client:
        await client.admin.create_topic(TOPIC, 4)
        story = Story(client, args.per_s)
        async with client.producer(linger_ms=5) as producer:
            await story.beside(producer, CALM_S)
            campaign.say(f"{SPIKE} times as much for {args.seconds:g} s, nobody reads")
            spike = await story.write(producer, SPIKE * args.per_s, args.seconds)
            began_s = time.monotonic()
            async with asyncio.timeout(DRAIN_S):
                await story.follow(until_drained=True)
            drained_s = time.monotonic() - began_s
            campaign.say(f"drained in {drained_s:.1f} s")
        await client.admin.alter_topic(TOPIC, {"backlog.quota.bytes": str(LIMIT_BYTES)})
        enough_s = 3 * 4 * LIMIT_BYTES / VALUE_BYTES / (SPIKE * args.per_s)
        async with client.producer(
            linger_ms=5, compression_type="none", delivery_timeout_ms=PATIENCE_MS,
            request_timeout_ms=PATIENCE_MS - 1_000,
        ) as producer:  # fmt: skip
            campaign.say(f"a limit, nobody reads for {enough_s:.0f} s")
            await story.write(producer, SPIKE * args.per_s, enough_s)
        async with asyncio.timeout(DRAIN_S):
            await story.follow(until_drained=True)
        async with client.producer() as producer:  # the limit is behind us
            held = story.held
            await story.write(producer, args.per_s, CALM_S)
        async with asyncio.timeout(DRAIN_S):
            await story.follow(until_drained=True)
    places = Counter(story.read.values())
    return Run(
        len(story.acknowledged),
        held,
        story.held - held,
        len(story.acknowledged - places.keys()),
        sum(count > 1 for count in places.values()),
        len(places.keys() - story.acknowledged),
        latency(spike),
        drained_s,
    )


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the spike")
    parser.add_argument("--per-s", type=float, default=100.0, help="records a second before it")
    args = parser.parse_args()
    try:
        with campaign.work_folder() as work, LocalCluster(3, 1, data=work / "cluster") as cluster:
            run = asyncio.run(tell(cluster.bootstrap_servers, args))
    except (OctavoError, TimeoutError) as error:
        print(f"burst: FAILED {error!r}")
        return 1
    holds = run.held > 0 and not (run.held_after or run.lost or run.twice or run.strange)
    print(
        f"burst: {'OK' if holds else 'FAILED'} acknowledged={run.acknowledged} lost={run.lost} "
        f"twice={run.twice} strange={run.strange} held={run.held} held_after={run.held_after} "
        f"spike_p50_ms={run.spike.p50_ms:.1f} spike_p99_ms={run.spike.p99_ms:.1f} "
        f"drained_s={run.drained_s:.1f}"
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
