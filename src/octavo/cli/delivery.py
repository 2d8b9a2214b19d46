"""What became of the lines of `octavo produce`: acknowledged, rejected, or open."""

from __future__ import annotations

import collections
import json
import pathlib
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Self

from octavo.cli.failures import OutputClosed
from octavo.cli.output import count_of, discard_output, note, write_text
from octavo.runtime.errors import (
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    OctavoError,
)
from octavo.runtime.system_errors import naming

if TYPE_CHECKING:
    from octavo.client.messaging import SendFuture

PENDING_MAX = 10_000
PENDING_BYTES_MAX = 32 << 20
"""Records kept whose acknowledgement was not looked at; the producer's buffer limit comes first."""
SKIPS_SAID_MAX = 10
"""Skipped lines that are named on stderr; the others are only counted."""
_FAULTS_OF_A_RECORD = (MessageTooLarge, InvalidRecord, InvalidTimestamp)


class Rejects:
    """Lines that cannot be records: the first one stops, or all are set aside and counted."""

    def __init__(self, *, skip: bool, path: pathlib.Path | None) -> None:
        self.count = 0
        self._skip = skip
        self._path = path
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        if self._path is not None:
            self._file = self._path.open("ab")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None and self._path is not None:
            with naming(self._path):
                self._file.close()

    def reject(self, number: int, line: bytes, error: OctavoError) -> None:
        """Stop with this error, or set the line aside."""
        self._begin(number, error)
        self._write(line + b"\n")

    def too_long(self, number: int, limit_bytes: int) -> Callable[[bytes], object]:
        """The same for a line that is not even read into memory; takes its pieces."""
        self._begin(
            number,
            MessageTooLarge(
                f"line {number} is larger than a record may be, {limit_bytes} bytes",
                hint="--on-error skip --rejects FILE sets such lines aside; a topic takes records "
                "of up to 4 MiB if it was created so (-c max.message.bytes=4194304)",
            ),
        )
        return self._write

    def _begin(self, number: int, error: OctavoError) -> None:
        where = "" if f"line {number}" in error.cause else f"line {number}: "
        if not self._skip:
            raise type(error)(where + error.cause, hint=error.hint) from error
        self.count += 1
        if self.count <= SKIPS_SAID_MAX:
            note(f"skipped {where}{error.cause}")
            if self.count == SKIPS_SAID_MAX:
                note("more skipped lines are counted only")

    def _write(self, piece: bytes) -> None:
        if self._file is not None and self._path is not None:
            with naming(self._path):
                self._file.write(piece)


class _Open(NamedTuple):
    number: int
    line: bytes
    future: SendFuture


class Delivery:
    """Records under way, oldest first, and how many arrived."""

    def __init__(self, rejects: Rejects, *, verbose: bool) -> None:
        self.rejects = rejects
        self.acknowledged = 0
        self.read = 0
        """Lines read so far."""
        self._verbose = verbose
        self._open: collections.deque[_Open] = collections.deque()
        self._open_bytes = 0

    def add(self, number: int, line: bytes, future: SendFuture) -> None:
        """A line was queued; waits for the oldest when too many are open."""
        self._open.append(_Open(number, line, future))
        self._open_bytes += len(line)
        while len(self._open) > PENDING_MAX or self._open_bytes > PENDING_BYTES_MAX:
            self._take()

    def too_long(self, number: int, limit_bytes: int) -> Callable[[bytes], object]:
        """A line that is not even read into memory; takes its pieces, or stops."""
        self.read = number
        return self.rejects.too_long(number, limit_bytes)

    def settle(self) -> bool:
        """Look at what was acknowledged, without waiting; whether anything is still open."""
        while self._open and self._open[0].future.done():
            self._take()
        return bool(self._open)

    def finish(self) -> None:
        """Wait for the rest."""
        while self._open:
            self._take()

    def _take(self) -> None:
        item = self._open[0]
        error = item.future.exception()
        self._open.popleft()
        self._open_bytes -= len(item.line)
        if error is None:
            self.acknowledged += 1
            if self._verbose:
                self._print(item.future)
        elif isinstance(error, _FAULTS_OF_A_RECORD):
            self.rejects.reject(item.number, item.line, error)
        else:
            raise error

    def _print(self, future: SendFuture) -> None:
        meta = future.result()
        fields = {
            "topic": meta.topic,
            "partition": meta.partition,
            "offset": meta.offset,
            "timestamp_ms": meta.timestamp_ms,
        }
        try:
            write_text(json.dumps(fields) + "\n")
        except OutputClosed:  # sending is the work, printing is not: nothing may be dropped
            self._verbose = False
            discard_output()
            note("the output was closed: the rest is sent without printing")

    def progress(self, passed_s: float) -> str:
        """How far it came, for whoever looks on."""
        count = self.acknowledged
        return f"{count:,} records acknowledged of {self.read:,} read, {count / passed_s:,.0f}/s"

    def tally(self, topic: str) -> str:
        """How far it came, for the end that was not meant; waits for nothing."""
        done = [item for item in self._open if item.future.done()]
        good = sum(item.future.exception(0) is None for item in done)
        stored = self.acknowledged + good
        unknown = len(self._open) - len(done)
        text = f"{count_of(stored, 'record')} of {count_of(self.read, 'line')} in {topic}"
        if unknown:
            text += f"; of {unknown} more it is not known whether they are"
        return text
