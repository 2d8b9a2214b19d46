"""`make bench-upkeep`: what collecting, compacting and scrubbing cost those who write and read.

The workloads of `bench-quick`, each time on a new cluster of three bookies and one broker, in turn
(`bench.alternating`): with the bookies' upkeep at rest, and with all of it at work. Both clusters
get the same history first: long-lived and short-lived records that share segments, the latter
deleted. At work means: the metadata is compared every 3 s, half-empty segments are compacted as
soon as a round comes (5 s), at the usual rate, and the scrub is asked for all there is over and
over, at its usual rate. While the workloads run, topics go on being written and deleted in both.

The last line is `bench-upkeep: OK …` with the ratios, at work over at rest, of the median of the
pairs; it says FAILED, and the command ends with 1, when a rate falls below `RATE_MIN` of what it
is at rest or a median latency grows above `LATENCY_MAX`, or when there was nothing to do. The p99
is stated beside them: on two shared processors it varies more than any upkeep moves it.
Usage: python -m bench.upkeep [--pairs 5] [--tiny]
"""

from __future__ import annotations

import argparse
import pathlib
import random
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import grpc

from bench import campaign, machine
from bench.alternating import turns
from bench.payloads import PayloadSpec
from bench.plan import PLANS, Plan
from bench.rounds import Round
from bench.stats import Spread, spread
from bench.systems.octavo import Octavo
from octavo import Client
from octavo.proto.bookie_pb2 import InfoReply, InfoRequest, ScrubRequest
from octavo.proto.bookie_pb2_grpc import BookieControlStub
from octavo.proto.endpoints import open_blocking_channel
from octavo.runtime.errors import OctavoError
from octavo.testing import LocalCluster

CELLS = ("w1", "w2", "w3", "w5", "verify")
RATES = ("w1_64k_mbps", "w1_1m_mbps", "w2_rps", "w5_json_rows_rps", "w5_json_arrow_rps")
LATENCIES = ("w3_p50_ms",)
STATED = ("w3_p99_ms",)
RATE_MIN, LATENCY_MAX = 0.9, 1.1
SEGMENT_BYTES = 16 << 20
AT_WORK: dict[str, object] = {
    "segment_bytes": SEGMENT_BYTES,
    "gc_interval_s": 3.0,
    "gc_confirm_s": 2.0,
    "compaction_check_s": 2.0,
    "compaction_minor_interval_s": 5.0,
    "compaction_major_interval_s": 10.0,
    "scrub_start_s": 1.0,
}
AT_REST: dict[str, object] = {
    "segment_bytes": SEGMENT_BYTES,
    "gc_interval_s": 86_400.0,
    "compaction_check_s": 86_400.0,
    "scrub_bytes_per_s": 0.0,
}
BROKER: dict[str, object] = {"trash_delay_ms": 0, "cold_read_bytes_per_s": 0}
"""Records come in all the time: with a pace for backlogs w5 would show that pace alone."""
_RANDOM = random.Random(15)
RECORDS = [_RANDOM.randbytes(32 << 10) for _ in range(60)]
"""Nothing makes them smaller: what is written is what lies in segments."""
HISTORY_TOPICS, HISTORY_RECORDS = 8, 400
"""12 MB each; every other one is deleted, while records of the others lie between its own."""
PASSING_PAUSE_S = 1.0
"""Between topics that come with all of `RECORDS`, 2 MB, and go."""
CONTROL_TIMEOUT_S = 5.0
JOIN_S = 60.0


class Done(NamedTuple):
    """What the bookies of one cluster did in all."""

    reclaimed_mb: float
    compactions: int
    scrubbed_mb: float


