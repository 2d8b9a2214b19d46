"""A log record as one JSON object a line (F172): how its fields are called, what never is in it.

    ts level component event, then topic partition group trace_id where known, then the rest

No line holds bytes of a record: of bytes only the length is told. A traceback is one
text of bounded length inside the object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import cast

TEXT_CHARACTERS_MAX = 8_192
"""Of one text; the end of a longer one is what tells most of a traceback, and is kept."""
FIRST = ("ts", "level", "component", "event", "topic", "partition", "group", "trace_id")
_RENAMED = {"timestamp": "ts", "group_id": "group"}
_PARTITION = re.compile(r"(.+)-([0-9]+)", re.DOTALL)


def json_line(fields: Mapping[str, object]) -> str:
    """The line, without an end; never raises for what a field holds."""
    named = {_RENAMED.get(name, name): value for name, value in fields.items()}
    where = named.get("partition")
    if isinstance(where, str) and "topic" not in named and (found := _PARTITION.fullmatch(where)):
        named["topic"], named["partition"] = found[1], int(found[2])
    ordered = [name for name in FIRST if name in named]
    ordered += [name for name in named if name not in FIRST]
    return json.dumps({name: _plain(named[name]) for name in ordered}, ensure_ascii=False)


def _plain(value: object) -> object:
    if isinstance(value, bool | int | None):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # JSON has no word for the others
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(cast('bytes', value))} bytes"
    text = value if isinstance(value, str) else repr(value)
    if len(text) > TEXT_CHARACTERS_MAX:
        text = "… " + text[-TEXT_CHARACTERS_MAX:]
    return text.encode("utf-8", "backslashreplace").decode()
