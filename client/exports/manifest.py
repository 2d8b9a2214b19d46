"""The manifest of an exported topic: which files exist, one version at a time (spec/spark.md §5).

Below the topic's control folder (`octavo.client.exports.layout`):

    _export.json                        what this export is; created once
    _manifest/<version:020d>.json       {"token", "add", "remove"}, created exclusively
    _manifest/checkpoint-<version>.json the whole state after that version, every 100 versions

A version exists or it does not: it is created with `link`, whose loser re-reads and decides anew.
The state is the sum of all versions and nothing else; data files that no version names do not
exist for any reader. Checkpoints hold that sum; old versions go once one was seen to hold theirs
(`octavo.client.exports.history`, ADR 76).

Every file is checked when it is read (`octavo.client.exports.sealed`).
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import cast

from octavo.client.exports.history import (
    CHECKPOINT_EVERY,
    History,
    Step,
    checkpoint_name,
    version_name,
)
from octavo.client.exports.layout import EXPORT_FILE, control_folder, folder_of
from octavo.client.exports.sealed import FORMAT_VERSION, INDEXED_VERSION, parse_sealed, sealed
from octavo.client.exports.tree import Tree
from octavo.runtime.errors import (
    ConfigError,
    MetadataCorrupt,
    StorageFailed,
    VersionConflict,
)
from octavo.runtime.invariant import invariant

FOLDER = "_manifest"
RACES_MAX = 1000
"""Lost races before giving up; each one means that another exporter made progress."""
LOOKS_MAX = 5
"""Listings in which a version is missing before it counts as lost: a listing is not of one moment,
and what a reader was about to read may have been pruned since."""


@dataclass(frozen=True)
class FileEntry:
    """One exported file: all that a planner needs, so that no file is opened to plan."""

    file: str
    partition: int
    ledgers: tuple[int, ...]
    first: int
    last: int
    rows: int
    bytes: int
    arrow_bytes: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    sha256: str
    schema_id: int
    codec: str
    block_crcs: str
    """See `octavo.client.exports.checked_file.FileChecks`."""
    index: str = ""
    """Name of the index of its batches (`octavo.client.exports.batch_index`); empty: it has none.

    The next three say of the index what `bytes`, `rows` and `block_crcs` say of the file.
    """
    index_bytes: int = 0
    index_batches: int = 0
    index_crcs: str = ""


@dataclass(frozen=True)
class Change:
    """What one version adds and removes."""

    add: tuple[FileEntry, ...] = ()
    remove: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExportInfo:
    """The content of `_export.json`."""

    topic: str
    topic_id: str
    format: str
    codec: str
    partitions: int
    schema: str
    index: bool = False
    """Whether each file has an index, so that it can stand for its ledgers (ADR 68)."""
    format_version: int = FORMAT_VERSION


_SAME = {
    "topic": "export into another folder; offsets of two topics must not mix",
    "topic_id": "the topic was deleted and created again: export the new one into another folder, "
    "offsets of the two must not mix",
    "format": "export it as {have}, or into another folder",
}
"""What a tree and an export into it agree on, and what to do where they do not."""


@dataclass(frozen=True)
class ManifestState:
    """All files after `version` versions; 0 means that nothing was published yet."""

    version: int = 0
    files: Mapping[str, FileEntry] = field(default_factory=dict[str, FileEntry])
    removed: Mapping[str, int] = field(default_factory=dict[str, int])
    """Files that were removed, and the version that did it; not those of versions that are gone."""

    def of_partition(self, partition: int) -> list[FileEntry]:
        """The partition's files in offset order."""
        mine = [entry for entry in self.files.values() if entry.partition == partition]
        return sorted(mine, key=lambda entry: entry.first)

    def next_offset(self, partition: int) -> int:
        """Where an exporter goes on: one past the last exported offset, 0 when there is none."""
        return max((e.last + 1 for e in self.files.values() if e.partition == partition), default=0)

    def ledgers(self, partition: int) -> frozenset[int]:
        """Ledgers whose every record is in the tree."""
        mine = (e for e in self.files.values() if e.partition == partition)
        return frozenset(ledger for entry in mine for ledger in entry.ledgers)

    def apply(self, change: Change, version: int) -> ManifestState:
        """The state after one more version; raises MetadataCorrupt when they do not fit."""
        return self.apply_all([(version, change)])

    def apply_all(self, changes: Iterable[tuple[int, Change]]) -> ManifestState:
        """The state after more versions, in their order; raises MetadataCorrupt."""
        files, removed, version = dict(self.files), dict(self.removed), self.version
        touched: set[int] = set()
        for version, change in changes:
            for name in change.remove:
                removed[name] = version
                if files.pop(name, None) is None:
                    raise MetadataCorrupt(f"manifest version {version} removes unknown file {name}")
            for entry in change.add:
                if entry.file in files:
                    raise MetadataCorrupt(f"manifest version {version} adds {entry.file} again")
                files[entry.file] = entry
                removed.pop(entry.file, None)
                touched.add(entry.partition)
        state = ManifestState(version, files, removed)
        state.check_order(touched)
        return state

    def without_removed_before(self, version: int) -> ManifestState:
        """This state, without files that versions before `version` removed: those are gone."""
        removed = {name: by for name, by in self.removed.items() if by >= version}
        return self if len(removed) == len(self.removed) else replace(self, removed=removed)

    def check_order(self, partitions: set[int]) -> None:
        """Offsets ascend inside and between the files of a partition (§5)."""
        ends = dict.fromkeys(partitions, -1)
        mine = (entry for entry in self.files.values() if entry.partition in partitions)
        for entry in sorted(mine, key=lambda entry: entry.first):
            if not ends[entry.partition] < entry.first <= entry.last:
                raise MetadataCorrupt(f"{entry.file} overlaps the file before it")
            ends[entry.partition] = entry.last


