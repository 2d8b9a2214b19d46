"""The embedded store's keys on SQLite: blocking calls, one transaction each (design.md §5).

Runs in the server's single worker thread, which is what orders all operations. Every write is
durable before it is answered (WAL with synchronous=FULL, then the witness). A write returns its
result and the keys whose watches must fire. Leases, streams and watches belong to
`embedded_server`; what proves the file is in `embedded_proof`, the opening of it in
`embedded_file`.

Which keys exist is kept in memory (106 bytes a key), proven at the start: absence and
children are never asked of the disk, and a value read from it must have the checksum that memory
knows. A damaged record is refused by name (M-7), the others are served.
"""

from __future__ import annotations

import pathlib
import sqlite3
import struct
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from octavo.metadata.embedded_file import FILE_NAME, open_file
from octavo.metadata.embedded_proof import (
    SUM_MASK,
    WAY_OUT,
    State,
    Witness,
    Witnessed,
    name_crc,
    node_crc,
    session_crc,
)
from octavo.metadata.envelope import SEALED_EMPTY
from octavo.metadata.keys import name_of, parent_of, parents_of
from octavo.metadata.scanning import SCAN_BYTES_MAX
from octavo.metadata.store import Child, Found, Put, Scanned, Version, Versioned, life_of
from octavo.runtime.errors import (
    IllegalStateError,
    KeyExists,
    KeyMissing,
    MetadataCorrupt,
    StorageFailed,
    VersionConflict,
)

__all__ = ["FILE_NAME", "SessionRow", "SqliteTree"]


class SessionRow(NamedTuple):
    """A session as it survives a restart of the server."""

    session_id: int
    secret: bytes
    timeout_ms: int


class _Node(NamedTuple):
    value: bytes
    version: int
    session_id: int
    life: int
    crc: int


