"""One child process: started with its own log file, watched, stopped gently and then firmly."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import os
import re
import signal
from typing import NamedTuple

from octavo.supervisor.cluster_file import ProcessEntry, State, started_at
from octavo.supervisor.spec import PARENT_PID_VARIABLE, ChildSpec

_LOG_TAIL_BYTES = 4096


class Complaint(NamedTuple):
    """What a process that ended said was wrong, and what it said to do; "" when it did not."""

    cause: str
    hint: str


class Child:
    """Runs one `ChildSpec`; may be started again after it ended. Owned by the supervisor's loop."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.state: State = "down"
        self.exit_code: int | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._log_start = 0
        self._started = 0.0

    @property
    def pid(self) -> int:
        """Process id, 0 while it does not run."""
        return self._process.pid if self._process is not None and self.running else 0

    @property
    def running(self) -> bool:
        """Whether the process was started and its end was not seen yet."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the process; it is not ready yet."""
        self.spec.data_dir.mkdir(parents=True, exist_ok=True)
        self.spec.log.parent.mkdir(parents=True, exist_ok=True)
        environment = dict(os.environ)
        environment.update({PARENT_PID_VARIABLE: str(os.getpid()), "PYTHONSAFEPATH": "1"})
        with self.spec.log.open("ab") as log:
            self._log_start = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *self.spec.command(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches the supervisor alone: it keeps the order
            )
        self._started = started_at(self._process.pid)
        self.state = "starting"
        self.exit_code = None

    async def wait(self) -> int:
        """Wait for the end of the present process and return its exit code (negative: signal)."""
        if self._process is None:
            return 0
        self.exit_code = await self._process.wait()
        self.state = "down"
        return self.exit_code

    def send_signal(self, number: int) -> None:
        """Send a signal if the process runs."""
        if self._process is not None and self.running:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def stop(self, timeout_s: float) -> bool:
        """SIGTERM, then SIGKILL after `timeout_s`; returns whether the first was enough."""
        if not self.running:
            return True
        self.send_signal(signal.SIGTERM)
        self.send_signal(signal.SIGCONT)  # a frozen process cannot act on SIGTERM
        try:
            async with asyncio.timeout(timeout_s):
                await self.wait()
        except TimeoutError:
            await self.kill()
            return False
        return True

    async def kill(self) -> None:
        """SIGKILL and wait for the end."""
        self.send_signal(signal.SIGKILL)
        await self.wait()

    def log_tail(self, lines_max: int = 5) -> str:
        """The last lines that the present process wrote to its log."""
        try:
            with self.spec.log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(self._log_start, size - _LOG_TAIL_BYTES))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return ""
        return "\n".join(text.strip().splitlines()[-lines_max:])

    def complaint(self) -> Complaint:
        """What the present process said was wrong: its last error, else its last line."""
        lines = self.log_tail(50).splitlines()
        for number, line in reversed(list(enumerate(lines))):
            if line.startswith("error: "):
                hint = lines[number + 1] if number + 1 < len(lines) else ""
                hint = hint.removeprefix("hint: ") if hint.startswith("hint: ") else ""
                return Complaint(line.removeprefix("error: "), hint)
            if (cause := _logged(line, "cause")) and _logged(line, "level") == "error":
                return Complaint(cause, _logged(line, "hint"))
        return Complaint((lines or ["it logged nothing"])[-1], "")

    def last_event(self) -> str:
        """What the present process logged last, in a few words; "" when nothing."""
        line = self.log_tail(1)
        return _logged(line, "event") or line

    def entry(self) -> ProcessEntry:
        """This child as cluster.json shows it."""
        return ProcessEntry(
            role=self.spec.role,
            name=self.spec.name,
            pid=self.pid,
            started=self._started if self.running else 0.0,
            address=self.spec.address,
            health_address=self.spec.health_address,
            log=str(self.spec.log),
            state=self.state,
            metrics_address=self.spec.metrics_address,
            exit_code=self.exit_code,
        )


def _logged(line: str, key: str) -> str:
    """The text of one key of a log line (`event='started' cause="it's full"`), "" without it.

    Lines may be JSON objects as well.
    """
    if line.startswith("{"):
        with contextlib.suppress(ValueError):
            value = json.loads(line).get(key, "")
            return value if isinstance(value, str) else ""
    found = re.search(rf"(?:^| ){key}=('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")", line)
    return str(ast.literal_eval(found[1])) if found else ""


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
