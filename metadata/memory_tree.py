"""The keys of the in-memory store: a pure model of what a metadata server commits.

Every write returns its result and the keys whose watches must fire, or raises without changing
anything.
"""

from __future__ import annotations

from typing import NamedTuple

from octavo.metadata.envelope import SEALED_EMPTY, unseal
from octavo.metadata.keys import VERSION_WRAP, parent_of, parents_of
from octavo.metadata.store import Put, Version, Versioned, life_of
from octavo.runtime.errors import IllegalStateError, KeyExists, KeyMissing, VersionConflict


class Node(NamedTuple):
    """One key."""

    value: bytes
    version: int
    session_id: int
    """The session an ephemeral key lives with; 0 for a lasting one."""
    life: int = 0
    """Which creation made it; never given twice."""


Changed = list[str]


class MemoryTree:
    """Committed keys."""

    def __init__(self, nodes: dict[str, Node] | None = None) -> None:
        self._nodes = nodes if nodes is not None else {}
        self._lives = 0

    def copy(self) -> MemoryTree:
        """The present state, for a follower that lags."""
        return MemoryTree(dict(self._nodes))

    def snapshot(self) -> dict[str, Versioned]:
        """All keys and what was sealed in them, for assertions and oracles."""
        return {
            key: _versioned(node)._replace(value=unseal(key, node.value))
            for key, node in self._nodes.items()
        }

    def damage(self, key: str, *, value: bytes | None = None, version: int | None = None) -> None:
        """Overwrite a key as damage or time travel would: no version step, no watch."""
        node = self._nodes[key]
        self._nodes[key] = node._replace(
            value=node.value if value is None else value,
            version=node.version if version is None else version,
        )

    def get(self, key: str) -> Versioned | None:
        """The value and its version."""
        node = self._nodes.get(key)
        return None if node is None else _versioned(node)

    def children(self, key: str) -> list[str]:
        """Sorted names of direct children."""
        prefix = key + "/"
        start = len(prefix)
        return sorted(
            k[start:] for k in self._nodes if k.startswith(prefix) and "/" not in k[start:]
        )

    def create(self, key: str, value: bytes, session_id: int) -> tuple[int, Changed]:
        """Create `key` and missing parents."""
        if key in self._nodes:
            raise KeyExists(f"{key} exists", key=key)
        missing: list[str] = []
        for parent in parents_of(key):
            node = self._nodes.get(parent)
            if node is None:
                missing.append(parent)
            elif node.session_id:
                raise IllegalStateError(f"{parent} is ephemeral and cannot have children")
        for parent in missing:
            self._nodes[parent] = Node(SEALED_EMPTY, 0, 0, self._next_life())
        self._nodes[key] = Node(value, 0, session_id, self._next_life())
        return 0, [changed for made in (*missing, key) for changed in (made, parent_of(made))]

    def create_and_put(self, key: str, value: bytes, put: Put) -> tuple[int, Changed]:
        """Create `key` and replace the other value, or neither."""
        self._require(put.key, put.expected)
        _, made = self.create(key, value, 0)  # refuses before it changes anything
        version, changed = self.put(put.key, put.value, put.expected)
        return version, made + changed

    def put(self, key: str, value: bytes, expected: int | None) -> tuple[int, Changed]:
        """Replace the value; returns the new version."""
        node = self._require(key, expected)
        version = next_version(node.version)
        self._nodes[key] = node._replace(value=value, version=version)
        return Version(version, node.life), [key]

    def _next_life(self) -> int:
        self._lives += 1
        return self._lives

    def delete(self, key: str, expected: int | None) -> Changed:
        """Delete a key without children."""
        self._require(key, expected)
        if self.children(key):
            raise VersionConflict(f"{key} has children", key=key)
        del self._nodes[key]
        return [key, parent_of(key)]

    def fetch_add(self, key: str) -> tuple[int, Changed]:
        """Add one to the version of `key`, made when missing."""
        made: Changed = []
        if key not in self._nodes:
            _, made = self.create(key, SEALED_EMPTY, 0)
        version, changed = self.put(key, SEALED_EMPTY, None)
        return version, made or changed

    def end_session(self, session_id: int) -> Changed:
        """Delete the session's ephemeral keys."""
        keys = [key for key, node in self._nodes.items() if node.session_id == session_id]
        for key in keys:
            del self._nodes[key]
        return [changed for key in keys for changed in (key, parent_of(key))]

    def _require(self, key: str, expected: int | None) -> Node:
        node = self._nodes.get(key)
        if node is None:
            raise KeyMissing(f"{key} does not exist", key=key)
        if expected is not None and node.version != expected:
            raise VersionConflict(
                f"{key} has version {node.version}, not {expected}", key=key, found=node.version
            )
        if life_of(expected) not in (0, node.life):
            raise VersionConflict(f"{key} was created again", key=key)
        return node


def _versioned(node: Node) -> Versioned:
    return Versioned(node.value, Version(node.version, node.life))


def next_version(version: int) -> int:
    """The version after `version`; wraps to negative as ZooKeeper's 32-bit counter does (ID-2)."""
    return -VERSION_WRAP if version == VERSION_WRAP - 1 else version + 1
