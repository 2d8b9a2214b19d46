"""`--from`, `--until` and `--to`: where somebody begins, stops or goes on, as typed by a person."""

from __future__ import annotations

import datetime
import re
from typing import NamedTuple

from octavo.proto.edges import EARLIEST, LATEST
from octavo.runtime.errors import ConfigError

_RELATIVE = re.compile(r"-([0-9]+)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_HINT = (
    "use start, end, OFFSET, -N or end-N (the last N of each partition), or @TIME such as "
    "@2026-01-01T00:00Z"
)
_TO_HINT = (
    "use earliest, latest, OFFSET, -N or +N (from where the group is), end-N (the last N of each "
    "partition), -15m (so long ago) or a time such as 2026-01-01T00:00Z or @EPOCH_MS"
)
_MOST = (1 << 63) - 1
"""Offsets and times are int64."""


class Start(NamedTuple):
    """The kind of position and its number, if it has one."""

    kind: str
    """start, end, offset, last (N records before the end) or time (ms since 1970)."""
    value: int = 0


def parse_start(text: str, now_ms: int, option: str = "--from") -> Start:
    """Parse start | end | OFFSET | -N | end-N | @ISO time | @epoch ms | @-15m.

    Raises ConfigError naming the option.
    """
    if text in ("start", EARLIEST.value, "beginning"):
        return Start("start")
    if text in ("end", LATEST.value):
        return Start("end")
    if _is_number(text):
        return Start("offset", _bounded(int(text), text, option, "an offset"))
    last = text.removeprefix("end").removeprefix("-")
    if text.startswith(("-", "end-")) and _is_number(last) and int(last) > 0:
        return Start("last", _bounded(int(last), text, option, "a number of records"))
    if text.startswith("@"):
        moment_ms = _parse_time(text[1:], now_ms, option)
        return Start("time", _bounded(moment_ms, text, option, "a time"))
    raise ConfigError(f"{option} {text!r} is not a position", hint=_HINT)


def parse_target(text: str, now_ms: int) -> Start:
    """Parse where a group is to go on; Start with kinds of its own besides: shift.

    earliest | latest | OFFSET | -N | +N | end-N | -15m | ISO time | @TIME. Raises ConfigError.
    """
    option = "--to"
    if text[:1] in ("-", "+") and _is_number(text[1:]):
        records = _bounded(int(text[1:]), text, option, "a number of records")
        return Start("shift", -records if text[0] == "-" else records)
    if _RELATIVE.fullmatch(text) or (text[:4].isdecimal() and text[4:5] == "-"):
        text = f"@{text}"
    try:
        return parse_start(text, now_ms, option)
    except ConfigError as error:
        raise ConfigError(error.cause, hint=_TO_HINT) from error


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 1000


def _bounded(value: int, text: str, option: str, what: str) -> int:
    if not 0 <= value <= _MOST:
        raise ConfigError(
            f"{option} {text!r} is out of range for {what}",
            hint="offsets end at 2**63 - 1, times lie between 1970 and 2**63 - 1 ms after it",
        )
    return value


def _parse_time(text: str, now_ms: int, option: str) -> int:
    if _is_number(text):
        return int(text)
    relative = _RELATIVE.fullmatch(text)
    if relative and len(relative[1]) < 1000:
        return now_ms - int(relative[1]) * _SECONDS[relative[2]] * 1000
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"{option} @{text} is not a time: {error}", hint=_HINT) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return round(moment.timestamp() * 1000)
