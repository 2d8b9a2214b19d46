"""The embedded store's keys on SQLite: blocking calls, one transaction each (design.md §5).

Runs in the server's single worker thread, which is what orders all operations. Every write is
durable before it is answered (WAL with synchronous=FULL). A write returns its result and the
keys whose watches must fire. Leases, streams and watches belong to `embedded_server`.
"""

from __future__ import annotations

import pathlib
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

from octavo.metadata.keys import parent_of, parents_of
from octavo.metadata.store import Version, Versioned, life_of
from octavo.runtime.errors import IllegalStateError, KeyExists, KeyMissing, VersionConflict

FILE_NAME = "metadata.sqlite3"
SCHEMA_VERSION = 2

_SCHEMA = """
CREATE TABLE IF NOT EXISTS nodes (
    key TEXT PRIMARY KEY, parent TEXT NOT NULL, value BLOB NOT NULL,
    version INTEGER NOT NULL, session_id INTEGER NOT NULL, life INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS nodes_by_parent ON nodes (parent, key);
CREATE INDEX IF NOT EXISTS nodes_by_session ON nodes (session_id) WHERE session_id <> 0;
CREATE TABLE IF NOT EXISTS sessions (
    session_id INTEGER PRIMARY KEY AUTOINCREMENT, secret BLOB NOT NULL, timeout_ms INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS lives (only INTEGER PRIMARY KEY CHECK (only = 1), last INTEGER NOT NULL);
INSERT OR IGNORE INTO lives (only, last) VALUES (1, 0);
"""
_ADD_LIFE = "ALTER TABLE nodes ADD COLUMN life INTEGER NOT NULL DEFAULT 0"
"""What a file of version 1 lacks: its keys are of no known life and compare by version alone."""


class SessionRow(NamedTuple):
    """A session as it survives a restart of the server."""

    session_id: int
    secret: bytes
    timeout_ms: int


