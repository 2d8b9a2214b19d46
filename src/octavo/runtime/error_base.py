"""What every error of Octavo is: a code, a cause, a hint, and whether the call may be repeated.

The classes themselves are drawn and defined in `octavo.runtime.errors`.
"""

from __future__ import annotations

from enum import Enum
from typing import ClassVar


class Retry(Enum):
    """What a caller may do after an error (spec groups G4)."""

    NEVER = "never"
    """Repeating the call cannot succeed."""
    SAME_PEER = "same-peer"
    """Back off, then repeat against the same server."""
    OTHER_PEER = "other-peer"
    """Another replica or broker may answer."""
    AFTER_REFRESH = "after-refresh"
    """Refresh metadata (owner, ensemble), then repeat."""


class OctavoError(Exception):
    """Base of all errors raised by Octavo.

    Args:
        cause: one line saying what happened.
        hint: one line saying what the reader can do; a class default applies when omitted.
        details: extra values for programs (strings, ints), sent along on the wire.
    """

    code: ClassVar[str] = "INTERNAL"
    retry: ClassVar[Retry] = Retry.NEVER
    default_hint: ClassVar[str] = ""

    def __init__(self, cause: str = "", *, hint: str = "", **details: str | int) -> None:
        self.cause = cause or (type(self).__doc__ or "").split("\n", 1)[0]
        self.hint = hint or self.default_hint
        self.details: dict[str, str | int] = details
        super().__init__(self.cause)

    @property
    def retriable(self) -> bool:
        """True when repeating the call later may succeed and can do no harm."""
        return self.retry is not Retry.NEVER

    def __str__(self) -> str:
        text = f"[{self.code}] {self.cause}"
        return f"{text} (hint: {self.hint})" if self.hint else text


def all_error_classes() -> list[type[OctavoError]]:
    """Every class of the tree, base first, in a stable order."""
    found: list[type[OctavoError]] = []
    todo: list[type[OctavoError]] = [OctavoError]
    while todo:
        cls = todo.pop(0)
        found.append(cls)
        todo.extend(cls.__subclasses__())
    return found
