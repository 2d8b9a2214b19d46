"""The parent's side of worker processes: start them, let all begin together, collect, or end them.

Client processes are separate from this one and from each other, for every system alike: no
interpreter lock is shared, and a client's CPU time can be told from a server's.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import IO, Any

READY_TIMEOUT_S = 90.0
RESULT_TIMEOUT_S = 240.0
ROOT = pathlib.Path(__file__).resolve().parent.parent

Result = dict[str, Any]


class WorkerFailed(RuntimeError):
    """A worker reported an error, ended early, or did not answer in time."""


class Hand:
    """One worker process and its pipes."""

    def __init__(self, job: Mapping[str, object], log: IO[bytes]) -> None:
        self.job = job
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"},
        )
        self.pid = self._process.pid
        self._say(json.dumps(job))

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its last words say why
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def go(self) -> None:
        """Let it begin."""
        self._say("go")

    def answer(self, timeout_s: float) -> Result:
        """Its next message; the process is killed when it does not come in time."""
        assert self._process.stdout is not None
        watchdog = threading.Timer(timeout_s, self._process.kill)
        watchdog.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise WorkerFailed(
                f"{self.job['driver']} {self.job['task']}: the worker ended or said nothing for "
                f"{timeout_s:.0f} s"
            )
        message: Result = json.loads(line)
        if "error" in message:
            raise WorkerFailed(f"{self.job['driver']} {self.job['task']}: {message['error']}")
        return message

    def end(self) -> None:
        """Close the pipes and wait; kill what does not go by itself."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Crew:
    """Workers of one cell. `with Crew(jobs, log) as crew: crew.go(); results = crew.results()`."""

    def __init__(
        self,
        jobs: Sequence[Mapping[str, object]],
        log_path: pathlib.Path,
        result_timeout_s: float = RESULT_TIMEOUT_S,
    ) -> None:
        self._result_timeout_s = result_timeout_s
        self._jobs = jobs
        self._log_path = log_path
        self._hands: list[Hand] = []

    def __enter__(self) -> Crew:
        """Returns once every worker is connected and warm."""
        with self._log_path.open("ab") as log:
            try:
                self._hands = [Hand(job, log) for job in self._jobs]
                for hand in self._hands:
                    hand.answer(READY_TIMEOUT_S)
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        for hand in self._hands:
            hand.end()

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [hand.pid for hand in self._hands]

    def go(self) -> None:
        """All begin."""
        for hand in self._hands:
            hand.go()

    def results(self) -> list[Result]:
        """What each reported, in the order of the jobs."""
        return [hand.answer(self._result_timeout_s)["result"] for hand in self._hands]


def run(jobs: Sequence[Mapping[str, object]], log_path: pathlib.Path) -> list[Result]:
    """The whole life of a crew."""
    with Crew(jobs, log_path) as crew:
        crew.go()
        return crew.results()


def span_s(results: Sequence[Result]) -> float:
    """From the first begin to the last end."""
    began: float = min(result["began"] for result in results)
    ended: float = max(result["ended"] for result in results)
    return ended - began
