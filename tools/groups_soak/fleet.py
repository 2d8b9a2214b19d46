"""Member processes of one group: begun, ended, frozen and killed, and what they wrote down."""

from __future__ import annotations

import pathlib
import random
import signal
import subprocess
import sys
import time
from types import TracebackType
from typing import Self

from octavo.runtime.errors import OctavoError
from tools.groups_soak.story import FROZEN, KILLED, Event, read

LAST_WORDS_CHARS = 300
STOP_S = 30.0


class Fleet:
    """Processes of `tools.groups_soak.member`, `size` of them when it is full."""

    def __init__(
        self,
        servers: str,
        topic: str,
        group: str,
        work: pathlib.Path,
        size: int,
        options: tuple[str, ...] = (),
    ) -> None:
        self._words = ["--servers", servers, "--topic", topic, "--group", group, *options]
        self._work = work
        self._size = size
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._frozen: dict[str, tuple[float, float]] = {}
        """Since when, and until when."""
        self._events: list[Event] = []
        self._outsider: subprocess.Popen[bytes] | None = None
        self.started = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        others = [] if self._outsider is None else [self._outsider]
        for process in [*self._processes.values(), *others]:
            process.kill()
            process.wait()

    def watch(self, servers: str, topic: str) -> None:
        """Begin a reader of the topic that is in no group; it lasts as long as the fleet."""
        self._outsider = self._begin("outsider", "outsider", "--servers", servers, "--topic", topic)

    def join(self) -> str:
        """One more member; returns its name."""
        self.started += 1
        name = f"member-{self.started}"
        self._processes[name] = self._begin("member", name, *self._words, "--name", name)
        return name

    def _begin(self, module: str, name: str, *words: str) -> subprocess.Popen[bytes]:
        log = self._work / f"{name}.jsonl"
        log.touch()
        program = (sys.executable, "-m", f"tools.groups_soak.{module}")
        with (self._work / f"{name}.err").open("wb") as errors:
            return subprocess.Popen([*program, *words, "--log", str(log)], stderr=errors)

    def fill(self) -> None:
        """As many as there should be."""
        while len(self._processes) < self._size:
            self.join()

    def act(self, rng: random.Random, freeze_s: tuple[float, float]) -> str:
        """Something that happens to one member; returns what."""
        awake = sorted(set(self._processes) - set(self._frozen))
        if (len(self._processes) < self._size and rng.random() < 0.6) or len(awake) < 3:
            self.join()
            return "joined"
        name = rng.choice(awake)
        match rng.choice(("leave", "kill", "freeze")):
            case "leave":
                self.leave(name)
                return "left"
            case "kill":
                self.kill(name)
                return "killed"
            case _:
                self._processes[name].send_signal(signal.SIGSTOP)
                now_s = time.monotonic()
                self._frozen[name] = (now_s, now_s + rng.uniform(*freeze_s))
                return "frozen"

    def leave(self, name: str) -> None:
        """As it would end by itself."""
        self._processes[name].send_signal(signal.SIGTERM)
        self._await_end(name)

    def _await_end(self, name: str) -> None:
        process = self._processes.pop(name)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise OctavoError(f"{name} did not end within {STOP_S:.0f} s") from None
        if process.returncode == -signal.SIGTERM:  # it had not begun to listen
            self._events.append(Event(KILLED, time.monotonic(), name))
        elif process.returncode != 0:
            raise OctavoError(f"{name} ended with {process.returncode}: {self._last_words(name)}")

    def kill(self, name: str) -> None:
        """SIGKILL, in the middle of whatever it does."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()
        self._events.append(Event(KILLED, time.monotonic(), name))

    def thaw_due(self) -> None:
        """Those that were frozen for long enough."""
        now_s = time.monotonic()
        for name, (since_s, until_s) in list(self._frozen.items()):
            if now_s >= until_s:
                self._thaw(name, since_s)

    def thaw_all(self) -> None:
        """All that are frozen."""
        for name, (since_s, _) in list(self._frozen.items()):
            self._thaw(name, since_s)

    def _thaw(self, name: str, since_s: float) -> None:
        self._processes[name].send_signal(signal.SIGCONT)
        del self._frozen[name]
        self._events.append(Event(FROZEN, time.monotonic(), name, since_s=since_s))

    def check(self) -> None:
        """Raise OctavoError for a member that ended by itself."""
        others = {} if self._outsider is None else {"outsider": self._outsider}
        for name, process in [*self._processes.items(), *others.items()]:
            if process.poll() is not None:
                raise OctavoError(f"{name} ended: {self._last_words(name)}")

    def _last_words(self, name: str) -> str:
        text = (self._work / f"{name}.err").read_text("utf-8", "replace").strip()
        return text[-LAST_WORDS_CHARS:] or "it said nothing"

    def finish(self) -> list[Event]:
        """End them all and read what they, and those before them, wrote down."""
        self.thaw_all()
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        for name in list(self._processes):
            self._await_end(name)
        if self._outsider is not None:
            self._outsider.send_signal(signal.SIGTERM)
            self._outsider.wait(STOP_S)
        return [*read(self._work.glob("*.jsonl")), *self._events]
