"""Rounds over several systems, interleaved, with the machine's limits measured in each round."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence

from bench import limits, machine, payloads, report
from bench.plan import KIB, MIB, RECORD_BYTES, W3_PER_S, Plan
from bench.relay import BareRelay
from bench.rounds import Round
from bench.systems import System, Unavailable
from tools.demo import flights

Make = Callable[[pathlib.Path], System]


@contextlib.contextmanager
def work_folder() -> Iterator[pathlib.Path]:
    """A temporary folder on the disk under test, removed at the end, also when told to stop."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: terminated"))
    work = pathlib.Path(tempfile.mkdtemp(prefix="octavo-bench-"))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def json_records(work: pathlib.Path, plan: Plan) -> payloads.PayloadSpec:
    """The records of w2: real flights as JSON, in a file that all producers read."""
    return payloads.write_lines(work / "flights.jsonl", flights.load(plan.json_records).values)


def measure_limits(work: pathlib.Path, plan: Plan) -> dict[str, float]:
    """w8: the disk's own speed, what the bare relay moves, and how long both take for little."""
    say("the machine's limits")
    found = {
        "disk3_64k_mbps": limits.fsync_mb_per_s(work, 64 * KIB, plan.limit_bytes) / 3,
        "disk3_1m_mbps": limits.fsync_mb_per_s(work, MIB, plan.limit_bytes) / 3,
        "disk3_together_mbps": limits.fsync_together_mb_per_s(work, MIB, plan.limit_bytes // 3),
    }
    sync = limits.fsync_latency(work, 4 * KIB, plan.w3_count // 3)
    found |= {"disk_sync_p50_ms": sync.p50_ms, "disk_sync_p99_ms": sync.p99_ms}
    with BareRelay() as relay:
        found["relay_64k_mbps"] = relay.measure(64 * KIB, plan.relay_s).mb_per_s
        found["relay_1m_mbps"] = relay.measure(MIB, plan.relay_s).mb_per_s
        paced = relay.measure_latency(RECORD_BYTES, W3_PER_S, plan.w3_count, plan.latency_warmup)
    found |= {"relay_p50_ms": paced.p50_ms, "relay_p99_ms": paced.p99_ms}
    return found


def say(text: str) -> None:
    """Progress goes to standard error."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def run(
    kind: str, makers: Sequence[Make], plan: Plan, cells: Sequence[str], work: pathlib.Path
) -> report.Report:
    """`plan.rounds` rounds; each measures the limits and then every system once, in turn.

    The order turns by one place from round to round, so that none is always first on a warm or a
    throttled machine.
    """
    found = report.Report(kind, machine.describe(work))
    ready: list[System] = []
    for make in makers:
        system = make(work / "data")
        try:
            system.prepare()
        except Unavailable as why:
            found.unavailable[system.name] = str(why)
            say(f"{system.name} is left out: {why}")
            continue
        ready.append(system)
        found.systems[system.name] = report.SystemResult(system.setting, {}, [], {})
    records = json_records(work, plan)
    report.RESULTS.mkdir(parents=True, exist_ok=True)
    log = report.RESULTS / "workers.log"
    log.write_bytes(b"")
    for number in range(plan.rounds):
        say(f"round {number + 1} of {plan.rounds}, load average {machine.load_now():.1f}")
        found.loads.append(machine.load_now())
        found.limits.append(measure_limits(work, plan))
        turn = number % max(len(ready), 1)
        for system in ready[turn:] + ready[:turn]:
            outcome = Round(system, plan, records, log).run(cells)
            before = found.systems[system.name]
            found.systems[system.name] = before._replace(versions=system.versions())
            before.runs.append(outcome.measures)
            before.failures.update(outcome.failures)
    return found
