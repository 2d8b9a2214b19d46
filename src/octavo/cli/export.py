"""`octavo export`: closed ledgers as Arrow or Parquet files, once or as a service."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.completion import topic_names
from octavo.cli.export_follow import follow_topics
from octavo.cli.export_report import emit_reports, explain
from octavo.cli.failures import ExitCode
from octavo.cli.output import Format, FormatOption, note
from octavo.cli.session import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    BootstrapOption,
    TimeoutOption,
    connected,
)
from octavo.runtime.errors import ConfigError

if TYPE_CHECKING:
    from octavo.spark.export import ExportReport


class TableKind(enum.StrEnum):
    """Tables that can lie over exported files."""

    DELTA = "delta"


TopicsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="TOPIC...", help="Name of the topic.", autocompletion=topic_names),
]
FollowOption = Annotated[
    bool, typer.Option("--follow", help="Go on as ledgers close, until Ctrl-C or SIGTERM.")
]
PatternOption = Annotated[
    str | None,
    typer.Option(
        metavar="REGEX", help="With --follow: all topics whose whole names match, later ones too."
    ),
]
TableOption = Annotated[
    TableKind | None,
    typer.Option("--table", help="Keep a table of this kind over the Parquet files."),
]
LagOption = Annotated[
    float,
    typer.Option(
        "--lag-target",
        metavar="SECONDS",
        help="With --follow: a record is in a file after so long; open ledgers are closed for it. "
        "0: only the brokers close them.",
        min=0,
    ),
]
FlushOption = Annotated[
    int,
    typer.Option(
        metavar="MIB", help="With --follow: open ledgers of this size are closed at once.", min=0
    ),
]
FileOption = Annotated[
    int,
    typer.Option(
        metavar="MIB", help="With --follow: small files are joined up to this size; 0: none.", min=0
    ),
]
PollOption = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="With --follow: between two looks at a topic; a quarter of the lag target, 5 at most.",
        min=0.1,
    ),
]


def export(
    to: Annotated[str, typer.Option("--to", help="Folder or s3:// URI to write to.")],
    topics: TopicsArgument = None,
    codec: Annotated[str, typer.Option(help="zstd, lz4 or none.")] = "zstd",
    form: Annotated[
        str | None,
        typer.Option("--format", help="arrow or parquet; parquet with --table, else arrow."),
    ] = None,
    roll: Annotated[
        bool, typer.Option("--roll", help="Close the open ledgers first, so that nothing is left.")
    ] = False,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Read every exported file; write damaged ones again."),
    ] = False,
    table: TableOption = None,
    follow: FollowOption = False,
    pattern: PatternOption = None,
    lag_target: LagOption = 300.0,
    flush_mib: FlushOption = 128,
    file_mib: FileOption = 128,
    poll: PollOption = None,
    output: FormatOption = Format.TABLE,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """Copy closed ledgers to Arrow or Parquet files.

    Run again, it adds only what is new. Files that are gone or damaged are written again while
    their ledgers live. Ends with exit code 1 and names the files when some cannot be.

    With --follow it is a service: it goes on until it is stopped, and waits for a cluster or a
    disk that fails.
    """
    names = topics or []
    _check(names, pattern, follow=follow, once=roll or verify)
    form = form or ("parquet" if table else "arrow")
    if follow:
        # Imported here: loads Arrow.
        from octavo.client.exports.following import FollowSettings

        settings = FollowSettings(
            poll_s=poll,
            lag_target_s=lag_target,
            flush_bytes=flush_mib << 20,
            file_bytes=file_mib << 20,
            codec=codec,
            fmt=form,
            table=table is not None,
        )
        settings.validate()
        return follow_topics(
            bootstrap, names, pattern, to, settings=settings, output=output, timeout_s=timeout
        )
    done: list[ExportReport] = []
    try:
        for topic in dict.fromkeys(names):
            done.append(
                _export_one(
                    topic,
                    to,
                    codec=codec,
                    form=form,
                    table=table is not None,
                    roll=roll,
                    verify=verify,
                    bootstrap=bootstrap,
                    timeout_s=timeout,
                )
            )
    finally:  # what was done before an error is told too
        emit_reports(done, output, several=len(names) > 1)
    return ExitCode.ERROR if any(report.unrepaired for report in done) else ExitCode.OK


def _check(names: list[str], pattern: str | None, *, follow: bool, once: bool) -> None:
    """Refuse what makes no sense together; `once`: an option that is for one run."""
    if bool(names) == (pattern is not None):
        raise ConfigError("name topics, or give a --pattern", hint="one of the two")
    if pattern is not None and not follow:
        raise ConfigError("--pattern needs --follow", hint="or name the topics")
    if follow and once:
        raise ConfigError(
            "--follow excludes --roll and --verify",
            hint="it closes ledgers for --lag-target; verify in a run of its own",
        )


def _export_one(
    topic: str,
    to: str,
    *,
    codec: str,
    form: str,
    table: bool,
    roll: bool,
    verify: bool,
    bootstrap: str,
    timeout_s: float,
) -> ExportReport:
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

    with connected(bootstrap, timeout_s) as client:
        partitions = client.admin.describe_topic(topic, timeout=timeout_s).partitions
        if roll:
            for partition in partitions:
                client.admin.roll(topic, partition.partition, timeout=timeout_s)
    report = export_topic(
        bootstrap,
        topic,
        to,
        codec=codec,
        fmt=form,
        table=table,
        progress=progress,
        verify=verify,
        checked=tell,
    )
    explain(report, checked if verify else None)
    return report
