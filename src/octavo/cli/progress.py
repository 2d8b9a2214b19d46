"""A line on stderr that counts up while a person waits."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from octavo.cli.failures import tell
from octavo.cli.terminal import is_terminal

PROGRESS_EVERY_S = 0.5


class Progress:
    """Shown on a terminal only; `line` makes its text of the seconds that passed."""

    def __init__(self, line: Callable[[float], str], *, wanted: bool = True) -> None:
        self._line = line
        self._on = wanted and is_terminal(sys.stderr)
        self._began_s = time.monotonic()
        self._next_s = self._began_s + PROGRESS_EVERY_S  # what is done by then needs no progress
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clear()

    def clear(self) -> None:
        """Take it away, so that another line can be written."""
        if self._shown:
            self._shown = False
            tell("\r\x1b[K")

    def show(self) -> None:
        """Write it anew, from time to time."""
        now_s = time.monotonic()
        if not self._on or now_s < self._next_s:
            return
        self._next_s = now_s + PROGRESS_EVERY_S
        self._shown = True
        tell(f"\r{self._line(max(now_s - self._began_s, PROGRESS_EVERY_S))}\x1b[K")
