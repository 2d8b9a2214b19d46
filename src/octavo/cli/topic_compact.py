"""`octavo topic compact`: keep of each key only its last record, now."""

from __future__ import annotations

from typing import Annotated

import typer

from octavo.cli.completion import topic_names
from octavo.cli.failures import ExitCode
from octavo.cli.output import Format, FormatOption, Row, emit_rows
from octavo.cli.session import DEFAULT_BOOTSTRAP, BootstrapOption, TimeoutOption, connected

COMPACT_TIMEOUT_S = 300.0


def compact(
    topic: Annotated[str, typer.Argument(help="Name of the topic.", autocompletion=topic_names)],
    partitions: Annotated[
        list[int] | None,
        typer.Option("-p", "--partition", help="Only this partition; repeatable. [default: all]"),
    ] = None,
    output: FormatOption = Format.TABLE,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = COMPACT_TIMEOUT_S,
) -> int:
    """Keep of each key only its last record, now; the topic's cleanup.policy must name compact."""
    with connected(bootstrap, timeout) as client:
        count = len(client.admin.describe_topic(topic, timeout=timeout).partitions)
        chosen = sorted(set(partitions)) if partitions else range(count)
        rows: list[Row] = []
        for number in chosen:
            done = client.admin.compact(topic, number, timeout=timeout)
            rows.append(
                {
                    "partition": number,
                    "cleaned_to": done.cleaned_to,
                    "removed": done.records_removed,
                    "bytes_before": done.bytes_before,
                    "bytes_after": done.bytes_after,
                }
            )
    emit_rows(rows, output)
    return ExitCode.OK
