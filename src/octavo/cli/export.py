"""`octavo export`: closed ledgers as Arrow files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.completion import topic_names
from octavo.cli.failures import ExitCode
from octavo.cli.output import Format, FormatOption, beside_work, emit_one, note
from octavo.cli.session import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    BootstrapOption,
    TimeoutOption,
    connected,
)

if TYPE_CHECKING:
    from octavo.spark.export import ExportReport


def export(
    topic: Annotated[str, typer.Argument(help="Name of the topic.", autocompletion=topic_names)],
    to: Annotated[str, typer.Option("--to", help="Folder or s3:// URI to write to.")],
    codec: Annotated[str, typer.Option(help="zstd, lz4 or none.")] = "zstd",
    form: Annotated[str, typer.Option("--format", help="arrow or parquet.")] = "arrow",
    roll: Annotated[
        bool, typer.Option("--roll", help="Close the open ledgers first, so that nothing is left.")
    ] = False,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Read every exported file; write damaged ones again."),
    ] = False,
    output: FormatOption = Format.TABLE,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """Copy closed ledgers to Arrow or Parquet files.

    Run again, it adds only what is new. Files that are gone or damaged are written again while
    their ledgers live. Ends with exit code 1 and names the files when some cannot be.
    """
    # Imported here: loads Arrow.
    from octavo.client.exports.manifest import FileEntry
    from octavo.runtime.errors import StorageFailed
    from octavo.spark.export import ExportProgress, export_topic

    checked = 0

    def tell(_entry: FileEntry, wrong: StorageFailed | None) -> None:
        nonlocal checked
        checked += 1
        if wrong is not None:
            note(f"warning: {wrong.cause}")

    def progress(made: ExportProgress) -> None:
        note(
            f"partition {made.partition}: {made.rows} records of {len(made.ledgers)} ledgers "
            f"({made.groups_done}/{made.groups_total})"
        )

    with connected(bootstrap, timeout) as client:
        partitions = client.admin.describe_topic(topic, timeout=timeout).partitions
        if roll:
            for partition in partitions:
                client.admin.roll(topic, partition.partition, timeout=timeout)
    report = export_topic(
        bootstrap,
        topic,
        to,
        codec=codec,
        fmt=form,
        progress=progress,
        verify=verify,
        checked=tell,
    )
    _explain(report, checked if verify else None)
    with beside_work():
        emit_one(
            {
                "topic": report.topic,
                "folder": report.root,
                "files": len(report.files),
                "records": report.rows,
                "bytes": report.bytes,
                "ledgers": report.ledgers,
            },
            output,
        )
    return ExitCode.ERROR if report.unrepaired else ExitCode.OK


def _explain(report: ExportReport, checked: int | None) -> None:
    """What a person should know of a run, on stderr; `checked` files were read and compared."""
    for name in report.unrepaired:
        note(f"error: {name} is damaged and its ledgers are gone: it cannot be written again")
    mended = len(report.damaged) - len(report.unrepaired)
    if mended:
        note(f"{mended} damaged files were written again")
    if checked is not None:
        note(f"{checked} files were read and compared, {len(report.damaged)} were damaged")
    for partition_number, first, end in report.lost:
        note(
            f"warning: partition {partition_number}: offsets {first} to {end - 1} were removed by "
            "retention before any export"
        )
    if report.open_ledgers:
        note(f"{report.open_ledgers} ledgers are still open and were left out; --roll closes them")
