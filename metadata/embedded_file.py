"""Opening the embedded store's file: making it, locking it, and proving all that it holds.

A file is made whole under another name and renamed, so that one that exists without content is
damage and never a new cluster. Nothing is created in a file that exists. What cannot be proven is
refused with the way out; a value that is damaged while all names are proven is left to be refused
when it is read (M-7).
"""

from __future__ import annotations

import pathlib
import sqlite3
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from octavo.metadata.embedded_proof import (
    SUM_MASK,
    WAY_OUT,
    State,
    Witness,
    Witnessed,
    name_crc,
    node_crc,
    session_crc,
    sync_folder,
)
from octavo.metadata.keys import name_of, parent_of
from octavo.runtime.errors import IllegalStateError, MetadataCorrupt, OctavoError, StorageFailed
from octavo.runtime.telemetry import get_logger

FILE_NAME = "metadata.sqlite3"
SCHEMA_VERSION = 3
_NEW_NAME = FILE_NAME + ".new"
_log = get_logger("octavo.metadata.embedded")

_TABLES = {
    "nodes": "CREATE TABLE nodes (parent TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL,"
    " version INTEGER NOT NULL, session_id INTEGER NOT NULL, life INTEGER NOT NULL,"
    " crc INTEGER NOT NULL, PRIMARY KEY (parent, name)) WITHOUT ROWID",
    "sessions": "CREATE TABLE sessions (session_id INTEGER PRIMARY KEY, secret BLOB NOT NULL,"
    " timeout_ms INTEGER NOT NULL, crc INTEGER NOT NULL)",
    "state": "CREATE TABLE state (one INTEGER PRIMARY KEY, commits INTEGER NOT NULL,"
    " rows INTEGER NOT NULL, digest INTEGER NOT NULL, names INTEGER NOT NULL,"
    " next_session INTEGER NOT NULL, next_life INTEGER NOT NULL, clean INTEGER NOT NULL,"
    " crc INTEGER NOT NULL)",
}
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_IN_USE = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@dataclass
class Content:
    """What the file holds, proven."""

    state: State
    nodes: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    """Directory -> name -> checksum of the row."""
    ephemeral: dict[str, int] = field(default_factory=dict[str, int])
    """Key -> session."""


def open_file(data_dir: pathlib.Path, witness: Witness) -> tuple[sqlite3.Connection, Content]:
    """The file of `data_dir`, made when it is new; raises as `SqliteTree` says."""
    path = data_dir / FILE_NAME
    try:
        if not path.exists():
            if witness.exists():
                raise _refused(path, "the file is gone, its witness is there")
            _make(data_dir)
        db = _connect(path)
    except sqlite3.Error as error:
        raise _typed(path, error) from error
    except OSError as error:
        raise StorageFailed(f"metadata in {data_dir} cannot be opened: {error}") from error
    try:
        content = _proven(db, path)
        _compare(path, content.state, witness.read())
    except BaseException as error:
        db.close()
        if isinstance(error, sqlite3.Error):
            raise _typed(path, error) from error
        raise
    return db, content


def _make(data_dir: pathlib.Path) -> None:
    """A new file, complete before it has its name."""
    new = data_dir / _NEW_NAME
    new.unlink(missing_ok=True)
    db = sqlite3.connect(new, isolation_level=None)
    state = State(0, 0, 0, 0, 1, 1, 1)
    try:
        db.execute("PRAGMA synchronous=EXTRA")
        db.execute("BEGIN")
        for statement in _TABLES.values():
            db.execute(statement)
        db.execute("INSERT INTO state VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?)", (*state, state.crc()))
        db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        db.execute("COMMIT")
    finally:
        db.close()
    new.rename(data_dir / FILE_NAME)
    sync_folder(data_dir)


def _connect(path: pathlib.Path) -> sqlite3.Connection:
    if path.stat().st_size == 0:
        raise _refused(path, "the file is empty")
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0.0)
    try:
        for pragma in ("cell_size_check=ON", "locking_mode=EXCLUSIVE", "journal_mode=WAL"):
            db.execute(f"PRAGMA {pragma}")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("BEGIN EXCLUSIVE")  # takes the lock now
        db.execute("COMMIT")
    except BaseException:
        db.close()
        raise
    return db


# --- proof -----------------------------------------------------------------------------------