class Manifest:
    """Reads and extends the manifest of one topic below an export root."""

    def __init__(self, tree: Tree, topic: str) -> None:
        self._tree = tree
        self._data = folder_of(topic)
        self._control = control_folder(topic)
        self._folder = f"{self._control}/{FOLDER}"
        self._info_file = f"{self._control}/{EXPORT_FILE}"
        self._state = ManifestState()

    def recently_removed(self, state: ManifestState) -> frozenset[str]:
        """Removed files that running queries may still read: kept for the grace time (§3)."""
        old = History.of(self._tree.abandoned(self._folder)).versions
        there = History.of(self._tree.names(self._folder)).versions
        return frozenset(name for name, by in state.removed.items() if by in there - old)

    def info(self) -> ExportInfo | None:
        """What `_export.json` says; None when the tree does not exist yet."""
        data = self._tree.read(self._info_file)
        return None if data is None else _parse_info(data, self._tree.where(self._info_file))

    def create(self, wanted: ExportInfo) -> ExportInfo:
        """Create the tree unless it exists; raises ConfigError when it is another topic's.

        A tree keeps what it was created with: one with indexes gets them from every exporter.
        """
        data = sealed(_info_body(wanted))
        place = self._tree.where(self._data)
        if self.info() is None:
            foreign = self._tree.names(self._data)
            if foreign and self.info() is None:
                raise ConfigError(
                    f"{place} holds {foreign[0]!r} and is no export of Octavo",
                    hint="choose an empty or new folder",
                )
            self._tree.make_folder(self._control)
            self._tree.create_exclusive(self._info_file, data)
        self._tree.make_folder(self._folder)
        found = self.info()
        invariant(found is not None, f"{self._info_file} vanished after it was created")
        found = cast("ExportInfo", found)
        for name, hint in _SAME.items():
            have, want = getattr(found, name), getattr(wanted, name)
            if have != want:
                raise ConfigError(
                    f"{place} is an export of {name} {have!r}, not {want!r}",
                    hint=hint.format(have=have),
                )
        if wanted.index and not found.index:
            raise ConfigError(
                f"{place} is an export without indexes: it cannot stand for its ledgers",
                hint="use an empty or new folder",
            )
        return found

    def load(self) -> ManifestState:
        """The newest state; reads only what was published since the last call.

        Raises MetadataCorrupt for what is damaged or missing, and StorageFailed where there is less
        than this object saw before.
        """
        missing: int | None = None
        for _ in range(LOOKS_MAX):
            history = self._history()
            if history.newest < self._state.version:
                raise StorageFailed(
                    f"the manifest in {self._tree.where(self._folder)} was at version "
                    f"{self._state.version} and is at {history.newest} now",
                    hint="is its file system mounted? start again where it was removed on purpose",
                )
            route = history.route(self._state.version)
            missing = route.missing
            if missing is None:
                try:
                    found = self._begin(route.checkpoint).apply_all(self._changes(route.versions))
                except _Gone as gone:
                    missing = gone.version
                else:
                    self._state = found.without_removed_before(history.oldest)
                    return self._state
        raise MetadataCorrupt(
            f"manifest version {missing} is missing in {self._tree.where(self._folder)}"
        )

    def publish(self, decide: Callable[[ManifestState], Change | None]) -> ManifestState:
        """Append one version, decided on the newest state; decided anew after each lost race.

        `decide` answers None when nothing is left to do; it may see its own change done, where it
        is not known who did it. Returns the state in which its change (or nothing) holds. Raises
        VersionConflict after RACES_MAX lost races.
        """
        for _ in range(RACES_MAX):
            state = self.load()
            change = decide(state)
            if change is None or not (change.add or change.remove):
                return state
            version = state.version + 1
            after = state.apply(change, version)
            self._tree.make_folder(self._folder)
            # A number that was pruned while we stood still is free again: nobody reads it.
            if self._create_version(version, change) and not self._history().overtaken(version):
                self._state = after
                if version % CHECKPOINT_EVERY == 0:
                    self._write_checkpoint(after)
                return after
        raise VersionConflict(
            f"lost {RACES_MAX} races for a manifest version in {self._tree.where(self._folder)}"
        )

    def prune(self) -> int:
        """Remove versions and checkpoints that nobody needs any more; how many.

        Whoever is stopped in between leaves what the next call removes. Raises MetadataCorrupt, and
        removes nothing more, when a checkpoint is not the sum of its versions.
        """
        old = History.of(self._tree.abandoned(self._folder)).checkpoints
        steps = self._history().prunable(old)
        if steps:
            self._tree.settle(self._folder)  # a checkpoint whose name is not durable holds nothing
        at: ManifestState | None = None
        for step in steps:
            try:
                at = self._proven(step, at)
            except _Gone:
                return sum(len(one.versions) for one in steps[: steps.index(step)])  # by another
            for version in step.versions:
                self._tree.remove(self._version_name(version))
            for version in step.checkpoints:
                self._tree.remove(f"{self._folder}/{checkpoint_name(version)}")
        return sum(len(step.versions) for step in steps)

    def _proven(self, step: Step, at: ManifestState | None) -> ManifestState:
        """The state of a step's checkpoint; `at`: that of the step before, if there was one."""
        held = self._begin(step.floor)
        if step.base is not None:
            if at is None or at.version != step.base:
                at = self._begin(step.base) if step.base else ManifestState()
            versions = range(step.base + 1, step.floor + 1)
            if at.apply_all(self._changes(versions)).files != held.files:
                raise MetadataCorrupt(
                    f"{self._tree.where(f'{self._folder}/{checkpoint_name(step.floor)}')} is not "
                    "the sum of its versions",
                    hint="nothing was pruned; remove it if the versions before it are right",
                )
        return held

    def _history(self) -> History:
        return History.of(self._tree.names(self._folder))

    def _create_version(self, version: int, change: Change) -> bool:
        token = self._tree.token()
        body = {
            "format_version": _version_of(change.add),
            "token": token,
            "add": [_entry_body(entry) for entry in change.add],
            "remove": list(change.remove),
        }
        if self._tree.create_exclusive(self._version_name(version), sealed(body)):
            return True
        # A network file system may report "exists" for our own link after a lost reply (M-3).
        try:
            return self._read_version(version)[0] == token
        except _Gone:
            return False  # pruned since, so there are newer ones

    def _changes(self, versions: Iterable[int]) -> Iterator[tuple[int, Change]]:
        for version in versions:
            yield version, self._read_version(version)[1]

    def _read_version(self, version: int) -> tuple[str, Change]:
        """The token and the change of a version; raises _Gone, MetadataCorrupt."""
        name = self._tree.where(self._version_name(version))
        data = self._tree.read(self._version_name(version))
        if data is None:
            raise _Gone(version)
        body = parse_sealed(data, name)
        try:
            add = tuple(_entry(item) for item in cast("list[object]", body["add"]))
            remove = tuple(cast("list[object]", body["remove"]))
            if not all(isinstance(item, str) for item in remove):
                raise TypeError("a removed file has no name")
            return str(body["token"]), Change(add, cast("tuple[str, ...]", remove))
        except (KeyError, TypeError) as error:
            raise MetadataCorrupt(f"{name} is no manifest version: {error!r}") from error

    def _begin(self, checkpoint: int | None) -> ManifestState:
        """The state that a checkpoint holds, None: what this object has seen; raises _Gone."""
        if checkpoint is None:
            return self._state
        file = f"{self._folder}/{checkpoint_name(checkpoint)}"
        name = self._tree.where(file)
        data = self._tree.read(file)
        if data is None:
            raise _Gone(checkpoint)
        body = parse_sealed(data, name)
        try:
            version = int(cast("int", body["version"]))
            files = [_entry(item) for item in cast("list[object]", body["files"])]
            removed = {str(k): int(v) for k, v in cast("dict[str, int]", body["removed"]).items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise MetadataCorrupt(f"{name} is no manifest checkpoint: {error!r}") from error
        if version != checkpoint:
            raise MetadataCorrupt(f"{name} is the checkpoint of version {version}")
        return ManifestState(version, {entry.file: entry for entry in files}, removed)

    def _write_checkpoint(self, state: ManifestState) -> None:
        files = [state.files[name] for name in sorted(state.files)]
        body = {
            "format_version": _version_of(files),
            "version": state.version,
            "files": [_entry_body(entry) for entry in files],
            "removed": dict(state.removed),
        }
        self._tree.replace(f"{self._folder}/{checkpoint_name(state.version)}", sealed(body))

    def _version_name(self, version: int) -> str:
        return f"{self._folder}/{version_name(version)}"


class _Gone(Exception):
    """A version or checkpoint that was listed is not there any more."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


def _version_of(entries: Iterable[FileEntry]) -> int:
    """The oldest format that can say it: trees without indexes are those of earlier builds."""
    return INDEXED_VERSION if any(entry.index for entry in entries) else FORMAT_VERSION


def _entry_body(entry: FileEntry) -> dict[str, object]:
    body: dict[str, object] = dict(vars(entry))  # asdict would copy all of it
    return body if entry.index else {n: v for n, v in body.items() if n not in _NO_INDEX}


def _info_body(info: ExportInfo) -> dict[str, object]:
    body: dict[str, object] = asdict(info)
    if info.index:
        return {**body, "format_version": INDEXED_VERSION}
    del body["index"]
    return body


def _parse_info(data: bytes, name: str) -> ExportInfo:
    body = parse_sealed(data, name)
    body.setdefault("index", False)
    _check_fields(ExportInfo, body, name)
    return ExportInfo(**body)  # type: ignore[arg-type]


def _entry(item: object) -> FileEntry:
    """One file of a version; nothing in it is trusted (a path must stay inside the tree)."""
    if not isinstance(item, dict):
        raise MetadataCorrupt("a manifest entry is not an object")
    body = cast("dict[str, object]", item)
    if "index" not in body:
        body = {**_NO_INDEX, **body}
    _check_fields(FileEntry, body, "manifest entry")
    entry = FileEntry(**body)  # type: ignore[arg-type]
    if "/" in entry.index or entry.index.startswith("."):
        raise MetadataCorrupt(f"index of a manifest entry leaves its folder: {entry.index!r}")
    parts = pathlib.PurePosixPath(entry.file).parts
    if not parts or parts[0] == "/" or ".." in parts:
        raise MetadataCorrupt(f"manifest entry leaves its tree: {entry.file!r}")
    if not all(type(ledger) is int for ledger in entry.ledgers):
        raise MetadataCorrupt(f"{entry.file} names a ledger that is no number")
    return replace(entry, ledgers=tuple(entry.ledgers))


_NO_INDEX: Mapping[str, object] = {
    "index": "",
    "index_bytes": 0,
    "index_batches": 0,
    "index_crcs": "",
}
_JSON_TYPES: Mapping[str, type] = {
    "str": str,
    "int": int,
    "bool": bool,
    "tuple[int, ...]": list,
}


def _check_fields(kind: type[FileEntry | ExportInfo], body: dict[str, object], what: str) -> None:
    for item in fields(kind):
        wanted = _JSON_TYPES[str(item.type)]
        if type(body.get(item.name)) is not wanted:
            raise MetadataCorrupt(f"{what}: field {item.name!r} is not a JSON {wanted.__name__}")
    unknown = sorted(body.keys() - {item.name for item in fields(kind)})
    if unknown:
        raise MetadataCorrupt(f"{what}: unknown field {unknown[0]!r}")
