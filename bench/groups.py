"""`make bench-groups`: what it costs to read in a group, and what commits of one member take.

One cluster of three bookies and one broker. The flights of w2 are stored once and read over and
over from the start, by a consumer of a group and by one without, in turn (`bench.alternating`), in
each way there is to read. Then the member commits, one offset of each partition at a time: call
after call, each of which waits, and calls that do not wait.

The last line is `bench-groups: OK …`; it says FAILED, and the command ends with 1, when a group
costs more than `COST_MAX` in the median of the pairs in any way of reading.
Usage: python -m bench.groups [--pairs 40] [--records 336776] [--seconds 5]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from rich.console import Console

from bench import campaign, crew, machine, payloads, report
from bench.alternating import Cost, Pass, alternate, cost
from bench.drivers import POLL_TIMEOUT_S, MissedRecords
from bench.plan import KIB, LINGER_MS, MIB, PARTITIONS
from bench.stats import Latency, latency
from bench.systems.octavo import Octavo
from octavo import Client
from octavo.client.messaging.sync.consumer import Consumer
from octavo.client.messaging.sync.group_consumer import GroupConsumer
from octavo.runtime.malloc import tune_malloc
from tools.demo import flights

TOPIC, GROUP = "bench", "bench"
COST_MAX = 1.05
"""Reading in a group takes at most so many times as long."""
ARROW_SWEEPS = 4
"""Readings from start to end of one pass as Arrow, which are short."""
POLL_MANY = 10_000
JOIN_TIMEOUT_S = 30.0
BUFFER_BYTES = 32 * MIB

Sweep = Callable[[Consumer, int], int]
"""Reads at least so many records; says how many."""


class Commits(NamedTuple):
    """What commits of one member took."""

    waiting_per_s: float
    waiting: Latency
    asked_per_s: float
    """Calls that do not wait."""
    stored_per_s: float
    """Of those, the ones of which the member heard that they are stored themselves."""
    told: Latency
    """From such a call to the member's hearing of its outcome."""


# --- ways to read ---------------------------------------------------------------------------------


def _poll(consumer: Consumer, count: int, limit: int | None = None) -> int:
    rows = 0
    while rows < count:
        records = consumer.poll(limit, POLL_TIMEOUT_S)
        if not records:
            raise MissedRecords(f"{rows} of {count} records came")
        rows += len(records)
    return rows


def _iterate(consumer: Consumer, count: int) -> int:
    for rows, _record in enumerate(consumer, 1):
        if rows == count:
            return rows
    raise MissedRecords("the consumer was closed")


def _poll_arrow(consumer: Consumer, count: int) -> int:
    rows = 0
    while rows < count:
        batch = consumer.poll_arrow(timeout=POLL_TIMEOUT_S)
        if batch is None:
            raise MissedRecords(f"{rows} of {count} records came")
        rows += batch.num_rows
    return rows


WAYS: Mapping[str, tuple[Sweep, int]] = {
    "poll": (_poll, 1),
    "poll_10000": (partial(_poll, limit=POLL_MANY), 1),
    "iterate": (_iterate, 1),
    "poll_arrow": (_poll_arrow, ARROW_SWEEPS),
}
"""How to read all there is, and how often one pass does it."""


def _pass(consumer: Consumer, way: str, count: int) -> Pass:
    """All records, from the start; a wrong number of them is an error."""
    sweep, sweeps = WAYS[way]
    places = consumer.assignment()
    cpu_s, began_s = time.process_time(), time.monotonic()
    for _ in range(sweeps):
        for place in places:
            consumer.seek(place, 0)
        rows = sweep(consumer, count)
        if rows != count:
            raise MissedRecords(f"{rows} records came, {count} are stored")
    return Pass(time.monotonic() - began_s, time.process_time() - cpu_s)


def measure_reading(
    alone: Consumer, member: GroupConsumer, way: str, count: int, pairs: int
) -> tuple[float, Cost]:
    """Rows/s without a group, the fastest pass; and what a group costs."""
    for consumer in (alone, member):
        _pass(consumer, way, count)  # imports, connections, the broker's cache
    without, within = alternate(
        partial(_pass, alone, way, count), partial(_pass, member, way, count), pairs
    )
    sweeps = WAYS[way][1]
    return count * sweeps / min(one.wall_s for one in without), cost(without, within)


# --- commits --------------------------------------------------------------------------------------


def measure_commits(member: GroupConsumer, seconds: float) -> Commits:
    """Commits of all of its partitions, `seconds` long in each way."""
    places = member.assignment()
    samples: list[float] = []
    ends_s = time.monotonic() + seconds
    while (began_s := time.monotonic()) < ends_s:
        member.commit(dict.fromkeys(places, len(samples)))
        samples.append(time.monotonic() - began_s)
    waiting_s = sum(samples)

    told: list[float] = []
    refused: list[Exception] = []
    asked = 0
    began_s = time.monotonic()
    ends_s = began_s + seconds
    while (asked_s := time.monotonic()) < ends_s:

        def outcome(_offsets: object, error: Exception | None, asked_s: float = asked_s) -> None:
            told.append(time.monotonic() - asked_s)
            if error is not None:
                refused.append(error)

        member.commit_async(dict.fromkeys(places, asked), outcome)
        asked += 1
        member.poll(timeout=0)  # which tells outcomes
    asking_s = time.monotonic() - began_s
    member.commit(dict.fromkeys(places, 0))  # those asked for before it are decided then
    while len(told) < asked:
        member.poll(timeout=0)
    stored = asked - len(refused)
    return Commits(
        len(samples) / waiting_s,
        latency(samples),
        asked / asking_s,
        stored / asking_s,
        latency(told),
    )


