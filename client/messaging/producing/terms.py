"""What one send asks for besides being stored: whose promise it waits for, what it asserts (F032).

Records of different terms never share a batch, for a batch has one promise. Pure; any thread.
"""

from __future__ import annotations

from typing import NamedTuple

from octavo.client.messaging.config import ProducerConfig, acks_number
from octavo.runtime.errors import ConfigError

COPIES_MAX = 64
"""The most copies that a topic can ask for."""


class Terms(NamedTuple):
    """The terms of a batch."""

    acks: int = -1
    """-1: all, 1: the first bookie, 0: nobody answers (A4)."""
    min_insync_replicas: int = 0
    """The topic must ask for as many at least, or nothing is written; 0: whatever it asks for."""
    once: bool = False
    """Its record has an id by which it is kept once, and travels alone (X14)."""


class TermsTable:
    """The terms that one producer may be asked for; equal ones are one object.

    Bounded: there are three kinds of acks, COPIES_MAX assertions, and `once`.
    """

    def __init__(self, config: ProducerConfig) -> None:
        self.default = Terms(config.acks_number)
        """Of a send that says nothing."""
        self._idempotent = config.idempotent
        self._known: dict[Terms, Terms] = {self.default: self.default}

    def of(self, acks: object, min_insync_replicas: object, dedup_id: object = None) -> Terms:
        """The terms of a send; None: not said. Raises ConfigError."""
        if acks is None and min_insync_replicas is None and dedup_id is None:
            return self.default
        number = self.default.acks if acks is None else self._checked(acks)
        once = dedup_id is not None
        if once and number != -1:
            raise ConfigError(
                f"dedup_id with acks={number}: whether a record is there already is only known of "
                "what all copies have",
                hint="send it with acks='all'",
            )
        terms = Terms(number, _checked_copies(min_insync_replicas, number), once)
        return self._known.setdefault(terms, terms)

    def _checked(self, acks: object) -> int:
        number = acks_number(acks)
        if self._idempotent:  # A5
            raise ConfigError(
                f"acks={acks!r} for one send, but this producer is idempotent: its batches are "
                "numbered, and all of them need acks='all'",
                hint="make the producer with enable_idempotence=False",
            )
        return number


def _checked_copies(copies: object, acks: int) -> int:
    if copies is None:
        return 0
    if type(copies) is not int or not 1 <= copies <= COPIES_MAX:
        raise ConfigError(
            f"min_insync_replicas={copies!r} is not allowed",
            hint=f"min_insync_replicas must be a whole number from 1 to {COPIES_MAX}",
        )
    if acks == 0:
        raise ConfigError(
            f"min_insync_replicas={copies} with acks=0: nobody would hear that the topic asks for "
            "less",
            hint="send it with acks=1 or acks='all'",
        )
    return copies