class Kept(Octavo):
    """Octavo with a history, and bookies whose upkeep is at work or at rest."""

    def __init__(self, folder: pathlib.Path, *, works: bool) -> None:
        super().__init__(folder)
        self._works = works
        self._ends = threading.Event()
        self._passing: threading.Thread | None = None
        self.failed = ""
        self.done = Done(0.0, 0, 0.0)

    def start(self) -> None:
        self._cluster = LocalCluster(
            3,
            1,
            data=self.folder / "octavo",
            bookie_settings=AT_WORK if self._works else AT_REST,
            broker_settings=BROKER,
        )
        self._cluster.start()
        with Client(self.cluster.bootstrap_servers) as client:
            self._write_history(client)
        self._passing = threading.Thread(target=self._pass, name="passing topics", daemon=True)
        self._passing.start()

    def stop(self) -> None:
        self._ends.set()
        if self._passing is not None:
            self._passing.join(JOIN_S)
        if self._cluster is not None:
            self.done = self._read_done(self._cluster)
        super().stop()

    def _write_history(self, client: Client) -> None:
        names = [f"history-{number}" for number in range(HISTORY_TOPICS)]
        with ExitStack() as stack:
            producer = stack.enter_context(client.producer(linger_ms=5))
            for name in names:
                client.admin.create_topic(name, partitions=1)
            for number in range(HISTORY_RECORDS):
                for name in names:
                    producer.send_nowait(name, RECORDS[number % len(RECORDS)])
            producer.flush(JOIN_S)
        for name in names[::2]:
            client.admin.delete_topic(name)

    def _pass(self) -> None:
        number = 0
        try:
            with Client(self.cluster.bootstrap_servers) as client, client.producer() as producer:
                while not self._ends.wait(PASSING_PAUSE_S):
                    name = f"passing-{number}"
                    client.admin.create_topic(name, partitions=1)
                    producer.send_many(name, RECORDS)
                    client.admin.delete_topic(name)
                    number += 1
                    if self._works:
                        self._ask_for_scrubs()
        except (OctavoError, grpc.RpcError) as error:
            self.failed = f"the topics that come and go ended: {error}"

    def _ask_for_scrubs(self) -> None:
        """Whoever is not reading everything begins anew."""
        for address in _bookies(self.cluster):
            if not _info(address).scrub_running:
                with open_blocking_channel(address) as channel:
                    BookieControlStub(channel).Scrub(ScrubRequest(), timeout=CONTROL_TIMEOUT_S)

    def _read_done(self, cluster: LocalCluster) -> Done:
        infos = [_info(address) for address in _bookies(cluster)]
        return Done(
            sum(info.reclaimed_bytes for info in infos) / 1e6,
            sum(info.compactions for info in infos),
            sum(info.scrub_bytes for info in infos) / 1e6,
        )


def _bookies(cluster: LocalCluster) -> list[str]:
    names = [name for name in cluster.processes if name.startswith("bookie-")]
    return [cluster.process(name).health_address for name in names]


def _info(address: str) -> InfoReply:
    with open_blocking_channel(address) as channel:
        stub = BookieControlStub(channel)
        return stub.Info(InfoRequest(), timeout=CONTROL_TIMEOUT_S)  # type: ignore[no-any-return]


def ratios(
    rest: Sequence[Mapping[str, float]], work: Sequence[Mapping[str, float]], name: str
) -> Spread:
    """At work over at rest, of rounds that lay side by side."""
    return spread([w[name] / r[name] for r, w in zip(rest, work, strict=True)])


def run(pairs: int, plan: Plan, work: pathlib.Path) -> int:
    """Measure, print the line; the exit code."""
    records: PayloadSpec = campaign.json_records(work, plan)
    measured: tuple[list[Mapping[str, float]], list[Mapping[str, float]]] = ([], [])
    wrong: list[str] = []
    done: list[Done] = []
    for works in turns(pairs):
        system = Kept(work / "data", works=works)
        outcome = Round(system, plan, records, work / "workers.log").run(CELLS)
        wrong += [f"{cell}: {why}" for cell, why in outcome.failures.items()]
        wrong += [system.failed] if system.failed else []
        if wrong:
            break
        measured[works].append(outcome.measures)
        if works:
            done.append(system.done)
        told = " ".join(f"{name}={outcome.measures[name]:.4g}" for name in (*RATES, *STATED))
        campaign.say(f"{'at work' if works else 'at rest'} {told} load={machine.load_now():.1f}")
    found: dict[str, Spread] = {}
    if not wrong:
        found = {name: ratios(*measured, name) for name in (*RATES, *LATENCIES, *STATED)}
        wrong += [
            f"{name} {found[name].median:.2f}" for name in RATES if found[name].median < RATE_MIN
        ]
        wrong += [
            f"{name} {found[name].median:.2f}"
            for name in LATENCIES
            if found[name].median > LATENCY_MAX
        ]
        if not all(one.reclaimed_mb and one.compactions and one.scrubbed_mb for one in done):
            wrong.append("a round had nothing to collect, compact or scrub")
    for line in wrong:
        print(f"bench-upkeep: WRONG {line}")
    parts = [
        f"{name}={one.median:.2f}({one.low:.2f}..{one.high:.2f})" for name, one in found.items()
    ]
    if done:
        parts.append(f"reclaimed_mb={sum(one.reclaimed_mb for one in done) / len(done):.0f}")
        parts.append(f"compactions={sum(one.compactions for one in done) / len(done):.0f}")
        parts.append(f"scrubbed_mb={sum(one.scrubbed_mb for one in done) / len(done):.0f}")
    print(f"bench-upkeep: {'FAILED' if wrong else 'OK'} pairs={pairs} {' '.join(parts)}")
    return 1 if wrong else 0


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="shows that it works, no numbers")
    args = parser.parse_args()
    with campaign.work_folder() as work:
        return run(args.pairs, PLANS["tiny" if args.tiny else "quick"], work)


if __name__ == "__main__":
    sys.exit(main())
