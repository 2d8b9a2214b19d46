"""One round of one system: start it on an empty folder, run the workloads w1 to w7, stop it.

Every workload runs in worker processes (`bench.crew`); this process only starts them and watches
the servers. A workload that fails is reported with its reason and the round goes on.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from bench import crew, usage
from bench.payloads import PayloadSpec
from bench.plan import (
    KIB,
    LINGER_MS,
    MIB,
    PARTITIONS,
    PRODUCERS_MANY,
    READERS,
    RECORD_BYTES,
    W3_PER_S,
    W4_PER_S,
    Plan,
)
from bench.systems import System

ALL_CELLS = ("w1", "w1_many", "w1_1k", "w2", "w3", "w4", "w5", "w6", "verify", "native")
GB = 1e9
BATCHES = (("64k", 64 * KIB), ("1m", MIB))
BUFFER_BYTES = 32 * MIB
"""Of a producer alone; several together get twice that in all, so that a slow system can drain."""
FANOUT_FIRST_BYTES = MIB
SETTLE_STEP_BYTES = 384 * MIB
SETTLE_GAIN = 0.05
"""A settling step that is faster than the best by less than this ends the settling."""


class Outcome(NamedTuple):
    """What one round gave."""

    measures: dict[str, float]
    failures: dict[str, str]
    """Workload -> reason."""


class Written(NamedTuple):
    """A topic of known content."""

    topic: str
    parts: list[tuple[PayloadSpec, int]]
    mb_per_s: float
    records_per_s: float

    @property
    def records(self) -> int:
        """How many are in it."""
        return sum(count for _, count in self.parts)


class Round:
    """The workloads over one running system."""

    def __init__(
        self, system: System, plan: Plan, json_spec: PayloadSpec, log_path: pathlib.Path
    ) -> None:
        self._system = system
        self._plan = plan
        self._json = json_spec
        self._log = log_path
        self._measures: dict[str, float] = {}
        self._failures: dict[str, str] = {}
        self._written: dict[str, Written] = {}

    def run(self, cells: Sequence[str] = ALL_CELLS) -> Outcome:
        """Start, run the named workloads in order, stop, remove the data."""
        tasks: dict[str, Callable[[], None]] = {
            "w1": self._w1,
            "w1_many": self._w1_many,
            "w1_1k": self._w1_1k,
            "w2": self._w2,
            "w3": self._w3,
            "w4": self._w4,
            "w5": self._w5,
            "w6": self._w6,
            "verify": self._verify,
            "native": self._native,
        }
        shutil.rmtree(self._system.folder, ignore_errors=True)
        self._system.folder.mkdir(parents=True)
        try:
            if self._guard("start", self._start):
                for cell in cells:
                    self._guard(cell, tasks[cell])
        finally:
            self._system.stop()
            shutil.rmtree(self._system.folder, ignore_errors=True)
        return Outcome(self._measures, self._failures)

    def _guard(self, name: str, work: Callable[[], None]) -> bool:
        print(f"bench: {self._system.name}: {name}", file=sys.stderr, flush=True)
        try:
            work()
        except subprocess.TimeoutExpired as error:
            reason = f"no end after {error.timeout:.0f} s"
        except (RuntimeError, OSError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        else:
            return True
        self._failures[name] = reason
        print(f"bench: {self._system.name}: {name} failed: {reason}", file=sys.stderr)
        return False

    def _start(self) -> None:
        """Start, and work the servers warm in everything that will be measured.

        A JIT compiler needs tens of seconds of CPU before a server is at its speed: writing goes
        on in steps until one is hardly faster than the best before it.
        """
        self._system.start()
        seconds = self._plan.settle_s
        if seconds <= 0:
            return
        best = 0.0
        for step in range(1, self._system.settle_steps_max + 1):
            spec, topic = PayloadSpec(RECORD_BYTES, 99), f"settle-{step}"
            written = self._produce(topic, [spec], 64 * KIB, seconds, SETTLE_STEP_BYTES, warmup_s=0)
            steady = written.mb_per_s < best * (1 + SETTLE_GAIN)
            best = max(best, written.mb_per_s)
            if steady and step >= self._system.settle_steps_min:
                break
        crew.run([self._read_job(topic, written.records, arrow=False)], self._log)
        self._system.create_topic("settle-paced", 1)
        crew.run([self._paced("settle-paced", W3_PER_S, round(W3_PER_S * seconds))], self._log)

    # --- jobs --------------------------------------------------------------------------------

    def _job(self, task: str, topic: str, **more: object) -> dict[str, object]:
        return {
            "driver": self._system.driver,
            "endpoint": dict(self._system.endpoint()),
            "task": task,
            "topic": topic,
            **more,
        }

    def _write_jobs(
        self,
        topic: str,
        specs: Sequence[PayloadSpec],
        batch_bytes: int,
        seconds: float,
        bytes_max: int,
        warmup_s: float,
        warm_topic: str = "",
    ) -> list[dict[str, object]]:
        compression = "lz4" if specs[0].lines_file and self._system.has_lz4 else "none"
        settings = {
            "batch_bytes": batch_bytes,
            "linger_ms": LINGER_MS,
            "compression": compression,
            "buffer_bytes": max(BUFFER_BYTES // len(specs), BUFFER_BYTES // 4),
        }
        return [
            self._job(
                "write",
                topic,
                payload=spec._asdict(),
                settings=settings,
                bytes_max=bytes_max // len(specs),
                warmup_s=warmup_s,
                warm_topic=warm_topic,
                seconds=seconds,
            )
            for spec in specs
        ]

    def _produce(
        self,
        topic: str,
        specs: Sequence[PayloadSpec],
        batch_bytes: int,
        seconds: float,
        bytes_max: int,
        warmup_s: float | None = None,
        use_prefix: str = "",
    ) -> Written:
        """A producer process for each spec, all at once, into a new topic."""
        warm = self._plan.warmup_s if warmup_s is None else warmup_s
        self._system.create_topic(topic, PARTITIONS)
        jobs = self._write_jobs(topic, specs, batch_bytes, seconds, bytes_max, warm)
        with (
            crew.Crew(jobs, self._log) as workers,
            usage.Meter(self._system.processes()) as meter,
        ):
            workers.go()
            results = workers.results()
        moved = sum(result["bytes"] for result in results)
        seconds = crew.span_s(results)
        records = sum(result["records"] for result in results)
        if use_prefix:
            self._note_use(use_prefix, meter, results, moved)
        parts = [(spec, result["written"]) for spec, result in zip(specs, results, strict=True)]
        written = self._written[topic] = Written(
            topic, parts, moved / seconds / 1e6, records / seconds
        )
        return written

    def _note_use(
        self, prefix: str, meter: usage.Meter, results: Sequence[crew.Result], moved: int
    ) -> None:
        """w7: CPU seconds per GB and peak memory, servers by role and clients."""
        note = self._measures
        for role, use in meter.used.items():
            note[f"{prefix}cpu_{role}_s_per_gb"] = use.cpu_s * GB / moved
            note[f"{prefix}rss_{role}_mib"] = use.rss_peak_mib
        note[f"{prefix}cpu_servers_s_per_gb"] = meter.total.cpu_s * GB / moved
        note[f"{prefix}rss_servers_mib"] = meter.total.rss_peak_mib
        clients = sum(result["cpu_s"] for result in results)
        note[f"{prefix}cpu_clients_s_per_gb"] = clients * GB / moved

    # --- writing -----------------------------------------------------------------------------

    def _w1(self) -> None:
        """Durable write, one producer."""
        for name, batch_bytes in BATCHES:
            spec = PayloadSpec(batch_bytes if self._system.packs else RECORD_BYTES, 1)
            written = self._produce(
                f"w1-{name}",
                [spec],
                batch_bytes,
                self._plan.write_s,
                self._plan.write_bytes_max,
                use_prefix="w7_" if name == "64k" else "w7_1m_",
            )
            self._measures[f"w1_{name}_mbps"] = written.mb_per_s

    def _w1_many(self) -> None:
        """Durable write, eight producer processes."""
        for name, batch_bytes in BATCHES:
            size = batch_bytes if self._system.packs else RECORD_BYTES
            specs = [PayloadSpec(size, 10 + number) for number in range(PRODUCERS_MANY)]
            written = self._produce(
                f"w1-{name}-many",
                specs,
                batch_bytes,
                self._plan.write_s,
                self._plan.write_bytes_max,
            )
            self._measures[f"w1_{name}_8p_mbps"] = written.mb_per_s

    def _w1_1k(self) -> None:
        """Single 1 KiB messages where the client does not batch them itself."""
        if self._system.packs:
            spec = PayloadSpec(RECORD_BYTES, 2)
            written = self._produce(
                "w1-1k", [spec], 0, self._plan.write_s, self._plan.write_bytes_max // 2
            )
            self._measures["w1_1k_mbps"] = written.mb_per_s

    def _w2(self) -> None:
        """Real JSON records, one producer, LZ4 where the client has it."""
        written = self._produce(
            "w2", [self._json], 64 * KIB, self._plan.write_s, self._plan.w2_bytes_max
        )
        self._measures["w2_mbps"] = written.mb_per_s
        self._measures["w2_rps"] = written.records_per_s

    # --- latency -----------------------------------------------------------------------------

    def _paced(self, topic: str, per_s: int, count: int) -> dict[str, object]:
        return self._job(
            "paced",
            topic,
            per_s=per_s,
            count=count,
            warmup=self._plan.latency_warmup,
            record_bytes=RECORD_BYTES,
        )

    def _w3(self) -> None:
        self._system.create_topic("w3", 1)
        (result,) = crew.run([self._paced("w3", W3_PER_S, self._plan.w3_count)], self._log)
        self._note_latency("w3", result)

    def _w4(self) -> None:
        self._system.create_topic("w4", 1)
        count = self._plan.w4_count
        jobs = [
            self._job("follow", "w4", warmup=self._plan.latency_warmup, count=count),
            self._paced("w4", W4_PER_S, count),
        ]
        follower, _ = crew.run(jobs, self._log)
        self._note_latency("w4", follower)

    def _note_latency(self, name: str, result: crew.Result) -> None:
        for key, value in result["latency"].items():
            self._measures[f"{name}_{key}"] = value

    # --- reading -----------------------------------------------------------------------------

    def _w5(self) -> None:
        """Catch-up read: random 1 KiB records for MB/s, JSON records for rows/s."""
        size = self._plan.catchup_bytes
        topics = ("w1-64k", "w2")
        if size:
            topics = ("w5-random", "w5-json")
            for topic, spec in zip(topics, (PayloadSpec(RECORD_BYTES, 5), self._json), strict=True):
                self._produce(topic, [spec], 64 * KIB, float("inf"), size, warmup_s=0)
        self._system.forget_caches([topic for topic in topics if topic in self._written])
        for topic, mark in zip(topics, ("", "json_"), strict=True):
            if topic not in self._written or (self._system.reads_once and mark):
                continue
            self._read(topic, f"w5_{mark}rows", arrow=False)
            if self._system.has_arrow:
                self._read(topic, f"w5_{mark}arrow", arrow=True)
        self._note_arrow_ratio()

    def _read_job(self, topic: str, count: int, *, arrow: bool) -> dict[str, object]:
        others = [name for name in ("w2", "w1-64k") if name in self._written and name != topic]
        warm = others[0] if others and not self._system.reads_once else ""
        return self._job("read", topic, count=count, arrow=arrow, warm_topic=warm)

    def _read(self, topic: str, name: str, *, arrow: bool) -> None:
        job = self._read_job(topic, self._written[topic].records, arrow=arrow)
        (result,) = crew.run([job], self._log)
        seconds = crew.span_s([result])
        self._measures[f"{name}_rps"] = result["records"] / seconds
        self._measures[f"{name}_mbps"] = result["bytes"] / seconds / 1e6
        self._measures[f"{name}_cpu_clients_s_per_gb"] = result["cpu_s"] * GB / result["bytes"]

    def _note_arrow_ratio(self) -> None:
        note = self._measures
        if "w5_json_arrow_rps" in note:
            note["poll_arrow_ratio"] = note["w5_json_arrow_rps"] / note["w5_json_rows_rps"]

    def _w6(self) -> None:
        """One producer, three readers from the start of a topic as it grows, until all have all.

        A few records open its partitions before the clock starts.
        """
        reference = self._written.get("w1-64k")
        speed = reference.mb_per_s if reference else 20.0
        size = 64 * KIB if self._system.packs else RECORD_BYTES
        wanted = min(int(speed / 2 * 1e6 * self._plan.fanout_s), self._plan.write_bytes_max // 2)
        count = max(wanted // size, 16)
        spec = PayloadSpec(size, 6)
        first = self._produce("w6", [spec], 64 * KIB, float("inf"), FANOUT_FIRST_BYTES, warmup_s=0)
        readers = 1 if self._system.reads_once else READERS
        self._system.create_topic("w6-warm", PARTITIONS)
        wanted = first.records + count
        jobs = [self._read_job("w6", wanted, arrow=self._system.has_arrow)] * readers
        jobs += self._write_jobs("w6", [spec], 64 * KIB, float("inf"), count * size, 0, "w6-warm")
        results = crew.run(jobs, self._log)
        delivered = sum(result["bytes"] for result in results[:-1])
        ended: float = max(result["ended"] for result in results[:-1])
        self._measures["w6_delivered_mbps"] = delivered / (ended - results[-1]["began"]) / 1e6
        self._measures["w6_readers"] = readers

    def _verify(self) -> None:
        """Every byte of two topics, read again and compared as a multiset; not timed."""
        for topic in ("w1-1m", "w2"):
            written = self._written.get(topic)
            if written is None:
                continue
            expected = [
                {"payload": spec._asdict(), "count": count} for spec, count in written.parts
            ]
            job = self._job("verify", topic, expected=expected, arrow=self._system.has_arrow)
            (result,) = crew.run([job], self._log)
            self._measures["verified_records"] = (
                self._measures.get("verified_records", 0.0) + result["verified"]
            )

    def _native(self) -> None:
        """The system's own load tool."""
        if self._plan.native_s:
            speed = self._measures.get("w1_64k_mbps", 20.0)
            found: Mapping[str, float] = self._system.native(self._plan.native_s, speed)
            self._measures.update(found)
