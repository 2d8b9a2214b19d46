"""`octavo ledger list`: the ledgers behind topics, printed while they are found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.completion import topic_names
from octavo.cli.failures import ExitCode
from octavo.cli.output import Format, FormatOption, Row, RowStream
from octavo.cli.session import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    BootstrapOption,
    TimeoutOption,
    connected,
)

if TYPE_CHECKING:
    from octavo.client.messaging import Client
    from octavo.client.messaging.api.descriptions import TopicDescription

_WIDTHS = {
    "ledger": 6,
    "topic": 20,
    "partition": 9,
    "state": 6,
    "start": 9,
    "end": 9,
    "bytes": 9,
}
"""Columns and their widths in the table; together with the gaps 80, for usual names."""


def list_ledgers(
    topic: Annotated[
        str | None,
        typer.Option("--topic", help="Only this topic's.", autocompletion=topic_names),
    ] = None,
    internal: Annotated[bool, typer.Option(help="Also of the topics of the system.")] = False,
    output: FormatOption = Format.TABLE,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """List the ledgers of topics in the order of their offsets.

    The owner of each partition is asked in turn, and each answer printed as it comes: --timeout is
    for one of them. An open ledger ends where its partition does now. COPIED are those that files
    of the topic's tier hold as well, TIERED those that only files hold. `octavo ledger show` tells
    more of one.
    """
    stream = RowStream(output, _WIDTHS, title="ledgers")
    with connected(bootstrap, timeout) as client:
        if topic is not None:
            topics = [client.admin.describe_topic(topic, timeout=timeout)]
        else:
            topics = client.admin.list_topics(include_internal=internal, timeout=timeout)
        for found in topics:
            for row in _rows(client, found, timeout):
                stream.emit(row)
    stream.end()
    return ExitCode.OK


def _rows(client: Client, topic: TopicDescription, timeout_s: float) -> Iterator[Row]:
    for partition in topic.partitions:
        log = client.admin.describe_log(topic.name, partition.partition, timeout=timeout_s)
        for segment in log.segments:
            yield {
                "ledger": segment.ledger_id,
                "topic": topic.name,
                "partition": partition.partition,
                "state": segment.shown_state,
                "start": segment.base_offset,
                "end": segment.end_below(log.high_watermark),
                "bytes": segment.size_bytes,
            }
