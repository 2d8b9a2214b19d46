"""DATA/cluster.json: what runs in a data folder.

Written atomically by the supervisor, read by everybody else. The file names the folder it was
written for, by device and inode, and each process by pid and start time: a copy of the folder knows
addresses and sizes of the cluster, but no process of it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from typing import Literal, TypeVar, cast

import psutil

from octavo.runtime.errors import ConfigError
from octavo.runtime.system_errors import naming
from octavo.supervisor.spec import DEFAULT_PORT, Role, is_child_name

FILE_NAME = "cluster.json"
FORMAT_VERSION = 2
_CREATE_TIME_SLACK_S = 1.0

State = Literal["starting", "ready", "down"]
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessEntry:
    """One child process as the file shows it."""

    role: Role
    name: str
    pid: int
    """0 while it does not run."""
    started: float
    """When that process began, seconds since 1970; 0 while it does not run."""
    address: str
    health_address: str
    log: str
    state: State
    metrics_address: str = ""
    """Where its page for Prometheus is; empty: nowhere."""
    exit_code: int | None = None
    """Set while it is down after having run; negative: the signal that ended it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterFile:
    """The whole file."""

    supervisor_pid: int
    supervisor_started: float
    """When that process began, seconds since 1970: tells a reused pid from the real one."""
    bootstrap_servers: str
    metadata: str
    metadata_log: str
    children: tuple[ProcessEntry, ...]
    bookies: int
    brokers: int
    folder: str
    """`folder_identity` of the folder that the file was written for."""
    port: int = DEFAULT_PORT
    """What `--port` was: a later start that is given none takes it."""
    version: int = FORMAT_VERSION

    def child(self, name: str) -> ProcessEntry | None:
        """The entry of one child."""
        return next((entry for entry in self.children if entry.name == name), None)

    def supervisor_alive(self) -> bool:
        """Whether the supervisor that wrote the file still runs."""
        return is_same_process(self.supervisor_pid, self.supervisor_started)

    def to_json(self) -> str:
        """The text of the file."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"


def folder_identity(data_dir: pathlib.Path) -> str:
    """What a folder keeps when it is renamed and a copy of it does not have."""
    found = data_dir.stat()
    return f"{found.st_dev}:{found.st_ino}"


def started_at(pid: int) -> float:
    """When a process began, seconds since 1970; 0 when it is gone."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return 0.0


def is_same_process(pid: int, started: float) -> bool:
    """Whether `pid` runs and is the process that started at `started`."""
    if pid <= 0:
        return False
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return abs(process.create_time() - started) <= _CREATE_TIME_SLACK_S
    except (psutil.Error, ValueError):
        return False


def write_cluster_file(data_dir: pathlib.Path, cluster: ClusterFile) -> None:
    """Replace the file in one step: readers see the old or the new text, never a part."""
    path = data_dir / FILE_NAME
    staged = data_dir / (FILE_NAME + ".new")
    with naming(staged), staged.open("w", encoding="utf-8") as file:
        file.write(cluster.to_json())
        file.flush()
        os.fsync(file.fileno())
    staged.replace(path)


def read_cluster_file(data_dir: pathlib.Path) -> ClusterFile | None:
    """The file of this data folder, or None when no cluster was ever started there.

    In a copy of a folder no process is this folder's: the file is returned without any. Raises
    ConfigError when the file is not what a supervisor writes.
    """
    path = data_dir / FILE_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        found = _parse(json.loads(text))
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{path} is damaged: {error}",
            hint="move the file away; the data beside it is not touched by that",
        ) from error
    return found if found.folder == folder_identity(data_dir) else _without_processes(found)


def _without_processes(cluster: ClusterFile) -> ClusterFile:
    children = tuple(
        dataclasses.replace(child, pid=0, started=0.0, state="down", exit_code=None)
        for child in cluster.children
    )
    return dataclasses.replace(cluster, supervisor_pid=0, supervisor_started=0.0, children=children)


def _parse(raw: object) -> ClusterFile:
    if not isinstance(raw, dict):
        raise TypeError("not an object")
    fields = cast("dict[str, object]", raw)
    if fields["version"] != FORMAT_VERSION:
        raise ValueError(f"version {fields['version']!r} is unknown")
    children = fields["children"]
    if not isinstance(children, list):
        raise TypeError("children is not a list")
    return ClusterFile(
        supervisor_pid=_typed(fields, "supervisor_pid", int),
        supervisor_started=float(_typed(fields, "supervisor_started", float)),
        bootstrap_servers=_typed(fields, "bootstrap_servers", str),
        metadata=_typed(fields, "metadata", str),
        metadata_log=_typed(fields, "metadata_log", str),
        children=tuple(_parse_child(child) for child in cast("list[object]", children)),
        bookies=_typed(fields, "bookies", int),
        brokers=_typed(fields, "brokers", int),
        folder=_typed(fields, "folder", str),
        port=_typed({"port": DEFAULT_PORT, **fields}, "port", int),
    )


def _parse_child(raw: object) -> ProcessEntry:
    if not isinstance(raw, dict):
        raise TypeError("a child is not an object")
    fields = cast("dict[str, object]", raw)
    name = _typed(fields, "name", str)
    role, state, exit_code = fields["role"], fields["state"], fields["exit_code"]
    if not is_child_name(name) or role not in ("bookie", "broker"):
        raise ValueError(f"child {name!r} is unknown")
    if state not in ("starting", "ready", "down"):
        raise ValueError(f"state {state!r} is unknown")
    if exit_code is not None and not isinstance(exit_code, int):
        raise TypeError("exit_code is not a number")
    return ProcessEntry(
        role=role,
        name=name,
        pid=_typed(fields, "pid", int),
        started=float(_typed(fields, "started", float)),
        address=_typed(fields, "address", str),
        health_address=_typed(fields, "health_address", str),
        log=_typed(fields, "log", str),
        state=state,
        metrics_address=_typed({"metrics_address": "", **fields}, "metrics_address", str),
        exit_code=exit_code,
    )


def _typed(fields: dict[str, object], name: str, kind: type[T]) -> T:
    value = fields[name]
    if not isinstance(value, kind):
        raise TypeError(f"{name} is not of type {kind.__name__}")
    return value