# --- a run ----------------------------------------------------------------------------------------


def _write(system: Octavo, spec: payloads.PayloadSpec, size_bytes: int) -> dict[str, object]:
    settings = {
        "batch_bytes": 64 * KIB,
        "linger_ms": LINGER_MS,
        "compression": "lz4",
        "buffer_bytes": BUFFER_BYTES,
    }
    return {
        "driver": system.driver,
        "endpoint": dict(system.endpoint()),
        "task": "write",
        "topic": TOPIC,
        "payload": spec._asdict(),
        "settings": settings,
        "bytes_max": size_bytes,
        "warmup_s": 0,
        "warm_topic": "",
        "seconds": float("inf"),
    }


def _join(member: GroupConsumer) -> None:
    ends_s = time.monotonic() + JOIN_TIMEOUT_S
    while len(member.assignment()) < PARTITIONS:
        member.poll(timeout=0.1)
        if time.monotonic() > ends_s:
            raise RuntimeError(f"the group assigned nothing within {JOIN_TIMEOUT_S:g} s")


def measure(args: argparse.Namespace) -> tuple[dict[str, tuple[float, Cost]], Commits]:
    """Everything, on a cluster of its own."""
    with campaign.work_folder() as work:
        values = flights.load(args.records).values
        spec = payloads.write_lines(work / "flights.jsonl", values)
        system = Octavo(work / "cluster")
        system.folder.mkdir()
        system.start()
        try:
            system.create_topic(TOPIC, PARTITIONS)
            campaign.say("writing")
            job = _write(system, spec, sum(map(len, values)))
            (written,) = crew.run([job], work / "workers.log")
            with (
                Client(system.endpoint()["servers"]) as client,
                client.consumer(TOPIC) as alone,
                client.consumer(TOPIC, group=GROUP, auto_offset_reset="earliest") as member,
            ):
                _join(member)
                found: dict[str, tuple[float, Cost]] = {}
                for way in args.ways:
                    campaign.say(f"{way}, load average {machine.load_now():.1f}")
                    count = written["records"]
                    found[way] = measure_reading(alone, member, way, count, args.pairs)
                campaign.say(f"commits, load average {machine.load_now():.1f}")
                return found, measure_commits(member, args.seconds)
        finally:
            system.stop()


def summary(found: Mapping[str, tuple[float, Cost]], commits: Commits) -> tuple[bool, str]:
    """Whether a group costs no more than it may, and the last line."""
    holds = all(of_way.wall.median <= COST_MAX for _, of_way in found.values())
    parts = [f"{way}_ratio={of_way.wall.median:.3f}" for way, (_, of_way) in found.items()]
    parts += [f"{way}_best_ratio={of_way.best:.3f}" for way, (_, of_way) in found.items()]
    parts += [f"{way}_cpu_ratio={of_way.cpu.median:.3f}" for way, (_, of_way) in found.items()]
    parts += [
        f"commits_per_s={commits.waiting_per_s:.0f}",
        f"commit_p50_ms={commits.waiting.p50_ms:.2f}",
        f"commit_p99_ms={commits.waiting.p99_ms:.2f}",
        f"async_per_s={commits.asked_per_s:.0f}",
        f"async_stored_per_s={commits.stored_per_s:.0f}",
        f"async_p50_ms={commits.told.p50_ms:.2f}",
        f"async_p99_ms={commits.told.p99_ms:.2f}",
    ]
    return holds, f"bench-groups: {'OK' if holds else 'FAILED'} {' '.join(parts)}"


def show(found: Mapping[str, tuple[float, Cost]], screen: Console) -> None:
    """The table of readings."""
    heads = [
        "rows/s without a group",
        "time, group / without",
        "fastest pass of each",
        "CPU of the client",
    ]
    body = [
        (
            way,
            [
                f"{rows_per_s:,.0f}",
                report.cell(of_way.wall, "{:.3f}"),
                f"{of_way.best:.3f}",
                report.cell(of_way.cpu, "{:.3f}"),
            ],
        )
        for way, (rows_per_s, of_way) in found.items()
    ]
    report.show("reading in a group: median (lowest–highest) of the pairs", heads, body, screen)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=40, help="passes of each, in each way")
    parser.add_argument("--records", type=int, default=flights.ROWS)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each kind of commits")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    args = parser.parse_args()
    tune_malloc()
    found, commits = measure(args)
    show(found, Console(width=max(Console().width, 120)))
    holds, line = summary(found, commits)
    print(line)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
