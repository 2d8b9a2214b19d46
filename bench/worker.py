"""One client process: does one job with one driver and answers in JSON lines.

    parent -> worker   the job, one line
    worker -> parent   {"ready": true}              connected, warmed up
    parent -> worker   "go"
    worker -> parent   {"result": {...}} or {"error": "..."}

Start and end are times of the machine's monotonic clock, which all processes share, so the parent
can put several workers on one time line. Started by `bench.crew` only.
"""

from __future__ import annotations

import gc
import itertools
import json
import logging
import os
import random
import struct
import sys
import time
from collections.abc import Callable, Mapping
from typing import IO, Any

from bench import drivers, pacing, payloads, stats
from octavo.runtime.malloc import tune_malloc
from octavo.runtime.process import die_with_parent

STAMP = struct.Struct("<d")
"""First bytes of a paced record: when it was due, on the monotonic clock."""
WARM_RECORDS = 64
"""Read from, or sent to, another topic before the clock starts, for imports and connections."""

Job = Mapping[str, Any]


class Worker:
    """The job and the two pipes."""

    def __init__(self, job: Job, commands: IO[str], answers: IO[str]) -> None:
        self._job = job
        self._commands = commands
        self._answers = answers
        self._driver = drivers.connect(job["driver"], job["endpoint"])

    def run(self) -> dict[str, object]:
        """Do the job, between "ready" and the result."""
        tasks: dict[str, Callable[[], dict[str, object]]] = {
            "write": self._write,
            "paced": self._paced,
            "follow": self._follow,
            "read": self._read,
            "verify": self._verify,
        }
        try:
            return tasks[self._job["task"]]()
        finally:
            self._driver.close()

    def say(self, message: Mapping[str, object]) -> None:
        """One JSON line to the parent."""
        self._answers.write(json.dumps(message) + "\n")
        self._answers.flush()

    def _ready(self) -> None:
        # The harness's own objects are not to be walked by the collector while the clock runs.
        gc.collect()
        gc.freeze()
        self.say({"ready": True})
        if self._commands.readline().strip() != "go":
            raise SystemExit("bench worker: the parent went away")

    # --- tasks -------------------------------------------------------------------------------

    def _write(self) -> dict[str, object]:
        job, clock = self._job, time.monotonic
        payload = payloads.load(payloads.PayloadSpec.of(job["payload"]))
        settings = drivers.WriteSettings.of(job["settings"])
        stream = payload.stream()
        count_max = max(int(job["bytes_max"]) * len(payload.pool) // payload.pool_bytes, 1)
        warm = 0
        if job["warm_topic"]:
            first = itertools.islice(payload.stream(), WARM_RECORDS)
            self._driver.write(job["warm_topic"], first, settings)
        if job["warmup_s"]:
            warm = self._send(pacing.Limited(stream, clock, job["warmup_s"], count_max), settings)
        self._ready()
        cpu_s, began = time.process_time(), clock()
        count = self._send(pacing.Limited(stream, clock, job["seconds"], count_max), settings)
        ended = clock()
        return {
            "began": began,
            "ended": ended,
            "records": count,
            "bytes": payload.size_bytes(warm, warm + count),
            "written": warm + count,
            "cpu_s": time.process_time() - cpu_s,
        }

    def _send(self, values: pacing.Limited[bytes], settings: drivers.WriteSettings) -> int:
        count = self._driver.write(self._job["topic"], values, settings)
        if count != values.taken:
            raise drivers.MissedRecords(f"{count} of {values.taken} acknowledged")
        return count

    def _paced(self) -> dict[str, object]:
        job = self._job
        rest = random.Random(1).randbytes(job["record_bytes"] - STAMP.size)
        self._ready()
        began = time.monotonic()
        samples = self._driver.paced(
            job["topic"],
            job["per_s"],
            job["warmup"] + job["count"],
            lambda due: STAMP.pack(due) + rest,
        )
        return {
            "began": began,
            "ended": time.monotonic(),
            "latency": stats.latency(samples[job["warmup"] :])._asdict(),
        }

    def _follow(self) -> dict[str, object]:
        job, samples, clock = self._job, list[float](), time.monotonic

        def seen(value: bytes) -> None:
            samples.append(clock() - STAMP.unpack_from(value)[0])

        self._driver.follow(job["topic"], job["warmup"] + job["count"], self._ready, seen)
        return {"latency": stats.latency(samples[job["warmup"] :])._asdict()}

    def _read(self) -> dict[str, object]:
        job = self._job
        read = self._driver.read_arrow if job["arrow"] else self._driver.read
        if job["warm_topic"]:
            read(job["warm_topic"], WARM_RECORDS, None)
        self._ready()
        cpu_s, began = time.process_time(), time.monotonic()
        rows, size = read(job["topic"], job["count"], None)
        return {
            "began": began,
            "ended": time.monotonic(),
            "records": rows,
            "bytes": size,
            "cpu_s": time.process_time() - cpu_s,
        }

    def _verify(self) -> dict[str, object]:
        job = self._job
        expected, found = payloads.Digest(), payloads.Digest()
        for part in job["expected"]:
            spec = payloads.PayloadSpec.of(part["payload"])
            expected.expect(payloads.load(spec), part["count"])
        read = self._driver.read_arrow if job["arrow"] else self._driver.read
        self._ready()
        read(job["topic"], expected.count, found.add)
        if found != expected:
            raise drivers.MissedRecords(
                f"{job['topic']}: what was read is not what was written "
                f"({found.count} records, {expected.count} written)"
            )
        return {"verified": found.count}


def main() -> int:
    """Standard output belongs to the protocol; whatever a library prints goes to the log."""
    die_with_parent()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    tune_malloc()
    job = json.loads(sys.stdin.readline())
    try:
        worker = Worker(job, sys.stdin, answers)
        worker.say({"result": worker.run()})
    except Exception as error:
        logging.getLogger("bench").exception("the job failed")
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        answers.write(json.dumps({"error": text}) + "\n")
        answers.flush()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
