"""How `octavo consume` prints a record: raw value, JSON, CSV or kcat-style format tokens."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
from collections.abc import Callable, Sequence
from typing import Protocol

from octavo.runtime.errors import ConfigError

Renderer = Callable[["PrintableRecord"], bytes]

CSV_COLUMNS = ("topic", "partition", "offset", "timestamp_ms", "key", "value")
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_FORMAT_HINT = (
    "tokens: %t topic, %p partition, %o offset, %k key, %s value, %h headers, %T timestamp, "
    "%K and %S lengths of key and value, %% percent; \\n \\t \\r \\0 \\\\"
)


class PrintableRecord(Protocol):
    """What is needed of a record; `octavo.Record` has it."""

    @property
    def topic(self) -> str:
        """Name of the topic."""
        ...

    @property
    def partition(self) -> int:
        """Number of the partition."""
        ...

    @property
    def offset(self) -> int:
        """Offset in the partition."""
        ...

    @property
    def timestamp_ms(self) -> int:
        """Timestamp in ms since 1970."""
        ...

    @property
    def key(self) -> bytes | None:
        """Key or None."""
        ...

    @property
    def value(self) -> bytes | None:
        """Value, None for a tombstone."""
        ...

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """Headers in order, duplicates kept."""
        ...


def as_value(record: PrintableRecord) -> bytes:
    """The value alone and a line feed."""
    return (record.value or b"") + b"\n"


def keyed(key_end: bytes | None, null: bytes) -> Renderer:
    """kcat's -K and -Z: the key, a delimiter (None: no keys) and the value; `null` for None."""

    def render(record: PrintableRecord) -> bytes:
        value = null if record.value is None else record.value
        if key_end is None:
            return value + b"\n"
        key = null if record.key is None else record.key
        return key + key_end + value + b"\n"

    return render


def unescaped(text: str) -> bytes:
    """A delimiter as typed: \\n \\t \\r \\0 and \\\\ mean what they do in --format."""
    out = bytearray()
    position = 0
    while position < len(text):
        following = text[position + 1 : position + 2]
        if text[position] == "\\" and following in _ESCAPES:
            out += _ESCAPES[following]
            position += 2
        else:
            out += os.fsencode(text[position])
            position += 1
    return bytes(out)


def as_json(record: PrintableRecord) -> bytes:
    """One JSON object per line; bytes that are not UTF-8 become {"base64": ...}."""
    fields = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [[name, _text(value)] for name, value in record.headers],
    }
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def as_csv(record: PrintableRecord) -> bytes:
    """One CSV line in the order of CSV_COLUMNS."""
    key, value = _text(record.key), _text(record.value)
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(
        [
            record.topic,
            record.partition,
            record.offset,
            record.timestamp_ms,
            key if isinstance(key, str) else json.dumps(key) if key else "",
            value if isinstance(value, str) else json.dumps(value) if value else "",
        ]
    )
    return line.getvalue().encode()


def _text(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def _headers(record: PrintableRecord) -> bytes:
    return b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers)


_TOKENS: dict[str, Renderer] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "k": lambda record: record.key or b"",
    "s": lambda record: record.value or b"",
    "h": _headers,
    "T": lambda record: b"%d" % record.timestamp_ms,
    "K": lambda record: b"%d" % (-1 if record.key is None else len(record.key)),
    "S": lambda record: b"%d" % (-1 if record.value is None else len(record.value)),
}


def _constant(text: bytes) -> Renderer:
    return lambda record: text


def compile_format(text: str) -> Renderer:
    """Turn a kcat-style format into a function; raises ConfigError for an unknown token."""
    parts: list[Renderer] = []
    plain = bytearray()
    position = 0
    while position < len(text):
        mark, following = text[position], text[position + 1 : position + 2]
        if mark == "\\" and following in _ESCAPES:
            plain += _ESCAPES[following]
            position += 2
        elif mark == "%" and following == "%":
            plain += b"%"
            position += 2
        elif mark == "%":
            if following not in _TOKENS:
                raise ConfigError(f"unknown token %{following} in the format", hint=_FORMAT_HINT)
            parts += [_constant(bytes(plain)), _TOKENS[following]]
            plain.clear()
            position += 2
        else:
            plain += mark.encode()
            position += 1
    parts.append(_constant(bytes(plain)))
    return lambda record: b"".join(part(record) for part in parts)
