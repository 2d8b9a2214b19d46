"""The last steps of a record on its way to the user: deserialisers, then interceptors (X44).

They run where the user is, never on the loop of a blocking client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from octavo.client.messaging.config import ConsumerConfig
from octavo.client.messaging.membership.tickets import CommitCallback
from octavo.client.messaging.reading.deserializers import Deserializers
from octavo.client.messaging.records import Record
from octavo.client.messaging.user_code import ClientLog

_log = ClientLog("octavo.client")


class Finishing:
    """Of one consumer."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._deserializers = Deserializers(config.key_deserializer, config.value_deserializer)
        interceptors: tuple[Any, ...] = config.interceptors
        self._on_consume: list[Callable[[list[Record]], object]] = [
            one.on_consume for one in interceptors if hasattr(one, "on_consume")
        ]

    @property
    def needed(self) -> bool:
        """Whether there is anything to do."""
        return self._deserializers.needed or bool(self._on_consume)

    def one(self, record: Record) -> Record:
        """Of an iteration; raises DeserializationFailed."""
        made = self._deserializers.one(record)
        self._tell([made])
        return made

    def many(
        self, records: Sequence[Record], go_back: Callable[[Sequence[Record]], object]
    ) -> list[Record]:
        """Of a poll, as `Deserializers.many`."""
        made = self._deserializers.many(records, go_back)
        self._tell(made)
        return made

    def _tell(self, records: list[Record]) -> None:
        if not records:
            return
        for call in self._on_consume:
            try:
                call(list(records))
            except Exception:  # noqa: BLE001 - said in the log
                _log.exception("an interceptor failed; the records are handed out all the same")


def commit_interceptors(config: ConsumerConfig) -> tuple[CommitCallback, ...]:
    """Those that hear of commits: `on_commit(offsets)`, of the ones that were stored."""

    def only_stored(call: Callable[[object], object]) -> CommitCallback:
        return lambda offsets, error: call(offsets) if error is None else None

    interceptors: tuple[Any, ...] = config.interceptors
    return tuple(only_stored(one.on_commit) for one in interceptors if hasattr(one, "on_commit"))
