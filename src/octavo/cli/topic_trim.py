"""`octavo topic trim`: delete the oldest records of a topic."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.completion import topic_names
from octavo.cli.failures import ExitCode
from octavo.cli.output import Format, FormatOption, Row, emit_rows
from octavo.cli.positions import Start, parse_start
from octavo.cli.session import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    BootstrapOption,
    TimeoutOption,
    connected,
)
from octavo.runtime.errors import ConfigError

if TYPE_CHECKING:
    from octavo.client.messaging.sync.admin import Admin

TO_THE_END = -1


def trim(
    topic: Annotated[str, typer.Argument(help="Name of the topic.", autocompletion=topic_names)],
    before: Annotated[
        str,
        typer.Option(help="Delete what is older: end, OFFSET, end-N (keep the last N), or @TIME."),
    ],
    partitions: Annotated[
        list[int] | None,
        typer.Option("-p", "--partition", help="Only this partition; repeatable. [default: all]"),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Really delete the records.")] = False,
    output: FormatOption = Format.TABLE,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """Delete the oldest records of a topic; prints where each partition begins then."""
    position = parse_start(before, int(time.time() * 1000), "--before")
    if not yes and not sys.stdin.isatty():
        raise ConfigError(f"topic {topic} was not trimmed", hint="add --yes to delete its records")
    with connected(bootstrap, timeout) as client:
        count = len(client.admin.describe_topic(topic, timeout=timeout).partitions)
        chosen = sorted(set(partitions)) if partitions else list(range(count))
        if position.kind == "offset" and not partitions and count > 1:
            raise ConfigError(
                f"topic {topic} has {count} partitions, each with offsets of its own",
                hint="name one with -p, or use end, end-N or @TIME for all of them",
            )
        if not yes:
            typer.confirm(f"Delete the records of {topic} before {before}?", abort=True, err=True)
        cuts = _cuts(client.admin, topic, position, chosen, timeout)
        rows: list[Row] = [
            {
                "partition": number,
                "start": client.admin.delete_records(topic, number, cut, timeout=timeout),
            }
            for number, cut in cuts.items()
        ]
    emit_rows(rows, output)
    return ExitCode.OK


def _cuts(
    admin: Admin, topic: str, position: Start, chosen: list[int], timeout: float
) -> dict[int, int]:
    """The offset before which each chosen partition is trimmed."""
    if position.kind == "start":
        raise ConfigError("nothing lies before the start", hint="--before end deletes all there is")
    if position.kind == "offset":
        return dict.fromkeys(chosen, position.value)
    if position.kind == "end":
        return dict.fromkeys(chosen, TO_THE_END)
    # Asked first: what arrives between the two answers is not older than the time.
    ends = admin.list_offsets(topic, "latest", timeout=timeout)
    if position.kind == "last":
        return {number: max(0, (ends.get(number) or 0) - position.value) for number in chosen}
    found = admin.list_offsets(topic, position.value, timeout=timeout)
    cuts: dict[int, int] = {}
    for number in chosen:
        first = found.get(number)
        cuts[number] = first if first is not None else ends.get(number) or 0
    return cuts
