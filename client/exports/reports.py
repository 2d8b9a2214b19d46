"""What an export run tells while it goes and at its end, and what it is asked to do besides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypedDict

from octavo.client.exports.repair import OnChecked


@dataclass(frozen=True)
class ExportProgress:
    """Told after every published group of ledgers."""

    partition: int
    ledgers: tuple[int, ...]
    rows: int
    bytes: int
    groups_done: int
    groups_total: int
    topic: str = ""


@dataclass(frozen=True)
class JoinProgress:
    """Told after small files of one partition were replaced by one."""

    topic: str
    partition: int
    files: int
    rows: int
    bytes: int
    """Of the new file."""


OnProgress = Callable[[ExportProgress], None]
OnJoined = Callable[[JoinProgress], None]


class ExportChoices(TypedDict, total=False):
    """What one export of a topic may be asked for; what is left out is as `export_log` has it."""

    codec: str
    """zstd, lz4 or none."""
    fmt: str
    """arrow or parquet."""
    table: bool
    """Keep a Delta table over Parquet files (needs `octavo[delta]`)."""
    progress: OnProgress | None
    verify: bool
    """Read every exported file, and write damaged ones again from their ledgers."""
    checked: OnChecked | None
    """Told of each file that was looked at."""


@dataclass(frozen=True)
class ExportReport:
    """What one run did."""

    topic: str
    root: str
    files: tuple[str, ...] = ()
    """Files this run published, relative to the topic's folder."""
    file_count: int = 0
    rows: int = 0
    bytes: int = 0
    ledgers: int = 0
    open_ledgers: int = 0
    """Ledgers not exported because they are still open; `admin.roll()` closes them."""
    lost: tuple[tuple[int, int, int], ...] = ()
    """(partition, first, end): offsets that retention removed before any export."""
    damaged: tuple[str, ...] = ()
    """Files found gone or damaged in this run."""
    unrepaired: tuple[str, ...] = ()
    """Those of them that could not be written again, for their ledgers are gone."""
    joined: int = 0
    """Small files that this run replaced by larger ones."""
    manifest_version: int = 0

    def after(self, before: ExportReport | None) -> ExportReport:
        """This run with the files, rows and bytes of earlier ones added; names are not kept."""
        if before is None:
            return replace(self, files=())
        return replace(
            self,
            files=(),
            file_count=before.file_count + self.file_count,
            rows=before.rows + self.rows,
            bytes=before.bytes + self.bytes,
            ledgers=before.ledgers + self.ledgers,
            joined=before.joined + self.joined,
        )


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What one run does besides copying what is new."""

    progress: OnProgress | None = None
    upkeep: bool = True
    """Look at the sizes of all exported files, mend them, and remove what nobody owns any more."""
    verify: bool = False
    """Read all bytes of the exported files, not only their sizes."""
    checked: OnChecked | None = None
    """Told of each file that `upkeep` looked at."""
    join_bytes: int = 0
    """Small files are joined up to this size; 0: none is."""
    joined: OnJoined | None = None
    stopping: Callable[[], bool] = lambda: False
    """Asked between groups: true ends the run as if nothing more were to do."""
