"""`octavo group reset`: where a group without members goes on; shown first, done with --execute."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.completion import topic_names
from octavo.cli.failures import ExitCode
from octavo.cli.groups import GroupArgument, topics_named
from octavo.cli.output import Format, FormatOption, Row, count_of, emit_rows, note
from octavo.cli.positions import Start, parse_target
from octavo.cli.session import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    BootstrapOption,
    TimeoutOption,
    connected,
)
from octavo.runtime.errors import ConfigError

if TYPE_CHECKING:
    from octavo.client.messaging.group_admin.resets import Target


def reset(
    group: GroupArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="earliest, latest, OFFSET, -N or +N from where it is, end-N, -15m, or a TIME.",
        ),
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC[:P,P]",
            help="Only this topic or some of its partitions; repeatable.  [default: all committed]",
            autocompletion=topic_names,
        ),
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute/--dry-run", help="Do it; else it is only shown.")
    ] = False,
    output: FormatOption = Format.TABLE,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """Show or change where a group goes on: before and after of each partition.

    The group must have no members. Each offset stays within what is stored. With --topic, a group
    that does not exist is made.
    """
    target = _target(parse_target(to, time.time_ns() // 1_000_000))
    named = None if topic is None else topics_named(topic)
    with connected(bootstrap, timeout) as client:
        changes = client.admin.reset_offsets(
            group, target, topics=named, dry_run=not execute, timeout=timeout
        )
    rows: list[Row] = [
        {
            "topic": one.topic,
            "partition": one.partition,
            "before": one.before,
            "after": one.after,
            "start": one.log_start,
            "end": one.end,
        }
        for one in changes
    ]
    emit_rows(rows, output, title="committed offsets")
    moved = sum(one.before != one.after for one in changes)
    if execute:
        note(f"group {group} goes on there; {count_of(moved, 'partition')} moved")
    else:
        note(f"nothing was changed; {count_of(moved, 'partition')} would move: --execute does it")
    return ExitCode.OK


def _target(asked: Start) -> Target:
    # Imported here: the SDK is not for `octavo --help`.
    from octavo.client.messaging.group_admin.resets import AtTime, LastRecords, ShiftBy
    from octavo.proto.edges import Edge

    match asked.kind:
        case "start":
            return Edge.EARLIEST
        case "end":
            return Edge.LATEST
        case "offset":
            return asked.value
        case "shift":
            return ShiftBy(asked.value)
        case "last":
            return LastRecords(asked.value)
        case "time":
            return AtTime(asked.value)
        case _:
            raise ConfigError(f"a group cannot go to {asked.kind}")
