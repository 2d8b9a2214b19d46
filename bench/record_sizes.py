"""`poll` and `poll_arrow` by record size: a row costs Python the same however short it is, a byte
costs Arrow the same in however many rows.

The flights of w2 as JSON with their first 6, 12 and all 20 fields, written once with LZ4, then read
from the start after the broker was restarted, in turn as rows and as Arrow.
Usage: python -m bench.record_sizes [--rounds 3] [--megabytes 400]
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

from rich.console import Console

from bench import campaign, crew, payloads, report
from bench.plan import KIB, LINGER_MS, MIB, PARTITIONS
from bench.stats import Spread, spread
from bench.systems.octavo import Octavo
from tools.demo import flights

FIELDS = (6, 12, 20)
BUFFER_BYTES = 32 * MIB
READS = {"rows": False, "arrow": True}


def shortened(values: list[bytes], fields: int) -> list[bytes]:
    """The same records with their first fields only."""
    kept = (dict(list(json.loads(value).items())[:fields]) for value in values)
    return [json.dumps(record, separators=(",", ":")).encode() for record in kept]


def measure(work: pathlib.Path, megabytes: int, rounds: int) -> dict[str, dict[str, Spread]]:
    """Rows/s as rows and as Arrow, and their ratio, by mean record size."""
    values = flights.load().values
    system = Octavo(work / "cluster")
    system.folder.mkdir()
    system.start()
    counts: dict[str, int] = {}
    speeds: dict[str, dict[str, list[float]]] = {}
    try:
        for fields in FIELDS:
            spec = payloads.write_lines(work / f"{fields}.jsonl", shortened(values, fields))
            payload = payloads.load(spec)
            topic = f"{payload.pool_bytes / len(payload.pool):.0f}-bytes"
            system.create_topic(topic, PARTITIONS)
            campaign.say(f"writing {topic}")
            (written,) = crew.run([_write(system, topic, spec, megabytes)], work / "workers.log")
            counts[topic] = written["written"]
            speeds[topic] = {name: [] for name in READS}
        for number in range(rounds):
            for topic, count in counts.items():
                campaign.say(f"round {number + 1} of {rounds}: {topic}")
                for name, arrow in READS.items():
                    system.forget_caches([topic])
                    other = next(name for name in counts if name != topic)
                    job = _job(system, "read", topic, count=count, arrow=arrow, warm_topic=other)
                    (read,) = crew.run([job], work / "workers.log")
                    speeds[topic][name].append(count / crew.span_s([read]))
    finally:
        system.stop()
    return {topic: _figures(by_name) for topic, by_name in speeds.items()}


def _figures(by_name: dict[str, list[float]]) -> dict[str, Spread]:
    ratios = [arrow / rows for rows, arrow in zip(by_name["rows"], by_name["arrow"], strict=True)]
    return {**{name: spread(runs) for name, runs in by_name.items()}, "ratio": spread(ratios)}


def _job(system: Octavo, task: str, topic: str, **more: object) -> dict[str, object]:
    endpoint = dict(system.endpoint())
    return {"driver": system.driver, "endpoint": endpoint, "task": task, "topic": topic, **more}


def _write(
    system: Octavo, topic: str, spec: payloads.PayloadSpec, megabytes: int
) -> dict[str, object]:
    settings = {
        "batch_bytes": 64 * KIB,
        "linger_ms": LINGER_MS,
        "compression": "lz4",
        "buffer_bytes": BUFFER_BYTES,
    }
    return _job(
        system,
        "write",
        topic,
        payload=spec._asdict(),
        settings=settings,
        bytes_max=megabytes * 1_000_000,
        warmup_s=0,
        warm_topic="",
        seconds=float("inf"),
    )


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=400)
    args = parser.parse_args()
    with campaign.work_folder() as work:
        found = measure(work, args.megabytes, args.rounds)
    rows = [
        report.Row("poll, rows/s", "rows", "{:,.0f}"),
        report.Row("poll_arrow, rows/s", "arrow", "{:,.0f}"),
        report.Row("poll_arrow / poll", "ratio", "{:.1f}"),
    ]
    body = report.lines(rows, found)
    report.show("catch-up read by record size", list(found), body, Console())
    print(report.markdown("measure: median (lowest–highest)", list(found), body))
    return 0


if __name__ == "__main__":
    sys.exit(main())
