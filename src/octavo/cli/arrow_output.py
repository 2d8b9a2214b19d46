"""Where `octavo consume --arrow` writes: a file that appears when it is complete, or a stream.

A regular file (also behind a symbolic link) is written beside its place and renamed over it, in
Arrow's file format. Everything else keeps its place and gets Arrow's stream format: standard output
(`-`), FIFOs and devices are never replaced.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import stat
import sys
from typing import TYPE_CHECKING, BinaryIO

from octavo.cli.failures import OutputClosed
from octavo.runtime.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

STDOUT = ("-", "/dev/stdout")
_OPEN_DESCRIPTORS = ("/dev/", "/proc/")
"""Files named through these are open somewhere already: they are written, never replaced."""


class ArrowOutput:
    """One Arrow file or stream; `finish` or `abandon` ends it."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        # Imported here: loads Arrow.
        import pyarrow as pa

        self.name = "standard output" if path in STDOUT else path
        self.rows = 0
        """Rows written so far."""
        self._target: pathlib.Path | None = None
        self._staged: pathlib.Path | None = None
        self._sink: BinaryIO
        if path in STDOUT:
            if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
                raise OSError(errno.EBADF, "standard output is closed")
            self._sink = sys.stdout.buffer
        elif _is_replaceable(path):
            self._target = pathlib.Path(os.path.realpath(path))
            self._staged = self._target.with_name(f"{self._target.name}.{os.getpid()}.part")
            self._sink = self._staged.open("wb")
        else:
            self._sink = pathlib.Path(path).open("wb")  # noqa: SIM115 - closed by finish or abandon
        make = pa.ipc.new_stream if self._staged is None else pa.ipc.new_file
        try:
            self._writer = make(self._sink, schema)
        except BaseException:
            self.abandon()
            raise

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        if batch.num_rows:
            try:
                self._writer.write_batch(batch)
            except BrokenPipeError as error:
                raise self._gone() from error
            self.rows += batch.num_rows

    def flush(self) -> None:
        """Hand the rows on to whoever reads along."""
        try:
            self._sink.flush()
        except BrokenPipeError as error:
            raise self._gone() from error

    def finish(self) -> None:
        """Complete it; a file takes its place only now, and is on disk."""
        try:
            self._writer.close()
            self._sink.flush()
        except BrokenPipeError as error:
            raise self._gone() from error
        if self._staged is None or self._target is None:
            if self.name != "standard output":
                self._sink.close()
            return
        os.fsync(self._sink.fileno())
        self._sink.close()
        with contextlib.suppress(FileNotFoundError):
            self._staged.chmod(stat.S_IMODE(self._target.stat().st_mode))
        self._staged.replace(self._target)
        self._staged = None

    def abandon(self) -> None:
        """Give it up: a file that was there before stays as it was. Harmless after `finish`."""
        if self.name != "standard output":
            with contextlib.suppress(OSError):  # what failed was said already
                self._sink.close()
        if self._staged is not None:
            self._staged.unlink(missing_ok=True)

    def _gone(self) -> Exception:
        if self.name == "standard output":
            return OutputClosed()
        return OSError(errno.EIO, "its reader went away", self.name)


def _is_replaceable(path: str) -> bool:
    """Whether the path leads to a regular file or to nothing yet."""
    try:
        mode = pathlib.Path(path).stat().st_mode
    except FileNotFoundError:
        return True
    if stat.S_ISDIR(mode):
        raise ConfigError(f"--arrow {path} is a folder", hint="name a file in it")
    return stat.S_ISREG(mode) and not os.path.abspath(path).startswith(_OPEN_DESCRIPTORS)
