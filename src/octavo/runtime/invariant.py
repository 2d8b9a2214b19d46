"""Checks of our own promises that survive `python -O`."""

from __future__ import annotations

from octavo.runtime.errors import InvariantViolation


def invariant(condition: object, message: str) -> None:
    """Raise InvariantViolation with `message` unless `condition` is true."""
    if not condition:
        raise InvariantViolation(message)
