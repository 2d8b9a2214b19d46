"""Raises in the running code wherever Python may run a signal handler, one place at a time.

A handler that raises (Ctrl-C, `sys.exit` on SIGTERM) strikes where the interpreter looks for
signals: behind each call, at the start of a function and at a jump back. `Strikes` finds those
places of the given files as they are reached, counts them, and raises at the one asked for.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any

LocalTrace = Callable[[FrameType, str, Any], Any]
_LOOKS = ("CALL", "JUMP_BACKWARD", "POP_JUMP_BACKWARD")


def _looks(code: CodeType) -> dict[int, bool]:
    """By offset: whether the interpreter looks for signals after the instruction."""
    return {
        step.offset: step.opname.startswith(_LOOKS)
        or (step.opname == "RESUME" and (step.arg or 0) < 2)
        for step in dis.get_instructions(code)
    }


CALLED_BY_COLLECTIONS = ("Section.__init__.<locals>.<lambda>",)
"""Callbacks of weak references: what they raise is told to nobody, so there is nothing to learn."""


class Strikes:
    """Use as a context manager around the code; it traces the calling thread only."""

    def __init__(
        self,
        files: Iterable[str],
        raised: BaseException,
        *,
        at: int = 0,
        places: set[tuple[CodeType, int]] | None = None,
    ) -> None:
        """Raise at the `at`-th place reached (from 1; 0: nowhere), or, with `places`, at the first
        one reached that is not among them yet."""
        self._files = frozenset(files)
        self._raised = raised
        self._at = at
        self._known = places
        self._codes: dict[CodeType, dict[int, bool]] = {}
        self.count = 0
        self.struck = ""
        """Where it raised: file, line and function."""

    def __enter__(self) -> Strikes:
        self._before = sys.gettrace()
        self._tracer = self._global
        sys.settrace(self._tracer)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _global(self, frame: FrameType, event: str, _: object) -> LocalTrace | None:
        if frame.f_code.co_filename not in self._files or self.struck:
            return None
        if frame.f_code.co_qualname in CALLED_BY_COLLECTIONS:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        looks = self._codes.get(frame.f_code)
        if looks is None:
            looks = self._codes[frame.f_code] = _looks(frame.f_code)
        looked = looks.get(frame.f_lasti, False)  # at its RESUME, which has no event of its own

        def local(frame: FrameType, event: str, _: object) -> LocalTrace:
            nonlocal looked
            if event == "opcode":
                if looked:
                    self._reached(frame)
                looked = looks[frame.f_lasti]
            elif event == "exception":  # what is run next handles it: no look before that
                looked = False
            return local

        return local

    def _reached(self, frame: FrameType) -> None:
        if self.struck:
            return
        self.count += 1
        strike = self.count == self._at
        if self._known is not None:
            place = (frame.f_code, frame.f_lasti)
            strike = place not in self._known
            self._known.add(place)
        if strike:
            name = frame.f_code.co_filename.rpartition("/")[2]
            self.struck = f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"
            raise self._raised
