"""`octavo topic …`: create, list, describe, delete. `topic_advise`, `topic_trim` …: the others."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.completion import topic_names
from octavo.cli.failures import ExitCode
from octavo.cli.output import (
    Format,
    FormatOption,
    Row,
    Value,
    count_of,
    emit_one,
    emit_rows,
    note,
)
from octavo.cli.session import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    BootstrapOption,
    TimeoutOption,
    connected,
    parse_settings,
)
from octavo.cli.topic_advise import topic_advise
from octavo.cli.topic_changes import decommission, grow, set_settings, unset_settings
from octavo.cli.topic_compact import compact
from octavo.cli.topic_trim import trim
from octavo.runtime.errors import ConfigError, TopicAlreadyExists

if TYPE_CHECKING:
    from octavo.client.messaging.api.descriptions import (
        LogDescription,
        PartitionDescription,
        TopicDescription,
    )

DEFAULT_PARTITIONS = 6

app = typer.Typer(help="Create, list, describe, change, trim and delete topics.")

TopicArgument = Annotated[
    str, typer.Argument(help="Name of the topic.", autocompletion=topic_names)
]
NewTopicArgument = Annotated[str, typer.Argument(help="Name of the topic.")]


@app.command()
def create(
    topic: NewTopicArgument,
    partitions: Annotated[
        int | None,
        typer.Option("-p", "--partitions", help=f"How many. [default: {DEFAULT_PARTITIONS}]"),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("-c", "--config", metavar="KEY=VALUE", help="Topic setting; repeatable."),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed when it exists; say what differs.")
    ] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """Create a topic."""
    settings = parse_settings(config or [], "--config")
    count = DEFAULT_PARTITIONS if partitions is None else partitions
    with connected(bootstrap, timeout) as client:
        try:
            client.admin.create_topic(topic, partitions=count, config=settings, timeout=timeout)
        except TopicAlreadyExists:
            if not if_not_exists:
                raise
            found = client.admin.describe_topic(topic, timeout=timeout)
            note(f"topic {topic} exists already")
            _say_differences(found, partitions, settings)
            return ExitCode.OK
    note(f"created topic {topic} with {count_of(count, 'partition')}")
    return ExitCode.OK


def _say_differences(
    found: TopicDescription, partitions: int | None, settings: dict[str, str]
) -> None:
    """What was asked for and is otherwise in the topic that exists: nothing of it was changed."""
    differing: list[str] = []
    if partitions is not None and partitions != len(found.partitions):
        differing.append(f"partitions is {len(found.partitions)}, not {partitions}")
    for key, asked in sorted(settings.items()):
        present = found.config.get(key)
        if present != asked:
            differing.append(f"{key} is {'not set' if present is None else present}, not {asked}")
    if differing:
        note(f"warning: it was left as it is: {'; '.join(differing)}")


@app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option(help="Also the topics of the system.")] = False,
    output: FormatOption = Format.TABLE,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """List topics."""
    with connected(bootstrap, timeout) as client:
        topics = client.admin.list_topics(include_internal=internal, timeout=timeout)
    rows: list[Row] = [
        {"topic": topic.name, "partitions": len(topic.partitions)} for topic in topics
    ]
    emit_rows(rows, output, title="topics")
    return ExitCode.OK


@app.command()
def describe(
    topic: TopicArgument,
    output: FormatOption = Format.TABLE,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """Show settings, owners and offsets of a topic, and where its bytes are.

    `bytes` are one copy of all that is kept, as it is stored. With tiering: `local_bytes` of them
    are on bookies, `tiered_bytes` in files of the tier (in both until retention.local is over),
    `waiting_bytes` are closed and to be copied.
    """
    with connected(bootstrap, timeout) as client:
        found = client.admin.describe_topic(topic, timeout=timeout)
        logs = [
            client.admin.describe_log(topic, partition.partition, timeout=timeout)
            for partition in found.partitions
        ]
    copies = found.effective.get("tiering") == "true"
    with_tier = output is not Format.TABLE or copies or any(log.tiered.segments for log in logs)
    rows = [
        partition_row(partition, log, with_tier=with_tier, copies=copies)
        for partition, log in zip(found.partitions, logs, strict=True)
    ]
    settings = dict(sorted(found.config.items()))
    defaults = {k: v for k, v in sorted(found.effective.items()) if k not in settings}
    if output is Format.TABLE:
        emit_one({"topic": found.name, "id": found.topic_id}, output)
        emit_rows(_settings(settings, defaults), output)
    if output in (Format.TABLE, Format.CSV):
        emit_rows(rows, output)
    else:
        emit_one(
            {
                "topic": found.name,
                "settings": settings,
                "defaults": defaults,
                "partitions": rows,
            },
            output,
        )
    return ExitCode.OK


def partition_row(
    partition: PartitionDescription, log: LogDescription, *, with_tier: bool, copies: bool
) -> Row:
    """What is shown of a partition.

    `with_tier`: also what files of the tier hold; `copies`: what is in none is to be copied.
    """
    row: dict[str, Value] = {
        "partition": partition.partition,
        "state": partition.state,
        "owner": partition.owner_id or None,
        "start": log.log_start,
        "end": log.high_watermark,
        "ledgers": log.local.segments,
        "bytes": sum(segment.size_bytes for segment in log.segments),
    }
    if with_tier:
        row |= {
            "local_bytes": log.local.size_bytes,
            "tiered_segments": log.tiered.segments,
            "tiered_bytes": log.tiered.size_bytes,
            "waiting_bytes": log.waiting.size_bytes if copies else 0,
        }
    return row


def _settings(settings: dict[str, str], defaults: dict[str, str]) -> list[Row]:
    """What works for a topic, and whether that is its own."""
    rows: list[Row] = [
        {"setting": name, "value": value, "from": "topic"} for name, value in settings.items()
    ]
    rows += [
        {"setting": name, "value": value, "from": "default"} for name, value in defaults.items()
    ]
    return sorted(rows, key=lambda row: str(row["setting"]))


@app.command()
def delete(
    topic: TopicArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Really delete it and its data.")] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """Delete a topic and everything in it."""
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError(f"topic {topic} was not deleted", hint="add --yes to delete its data")
        typer.confirm(f"Delete topic {topic} and everything in it?", abort=True, err=True)
    with connected(bootstrap, timeout) as client:
        client.admin.delete_topic(topic, timeout=timeout)
    note(f"deleted topic {topic}")
    return ExitCode.OK


app.command("set")(set_settings)
app.command("unset")(unset_settings)
app.command()(grow)
app.command()(decommission)
app.command()(trim)
app.command()(compact)
app.command("advise")(topic_advise)
