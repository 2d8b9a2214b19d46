"""The folder of segments, as a boot sees it."""

from __future__ import annotations

import pathlib

from octavo.bookie.faults import from_os_error
from octavo.bookie.journal.segment import (
    Position,
    segment_name,
    segment_number,
    sorted_number,
)
from octavo.runtime.disk import Disk


class SegmentFolder:
    """Lists, loads and trims segments (blocking).

    Args:
        give_up: an operator gives up what cannot be read.
    """

    def __init__(self, path: pathlib.Path, disk: Disk, *, give_up: bool) -> None:
        self._path = path
        self._disk = disk
        self._give_up = give_up

    def numbers(self) -> list[int]:
        """Segments of the journal."""
        found = (segment_number(name) for name in self._disk.list(self._path))
        return sorted(number for number in found if number is not None)

    def sorted_numbers(self) -> list[int]:
        """Sorted segments."""
        found = (sorted_number(name) for name in self._disk.list(self._path))
        return sorted(number for number in found if number is not None)

    def load(self, number: int) -> bytes:
        """The bytes of a segment.

        What cannot be read now is not lost: it refuses the start unless an operator gives it up.
        """
        path = self._path / segment_name(number)
        try:
            return self._disk.read(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            if self._give_up:
                raise
            raise from_os_error(f"segment {path} cannot be read", error) from error

    def trim(self, end: Position) -> None:
        """Give back the preallocated zeros of a segment that a crash left open, no other byte."""
        data = self.load(end.segment)
        self._disk.truncate(
            self._path / segment_name(end.segment),
            max(end.offset, len(data.rstrip(b"\0"))),
        )