class _Change:
    """What one transaction does to the proof and to memory, applied after its commit."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.set: dict[str, tuple[int, int]] = {}  # key -> checksum, session
        self.removed: list[str] = []

    def count(self, crc: int, sign: int, name: int = 0) -> None:
        """A row came (+1), went (-1), with the checksum of its name if it is a node."""
        state = self.state
        self.state = state._replace(
            rows=state.rows + sign,
            digest=(state.digest + sign * crc) & SUM_MASK,
            names=(state.names + sign * name) & SUM_MASK,
        )


class SqliteTree:
    """Keys and sessions in one SQLite file, owned by one process.

    Raises IllegalStateError when another process has the file, MetadataCorrupt when what is in it
    cannot be proven, StorageFailed when the disk refuses.
    """

    def __init__(self, data_dir: pathlib.Path) -> None:
        data_dir.mkdir(parents=True, exist_ok=True)
        self._path = data_dir / FILE_NAME
        self._witness = Witness(data_dir)
        self._db, content = open_file(data_dir, self._witness)
        self._state = content.state
        self._nodes: dict[str, dict[str, int]] = content.nodes
        self._ephemeral = content.ephemeral
        self._failed = ""
        try:
            self._mark(clean=0)
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Close the file, and say in it that nothing is waiting in its log."""
        try:
            if not self._failed:
                self._mark(clean=1)
        finally:
            self._db.close()
            self._witness.close()

    def _mark(self, *, clean: int) -> None:
        """Write whether the file is in good order without its log, into the file itself."""
        with self._transaction() as change:
            change.state = change.state._replace(clean=clean)
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    # --- sessions ---------------------------------------------------------------------------

    def sessions(self) -> list[SessionRow]:
        """All sessions that were not ended."""
        rows = self._db.execute("SELECT session_id, secret, timeout_ms FROM sessions")
        return [SessionRow(session_id, bytes(secret), ms) for session_id, secret, ms in rows]

    def open_session(self, secret: bytes, timeout_ms: int) -> int:
        """A new session; its id was never used before."""
        session_id = self._state.next_session
        crc = session_crc(session_id, secret, timeout_ms)
        with self._transaction() as change:
            self._db.execute(
                "INSERT INTO sessions (session_id, secret, timeout_ms, crc) VALUES (?, ?, ?, ?)",
                (session_id, secret, timeout_ms, crc),
            )
            change.count(crc, +1)
            change.state = change.state._replace(next_session=session_id + 1)
        return session_id

    def end_session(self, session_id: int) -> list[str]:
        """Forget the session and delete its ephemeral keys; returns the keys that changed."""
        keys = [key for key, owner in self._ephemeral.items() if owner == session_id]
        row = self._db.execute(
            "SELECT secret, timeout_ms FROM sessions WHERE session_id = ?", (session_id,)
        ).fetchone()
        if row is None and not keys:
            return []
        with self._transaction() as change:
            for key in keys:
                self._remove(change, key)
            if row is not None:
                self._db.execute("DELETE FROM sessions WHERE session_id = ?", (session_id,))
                change.count(session_crc(session_id, *row), -1)
        return [changed for key in keys for changed in (key, parent_of(key))]

    # --- keys -------------------------------------------------------------------------------

    def get(self, key: str) -> Versioned | None:
        """The committed value; raises MetadataCorrupt when it is damaged (M-7)."""
        node = self._read(key)
        return None if node is None else Versioned(node.value, Version(node.version, node.life))

    def children(self, key: str) -> list[str]:
        """Sorted names of direct children."""
        return sorted(self._nodes.get(key, ()))

    def scan(self, keys: Sequence[str], after: str, limit: int) -> list[Scanned]:
        """Direct children of the first of `keys`, of at least one, with their values.

        Of the first key those behind `after`, at most `limit` of each. What is damaged says so.
        """
        parts: list[Scanned] = []
        size_bytes = 0
        for key in keys:
            names = [name for name in self.children(key) if name > after]
            after = ""
            found, read_bytes = self._read_first(
                [f"{key}/{name}" for name in names[:limit]], SCAN_BYTES_MAX - size_bytes
            )
            size_bytes += read_bytes
            children = [
                Child(name, entry)
                for name, entry in zip(names, found, strict=False)
                if entry is not None
            ]
            whole = len(found) == len(names)
            parts.append(Scanned(children, "" if whole else names[len(found) - 1]))
            if size_bytes >= SCAN_BYTES_MAX:
                break
        return parts

    def get_many(self, keys: Sequence[str]) -> list[Found]:
        """What is at the first of `keys`, at least one, and no more than are large."""
        return self._read_first(keys, SCAN_BYTES_MAX)[0]

    def _read_first(self, keys: Sequence[str], most_bytes: int) -> tuple[list[Found], int]:
        """What is at `keys`, up to the one that reaches so many bytes, and how many those are."""
        found: list[Found] = []
        size_bytes = 0
        for key in keys:
            try:
                entry: Found = self.get(key)
            except MetadataCorrupt as error:
                entry = error
            found.append(entry)
            size_bytes += len(entry.value) if isinstance(entry, Versioned) else 0
            if size_bytes >= most_bytes:
                break
        return found, size_bytes

    def create(self, key: str, value: bytes, session_id: int) -> tuple[int, list[str]]:
        """Create `key` and missing parents; `session_id` 0 means not ephemeral."""
        missing = self._missing_parents(key)
        with self._transaction() as change:
            self._create_in_transaction(change, missing, key, value, session_id)
        return 0, _changed_by_creation(missing, key)

    def create_and_put(self, key: str, value: bytes, put: Put) -> tuple[int, list[str]]:
        """Create `key` and replace the other value, or neither; the other key's new version."""
        old = self._require(put.key, put.expected)
        missing = self._missing_parents(key)
        with self._transaction() as change:
            self._create_in_transaction(change, missing, key, value, 0)
            version = self._put_in_transaction(change, put.key, old, put.value)
        return Version(version, old.life), [*_changed_by_creation(missing, key), put.key]

    def _missing_parents(self, key: str) -> list[str]:
        """What is to be made before `key`; raises unless that can be made."""
        if self._known(key) is not None:
            raise KeyExists(f"{key} exists", key=key)
        missing: list[str] = []
        for parent in parents_of(key):
            if self._known(parent) is None:
                missing.append(parent)
            elif parent in self._ephemeral:
                raise IllegalStateError(f"{parent} is ephemeral and cannot have children")
        return missing

    def _create_in_transaction(
        self, change: _Change, missing: list[str], key: str, value: bytes, session_id: int
    ) -> None:
        for parent in missing:
            self._insert(change, parent, SEALED_EMPTY, 0)
        self._insert(change, key, value, session_id)

    def put(self, key: str, value: bytes, expected: int | None) -> tuple[int, list[str]]:
        """Replace the value; returns the new version."""
        old = self._require(key, expected)
        with self._transaction() as change:
            version = self._put_in_transaction(change, key, old, value)
        return Version(version, old.life), [key]

    def delete(self, key: str, expected: int | None) -> list[str]:
        """Delete a key without children."""
        self._require(key, expected)
        if self._nodes.get(key):
            raise VersionConflict(f"{key} has children", key=key)
        with self._transaction() as change:
            self._remove(change, key)
        return [key, parent_of(key)]

    def fetch_add(self, key: str) -> tuple[int, list[str]]:
        """Add one to the version of `key`, made when missing; returns the new version."""
        changed = [key]
        if self._known(key) is None:
            changed = self.create(key, SEALED_EMPTY, 0)[1]
        return self.put(key, SEALED_EMPTY, None)[0], changed

    # --- check ------------------------------------------------------------------------------

    def directories(self) -> list[str]:
        """All keys that have children, for a check that goes on between other operations."""
        return list(self._nodes)

    def damaged_children(self, directory: str) -> list[str]:
        """Keys of `directory` that the file does not hold as they were written."""
        damaged: list[str] = []
        for name in self.children(directory):
            key = f"{directory.rstrip('/')}/{name}"
            try:
                self._read(key)
            except MetadataCorrupt:
                damaged.append(key)
        return damaged

    # --- inside -----------------------------------------------------------------------------

    def _known(self, key: str) -> int | None:
        """The checksum of the row of `key`, None when there is none: proven at the start."""
        return self._nodes.get(parent_of(key), {}).get(name_of(key))

    def _read(self, key: str) -> _Node | None:
        known = self._known(key)
        if known is None:
            return None
        parent, name = parent_of(key), name_of(key)
        try:
            row = self._db.execute(
                "SELECT value, version, session_id, life FROM nodes WHERE parent = ? AND name = ?",
                (parent, name),
            ).fetchone()
            if row is not None and node_crc(parent, name, *row) == known:
                return _Node(bytes(row[0]), row[1], row[2], row[3], known)
            cause = "its row is gone" if row is None else "its checksum is wrong"
        except (sqlite3.DatabaseError, struct.error, TypeError, ValueError) as error:
            cause = str(error)
        raise MetadataCorrupt(
            f"metadata record {key} in {self._path} is damaged: {cause}", hint=WAY_OUT, key=key
        )

    def _require(self, key: str, expected: int | None) -> _Node:
        node = self._read(key)
        if node is None:
            raise KeyMissing(f"{key} does not exist", key=key)
        if expected is not None and node.version != expected:
            raise VersionConflict(
                f"{key} has version {node.version}, not {expected}", key=key, found=node.version
            )
        if life_of(expected) not in (0, node.life):
            raise VersionConflict(f"{key} was created again", key=key)
        return node

    def _insert(self, change: _Change, key: str, value: bytes, session_id: int) -> None:
        parent, name = parent_of(key), name_of(key)
        life = change.state.next_life
        change.state = change.state._replace(next_life=life + 1)
        crc = node_crc(parent, name, value, 0, session_id, life)
        self._db.execute(
            "INSERT INTO nodes (parent, name, value, version, session_id, life, crc)"
            " VALUES (?, ?, ?, 0, ?, ?, ?)",
            (parent, name, value, session_id, life, crc),
        )
        change.count(crc, +1, name_crc(parent, name))
        change.set[key] = (crc, session_id)

    def _put_in_transaction(self, change: _Change, key: str, old: _Node, value: bytes) -> int:
        parent, name, version = parent_of(key), name_of(key), old.version + 1
        crc = node_crc(parent, name, value, version, old.session_id, old.life)
        done = self._db.execute(
            "UPDATE nodes SET value = ?, version = ?, crc = ? WHERE parent = ? AND name = ?",
            (value, version, crc, parent, name),
        )
        self._expect_one_row(key, done)
        change.count(old.crc, -1)
        change.count(crc, +1)
        change.set[key] = (crc, old.session_id)
        return version

    def _remove(self, change: _Change, key: str) -> None:
        parent, name = parent_of(key), name_of(key)
        done = self._db.execute("DELETE FROM nodes WHERE parent = ? AND name = ?", (parent, name))
        self._expect_one_row(key, done)
        change.count(self._known(key) or 0, -1, name_crc(parent, name))
        change.removed.append(key)

    def _expect_one_row(self, key: str, done: sqlite3.Cursor) -> None:
        if done.rowcount != 1:
            raise MetadataCorrupt(
                f"metadata record {key} in {self._path} is gone", hint=WAY_OUT, key=key
            )

    @contextmanager
    def _transaction(self) -> Generator[_Change, None, None]:
        if self._failed:
            raise StorageFailed(f"{self._path}: {self._failed}", hint="restart the cluster")
        change = _Change(self._state._replace(commits=self._state.commits + 1))
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield change
            state = change.state
            self._db.execute(
                "UPDATE state SET commits = ?, rows = ?, digest = ?, names = ?,"
                " next_session = ?, next_life = ?, clean = ?, crc = ?",
                (*state, state.crc()),
            )
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self._committed(change)

    def _committed(self, change: _Change) -> None:
        """Memory first: what follows a commit that cannot be witnessed is refused, not undone."""
        self._state = change.state
        for key in change.removed:
            siblings = self._nodes[parent_of(key)]
            del siblings[name_of(key)]
            if not siblings:
                del self._nodes[parent_of(key)]
            self._ephemeral.pop(key, None)
        for key, (crc, session_id) in change.set.items():
            self._nodes.setdefault(parent_of(key), {})[name_of(key)] = crc
            if session_id:
                self._ephemeral[key] = session_id
        try:
            self._witness.write(Witnessed(self._state.commits, self._state.digest))
        except OSError as error:
            self._failed = f"the witness cannot be written: {error}"
            raise StorageFailed(f"{self._path}: {self._failed}") from error


def _changed_by_creation(missing: list[str], key: str) -> list[str]:
    return [changed for made in (*missing, key) for changed in (made, parent_of(made))]
