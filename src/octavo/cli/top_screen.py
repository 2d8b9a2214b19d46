"""What `octavo top` shows: values in, text out; no clock, no network, no terminal."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from octavo.cli.output import count_of

if TYPE_CHECKING:
    from octavo.cli.top_disks import Disk
    from octavo.client.messaging.api.descriptions import BookieDescription, FleetBroker

UNKNOWN = "-"
_GAP = 2
_TITLE_LINES = 3
"""Of a table besides its rows: title, heading, and the line that says how many more there are."""
ROWS_MIN = 1
ROWS_MAX = 500
"""Of one table where no screen bounds them."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one group reads of one topic."""

    topic: str
    group: str
    state: str
    lag: int
    in_per_s: float | None
    """Records that the topic took, None until two looks were taken."""
    out_per_s: float | None
    """Records that the group committed."""


@dataclass(frozen=True, slots=True)
class Look:
    """What the cluster told at one moment; None: that part did not answer."""

    at: str
    brokers: tuple[FleetBroker, ...] | None
    bookies: tuple[BookieDescription, ...] | None
    readings: tuple[Reading, ...] | None
    topics: int | None
    """How many there are, internal ones left out."""
    missing: tuple[str, ...] = ()
    """What could not be looked at, and why; a line each."""
    disks: Mapping[str, Disk] = field(default_factory=dict[str, "Disk"])
    """Of the bookies that told of theirs, by id."""


def text_of(look: Look, width: int, height: int | None = None) -> str:
    """The whole picture in lines of at most `width`, and of at most `height` of them if given.

    Names that are too long end with an ellipsis; what does not fit is counted.
    """
    file = io.StringIO()
    console = Console(
        file=file, width=width, color_system=None, force_terminal=False, legacy_windows=False
    )
    rows = _rows_of(look, height)
    console.print(_line(f"octavo  {look.at}  {_count(look.topics, 'topic')}"))
    for text in look.missing:
        console.print(_line(f"! {_in_one_line(text)}"))
    _show(console, "brokers", _brokers(look.brokers or ()), look.brokers is None, rows)
    _show(console, "bookies", _bookies(look.bookies or (), look.disks), look.bookies is None, rows)
    _show(console, "groups", _readings(look.readings or ()), look.readings is None, rows)
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    return "\n".join(lines if height is None else lines[:height]) + "\n"


