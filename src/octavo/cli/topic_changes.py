"""`octavo topic set`, `unset`, `grow` and `decommission`: a topic is changed while it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.completion import topic_names
from octavo.cli.failures import ExitCode
from octavo.cli.output import count_of, note
from octavo.cli.session import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    BootstrapOption,
    TimeoutOption,
    connected,
    parse_settings,
)

if TYPE_CHECKING:
    from octavo.client.messaging.api.descriptions import TopicDescription

TopicArgument = Annotated[
    str, typer.Argument(help="Name of the topic.", autocompletion=topic_names)
]


def set_settings(
    topic: TopicArgument,
    settings: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="Settings.")],
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """Change settings of a topic; they hold at once, without a restart."""
    wanted = parse_settings(settings, "setting")
    with connected(bootstrap, timeout) as client:
        altered = client.admin.alter_topic(topic, wanted, timeout=timeout)
    _say(altered, list(wanted))
    return ExitCode.OK


def unset_settings(
    topic: TopicArgument,
    names: Annotated[list[str], typer.Argument(metavar="KEY...", help="Names of settings.")],
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """Give settings of a topic their defaults again."""
    with connected(bootstrap, timeout) as client:
        altered = client.admin.alter_topic(topic, unset=names, timeout=timeout)
    _say(altered, names)
    return ExitCode.OK


def _say(altered: TopicDescription, names: list[str]) -> None:
    for name in names:
        default = "" if name in altered.config else " (default)"
        note(f"topic {altered.name}: {name} is {altered.effective.get(name, 'set')}{default}")


def grow(
    topic: TopicArgument,
    partitions: Annotated[
        int, typer.Option("-p", "--partitions", help="How many there are to be.")
    ],
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """Add partitions to a topic; records with a key go to other partitions from then on."""
    with connected(bootstrap, timeout) as client:
        grown = client.admin.create_partitions(topic, partitions, timeout=timeout)
    note(f"topic {topic} has {count_of(len(grown.partitions), 'partition')}")
    if grown.warning:
        note(f"warning: {grown.warning}")
    return ExitCode.OK


def decommission(
    topic: TopicArgument,
    partition: Annotated[int, typer.Argument(help="Number of the partition.", min=0)],
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """Have a partition take no new records; what is in it is read until retention empties it."""
    with connected(bootstrap, timeout) as client:
        altered = client.admin.decommission_partition(topic, partition, timeout=timeout)
    left = sum(not one.decommissioned for one in altered.partitions)
    note(f"topic {topic}: partition {partition} is decommissioned, {left} take records")
    if altered.warning:
        note(f"warning: {altered.warning}")
    return ExitCode.OK
