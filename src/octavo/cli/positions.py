"""`--from`: where a reader begins, as typed by a person."""

from __future__ import annotations

import datetime
import re
from typing import NamedTuple

from octavo.runtime.errors import ConfigError

_RELATIVE = re.compile(r"-(\d+)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_HINT = (
    "use start, end, OFFSET, -N (the last N of each partition), or @TIME such as @2026-01-01T00:00Z"
)


class Start(NamedTuple):
    """The kind of position and its number, if it has one."""

    kind: str
    """start, end, offset, last (N records before the end) or time (ms since 1970)."""
    value: int = 0


def parse_start(text: str, now_ms: int) -> Start:
    """Parse start | end | OFFSET | -N | @ISO time | @epoch ms | @-15m; raises ConfigError."""
    if text in ("start", "earliest", "beginning"):
        return Start("start")
    if text in ("end", "latest"):
        return Start("end")
    if text.isdecimal():
        return Start("offset", int(text))
    if text.startswith("-") and text[1:].isdecimal() and int(text) < 0:
        return Start("last", int(text[1:]))
    if text.startswith("@"):
        return Start("time", _parse_time(text[1:], now_ms))
    raise ConfigError(f"--from {text!r} is not a position", hint=_HINT)


def _parse_time(text: str, now_ms: int) -> int:
    if text.isdecimal():
        return int(text)
    relative = _RELATIVE.fullmatch(text)
    if relative:
        return now_ms - int(relative[1]) * _SECONDS[relative[2]] * 1000
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"--from @{text} is not a time: {error}", hint=_HINT) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return round(moment.timestamp() * 1000)