def _proven(db: sqlite3.Connection, path: pathlib.Path) -> Content:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version != SCHEMA_VERSION:
        raise IllegalStateError(
            f"metadata file {path} has version {version}, this build {SCHEMA_VERSION}",
            hint="use the build that wrote it, or a new data folder",
        )
    found = db.execute("PRAGMA integrity_check(1)").fetchall()
    if found != [("ok",)]:
        raise _refused(path, str(found[0][0] if found else "no answer"))
    tables = dict(db.execute("SELECT name, sql FROM sqlite_master").fetchall())
    if tables != _TABLES:
        raise _refused(path, "its tables are not those that were made")
    rows = db.execute("SELECT * FROM state").fetchall()
    if len(rows) != 1 or not _is_state(rows[0]):
        raise _refused(path, "its state row is damaged")
    content = Content(State(*rows[0][1:-1]))
    _prove_rows(db, path, content)
    return content


def _is_state(row: tuple[object, ...]) -> bool:
    values = row[1:-1]
    if not all(isinstance(value, int) and 0 <= value <= SUM_MASK for value in values):
        return False
    state = State(*(value for value in values if isinstance(value, int)))
    return state.clean in (0, 1) and state.crc() == row[-1]


@dataclass
class _Sums:
    """Sums over the rows as they are now."""

    rows: int = 0
    stored: int = 0
    actual: int = 0
    names: int = 0
    damaged: dict[str, int] = field(default_factory=dict[str, int])
    """What does not fit its checksum, and the checksum it should have."""

    def add(self, what: str, stored: object, compute: Callable[[], int]) -> int:
        """Count a row; returns the checksum that was stored with it."""
        self.rows += 1
        crc = stored if isinstance(stored, int) else -1
        try:
            actual = compute()
        except (TypeError, ValueError, OverflowError, struct.error):  # not the types we wrote
            actual = -2
        self.stored = (self.stored + crc) & SUM_MASK
        self.actual = (self.actual + actual) & SUM_MASK
        if actual != crc:
            self.damaged[what] = actual
        return crc


def _prove_rows(db: sqlite3.Connection, path: pathlib.Path, content: Content) -> None:
    """All rows are there, under their names; damaged values are told by name and kept."""
    sums = _Sums()
    query = "SELECT parent, name, value, version, session_id, life, crc FROM nodes"
    for parent, name, value, version, session_id, life, crc in db.execute(query):
        if not isinstance(parent, str) or not isinstance(name, str):
            raise _refused(path, "a key is damaged")
        key = f"{parent.rstrip('/')}/{name}"
        compute = partial(node_crc, parent, name, value, version, session_id, life)
        content.nodes.setdefault(parent, {})[name] = sums.add(key, crc, compute)
        sums.names = (sums.names + name_crc(parent, name)) & SUM_MASK
        if session_id:
            content.ephemeral[key] = session_id
    nodes_damaged = len(sums.damaged)
    for session_id, secret, timeout_ms, crc in db.execute("SELECT * FROM sessions"):
        sums.add(f"session {session_id}", crc, partial(session_crc, session_id, secret, timeout_ms))
    state = content.state
    if (sums.rows, sums.names) != (state.rows, state.names):
        raise _refused(path, f"it holds other rows than were written ({sums.rows}, {state.rows})")
    if sums.actual == state.digest:  # only checksums are damaged, if anything is
        for key, crc in list(sums.damaged.items())[:nodes_damaged]:
            content.nodes[parent_of(key)][name_of(key)] = crc
        return
    if sums.stored != state.digest or len(sums.damaged) != nodes_damaged:
        damaged = ", ".join(list(sums.damaged)[:5])
        raise _refused(path, f"damaged: {damaged or 'a checksum'}")
    # All names are proven and so are the checksums: these values alone are damaged.
    for key in sums.damaged:
        _log.error("metadata-record-damaged", key=key, file=str(path))


def _compare(path: pathlib.Path, state: State, witnessed: Witnessed | None) -> None:
    """Nothing that was answered may be missing."""
    if witnessed is None:
        if not state.clean:
            raise _refused(path, "it was not closed, and its witness is gone")
        return
    missing = witnessed.commits - state.commits
    if missing > 0:
        raise _refused(path, f"its last {missing} changes are missing: it was rolled back or cut")
    if missing == 0 and witnessed.digest != state.digest:
        raise _refused(path, "its witness is of another history")


def _refused(path: pathlib.Path, why: str) -> MetadataCorrupt:
    return MetadataCorrupt(f"metadata file {path} cannot be trusted: {why}", hint=WAY_OUT)


def _typed(path: pathlib.Path, error: sqlite3.Error) -> OctavoError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _IN_USE:
        return IllegalStateError(
            f"metadata file {path} cannot be opened: {error}",
            hint="another cluster may be running on this data folder",
        )
    if code in _DAMAGE or not isinstance(error, sqlite3.OperationalError):
        return _refused(path, str(error))
    return StorageFailed(
        f"metadata file {path} cannot be opened: {error}",
        hint="look at free space, permissions and the disk; nothing was changed",
    )
