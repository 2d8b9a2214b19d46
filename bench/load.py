"""w1 against a cluster that already runs: something to profile. See the README's last section.

Usage: python -m bench.load DATA_FOLDER_OR_ADDRESS [--seconds 30] [--batch-kib 64] [--producers 1]
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import uuid

from bench import crew, report
from bench.payloads import PayloadSpec
from bench.plan import KIB, LINGER_MS, MIB, PARTITIONS
from octavo import Client
from octavo.supervisor.cluster_file import read_cluster_file

BYTES_MAX = 1 << 40
BUFFER_BYTES = 32 * MIB


def address(where: str) -> str:
    """Bootstrap servers of a data folder with a cluster.json, or `where` itself."""
    found = read_cluster_file(pathlib.Path(where)) if pathlib.Path(where).is_dir() else None
    return found.bootstrap_servers if found is not None else where


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("where")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--batch-kib", type=int, default=64)
    parser.add_argument("--producers", type=int, default=1)
    args = parser.parse_args()
    servers = address(args.where)
    topic = f"load-{uuid.uuid4().hex[:8]}"
    with Client(servers) as client:
        client.admin.create_topic(topic, partitions=PARTITIONS)
    jobs = [
        {
            "driver": "octavo",
            "endpoint": {"servers": servers},
            "task": "write",
            "topic": topic,
            "payload": PayloadSpec(KIB, number)._asdict(),
            "settings": {
                "batch_bytes": args.batch_kib * KIB,
                "linger_ms": LINGER_MS,
                "compression": "none",
                "buffer_bytes": BUFFER_BYTES,
            },
            "bytes_max": BYTES_MAX,
            "warm_topic": "",
            "warmup_s": 1.0,
            "seconds": args.seconds,
        }
        for number in range(args.producers)
    ]
    report.RESULTS.mkdir(parents=True, exist_ok=True)
    with crew.Crew(
        jobs, report.RESULTS / "workers.log", result_timeout_s=args.seconds + 60
    ) as hands:
        print(f"client pids: {' '.join(map(str, hands.pids))}", flush=True)
        hands.go()
        results = hands.results()
    moved = sum(result["bytes"] for result in results)
    print(f"{moved / crew.span_s(results) / 1e6:.1f} MB/s into topic {topic}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
