"""`octavo logs`: the log of one process of a cluster on this machine, also while it grows."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import select
from collections.abc import Iterator
from typing import Annotated, BinaryIO

import typer

from octavo.cli.failures import ExitCode, say_error
from octavo.cli.folder import DEFAULT_DATA, DataOption, require_cluster
from octavo.cli.output import note, output_is_closed, write_bytes
from octavo.cli.stopping import StopRequest, stop_requests, terminable

LINES_DEFAULT = 100
CHUNK_BYTES = 1 << 16
LOOK_EVERY_S = 0.2
_MARK_BYTES = 64
"""Bytes before the place read to, which are compared: a file may be emptied and grow again between
two looks."""
_OF_THE_SUPERVISOR = ("metadata", "supervisor")


def logs(
    name: Annotated[
        str, typer.Argument(help="A process as `octavo status` names it; or up, of --detach.")
    ],
    data: DataOption = DEFAULT_DATA,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Wait for more; Ctrl-C ends it.")
    ] = False,
    lines: Annotated[
        int, typer.Option("-n", "--lines", help="How many of the last lines.", min=0)
    ] = LINES_DEFAULT,
    everything: Annotated[bool, typer.Option("--all", help="From the first line on.")] = False,
) -> int:
    """Print the log of one process. With -f it goes on until Ctrl-C, which is no error.

    A log that is emptied, or moved away and begun anew, is followed from its new beginning.
    """
    path = _path_of(name, data)
    if path is None:
        known = [child.name for child in require_cluster(data).children]
        say_error(f"no process called {name!r} here", f"known: metadata, {', '.join(known)}, up")
        return ExitCode.NOT_FOUND
    reader = LogReader(path)
    with contextlib.closing(reader), stop_requests() if follow else terminable() as stop:
        if reader.open():
            reader.go_to_last(None if everything else lines)
        elif not follow:
            raise FileNotFoundError(errno.ENOENT, "nothing was logged yet", str(path))
        else:
            note(f"waiting for {path}")
        for piece in reader.pieces():
            write_bytes(piece, flush=True)
        if stop is not None:
            _follow(reader, stop)
    return ExitCode.OK


def _follow(reader: LogReader, stop: StopRequest) -> None:
    while not stop.came and not output_is_closed():
        for piece in reader.pieces():
            write_bytes(piece, flush=True)
            if stop.came:
                break
        select.select([], [], [], LOOK_EVERY_S)


def _path_of(name: str, data: pathlib.Path) -> pathlib.Path | None:
    """The log file of a process, None when there is none of that name."""
    cluster = require_cluster(data)
    if name in _OF_THE_SUPERVISOR:
        return _here(cluster.metadata_log, data)
    if name == "up":
        return data.absolute() / "logs" / "up.log"
    entry = cluster.child(name)
    return None if entry is None else _here(entry.log, data)


def _here(log: str, data: pathlib.Path) -> pathlib.Path:
    """The file in this folder, which may be a copy of the one that cluster.json was written for."""
    return data.absolute() / "logs" / pathlib.Path(log).name


class LogReader:
    """Reads one log as it grows, over truncation and rotation. Holds one chunk at a time."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._position = 0
        self._mark = b""
        """The last bytes before `_position`, as they were read."""

    def open(self) -> bool:
        """Open the file that has the name now, from its beginning; whether there is one."""
        try:
            fresh = self._path.open("rb")
        except FileNotFoundError:
            return False
        self.close()
        self._file, self._position, self._mark = fresh, 0, b""
        return True

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def go_to_last(self, lines: int | None) -> None:
        """Go where the last so many lines begin; None: to the beginning."""
        if self._file is None or lines is None:
            return
        end = place = self._file.seek(0, os.SEEK_END)
        wanted = lines + 1  # line feeds, that of the last line too
        if end and self._at(end - 1, 1) != b"\n":
            wanted -= 1  # the last line is not complete
        while place > 0 and wanted > 0:
            begin = max(0, place - CHUNK_BYTES)
            chunk = self._at(begin, place - begin)
            found = len(chunk)
            while wanted > 0 and (found := chunk.rfind(b"\n", 0, found)) >= 0:
                wanted -= 1
            place = begin + found + 1 if wanted == 0 else begin
        self._move(place)

    def pieces(self) -> Iterator[bytes]:
        """What came since the last call, also in a file that took the place of the old one."""
        if self._file is None and not self.open():
            return
        yield from self._rest()
        if self._was_replaced() and self.open():
            yield from self._rest()

    def _rest(self) -> Iterator[bytes]:
        if self._was_emptied():
            self._move(0)
        while chunk := self._at(self._position, CHUNK_BYTES):
            self._position += len(chunk)
            self._mark = (self._mark + chunk)[-_MARK_BYTES:]
            yield chunk

    def _was_emptied(self) -> bool:
        start = self._position - len(self._mark)
        return self._at(start, len(self._mark)) != self._mark

    def _was_replaced(self) -> bool:
        if self._file is None:
            return False
        try:
            return not os.path.samestat(self._path.stat(), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return False  # moved away, and not begun anew yet

    def _move(self, place: int) -> None:
        self._position = place
        begin = max(0, place - _MARK_BYTES)
        self._mark = self._at(begin, place - begin)

    def _at(self, place: int, size: int) -> bytes:
        return b"" if self._file is None else os.pread(self._file.fileno(), size, place)
