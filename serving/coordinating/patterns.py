"""Which topics a subscribed pattern matches (RB1), in time linear to the text, whoever wrote it.

Patterns are RE2's: a pattern of a client can then not hold up the broker (ADR 33). Whole names are
matched; internal topics never are. Answers are remembered, so that a new topic costs one match for
each pattern.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

import re2

from octavo.metadata.topics import is_internal
from octavo.runtime.errors import InvalidRequest

PATTERN_CHARS_MAX = 1_000
PATTERN_MEMORY_BYTES = 1 << 20
"""Of one compiled pattern; one that needs more is refused."""
PATTERNS_MAX = 1_000
"""Patterns whose matches are remembered."""
NAMES_IN_A_TURN = 2_000
"""Names that are matched without a breath of the event loop: about 6 ms."""


@dataclass
class _Matches:
    compiled: re2._Regexp[str]  # pyright: ignore[reportPrivateUsage]
    checked: int = 0
    """How many of the known names were looked at."""
    names: set[str] = field(default_factory=lambda: set[str]())


def compile_pattern(pattern: str) -> re2._Regexp[str]:  # pyright: ignore[reportPrivateUsage]
    """Raises InvalidRequest, with the reason, for what is no pattern."""
    if len(pattern) > PATTERN_CHARS_MAX:
        raise InvalidRequest(
            f"a subscription pattern of {len(pattern)} characters; at most {PATTERN_CHARS_MAX}"
        )
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_MEMORY_BYTES
    options.never_capture = True
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0]
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(error)
        raise InvalidRequest(
            f"{pattern[:100]!r} is not a subscription pattern: {text}",
            hint="patterns are RE2's: no look-around and no back references",
        ) from error


class PatternMatches:
    """Matches of patterns among the names of topics; names only ever come."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._order: list[str] = []
        self._of: OrderedDict[str, _Matches] = OrderedDict()

    def know(self, names: Iterable[str]) -> None:
        """These topics exist. Others, which are gone, may still be found."""
        fresh = [name for name in names if not is_internal(name)]
        if len(self._names) > 2 * len(fresh) + NAMES_IN_A_TURN:  # mostly names that are gone
            self._names.clear()
            self._order.clear()
            self._of.clear()
        self._order += [name for name in fresh if name not in self._names]
        self._names.update(dict.fromkeys(fresh))

    def matching(self, pattern: str) -> set[str]:
        """Names that the whole pattern matches; none for what is no pattern."""
        try:
            found = self._matches(pattern)
        except InvalidRequest:  # of a record that another build wrote
            return set()
        self._check(found, len(self._order))
        return found.names

    async def prepare(self, pattern: str) -> None:
        """Find a new pattern's matches without holding up the loop. Raises InvalidRequest."""
        found = self._matches(pattern)
        while len(self._order) - found.checked > NAMES_IN_A_TURN:
            self._check(found, found.checked + NAMES_IN_A_TURN)
            await asyncio.sleep(0)
        self._check(found, len(self._order))

    def _matches(self, pattern: str) -> _Matches:
        found = self._of.get(pattern)
        if found is None:
            found = self._of[pattern] = _Matches(compile_pattern(pattern))
            if len(self._of) > PATTERNS_MAX:
                self._of.popitem(last=False)
        return found

    def _check(self, found: _Matches, until: int) -> None:
        for name in self._order[found.checked : until]:
            if found.compiled.fullmatch(name) is not None:
                found.names.add(name)
        found.checked = max(found.checked, until)
