"""Worlds that judge themselves: after every command their promises must hold, whatever it said."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from octavo.runtime.errors import OctavoError
from tests.scenarios.language import Handler, Step

Deed = Callable[[Step], Awaitable[list[str]]]
"""What a command does; what it returns is what happened."""


class JudgedWorld:
    """A `World` of deeds; an error that one raises is what happened."""

    def __init__(self) -> None:
        self._happened: list[str] = []

    def deeds(self) -> dict[str, Deed]:
        """One per command."""
        raise AssertionError("a world has commands")

    async def judge(self) -> None:
        """Raises AssertionError when a promise is broken."""
        raise AssertionError("a world keeps promises")

    @property
    def handlers(self) -> dict[str, Handler]:
        """One per command."""
        return {name: partial(self._do, deed) for name, deed in self.deeds().items()}

    async def _do(self, deed: Deed, step: Step) -> None:
        try:
            self._happened += await deed(step)
        except OctavoError as error:
            self._happened.append(f"error {error.code}")

    async def happened(self) -> list[str]:
        """What the last command did, if every promise holds after it."""
        await self.judge()
        said, self._happened = self._happened, []
        return said
