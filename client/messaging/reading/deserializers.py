"""From stored bytes to what the user's code works with: keys and values of records. Pure.

A record that cannot be deserialised is nobody's to skip: the call raises, the position stays in
front of the record, and `seek` to the offset behind it goes on (F7).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from octavo.client.messaging.config import Deserializer
from octavo.client.messaging.records import Record
from octavo.runtime.errors import DeserializationFailed

_BY_NAME: dict[str, Deserializer] = {"json": json.loads, "str": lambda data: data.decode()}


def _named(given: str | Deserializer | None) -> Deserializer | None:
    return _BY_NAME[given] if isinstance(given, str) else given


class Deserializers:
    """Of one consumer; None, a tombstone or no key, stays None."""

    def __init__(self, key: str | Deserializer | None, value: str | Deserializer | None) -> None:
        self._key = _named(key)
        self._value = _named(value)

    @property
    def needed(self) -> bool:
        """Whether there is anything to do."""
        return self._key is not None or self._value is not None

    def one(self, record: Record) -> Record:
        """The record with what its bytes mean; raises DeserializationFailed."""
        key: Any = record.key
        value: Any = record.value
        if self._key is not None and key is not None:
            key = self._made("key", self._key, key, record)
        if self._value is not None and value is not None:
            value = self._made("value", self._value, value, record)
        return record._replace(key=key, value=value)

    @staticmethod
    def _made(what: str, function: Deserializer, data: bytes, record: Record) -> object:
        try:
            return function(data)
        except Exception as error:
            raise DeserializationFailed(
                f"the {what} of {record.topic_partition} offset {record.offset} cannot be "
                f"deserialised: {error!r}",
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
            ) from error

    def many(
        self, records: Sequence[Record], go_back: Callable[[Sequence[Record]], object]
    ) -> list[Record]:
        """The records in front of the first that cannot be deserialised; the others go back.

        Raises DeserializationFailed when there are none in front of it.
        """
        made: list[Record] = []
        try:
            for record in records:
                made.append(self.one(record))
        except DeserializationFailed:
            go_back(records[len(made) :])
            if not made:
                raise
        except BaseException:
            go_back(records)
            raise
        return made
