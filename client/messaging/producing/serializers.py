"""From user values to bytes: bytes stay, str is UTF-8, the rest needs a named serializer (P4)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import cast

from octavo.client.messaging.config import Serializer
from octavo.client.messaging.records import Headers
from octavo.proto.dedup_ids import ID_BYTES_MAX, ID_HEADER
from octavo.runtime.errors import ConfigError, InvalidRecord

ToBytes = Callable[[object], bytes | None]


def json_bytes(value: object) -> bytes:
    """Compact JSON in UTF-8; values that JSON cannot express raise TypeError."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _type_error(what: str, value: object) -> TypeError:
    return TypeError(
        f"{what} of type {type(value).__name__} needs a serializer: pass bytes or str, or create "
        f'the producer with serializer="json" (or a callable returning bytes)'
    )


def plain(what: str) -> ToBytes:
    """The default: bytes as they are, str as UTF-8, None for a tombstone or no key."""

    def to_bytes(value: object) -> bytes | None:
        if value is None or type(value) is bytes:
            return value
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, (bytes, bytearray)):
            return bytes(value)
        if isinstance(value, memoryview):
            return value.tobytes()
        raise _type_error(what, value)

    return to_bytes


def value_converter(serializer: str | Serializer | None) -> ToBytes:
    """What a producer does with values. None stays None; JSON leaves bytes alone."""
    if serializer is None:
        return plain("value")
    if callable(serializer):
        return _checked(serializer)
    if serializer != "json":
        raise ConfigError(f"unknown serializer {serializer!r}", hint="use 'json' or a callable")

    def to_json(value: object) -> bytes | None:
        if value is None or type(value) is bytes:
            return value
        return json_bytes(value)

    return to_json


def key_converter(serializer: str | Serializer | None) -> ToBytes:
    """What a producer does with keys: bytes and str as always, others through the serializer."""
    base = plain("key")
    if serializer is None:
        return base
    other = value_converter(serializer)

    def to_bytes(key: object) -> bytes | None:
        if key is None or isinstance(key, (bytes, str)):
            return base(key)
        return other(key)

    return to_bytes


def _checked(serializer: Serializer) -> ToBytes:
    def to_bytes(value: object) -> bytes | None:
        if value is None:
            return None
        made: object = serializer(value)
        if type(made) is not bytes:
            raise TypeError(f"the serializer returned {type(made).__name__}, it must return bytes")
        return made

    return to_bytes


def header_list(headers: object) -> list[tuple[str, bytes | None]]:
    """Headers as given (pairs, duplicates allowed, or a mapping) in the stored form."""
    if isinstance(headers, Mapping):
        pairs = list(cast("Mapping[object, object]", headers).items())
    elif isinstance(headers, Iterable) and not isinstance(headers, (str, bytes)):
        pairs = [_pair(item) for item in cast("Iterable[object]", headers)]
    else:
        raise TypeError("headers must be a list of (str, bytes) pairs or a mapping")
    out: list[tuple[str, bytes | None]] = []
    for name, value in pairs:
        if not isinstance(name, str) or not name:
            raise InvalidRecord(f"header name {name!r} must be a non-empty str")
        name.encode()  # a name that is no valid text fails here, not when its batch is encoded
        if isinstance(value, str):
            value = value.encode()
        if value is not None and not isinstance(value, bytes):
            raise TypeError(
                f"header {name!r} has a value of type {type(value).__name__}, not bytes"
            )
        out.append((name, value))
    return out


def _pair(item: object) -> tuple[object, object]:
    if not isinstance(item, tuple) or len(cast("tuple[object, ...]", item)) != 2:
        raise TypeError(f"header {item!r} is not a (str, bytes) pair")
    return cast("tuple[object, object]", item)


def headers_bytes(headers: Iterable[tuple[str, bytes | None]]) -> int:
    """What headers add to a record's size."""
    return sum(text_bytes(name) + len(value or b"") + 12 for name, value in headers)


def text_bytes(text: str) -> int:
    """Size of `text` as UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def with_dedup_id(headers: Headers, dedup_id: object) -> Headers:
    """`headers` and the id by which the record is kept once (X14); raises ConfigError."""
    found = dedup_id.encode() if isinstance(dedup_id, str) else dedup_id
    if not isinstance(found, bytes):
        raise ConfigError(
            f"dedup_id={dedup_id!r} is not allowed", hint="dedup_id must be bytes or text"
        )
    if not 0 < len(found) <= ID_BYTES_MAX:
        raise ConfigError(
            f"dedup_id of {len(found)} bytes is not allowed",
            hint=f"dedup_id must have 1 to {ID_BYTES_MAX} bytes; of longer ones send a digest",
        )
    if any(name == ID_HEADER for name, _ in headers):
        raise ConfigError(
            f"dedup_id is given, and a header {ID_HEADER!r} too, which would hide it",
            hint="leave the header out: it is made from dedup_id",
        )
    return [*headers, (ID_HEADER, found)]
