"""A Delta table over the Parquet files of one topic: the same files, nothing is copied (ADR 71).

The table's log (`_delta_log` in the topic's folder) mirrors the manifest and never leads it: each
commit adds and removes what the manifest did since the commit before, and carries the manifest's
version as the transaction of the application `octavo-<topic id>`. Whoever died between a manifest
version and its commit left nothing in doubt: the next one compares both lists and commits the
difference, at most once, because a table version has one author. Commits that remove files add
files with the same rows (joins, mended ones), so they are marked as no change of data, and the
table is append-only for everybody.

Needs the package `deltalake` (`pip install octavo[delta]`), loaded when a table is first asked for.
Blocking; local file systems only. One call at a time.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from octavo.client.exports.columns import EXPORTED, arrow_schema
from octavo.client.exports.layout import folder_of, is_data_file
from octavo.client.exports.manifest import FileEntry, Manifest, ManifestState
from octavo.client.exports.tree import LocalTree, Tree
from octavo.runtime.errors import ConfigError, StorageFailed, VersionConflict

if TYPE_CHECKING:
    from deltalake import DeltaTable

LOG_FOLDER = "_delta_log"
RACES_MAX = 1000
"""Lost races before giving up; each one means that somebody else committed."""
_TIMESTAMP_MS_MAX = 253_402_300_799_999
"""The end of the year 9999; later ones are left out of statistics."""
_ESCAPED = re.compile("%[0-9A-Fa-f]{2}")
_REBUILD = f"remove its folder {LOG_FOLDER} and run again: the table is made anew of the manifest"


def has_table(tree: LocalTree, topic: str) -> bool:
    """Whether the topic's folder is a Delta table."""
    return tree.path(f"{folder_of(topic)}/{LOG_FOLDER}").is_dir()


def check_table(tree: Tree, topic: str, fmt: str) -> None:
    """Raise ConfigError when no table can lie over the exported files of this topic."""
    if fmt != "parquet":
        raise ConfigError(
            f"a Delta table is made of Parquet files, not of {fmt} ones",
            hint="export with --format parquet into a new folder",
        )
    if not isinstance(tree, LocalTree):
        raise ConfigError(
            f"no Delta table can lie in {tree.where()}: tables are kept in local folders only",
            hint="export it there without a table",
        )
    place = tree.path(folder_of(topic)).absolute()
    if _ESCAPED.search(str(place)):
        raise ConfigError(
            f"no Delta table can lie in {place}: its library reads %2E and the like as escapes",
            hint="export it without a table; names of topics and folders without % can have one",
        )


