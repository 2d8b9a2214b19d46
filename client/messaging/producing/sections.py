"""Critical sections that signal handlers and finalisers may interrupt and still use the client.

Python runs signal handlers, and `__del__` of collected objects, between any two steps of a thread:
also while that thread holds the lock of a producer. Such code may send, flush or close. It runs on
the very thread that holds the lock, so it must neither wait for the lock nor find it re-entrant
(the section is half done). Two rules follow:

- What need not wait does not enter: a record is set aside and appended when the section is over.
- What waits gives the lock back for as long as it waits (`suspended`): the client's loop and other
  threads go on, and the interrupted section finds afterwards what they did. Hence a section's state
  is whole between any two calls, and it looks again after each call (see `accumulator`).
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Generator
from typing import Protocol, cast


class OwnedLock(Protocol):
    """What `threading.Condition` itself asks of a re-entrant lock, and `with`."""

    def __enter__(self) -> bool:
        """Take it."""
        ...

    def __exit__(self, *args: object) -> None:
        """Give it back."""
        ...

    def _is_owned(self) -> bool: ...

    def _release_save(self) -> object: ...

    def _acquire_restore(self, state: object) -> None: ...


_SECTIONS: dict[int, weakref.ref[Section]] = {}
"""All sections of this process by id; changed by single steps only, so it needs no lock."""


class Section:
    """A lock that knows whether the calling thread holds it."""

    def __init__(self) -> None:
        made = threading.RLock()
        self.lock = made
        self._owned = cast("OwnedLock", made)
        self.mine: Callable[[], bool] = self._owned._is_owned  # pyright: ignore[reportPrivateUsage]
        """Whether this thread is inside, so that the caller is code that interrupted it."""
        key = id(self)
        _SECTIONS[key] = weakref.ref(self, lambda _: _SECTIONS.pop(key, None) and None)

    def release_save(self) -> object:
        """Give the lock back whatever its depth; returns what `acquire_restore` needs."""
        return self._owned._release_save()  # pyright: ignore[reportPrivateUsage]

    def acquire_restore(self, state: object) -> None:
        """Take the lock again, as deep as it was."""
        self._owned._acquire_restore(state)  # pyright: ignore[reportPrivateUsage]


@contextlib.contextmanager
def suspended() -> Generator[None]:
    """For the time of a wait, give back every section that this thread was interrupted in."""
    held = [
        section
        for section in (ref() for ref in list(_SECTIONS.values()))
        if section is not None and section.mine()
    ]
    saved = [(section, section.release_save()) for section in held]
    try:
        yield
    finally:
        for section, state in reversed(saved):
            section.acquire_restore(state)
