"""`make bench-compaction`: what it takes to compact a large topic, and who feels it (F085, F087).

One cluster of three bookies and one broker. A topic of one partition gets `--records` records of
`--keys` keys in a shuffled order. Then records are sent one at a time to another topic of the same
broker: before, while the cleaner works, and after. The map of keys may take `--memory-mib`; when
keys need more, the cleaner makes several passes. At the end the topic is read: the last value of
each key must be there, once.

The last line is `bench-compaction: OK …`; it says FAILED, and the command ends with 1, when a
record is wrong, when the p99 of sends grows by more than `P99_RATIO_MAX`, when disks hold more than
`SPACE_RATIO_MAX` times what they held before, or the broker grows by more than it may: four times
its map (`proto.offset_map`) and `ROOM_MIB`.
Usage: python -m bench.compaction [--records 10000000] [--keys 1000000] [--memory-mib 64]
"""

from __future__ import annotations

import argparse
import pathlib
import random
import sys
import threading
import time
from typing import NamedTuple

from bench import campaign, machine
from bench.plan import MIB
from bench.stats import Latency, latency
from octavo import Client
from octavo.runtime.malloc import tune_malloc
from octavo.testing import LocalCluster

TOPIC, PROBE = "table", "probe"
P99_RATIO_MAX = 1.5
SPACE_RATIO_MAX = 2.0
ROOM_MIB = 256
"""What a pass holds beside its map: pieces on their way in and out, and the malloc's slack."""
WRITE_MANY = 250_000
VALUE_BYTES = 100
PAUSE_S = 0.002
"""Between two sends of the probe."""
NEVER_MS = 86_400_000
TIMEOUT_S = 3_600.0
_LASTS = threading.Event()
"""Never set: a wait lasts its time."""


class Run(NamedTuple):
    """What one compaction took."""

    wall_s: float
    passes: int
    removed: int
    bytes_before: int
    bytes_after: int
    rss_before_mib: float
    rss_peak_mib: float
    space_ratio: float
    alone: Latency
    """Of sends before and after."""
    beside: Latency
    """Of sends meanwhile."""


class Probe(threading.Thread):
    """Sends one record after the other until it is told to end."""

    def __init__(self, client: Client) -> None:
        super().__init__(name="probe", daemon=True)
        self._client = client
        self.ends = threading.Event()
        self.samples: list[float] = []

    def run(self) -> None:
        with self._client.producer(linger_ms=0) as producer:
            while not self.ends.wait(PAUSE_S):
                began_s = time.monotonic()
                producer.send(PROBE, b"x" * VALUE_BYTES)
                self.samples.append(time.monotonic() - began_s)

    def end(self) -> list[float]:
        """The seconds that each took."""
        self.ends.set()
        self.join()
        return self.samples


def probed(client: Client, seconds: float) -> list[float]:
    """Sends for so long."""
    probe = Probe(client)
    probe.start()
    _LASTS.wait(seconds)
    return probe.end()


def write(client: Client, records: int, keys: int) -> dict[bytes, bytes]:
    """Fill the topic; the last value of each key."""
    rng = random.Random(1)
    names = [b"key-%012d" % number for number in range(keys)]
    filler = rng.randbytes(1 << 20)
    last: dict[bytes, bytes] = {}
    with client.producer(batch_size=256 * 1024, linger_ms=20) as producer:
        for first in range(0, records, WRITE_MANY):
            count = min(WRITE_MANY, records - first)
            chosen = [names[int(rng.random() * keys)] for _ in range(count)]
            values: list[bytes] = []
            for number in range(first, first + count):
                at = number * 61 % (len(filler) - VALUE_BYTES)
                values.append(b"%d:" % number + filler[at : at + VALUE_BYTES - 8])
            last.update(zip(chosen, values, strict=True))
            producer.send_many(TOPIC, values, keys=chosen)
    return last


def _memory_mib(pid: int, what: str) -> float:
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no {what}")


def _disk_bytes(folder: pathlib.Path) -> int:
    size = 0
    for file in folder.rglob("*"):
        try:
            size += file.lstat().st_blocks * 512
        except FileNotFoundError:
            continue  # it went meanwhile
    return size


