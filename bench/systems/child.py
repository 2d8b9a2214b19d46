"""Server processes of the peers: started with a log file, ended together, never left behind."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
from collections.abc import Mapping, Sequence

import psutil

from bench.usage import family
from octavo.runtime.process import die_with_parent

STOP_TIMEOUT_S = 30.0
TAIL_LINES = 3


class Child:
    """One process, and whatever it starts."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: pathlib.Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env={**os.environ, **(env or {})},
                preexec_fn=die_with_parent,
            )

    @property
    def pids(self) -> list[int]:
        """The process and its descendants."""
        return family([self._process.pid])

    def check(self) -> None:
        """Raises RuntimeError with the last log lines when the process has ended."""
        code = self._process.poll()
        if code is not None:
            raise RuntimeError(f"{self.name} ended with code {code}: {self.last_words()}")

    def last_words(self) -> str:
        """The end of the log in one line."""
        lines = self.log.read_text("utf-8", "replace").strip().splitlines()
        return " | ".join(lines[-TAIL_LINES:])[:400]

    def terminate(self) -> None:
        """Ask it to end."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        """Return once it and its descendants are gone; kill what is too slow."""
        everyone = [psutil.Process(pid) for pid in self.pids if psutil.pid_exists(pid)]
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _, alive = psutil.wait_procs(everyone, timeout=1.0)
        for process in alive:
            if process.is_running():
                process.kill()
        psutil.wait_procs(alive, timeout=STOP_TIMEOUT_S)


def stop_all(children: Sequence[Child]) -> None:
    """All at the same time: peers of a cluster wait for each other otherwise."""
    for child in children:
        child.terminate()
    for child in children:
        child.wait()
