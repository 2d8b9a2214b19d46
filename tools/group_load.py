"""What groups cost the broker that coordinates them, on a real little cluster.

Prints one line for each figure: how long members that join at once take to settle, the CPU of the
broker while nothing happens, a hand-over between two live members, commits a second and their
latency, and how long what they left takes to be read after a kill -9.

Usage: python -m tools.group_load [--members 200] [--partitions 400] [--commits 100000]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Sequence

import psutil

from octavo import Client
from octavo.proto import groups_pb2
from octavo.testing import LocalCluster
from tests.group_client import GroupsClient, RawMember, Slots, code_of

GROUP = "load"
TOPIC = "load"
STEADY_S = 20.0
COMMITS_AT_ONCE = 64
OFFSETS_IN_A_COMMIT = 1
HAND_OVERS = 20


def say(name: str, **figures: float) -> None:
    print(f"{name}: " + " ".join(f"{key}={value:g}" for key, value in figures.items()), flush=True)


def settled(members: Sequence[RawMember], partitions: int) -> bool:
    return sum(len(member.owned) for member in members) == partitions and all(
        member.owned for member in members
    )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def measure_members(
    cluster: LocalCluster, client: GroupsClient, members: int, partitions: int
) -> list[RawMember]:
    joined = [RawMember(client, GROUP, f"m{number:04}", (TOPIC,)) for number in range(members)]
    await client.find(GROUP)
    broker = psutil.Process(cluster.process("broker-1").pid)
    start_s, before = time.perf_counter(), sum(broker.cpu_times()[:2])
    for member in joined:
        member.start()
    await until(lambda: settled(joined, partitions))
    say(
        "join",
        members=members,
        partitions=partitions,
        settle_s=round(time.perf_counter() - start_s, 2),
        broker_cpu_s=round(sum(broker.cpu_times()[:2]) - before, 2),
    )
    await asyncio.sleep(4)
    start_s, before = time.perf_counter(), sum(broker.cpu_times()[:2])
    await asyncio.sleep(STEADY_S)
    used = sum(broker.cpu_times()[:2]) - before
    say("steady", cpu_percent=round(100 * used / (time.perf_counter() - start_s), 2))
    return joined


async def measure_hand_overs(client: GroupsClient) -> None:
    """From the answer that takes a partition away to the answer that gives it to the other."""
    lost_s: dict[tuple[bytes, int], float] = {}
    taken: list[float] = []

    def changed(_member: RawMember, lost: Slots, won: Slots) -> None:
        now_s = time.perf_counter()
        lost_s.update(dict.fromkeys(lost, now_s))
        taken.extend(now_s - lost_s.pop(slot) for slot in won if slot in lost_s)

    for number in range(HAND_OVERS):
        pair = [
            RawMember(client, f"pair{number}", name, (TOPIC,), on_change=changed) for name in "ab"
        ]
        pair[0].start()
        await until(lambda pair=pair: bool(pair[0].owned))
        pair[1].start()
        await until(lambda pair=pair: abs(len(pair[0].owned) - len(pair[1].owned)) <= 1)
        for member in pair:
            await member.leave()
        lost_s.clear()
    taken.sort()
    say(
        "hand-over",
        moved=len(taken),
        p50_ms=round(1000 * taken[len(taken) // 2], 1),
        max_ms=round(1000 * taken[-1], 1),
    )


async def measure_commits(client: GroupsClient, topic_id: bytes, commits: int) -> None:
    took: list[float] = []
    left = iter(range(commits))

    async def commit() -> None:
        for number in left:
            offsets = [
                groups_pb2.OffsetCommit(
                    topic_id=topic_id, topic=TOPIC, partition=number % 100, offset=number
                )
                for _ in range(OFFSETS_IN_A_COMMIT)
            ]
            start_s = time.perf_counter()
            reply = await client.commit("commits", *offsets)
            took.append(time.perf_counter() - start_s)
            if code_of(reply) or reply.errors:
                raise RuntimeError(str(reply))

    start_s = time.perf_counter()
    await asyncio.gather(*(commit() for _ in range(COMMITS_AT_ONCE)))
    total_s = time.perf_counter() - start_s
    took.sort()
    say(
        "commit",
        commits=commits,
        at_once=COMMITS_AT_ONCE,
        per_s=round(commits / total_s),
        p50_ms=round(1000 * took[len(took) // 2], 1),
        p99_ms=round(1000 * took[len(took) * 99 // 100], 1),
    )


async def measure_take_over(cluster: LocalCluster, client: GroupsClient) -> None:
    before = await client.committed("commits")
    await asyncio.to_thread(cluster.kill, "broker-1")
    start_s = time.perf_counter()
    await asyncio.to_thread(cluster.restart, "broker-1")
    up_s = time.perf_counter()
    async with asyncio.timeout(120):
        while True:
            try:
                after = await client.committed("commits")
                break
            except TimeoutError:
                continue
    if after != before:
        raise RuntimeError("committed offsets changed by a take-over")
    reads = [line for line in cluster.log("broker-1").splitlines() if "groups-read" in line]
    print(*reads[-2:], sep="\n")
    say(
        "take-over",
        broker_start_s=round(up_s - start_s, 2),
        answers_after_s=round(time.perf_counter() - up_s, 2),
    )


async def run(args: argparse.Namespace, cluster: LocalCluster) -> None:
    client = GroupsClient(cluster.bootstrap_servers.split(","))
    with Client(cluster.bootstrap_servers) as sdk:
        admin = sdk.admin
        admin.create_topic(TOPIC, args.partitions)
        topic_id = bytes.fromhex(admin.describe_topic(TOPIC).topic_id.replace("-", ""))
    members = await measure_members(cluster, client, args.members, args.partitions)
    await measure_hand_overs(client)
    for member in members:
        await member.leave()
    await measure_commits(client, topic_id, args.commits)
    await measure_take_over(cluster, client)
    await client.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--members", type=int, default=200)
    parser.add_argument("--partitions", type=int, default=400)
    parser.add_argument("--commits", type=int, default=100_000)
    args = parser.parse_args()
    with LocalCluster(bookies=3, brokers=1) as cluster:
        asyncio.run(run(args, cluster))
    return 0


if __name__ == "__main__":
    sys.exit(main())
