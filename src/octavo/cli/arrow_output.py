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
from collections.abc import Generator
from typing import TYPE_CHECKING, BinaryIO

from octavo.cli.failures import OutputClosed
from octavo.cli.output import STDOUT_NAME
from octavo.runtime.errors import ConfigError
from octavo.runtime.system_errors import naming

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

        self.name = STDOUT_NAME if path in STDOUT else path
        self.rows = 0
        """Rows written so far."""
        self._target: pathlib.Path | None = None
        self._staged: pathlib.Path | None = None
        self._sink: BinaryIO
        if path in STDOUT:
            if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
                raise OutputClosed
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
            with self._named():
                self._writer.write_batch(batch)
            self.rows += batch.num_rows

    def flush(self) -> None:
        """Hand the rows on to whoever reads along."""
        with self._named():
            self._sink.flush()

    def finish(self) -> None:
        """Complete it; a file takes its place only now, and is on disk."""
        with self._named():
            self._writer.close()
            self._sink.flush()
            if self._staged is None or self._target is None:
                if self.name != STDOUT_NAME:
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
        if self.name != STDOUT_NAME:
            with contextlib.suppress(OSError):  # what failed was said already
                self._sink.close()
        if self._staged is not None:
            self._staged.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _named(self) -> Generator[None]:
        """Errors name the output; standard output without a reader is OutputClosed."""
        try:
            with naming(self.name):
                yield
        except BrokenPipeError as error:
            if self.name == STDOUT_NAME:
                raise OutputClosed from error
            raise OSError(errno.EIO, "its reader went away", self.name) from error


def _is_replaceable(path: str) -> bool:
    """Whether the path leads to a regular file or to nothing yet."""
    try:
        mode = pathlib.Path(path).stat().st_mode
    except FileNotFoundError:
        return True
    if stat.S_ISDIR(mode):
        raise ConfigError(f"--arrow {path} is a folder", hint="name a file in it")
    return stat.S_ISREG(mode) and not os.path.abspath(path).startswith(_OPEN_DESCRIPTORS)