def compact(cluster: LocalCluster, client: Client, probe_s: float) -> Run:
    """One request, watched."""
    (broker,) = (one for name, one in cluster.processes.items() if name.startswith("broker-"))
    alone = probed(client, probe_s)
    pathlib.Path(f"/proc/{broker.pid}/clear_refs").write_text("5")  # VmHWM begins anew
    rss_before = _memory_mib(broker.pid, "VmRSS")
    disk_before = disk_peak = _disk_bytes(cluster.data)
    ends = threading.Event()

    def weigh() -> None:
        nonlocal disk_peak
        while not ends.wait(0.5):
            disk_peak = max(disk_peak, _disk_bytes(cluster.data))

    watcher, probe = threading.Thread(target=weigh, daemon=True), Probe(client)
    watcher.start()
    probe.start()
    began_s = time.monotonic()
    done = client.admin.compact(TOPIC, 0, timeout=TIMEOUT_S)
    wall_s = time.monotonic() - began_s
    beside = probe.end()
    ends.set()
    watcher.join()
    rss_peak = _memory_mib(broker.pid, "VmHWM")
    alone += probed(client, probe_s)
    passes = pathlib.Path(broker.log).read_text().count("partition-cleaned")
    return Run(
        wall_s,
        passes,
        done.records_removed,
        done.bytes_before,
        done.bytes_after,
        rss_before,
        rss_peak,
        disk_peak / disk_before,
        latency(alone),
        latency(beside),
    )


def wrong_rows(client: Client, last: dict[bytes, bytes]) -> int:
    """Records that are there twice, or are not the last of their key, or are missing."""
    left, wrong = dict(last), 0
    with client.reader(TOPIC) as reader:
        for record in reader.read_to_end():
            wrong += left.pop(record.key or b"", None) != record.value
    return wrong + len(left)


def measure(args: argparse.Namespace) -> tuple[Run, int]:
    """Everything, on a cluster of its own; and how many records are wrong."""
    settings = {
        "compaction_memory_bytes": args.memory_mib * MIB,
        "compaction_bytes_per_s": args.rate_mib * MIB,
        "compaction_check_interval_ms": NEVER_MS,
    }
    with campaign.work_folder() as work:
        data = work / "cluster"
        with (
            LocalCluster(3, 1, data=data, broker_settings=settings) as cluster,
            Client(cluster.bootstrap_servers) as client,
        ):
            topic = {"cleanup.policy": "compact", "segment.bytes": str(64 * MIB)}
            client.admin.create_topic(TOPIC, 1, topic)
            client.admin.create_topic(PROBE, 1)
            campaign.say(f"writing {args.records} records")
            last = write(client, args.records, args.keys)
            campaign.say(f"compacting, load average {machine.load_now():.1f}")
            run = compact(cluster, client, args.probe_s)
            campaign.say("reading")
            return run, wrong_rows(client, last)


def summary(args: argparse.Namespace, run: Run, wrong: int) -> tuple[bool, str]:
    """Whether it is as it must be, and the last line."""
    p99_ratio = run.beside.p99_ms / run.alone.p99_ms
    grown_mib = run.rss_peak_mib - run.rss_before_mib
    holds = (
        not wrong
        and p99_ratio <= P99_RATIO_MAX
        and run.space_ratio <= SPACE_RATIO_MAX
        and grown_mib <= 4 * args.memory_mib + ROOM_MIB
    )
    parts = (
        f"records={args.records} keys={args.keys} memory_mib={args.memory_mib}",
        f"passes={run.passes} seconds={run.wall_s:.1f}",
        f"records_per_s={args.records / run.wall_s:.0f} removed={run.removed} wrong={wrong}",
        f"stored_mb={run.bytes_before / 1e6:.0f} left_mb={run.bytes_after / 1e6:.0f}",
        f"broker_peak_rss_mib={run.rss_peak_mib:.0f} broker_grown_mib={grown_mib:.0f}",
        f"space_ratio={run.space_ratio:.2f}",
        f"send_p99_alone_ms={run.alone.p99_ms:.2f} send_p99_beside_ms={run.beside.p99_ms:.2f}",
        f"p99_ratio={p99_ratio:.2f}",
    )
    return holds, f"bench-compaction: {'OK' if holds else 'FAILED'} {' '.join(parts)}"


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--memory-mib", type=int, default=64, help="of the cleaner's map of keys")
    parser.add_argument(
        "--rate-mib", type=int, default=64, help="read and written a second; 0: any"
    )
    parser.add_argument("--probe-s", type=float, default=15.0, help="sends before and after")
    args = parser.parse_args()
    tune_malloc()
    run, wrong = measure(args)
    holds, line = summary(args, run, wrong)
    print(line)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
