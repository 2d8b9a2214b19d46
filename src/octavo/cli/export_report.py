"""What `octavo export` prints of its runs: results on stdout, what a person should know beside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from octavo.cli.output import Format, Row, beside_work, emit_one, emit_rows, note

if TYPE_CHECKING:
    from octavo.spark.export import ExportReport


def row_of(report: ExportReport) -> Row:
    """A run, or the sum of many, as it is printed."""
    return {
        "topic": report.topic,
        "folder": report.root,
        "files": report.file_count,
        "records": report.rows,
        "bytes": report.bytes,
        "ledgers": report.ledgers,
    }


def emit_reports(reports: Sequence[ExportReport], form: Format, *, several: bool) -> None:
    """Print one run as a thing, runs over `several` topics as a list."""
    with beside_work():
        if several:
            emit_rows([row_of(report) for report in reports], form, title="exports")
        else:
            for report in reports:
                emit_one(row_of(report), form)


def explain(report: ExportReport, checked: int | None) -> None:
    """What a person should know of a run, on stderr; `checked` files were read and compared."""
    for name in report.unrepaired:
        note(f"error: {name} is damaged and its ledgers are gone: it cannot be written again")
    mended = len(report.damaged) - len(report.unrepaired)
    if mended:
        note(f"{mended} damaged files were written again")
    if checked is not None:
        note(f"{checked} files were read and compared, {len(report.damaged)} were damaged")
    tell_lost(report)
    if report.open_ledgers:
        note(f"{report.open_ledgers} ledgers are still open and were left out; --roll closes them")


def tell_lost(report: ExportReport) -> None:
    """Name what retention removed before it was exported."""
    for partition_number, first, end in report.lost:
        note(
            f"warning: partition {partition_number}: offsets {first} to {end - 1} were removed by "
            "retention before any export"
        )