class SqliteTree:
    """Keys and sessions in one SQLite file, owned by one process."""

    def __init__(self, data_dir: pathlib.Path) -> None:
        data_dir.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(
            data_dir / FILE_NAME, isolation_level=None, check_same_thread=False, timeout=0.0
        )
        try:
            self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_SCHEMA)
            self._check_schema_version()
        except sqlite3.OperationalError as error:
            self._db.close()
            raise IllegalStateError(
                f"metadata in {data_dir} cannot be opened: {error}",
                hint="another cluster may be running on this data folder",
            ) from error

    def _check_schema_version(self) -> None:
        (found,) = self._db.execute("PRAGMA user_version").fetchone()
        if found > SCHEMA_VERSION:
            raise IllegalStateError(
                f"metadata file has version {found}, this build {SCHEMA_VERSION}"
            )
        if found == 1:
            self._db.execute(_ADD_LIFE)
        self._db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    # --- sessions ---------------------------------------------------------------------------

    def sessions(self) -> list[SessionRow]:
        """All sessions that were not ended."""
        return [
            SessionRow(*row)
            for row in self._db.execute("SELECT session_id, secret, timeout_ms FROM sessions")
        ]

    def open_session(self, secret: bytes, timeout_ms: int) -> int:
        """A new session; its id was never used before."""
        with self._transaction():
            cursor = self._db.execute(
                "INSERT INTO sessions (secret, timeout_ms) VALUES (?, ?)", (secret, timeout_ms)
            )
        session_id = cursor.lastrowid
        if session_id is None:
            raise sqlite3.DatabaseError("no session id")
        return session_id

    def end_session(self, session_id: int) -> list[str]:
        """Forget the session and delete its ephemeral keys; returns the keys that changed."""
        with self._transaction():
            rows = self._db.execute("SELECT key FROM nodes WHERE session_id = ?", (session_id,))
            keys = [key for (key,) in rows.fetchall()]
            self._db.execute("DELETE FROM nodes WHERE session_id = ?", (session_id,))
            self._db.execute("DELETE FROM sessions WHERE session_id = ?", (session_id,))
        return [changed for key in keys for changed in (key, parent_of(key))]

    # --- keys -------------------------------------------------------------------------------

    def get(self, key: str) -> Versioned | None:
        """The committed value."""
        row = self._db.execute(
            "SELECT value, version, life FROM nodes WHERE key = ?", (key,)
        ).fetchone()
        return Versioned(bytes(row[0]), Version(row[1], row[2])) if row else None

    def children(self, key: str) -> list[str]:
        """Sorted names of direct children."""
        rows = self._db.execute("SELECT key FROM nodes WHERE parent = ? ORDER BY key", (key,))
        return [child[len(key) + 1 :] for (child,) in rows.fetchall()]

    def create(self, key: str, value: bytes, session_id: int) -> tuple[int, list[str]]:
        """Create `key` and missing parents; `session_id` 0 means not ephemeral."""
        with self._transaction():
            changed = self._create_in_transaction(key, value, session_id)
        return 0, changed

    def put(self, key: str, value: bytes, expected: int | None) -> tuple[int, list[str]]:
        """Replace the value; returns the new version."""
        with self._transaction():
            version = self._put_in_transaction(key, value, expected)
        return version, [key]

    def delete(self, key: str, expected: int | None) -> list[str]:
        """Delete a key without children."""
        with self._transaction():
            self._version_of(key, expected)
            if self._db.execute("SELECT 1 FROM nodes WHERE parent = ? LIMIT 1", (key,)).fetchone():
                raise VersionConflict(f"{key} has children", key=key)
            self._db.execute("DELETE FROM nodes WHERE key = ?", (key,))
        return [key, parent_of(key)]

    def fetch_add(self, key: str) -> tuple[int, list[str]]:
        """Add one to the version of `key`, made when missing; returns the new version."""
        with self._transaction():
            changed = [key]
            if self.get(key) is None:
                changed = self._create_in_transaction(key, b"", 0)
            version = self._put_in_transaction(key, b"", None)
        return version, changed

    def _create_in_transaction(self, key: str, value: bytes, session_id: int) -> list[str]:
        if self.get(key) is not None:
            raise KeyExists(f"{key} exists", key=key)
        changed: list[str] = []
        for parent in parents_of(key):
            row = self._db.execute(
                "SELECT session_id FROM nodes WHERE key = ?", (parent,)
            ).fetchone()
            if row is None:
                changed += self._insert(parent, b"", 0)
            elif row[0]:
                raise IllegalStateError(f"{parent} is ephemeral and cannot have children")
        return changed + self._insert(key, value, session_id)

    def _insert(self, key: str, value: bytes, session_id: int) -> list[str]:
        self._db.execute("UPDATE lives SET last = last + 1")
        self._db.execute(
            "INSERT INTO nodes (key, parent, value, version, session_id, life) "
            "SELECT ?, ?, ?, 0, ?, last FROM lives",
            (key, parent_of(key), value, session_id),
        )
        return [key, parent_of(key)]

    def _put_in_transaction(self, key: str, value: bytes, expected: int | None) -> int:
        found = self._version_of(key, expected)
        version = Version(found + 1, life_of(found))
        self._db.execute(
            "UPDATE nodes SET value = ?, version = ? WHERE key = ?", (value, int(version), key)
        )
        return version

    def _version_of(self, key: str, expected: int | None) -> int:
        found = self.get(key)
        if found is None:
            raise KeyMissing(f"{key} does not exist", key=key)
        if expected is not None and found.version != expected:
            raise VersionConflict(
                f"{key} has version {found.version}, not {expected}", key=key, found=found.version
            )
        if life_of(expected) and life_of(expected) != life_of(found.version):
            raise VersionConflict(f"{key} was created again", key=key)
        return found.version

    @contextmanager
    def _transaction(self) -> Generator[None, None, None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")
