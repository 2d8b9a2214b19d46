"""Everything the commands print: results on stdout in one of four formats, progress on stderr."""

from __future__ import annotations

import csv
import enum
import io
import json
import select
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

from octavo.cli.failures import OutputClosed, point_at_nothing, tell
from octavo.cli.terminal import wrapped
from octavo.runtime.system_errors import naming

Value = None | bool | int | float | str | Sequence["Value"] | Mapping[str, "Value"]
Row = Mapping[str, Value]


class Format(enum.StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


FormatOption = Annotated[Format, typer.Option("-o", "--output", help="Form of the output.")]


def note(text: str) -> None:
    """Progress for a person: stderr, one line."""
    tell(wrapped(text, sys.stderr) + "\n")


def count_of(number: int, noun: str) -> str:
    """`1 record`, `2 records`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def spread_of(places: Sequence[tuple[str, str]]) -> str:
    """Over how many machines and fault domains bookies lie; `places`: (domain, host) of each."""
    domains = {domain for domain, _ in places}
    hosts = f"on {count_of(len(set(places)), 'host')}"
    return f"{hosts} in {count_of(len(domains), 'fault domain')}" if len(domains) > 1 else hosts


STDOUT_NAME = "standard output"


def discard_output() -> None:
    """Point stdout at nothing: its reader went away, and the last flush must not complain."""
    if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison]
        point_at_nothing(sys.stdout)


def output_is_closed() -> bool:
    """Whether the reader of our stdout went away; a broken socket elsewhere is not that."""
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        return False
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


@contextmanager
def closed_pipe_is_quiet() -> Generator[None]:
    """Turn a reader that went away, or was never there, into OutputClosed.

    It ends the command with success. Other errors say that it was standard output which failed.
    """
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison] - `octavo ... >&-`
        raise OutputClosed
    try:
        with naming(STDOUT_NAME):
            yield
    except BrokenPipeError as error:
        raise OutputClosed from error


def write_text(text: str) -> None:
    """Write to stdout at once."""
    with closed_pipe_is_quiet():
        sys.stdout.write(text)
        sys.stdout.flush()


@contextmanager
def beside_work() -> Generator[None]:
    """What is written to stdout here is not all that the command does.

    Without a reader it goes on, and its exit code says how that went.
    """
    try:
        yield
    except OutputClosed:
        discard_output()


def write_beside_work(text: str) -> None:
    """Write to stdout what is not the work of the command."""
    with beside_work():
        write_text(text)


def write_bytes(data: bytes, *, flush: bool) -> None:
    """Write raw bytes to stdout."""
    with closed_pipe_is_quiet():
        sys.stdout.buffer.write(data)
        if flush:
            sys.stdout.buffer.flush()


def emit_rows(rows: Sequence[Row], form: Format, *, title: str = "") -> None:
    """Print a list of things; all rows have the same columns."""
    match form:
        case Format.JSON:
            write_text(json.dumps(list(rows), indent=2) + "\n")
        case Format.YAML:
            write_text(to_yaml(list(rows)))
        case Format.CSV:
            write_text(to_csv(rows))
        case Format.TABLE:
            write_text(to_table(rows, title))


class RowStream:
    """A list that is printed while it is found: rows go out as they come, none is kept.

    `widths` are those of the table's columns, which cannot be known before: a longer text moves the
    rest of its line. `end()` completes the list.
    """

    def __init__(self, form: Format, widths: Mapping[str, int], *, title: str) -> None:
        self.count = 0
        self._form = form
        self._widths = widths
        self._title = title

    def emit(self, row: Row) -> None:
        """Print one row; it has the columns of `widths`."""
        first = self.count == 0
        self.count += 1
        match self._form:
            case Format.JSON:
                write_text(f"{'[' if first else ','}\n  {json.dumps(row)}")
            case Format.YAML:
                write_text(to_yaml([row]))
            case Format.CSV:
                heading, _, line = to_csv([row]).partition("\n")
                write_text(f"{heading}\n{line}" if first else line)
            case Format.TABLE:
                head = self._line({name: name.replace("_", " ").upper() for name in row}, row)
                write_text((head if first else "") + self._line(row, row))

    def end(self) -> None:
        """Print what comes behind the last row."""
        match self._form:
            case Format.JSON:
                write_text("\n]\n" if self.count else "[]\n")
            case Format.YAML if not self.count:
                write_text("[]\n")
            case Format.TABLE if not self.count:
                write_text(f"(no {self._title})\n")
            case _:
                pass

    def _line(self, row: Row, kinds: Row) -> str:
        cells = [
            cell(row[name]).rjust(width)
            if _is_number(kinds[name])
            else cell(row[name]).ljust(width)
            for name, width in self._widths.items()
        ]
        return "  ".join(cells).rstrip() + "\n"


def emit_one(thing: Row, form: Format) -> None:
    """Print one thing: an object in JSON and YAML, name and value below each other in a table."""
    match form:
        case Format.JSON:
            write_text(json.dumps(thing, indent=2) + "\n")
        case Format.YAML:
            write_text(to_yaml(thing))
        case Format.CSV:
            write_text(to_csv([thing]))
        case Format.TABLE:
            width = max((len(name) for name in thing), default=0)
            lines = [f"{name.ljust(width)}  {cell(value)}" for name, value in thing.items()]
            write_text("\n".join(lines) + "\n")


def cell(value: Value) -> str:
    """One value as a table or CSV shows it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float, str)):
        return str(value)
    if isinstance(value, Mapping):
        return " ".join(f"{name}={cell(inner)}" for name, inner in value.items())
    return ", ".join(cell(inner) for inner in value)


def to_table(rows: Sequence[Row], title: str = "") -> str:
    """Columns in line, headings in capitals; numbers to the right."""
    if not rows:
        return f"(no {title})\n" if title else "(nothing)\n"
    names = list(rows[0])
    texts = [[cell(row[name]) for name in names] for row in rows]
    heads = [name.replace("_", " ").upper() for name in names]
    widths = [max(len(line[i]) for line in [heads, *texts]) for i in range(len(names))]
    right = [all(_is_number(row[name]) for row in rows) for name in names]
    lines: list[str] = []
    for line in [heads, *texts]:
        cells = [
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def _is_number(value: Value) -> bool:
    """Whether it stands to the right; so does the mark of a missing one."""
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def to_csv(rows: Sequence[Row]) -> str:
    """RFC 4180 with a heading line; nested values as JSON."""
    if not rows:
        return ""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows[0])
    for row in rows:
        writer.writerow(
            "" if v is None else v if isinstance(v, (bool, int, float, str)) else json.dumps(v)
            for v in row.values()
        )
    return text.getvalue()


def to_yaml(value: Value, indent: int = 0) -> str:
    """Block-style YAML; scalars are written as JSON, which YAML 1.2 reads as is."""
    pad = "  " * indent
    if isinstance(value, Mapping) and value:
        return "".join(f"{pad}{name}:{_nested(inner, indent)}" for name, inner in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        lines: list[str] = []
        for inner in value:
            text = to_yaml(inner, indent + 1)
            lines.append(f"{pad}- {text.lstrip()}")
        return "".join(lines)
    return f"{pad}{json.dumps(value)}\n"


def _nested(value: Value, indent: int) -> str:
    is_block = isinstance(value, (Mapping, Sequence)) and not isinstance(value, str) and bool(value)
    text = to_yaml(value, indent + 1)
    return f"\n{text}" if is_block else f" {text.lstrip()}"
