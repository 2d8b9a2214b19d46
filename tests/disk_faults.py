"""Failing or stopping a bookie at one single system call of its disk seam.

`DiskSites` stands between `octavo.runtime.disk` and the operating system: it numbers the calls that
change or read files, and lets one of them fail, or calls back in front of it. Nothing of the seam
itself is replaced.
"""

from __future__ import annotations

import os
import pathlib
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import octavo.runtime.disk as seam

WATCHED = (
    "open",
    "write",
    "writev",
    "pwrite",
    "fsync",
    "fdatasync",
    "rename",
    "unlink",
    "posix_fallocate",
    "ftruncate",
    "truncate",
    "pread",
    "listdir",
    "mkdir",
    "statvfs",
    "posix_fadvise",
)


class Site(NamedTuple):
    """One call: what it does to which kind of file."""

    call: str
    file: str

    def __str__(self) -> str:
        return f"{self.call} {self.file}"


class Killed(BaseException):
    """The process ends here."""


def kind_of(path: str) -> str:
    """The kind of a file, without its number."""
    name = os.path.basename(path)
    if name.endswith(".seg"):
        return "segment"
    return {"": "folder", "journal": "journal folder"}.get(
        name, f"{name} (temporary)" if name.endswith(".tmp") else name
    )


class DiskSites:
    """Counts the calls below `root`; `before(number, site)` may raise what the call shall fail
    with."""

    def __init__(self, root: pathlib.Path) -> None:
        self._root = f"{root}/"
        self._lock = threading.Lock()
        self.sites: list[Site] = []
        self.before: Callable[[int, Site], None] = lambda _number, _site: None

    def install(self, monkeypatch: pytest.MonkeyPatch) -> DiskSites:
        """Watch until `monkeypatch` is undone; several may watch folders of their own."""
        watched: object = vars(seam)["os"]
        if isinstance(watched, _Watched):
            watched.watchers.append(self)
        else:
            monkeypatch.setattr(seam, "os", _Watched([self]))
        return self

    def seen(self, call: str, target: int | str | os.PathLike[str]) -> None:
        """A call on a file descriptor or a path."""
        path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else target
        text = os.fspath(path)
        if not f"{text}/".startswith(self._root):
            return
        with self._lock:
            site = Site(call, kind_of(text))
            number = len(self.sites)
            self.sites.append(site)
        self.before(number, site)


class _Watched:
    """The module `os` with the watched functions wrapped."""

    def __init__(self, watchers: list[DiskSites]) -> None:
        self.watchers = watchers

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in WATCHED:
            return real

        def call(target: Any, *rest: Any, **named: Any) -> Any:
            for watcher in self.watchers:
                watcher.seen(name, target)
            return real(target, *rest, **named)

        return call
