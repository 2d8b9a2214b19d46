"""The manifest of an exported topic: which files exist, one version at a time (spec/spark.md §5).

    _export.json                        what this tree is; created once
    _manifest/<version:020d>.json       {"token", "add", "remove"}, created exclusively
    _manifest/checkpoint-<version>.json the whole state after that version, every 100 versions

A version exists or it does not: it is created with `link`, whose loser re-reads and decides anew.
The state is the sum of all versions and nothing else; data files that no version names do not
exist for any reader. Checkpoints are a shortcut: a reader may ignore them and get the same state.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import cast

from octavo.runtime.errors import ConfigError, MetadataCorrupt, UnsupportedVersion, VersionConflict
from octavo.runtime.invariant import invariant
from octavo.spark.tree import LocalTree

FORMAT_VERSION = 1
FOLDER = "_manifest"
EXPORT_FILE = "_export.json"
CHECKPOINT_EVERY = 100
RACES_MAX = 1000
"""Lost races before giving up; each one means that another exporter made progress."""


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
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True)
class ManifestState:
    """All files after `version` versions; 0 means that nothing was published yet."""

    version: int = 0
    files: Mapping[str, FileEntry] = field(default_factory=dict[str, FileEntry])
    removed: Mapping[str, int] = field(default_factory=dict[str, int])
    """Files that were removed, and the version that did it."""

    def recently_removed(self, tree: LocalTree) -> frozenset[str]:
        """Removed files that running queries may still read: kept for the grace time (§3)."""
        recent = {v for v in self.removed.values() if not tree.is_old(_version_name(v))}
        return frozenset(name for name, version in self.removed.items() if version in recent)

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
        files, removed = dict(self.files), dict(self.removed)
        for name in change.remove:
            removed[name] = version
            if files.pop(name, None) is None:
                raise MetadataCorrupt(f"manifest version {version} removes unknown file {name}")
        for entry in change.add:
            if entry.file in files:
                raise MetadataCorrupt(f"manifest version {version} adds {entry.file} again")
            files[entry.file] = entry
            removed.pop(entry.file, None)
        state = ManifestState(version, files, removed)
        state.check_order({entry.partition for entry in change.add})
        return state

    def check_order(self, partitions: set[int]) -> None:
        """Offsets ascend inside and between the files of a partition (§5)."""
        for partition in partitions:
            end = -1
            for entry in self.of_partition(partition):
                if not end < entry.first <= entry.last:
                    raise MetadataCorrupt(f"{entry.file} overlaps the file before it")
                end = entry.last


class Manifest:
    """Reads and extends the manifest of one topic's tree."""

    def __init__(self, tree: LocalTree) -> None:
        self._tree = tree
        self._state = ManifestState()

    def info(self) -> ExportInfo | None:
        """What `_export.json` says; None when the tree does not exist yet."""
        data = self._tree.read(EXPORT_FILE)
        return None if data is None else _parse_info(data)

    def create(self, wanted: ExportInfo) -> ExportInfo:
        """Create the tree unless it exists; raises ConfigError when it is another topic's."""
        data = json.dumps(asdict(wanted), indent=1, sort_keys=True).encode()
        if self.info() is None:
            foreign = [name for name in self._tree.names("") if name != EXPORT_FILE]
            if foreign and self.info() is None:
                raise ConfigError(
                    f"{self._tree.root} holds {foreign[0]!r} and is no export of Octavo",
                    hint="choose an empty or new folder",
                )
            self._tree.make_folder("")
            self._tree.create_exclusive(EXPORT_FILE, data)
        self._tree.make_folder(FOLDER)
        found = self.info()
        invariant(found is not None, f"{EXPORT_FILE} vanished after it was created")
        found = cast("ExportInfo", found)
        for name in ("topic", "topic_id", "format"):
            have, want = getattr(found, name), getattr(wanted, name)
            if have != want:
                raise ConfigError(
                    f"{self._tree.root} is an export of {name} {have!r}, not {want!r}",
                    hint="export into another folder; offsets of two topics must not mix",
                )
        return found

    def load(self) -> ManifestState:
        """The newest state; reads only what was published since the last call."""
        names = self._tree.names(FOLDER)
        versions = {int(n[:-5]): n for n in names if n.endswith(".json") and n[:-5].isdigit()}
        newest = max(versions, default=0)
        state = self._start(names, newest)
        for version in range(state.version + 1, newest + 1):
            name = versions.get(version)
            if name is None:
                raise MetadataCorrupt(f"manifest version {version} is missing in {self._tree.root}")
            state = state.apply(self._read_version(version)[1], version)
        self._state = state
        return state

    def publish(self, decide: Callable[[ManifestState], Change | None]) -> ManifestState:
        """Append one version, decided on the newest state; decided anew after each lost race.

        `decide` answers None when nothing is left to do. Returns the state in which its change (or
        nothing) holds. Raises VersionConflict after RACES_MAX lost races.
        """
        self._tree.make_folder(FOLDER)
        for _ in range(RACES_MAX):
            state = self.load()
            change = decide(state)
            if change is None or not (change.add or change.remove):
                return state
            version = state.version + 1
            after = state.apply(change, version)
            if self._create_version(version, change):
                self._state = after
                if version % CHECKPOINT_EVERY == 0:
                    self._write_checkpoint(after)
                return after
        raise VersionConflict(f"lost {RACES_MAX} races for a manifest version of {self._tree.root}")

    def _create_version(self, version: int, change: Change) -> bool:
        token = self._tree.token()
        body = {
            "format_version": FORMAT_VERSION,
            "token": token,
            "add": [asdict(entry) for entry in change.add],
            "remove": list(change.remove),
        }
        data = json.dumps(body, sort_keys=True).encode()
        if self._tree.create_exclusive(_version_name(version), data):
            return True
        # A network file system may report "exists" for our own link after a lost reply (M-3).
        return self._read_version(version)[0] == token

    def _read_version(self, version: int) -> tuple[str, Change]:
        name = _version_name(version)
        body = _parse_object(self._tree.read(name), name)
        try:
            add = tuple(_entry(item) for item in cast("list[object]", body["add"]))
            remove = tuple(cast("list[str]", body["remove"]))
            return str(body["token"]), Change(add, remove)
        except (KeyError, TypeError) as error:
            raise MetadataCorrupt(f"{name} is no manifest version: {error!r}") from error

    def _start(self, names: list[str], newest: int) -> ManifestState:
        """The best known state to go on from: what this object has seen, or a checkpoint."""
        best = self._state if self._state.version <= newest else ManifestState()
        checkpoints = sorted(n for n in names if n.startswith("checkpoint-"))
        if not checkpoints:
            return best
        name = checkpoints[-1]
        body = _parse_object(self._tree.read(f"{FOLDER}/{name}"), name)
        try:
            version = int(cast("int", body["version"]))
            if version <= best.version or version > newest:
                return best
            files = [_entry(item) for item in cast("list[object]", body["files"])]
            removed = {str(k): int(v) for k, v in cast("dict[str, int]", body["removed"]).items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise MetadataCorrupt(f"{name} is no manifest checkpoint: {error!r}") from error
        return ManifestState(version, {entry.file: entry for entry in files}, removed)

    def _write_checkpoint(self, state: ManifestState) -> None:
        files = [asdict(state.files[name]) for name in sorted(state.files)]
        body = {
            "format_version": FORMAT_VERSION,
            "version": state.version,
            "files": files,
            "removed": dict(state.removed),
        }
        data = json.dumps(body, sort_keys=True).encode()
        self._tree.replace(f"{FOLDER}/checkpoint-{state.version:020d}.json", data)


def _version_name(version: int) -> str:
    return f"{FOLDER}/{version:020d}.json"


def _parse_object(data: bytes | None, name: str) -> dict[str, object]:
    if data is None:
        raise MetadataCorrupt(f"{name} vanished")
    try:
        body: object = json.loads(data)
    except ValueError as error:
        raise MetadataCorrupt(f"{name} is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise MetadataCorrupt(f"{name} is not a JSON object")
    found = cast("dict[str, object]", body)
    version = found.get("format_version")
    if version != FORMAT_VERSION:
        raise UnsupportedVersion(
            f"{name} has format version {version!r}, known is {FORMAT_VERSION}"
        )
    return found


def _parse_info(data: bytes) -> ExportInfo:
    body = _parse_object(data, EXPORT_FILE)
    _check_fields(ExportInfo, body, EXPORT_FILE)
    return ExportInfo(**body)  # type: ignore[arg-type]


def _entry(item: object) -> FileEntry:
    """One file of a version; nothing in it is trusted (a path must stay inside the tree)."""
    if not isinstance(item, dict):
        raise MetadataCorrupt("a manifest entry is not an object")
    body = cast("dict[str, object]", item)
    _check_fields(FileEntry, body, "manifest entry")
    entry = FileEntry(**body)  # type: ignore[arg-type]
    parts = pathlib.PurePosixPath(entry.file).parts
    if not parts or parts[0] == "/" or ".." in parts:
        raise MetadataCorrupt(f"manifest entry leaves its tree: {entry.file!r}")
    if not all(type(ledger) is int for ledger in entry.ledgers):
        raise MetadataCorrupt(f"{entry.file} names a ledger that is no number")
    return replace(entry, ledgers=tuple(entry.ledgers))


_JSON_TYPES: Mapping[str, type] = {"str": str, "int": int, "tuple[int, ...]": list}


def _check_fields(kind: type[FileEntry | ExportInfo], body: dict[str, object], what: str) -> None:
    for item in fields(kind):
        wanted = _JSON_TYPES[str(item.type)]
        if type(body.get(item.name)) is not wanted:
            raise MetadataCorrupt(f"{what}: field {item.name!r} is not a JSON {wanted.__name__}")
    unknown = sorted(body.keys() - {item.name for item in fields(kind)})
    if unknown:
        raise MetadataCorrupt(f"{what}: unknown field {unknown[0]!r}")
