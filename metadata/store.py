"""The narrow interface behind which the metadata store hides (spec/ledger.md §2.5, design.md §5).

Owns the `MetadataStore` protocol and its value types. Three implementations pass one contract
suite (tests/contract/test_metadata_*.py): `zookeeper`, `embedded` and `memory`. No client
library type appears here.

Keys are absolute slash paths without a trailing slash; every key may hold a value and children.
Missing parents are created by `create`. Versions start at 0 and grow by one with every successful
write. A key that is deleted and created again starts at 0 again: a `Version` therefore also says
which creation of the key it belongs to, and a conditional write that names it fails on any other.
Each operation that loses its reply raises UnknownOutcome (writes) or MetadataUnavailable (reads);
it is never repeated inside the store (M-3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol, Self

from octavo.runtime.errors import MetadataCorrupt


class Version(int):
    """A key's version and, where known, which of the key's lives it belongs to.

    Compares and counts as the plain number. `life` differs between any two creations of one key;
    0 when it is not known, and then a conditional write compares the number alone.
    """

    life: int

    def __new__(cls, number: int, life: int = 0) -> Self:
        """The version `number` of the life `life`."""
        made = super().__new__(cls, number)
        made.life = life
        return made


def life_of(version: int | None) -> int:
    """The life a conditional write is meant for; 0: whichever there is."""
    return version.life if isinstance(version, Version) else 0


class Versioned(NamedTuple):
    """A value and the version a conditional write must name, a `Version` when a store gave it."""

    value: bytes
    version: int


Found = Versioned | MetadataCorrupt | None
"""A value, why it cannot be used (M-7), or that none is seen."""


class Put(NamedTuple):
    """A conditional write that is one half of a transaction."""

    key: str
    value: bytes
    expected: int
    """The version it must have, a `Version` when a store gave it."""


class Child(NamedTuple):
    """A direct child of a key that was scanned."""

    name: str
    found: Versioned | MetadataCorrupt
    """Its value, or why that cannot be used (M-7)."""


class Scanned(NamedTuple):
    """A part of a key's children, in order of their names."""

    children: list[Child]
    more_after: str
    """The name behind which others follow; empty: these were all."""


class SessionState(Enum):
    """What the store knows of its own session."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """No contact; ephemeral keys may or may not still exist."""
    LOST = "lost"
    """The session ended and its ephemeral keys are gone. A new session follows by itself
    (CONNECTED); whoever owned ephemeral keys must create them again.
    """


Unsubscribe = Callable[[], None]


class MetadataStore(Protocol):
    """Versioned keys, ephemeral keys, counters and watches. All callbacks run on the event loop."""

    @property
    def session_state(self) -> SessionState:
        """The present state of the session."""
        ...

    @property
    def session_id(self) -> int:
        """Changes with every new session."""
        ...

    async def get(self, key: str) -> Versioned | None:
        """The value as one server sees it, or None when it sees none (M-4: proves nothing).

        Raises MetadataCorrupt when what is stored there is damaged, whoever did it (M-7).
        """
        ...

    async def get_many(self, keys: Sequence[str]) -> list[Found]:
        """What `get` gives of each of them, in their order; at most `keys.GET_MANY_MAX`.

        Not of one moment. One request where the store has such. Raises MetadataUnavailable.
        """
        ...

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        """Create `key`, making parents; returns version 0, of no life.

        Read before a conditional write that must not meet the next life. Raises KeyExists,
        UnknownOutcome.
        """
        ...

    async def create_and_put(self, key: str, value: bytes, put: Put) -> int:
        """Create `key` as `create`, and replace another key as `put` says: both, or neither.

        Returns the other key's new version. Raises KeyExists for `key`; KeyMissing or
        VersionConflict for the other one; UnknownOutcome.
        """
        ...

    async def put(self, key: str, value: bytes, *, expected: int | None) -> int:
        """Replace the value if its version and life are `expected`; returns the new version.

        None stands for whatever they are.

        Raises VersionConflict, KeyMissing, UnknownOutcome.
        """
        ...

    async def delete(self, key: str, *, expected: int | None) -> None:
        """Delete a key without children.

        Raises VersionConflict (also for a key that has children), KeyMissing, UnknownOutcome.
        """
        ...

    async def children(self, key: str) -> list[str]:
        """Sorted names of the direct children; empty when the key does not exist."""
        ...

    async def scan(self, keys: Sequence[str], after: str, limit: int) -> list[Scanned]:
        """Direct children of each of `keys`, at most `SCAN_KEYS_MAX`, with their values.

        Of the first one those whose names sort behind `after`. At most `limit` of each, and fewer
        where they are large; then also fewer of `keys` may be answered, the first ones, at least
        one. Empty for a key that does not exist. Values are as one server sees them; one that
        changes meanwhile is as it was or as it is. Raises MetadataUnavailable.
        """
        ...

    async def fetch_add(self, key: str) -> int:
        """Add one to the counter `key` in one round trip; its new value, at least 1 (ID-1).

        Creates the counter when it is missing. A lost reply raises UnknownOutcome and burns a
        number.
        """
        ...

    async def barrier(self) -> None:
        """After this, reads see everything committed before the call (ZooKeeper's sync)."""
        ...

    def watch(self, key: str, callback: Callable[[str], None]) -> Unsubscribe:
        """Call `callback(key)` after the value, existence or child set of `key` changed.

        Persistent until unsubscribed; may fire spuriously, and fires after every reconnect. A
        callback must not block; it usually sets an event.
        """
        ...

    def on_session(self, callback: Callable[[SessionState], None]) -> Unsubscribe:
        """Call `callback(state)` at every change of the session's state."""
        ...

    async def close(self) -> None:
        """End the session; its ephemeral keys disappear at once."""
        ...