def _rows_of(look: Look, height: int | None) -> int:
    """Rows for each table: a third of what the screen has left for them."""
    if height is None:
        return ROWS_MAX
    left = height - 1 - len(look.missing) - 3 * _TITLE_LINES
    return min(max(left // 3, ROWS_MIN), ROWS_MAX)


def _count(number: int | None, noun: str) -> str:
    return f"{noun}s: not known" if number is None else count_of(number, noun)


def _in_one_line(text: str) -> str:
    """Without what would move the cursor."""
    return "".join(mark if mark.isprintable() else "?" for mark in " ".join(text.split()))


def _line(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")


def _show(
    console: Console, title: str, all_rows: tuple[Sequence[str], list[list[str]]],
    is_missing: bool, rows: int,
) -> None:  # fmt: skip
    heads, lines = all_rows
    if is_missing:
        console.print(_line(f"{title}: not known"))
        return
    console.print(_line(f"{title}: {len(lines)}"))
    if not lines:
        return
    cells = [[_in_one_line(cell) for cell in line] for line in lines[:rows]]
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for head, columns in zip(heads, _widths(heads, cells, console.width), strict=True):
        table.add_column(
            head,
            justify="left" if head in _NAMES else "right",
            no_wrap=True,
            overflow="ellipsis",
            width=columns,
        )
    for line in cells:
        table.add_row(*map(Text, line))
    console.print(table)
    if len(lines) > rows:
        console.print(_line(f"... {len(lines) - rows} more"))


_NAMES = {"BROKER", "BOOKIE", "TOPIC", "GROUP", "STATE", "HOTTEST", "ADDRESS"}
"""Columns of words: to the left, and cut where the width ends."""


def _widths(heads: Sequence[str], lines: Sequence[Sequence[str]], width: int) -> list[int]:
    """Columns of each: figures have what they need, long names share what is left."""
    needed = [
        max(cell_len(text) for text in (head, *(line[place] for line in lines)))
        for place, head in enumerate(heads)
    ]
    named = sorted(
        (place for place, head in enumerate(heads) if head in _NAMES), key=lambda i: needed[i]
    )
    left = width - _GAP * (len(heads) - 1)
    left -= sum(columns for i, columns in enumerate(needed) if i not in named)
    for done, place in enumerate(named):
        needed[place] = max(min(needed[place], left // (len(named) - done)), 1)
        left -= needed[place]
    return needed


def _brokers(brokers: Iterable[FleetBroker]) -> tuple[Sequence[str], list[list[str]]]:
    heads = ("BROKER", "STATE", "LOAD", "IN", "OUT", "RECORDS", "PARTS", "BUNDLES", "HOTTEST")
    rows: list[list[str]] = []
    for broker in brokers:
        load = broker.load
        known = (
            [UNKNOWN] * 5
            if load is None
            else [
                f"{load.usage:.0%}",
                f"{bytes_text(load.bytes_in_per_s)}/s",
                f"{bytes_text(load.bytes_out_per_s)}/s",
                f"{number_text(load.records_in_per_s)}/s",
                str(load.partitions),
            ]
        )
        hottest = load.hottest if load is not None else ""
        rows.append([broker.broker_id, broker.state, *known, str(broker.bundles), hottest])
    return heads, rows


READ_ONLY = "ro"


def _bookies(
    bookies: Iterable[BookieDescription], disks: Mapping[str, Disk]
) -> tuple[Sequence[str], list[list[str]]]:
    """Those that take no records first, then the fullest: what is not shown is better off."""
    heads = ("BOOKIE", "STATE", "USED", "DISK", "FULL", "LEDGERS", "ADDRESS")

    def worst_first(one: BookieDescription) -> tuple[bool, float, str]:
        disk = disks.get(one.bookie_id)
        return one.state != READ_ONLY, -round(disk.full, 2) if disk else 0.0, one.bookie_id

    rows: list[list[str]] = []
    for bookie in sorted(bookies, key=worst_first):
        state = "read-only" if bookie.state == READ_ONLY else "ready"
        disk = disks.get(bookie.bookie_id)
        rows.append([bookie.bookie_id, state, *_disk(disk), bookie.wire_address])
    return heads, rows


def _disk(disk: Disk | None) -> list[str]:
    ledgers = UNKNOWN if disk is None or disk.ledgers is None else f"{disk.ledgers:,}"
    if disk is None or not disk.total_bytes:
        return [UNKNOWN, UNKNOWN, UNKNOWN, ledgers]
    # Rounded down: 100 % is said of a full disk only.
    full = f"{math.floor(disk.full * 100)}%"
    return [bytes_text(disk.used_bytes), bytes_text(disk.total_bytes), full, ledgers]


def _readings(readings: Iterable[Reading]) -> tuple[Sequence[str], list[list[str]]]:
    heads = ("TOPIC", "GROUP", "STATE", "LAG", "IN", "COMMITTED")
    worst_first = sorted(readings, key=lambda one: (-one.lag, one.topic, one.group))
    return heads, [
        [
            one.topic, one.group, one.state.lower(), f"{one.lag:,}",
            _rate(one.in_per_s), _rate(one.out_per_s),
        ]
        for one in worst_first
    ]  # fmt: skip


def _rate(per_s: float | None) -> str:
    return UNKNOWN if per_s is None else f"{number_text(per_s)}/s"


def number_text(number: float) -> str:
    """Three digits and a letter: 12.3k."""
    return _short(number, 1000, ("", "k", "M", "G", "T"))


def bytes_text(number: float) -> str:
    """Three digits and a letter in powers of 1024: 1.5MiB."""
    return _short(number, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def _short(number: float, step: int, letters: Sequence[str]) -> str:
    size, place = float(number), 0
    while abs(size) >= step - 0.5 and place < len(letters) - 1:
        size, place = size / step, place + 1
    whole = place == 0 or abs(size) >= 99.95
    return f"{size:.0f}{letters[place]}" if whole else f"{size:.1f}{letters[place]}"
