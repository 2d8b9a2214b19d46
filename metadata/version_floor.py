"""Versions of records never go back (spec/faults §4.5): a store that was rolled back is noticed.

A catalog remembers the highest version it saw of each record. A lower one behind a barrier means
that the store lost changes it had answered, a restored snapshot or a replaced disk: the record is
refused by name (M-7), because acting on it could undo a fence, a close or a claim.
"""

from __future__ import annotations

from collections import OrderedDict

from octavo.runtime.errors import MetadataCorrupt

SEEN_MAX = 100_000
"""Records whose version is remembered; the least recently used is forgotten first."""


class VersionFloor:
    """The highest versions seen by one catalog."""

    def __init__(self, limit: int = SEEN_MAX) -> None:
        self._limit = limit
        self._seen: OrderedDict[str, int] = OrderedDict()

    def of(self, key: str) -> int:
        """The version below which `key` cannot be.

        Take it before a read begins: others may write, and be seen, while it is under way.
        """
        return self._seen.get(key, -1)

    def check(self, key: str, version: int, floor: int) -> None:
        """A read behind a barrier, begun at `floor`, found `version`; raises if that fell."""
        if version < floor:
            raise MetadataCorrupt(
                f"{key} went back from version {floor} to {version}: "
                "the metadata store lost changes that it had answered",
                hint="was an older copy of the metadata restored? its ledgers may be ahead of it",
                key=key,
            )
        self.saw(key, version)

    def saw(self, key: str, version: int) -> None:
        """Remember a version that was read or written."""
        self._seen[key] = max(version, self._seen.get(key, version))
        self._seen.move_to_end(key)
        if len(self._seen) > self._limit:
            self._seen.popitem(last=False)

    def forget(self, key: str) -> None:
        """The record was deleted."""
        self._seen.pop(key, None)