class DeltaLog:
    """Keeps the table of one topic as the manifest is."""

    def __init__(self, tree: LocalTree, topic: str, topic_id: str) -> None:
        self._topic = topic
        self._application = f"octavo-{topic_id}"
        self._uri = tree.path(folder_of(topic)).absolute().as_uri()
        self._place = str(tree.path(folder_of(topic)))
        self._manifest = Manifest(tree, topic)
        self._table: DeltaTable | None = None

    def catch_up(self, look: bool = False) -> None:
        """Commit what the manifest holds and the table does not; `look`: compare all files.

        Raises ConfigError when the table is not ours alone, StorageFailed when it cannot be read
        or written, VersionConflict after RACES_MAX lost races.
        """
        from deltalake.exceptions import CommitFailedError, DeltaError

        for _ in range(RACES_MAX):
            try:
                if self._committed(look):
                    return
            except CommitFailedError:
                self._table = None  # another exporter committed this version; look again
            except (DeltaError, OSError) as error:
                self._table = None
                raise StorageFailed(
                    f"the Delta table in {self._place} cannot be read or written: {error}",
                    hint=f"mend access to it; or {_REBUILD}",
                ) from error
        raise VersionConflict(f"lost {RACES_MAX} races for a version of the table {self._place}")

    def _committed(self, look: bool) -> bool:
        """Make one commit, if one is due; raises CommitFailedError for a lost race."""
        table = self._opened()
        state = self._manifest.load()
        done = table.transaction_version(self._application) or 0
        if done > state.version:
            state = self._manifest.load()  # another exporter was between our two looks
            if done > state.version:
                raise ConfigError(
                    f"the Delta table in {self._place} names manifest version {done}, the newest "
                    f"is {state.version}",
                    hint=_REBUILD,
                )
        if done == state.version and not look:
            return True
        held = _names(table)
        self._check_ours(held, state, done)
        added = [entry for name, entry in state.files.items() if name not in held]
        gone = {name: size for name, size in held.items() if name not in state.files}
        if done == state.version:
            if added or gone:
                name = added[0].file if added else next(iter(gone))
                raise self._foreign(f"{name} was changed by another program")
            return True
        self._commit(table, state.version, added, gone)
        return True

    def _opened(self) -> DeltaTable:
        from deltalake import DeltaTable, Schema

        if self._table is None:
            self._table = DeltaTable.create(
                self._uri,
                Schema.from_arrow(arrow_schema(EXPORTED)),
                mode="ignore",
                name=self._topic,
                description="Exported by Octavo; other programs only read it",
                configuration={"delta.appendOnly": "true"},
            )
        self._table.update_incremental()
        return self._table

    def _check_ours(self, held: Mapping[str, int], state: ManifestState, done: int) -> None:
        """Refuse a table that somebody else wrote to: what he changed cannot be told from ours."""
        for name in held:
            if not is_data_file(name):
                raise self._foreign(f"{name} is no file of Octavo")
        if held and not done:
            raise self._foreign("its files are not those of this topic")

    def _foreign(self, what: str) -> ConfigError:
        return ConfigError(
            f"the Delta table in {self._place} was written to by somebody else: {what}",
            hint=f"other programs may only read it (no OPTIMIZE, no VACUUM); {_REBUILD}",
        )

    def _commit(
        self, table: DeltaTable, version: int, added: Sequence[FileEntry], gone: Mapping[str, int]
    ) -> None:
        from deltalake import CommitProperties, Schema, Transaction
        from deltalake.transaction import AddAction, RemoveAction

        now_ms = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(name, False, now_ms, size, {}) for name, size in sorted(gone.items())
        ]
        actions += [
            AddAction(entry.file, entry.bytes, {}, now_ms, not gone, statistics(entry))
            for entry in sorted(added, key=lambda entry: (entry.partition, entry.first))
        ]
        table.create_write_transaction(
            actions,
            "append",
            Schema.from_arrow(arrow_schema(EXPORTED)),
            commit_properties=CommitProperties(
                custom_metadata={"octavoManifestVersion": str(version)},
                max_commit_retries=0,  # a lost race is looked at anew: it may have been this commit
                app_transactions=[Transaction(self._application, version)],
            ),
        )


def statistics(entry: FileEntry) -> str:
    """What readers need to leave a file out, as the table's log says it (JSON)."""
    low: dict[str, object] = {"partition": entry.partition, "offset": entry.first}
    high: dict[str, object] = {"partition": entry.partition, "offset": entry.last}
    if entry.min_timestamp_ms >= 0 and entry.max_timestamp_ms <= _TIMESTAMP_MS_MAX:
        low["timestamp"] = _iso(entry.min_timestamp_ms)
        high["timestamp"] = _iso(entry.max_timestamp_ms)
    return json.dumps(
        {
            "numRecords": entry.rows,
            "minValues": low,
            "maxValues": high,
            "nullCount": dict.fromkeys(low, 0),
        }
    )


def _iso(stamp_ms: int) -> str:
    return datetime.fromtimestamp(stamp_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + (
        f"{stamp_ms % 1000:03d}Z"
    )


def _names(table: DeltaTable) -> dict[str, int]:
    """The files of the table and their sizes."""
    found: Any = table.get_add_actions(flatten=True)
    names = cast("list[str]", found.column("path").to_pylist())
    sizes = cast("list[int]", found.column("size_bytes").to_pylist())
    return dict(zip(names, sizes, strict=True))
