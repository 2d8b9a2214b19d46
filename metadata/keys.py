"""Rules for keys and values that hold for every metadata store.

Owns key validation, parent arithmetic and the value limit, so that the three stores refuse the
same things before anything is sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.runtime.errors import InvalidRequest

MAX_VALUE_BYTES = 1_000_000
"""ZooKeeper drops the connection of a client that sends more than 1 MiB; refuse it before (M-6)."""

GET_MANY_MAX = 64
"""Keys that are read with one request."""

SCAN_KEYS_MAX = 16
"""Keys whose children are asked for with one request."""

MAX_KEY_CHARS = 1_000
"""Longest key; far above every path of this system."""

VERSION_WRAP = 1 << 31
"""ZooKeeper versions are signed 32-bit and wrap to negative (ID-2)."""


def check_key(key: str) -> str:
    """Return `key` if it is an absolute path of non-empty names, else raise InvalidRequest."""
    if len(key) > MAX_KEY_CHARS or not key.startswith("/") or "\x00" in key:
        raise InvalidRequest(f"not a metadata key: {key[:80]!r}")
    if any(part in ("", ".", "..") for part in key[1:].split("/")):
        raise InvalidRequest(f"not a metadata key: {key!r}")
    return key


def check_keys(keys: Sequence[str], most: int = GET_MANY_MAX) -> Sequence[str]:
    """Return `keys` if one request may read them, else raise InvalidRequest."""
    if len(keys) > most:
        raise InvalidRequest(f"{len(keys)} metadata keys at once are more than {most}")
    for key in keys:
        check_key(key)
    return keys


def check_value(key: str, value: bytes, limit_bytes: int = MAX_VALUE_BYTES) -> bytes:
    """Return `value` if a store can hold it, else raise InvalidRequest."""
    if len(value) > limit_bytes:
        raise InvalidRequest(
            f"value of {len(value)} bytes for {key} is above {limit_bytes}", key=key
        )
    return value


def parent_of(key: str) -> str:
    """The key one level up; "/" for a top-level key."""
    return key.rpartition("/")[0] or "/"


def name_of(key: str) -> str:
    """The last element of the key."""
    return key.rpartition("/")[2]


def parents_of(key: str) -> list[str]:
    """All keys above `key`, outermost first, without "/"."""
    parts = key[1:].split("/")[:-1]
    return ["/" + "/".join(parts[: i + 1]) for i in range(len(parts))]
