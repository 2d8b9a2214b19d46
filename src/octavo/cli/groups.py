"""`octavo group …`: list, describe, delete groups, and put members out of them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.completion import group_names, topic_names
from octavo.cli.failures import ExitCode
from octavo.cli.group_lag import UncommittedOption, partition_rows
from octavo.cli.output import Format, FormatOption, Row, count_of, emit_one, emit_rows, note
from octavo.cli.session import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    BootstrapOption,
    TimeoutOption,
    connected,
)
from octavo.runtime.errors import ConfigError

if TYPE_CHECKING:
    from octavo.client.messaging.group_admin.values import GroupDescription, MemberDescription

app = typer.Typer(help="Look after consumer groups: members, lag, offsets.")

GroupArgument = Annotated[str, typer.Argument(help="Id of the group.", autocompletion=group_names)]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")]


@app.command("list")
def list_groups(
    output: FormatOption = Format.TABLE,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """List groups. It is the whole list, or an error."""
    with connected(bootstrap, timeout) as client:
        found = client.admin.list_groups(timeout=timeout)
    rows: list[Row] = [
        {"group": one.group_id, "state": one.state, "type": one.type, "members": one.members}
        for one in found
    ]
    emit_rows(rows, output, title="groups")
    return ExitCode.OK


@app.command()
def describe(
    group: GroupArgument,
    uncommitted_from: UncommittedOption = "earliest",
    output: FormatOption = Format.TABLE,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """Show members, partitions, what was committed, and the lag of a group."""
    with connected(bootstrap, timeout) as client:
        found = client.admin.describe_group(group, timeout=timeout)
        lag = client.admin.group_lag(group, uncommitted_from=uncommitted_from, timeout=timeout)
    head: Row = {
        "group": found.group_id,
        "state": found.state,
        "type": found.type,
        "assignor": found.assignor or None,
        "epoch": found.epoch,
        "coordinator": found.coordinator_id,
        "lag": lag.lag,
        "time_lag_s": lag.time_lag_s,
    }
    partitions = partition_rows(lag, None, output)
    if output is Format.CSV:
        emit_rows(partitions, output)
    elif output is Format.TABLE:
        emit_one(head, output)
        emit_rows(partitions, output, title="partitions")
        emit_rows([_in_line(member) for member in found.members], output, title="members")
    else:
        emit_one({**head, "members": _in_full(found), "partitions": partitions}, output)
    return ExitCode.OK


def _in_line(member: MemberDescription) -> Row:
    return {
        "member": member.instance_id or member.member_id,
        "client": member.client_id,
        "host": member.host,
        "state": "AWAY" if member.left else member.state,
        "epoch": member.epoch,
        "partitions": len(member.owned),
    }


def _in_full(group: GroupDescription) -> list[Row]:
    return [
        {
            "member": member.member_id,
            "instance": member.instance_id,
            "client": member.client_id,
            "host": member.host,
            "state": member.state,
            "away": member.left,
            "epoch": member.epoch,
            "topics": list(member.topics),
            "pattern": member.pattern,
            "rack": member.rack,
            "owned": [str(where) for where in member.owned],
            "pending": [str(where) for where in member.pending],
            "target": [str(where) for where in member.target],
        }
        for member in group.members
    ]


@app.command()
def delete(
    group: GroupArgument,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC[:P,P]",
            help="Only what it committed for this topic; repeatable.",
            autocompletion=topic_names,
        ),
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """Delete a group without members and all it committed, or its offsets of some topics."""
    named = None if topic is None else topics_named(topic)
    with connected(bootstrap, timeout) as client:
        admin = client.admin
        if named is None:
            admin.describe_group(group, timeout=timeout)
            gone = admin.list_group_offsets(group, timeout=timeout)
        else:
            gone = admin.delete_group_offsets(group, named, dry_run=True, timeout=timeout)
        what = f"group {group}" if named is None else f"offsets of group {group}"
        if dry_run or (not yes and sys.stdin.isatty()):
            rows: list[Row] = [
                {"topic": one.topic, "partition": one.partition, "committed": one.offset}
                for one in gone
            ]
            emit_rows(rows, Format.TABLE, title="committed offsets")
        if dry_run:
            note(f"nothing was deleted: {what} and {count_of(len(gone), 'offset')} would be")
            return ExitCode.OK
        if named is not None and not gone:
            note(f"group {group} committed nothing there")
            return ExitCode.OK
        _ask(yes, f"Delete {what}?", f"{what}: nothing was deleted")
        if named is None:
            admin.delete_group(group, timeout=timeout)
        else:
            admin.delete_group_offsets(group, named, timeout=timeout)
    note(f"deleted {what}: {count_of(len(gone), 'committed offset')}")
    return ExitCode.OK


@app.command("remove-member")
def remove_member(
    group: GroupArgument,
    member: Annotated[
        list[str] | None, typer.Option("--member", help="Member id; repeatable.")
    ] = None,
    instance: Annotated[
        list[str] | None, typer.Option("--instance", help="Instance id; repeatable.")
    ] = None,
    everybody: Annotated[bool, typer.Option("--all", help="Every member.")] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """Put members out of a group, such as static ones that will not come back.

    Their partitions go to the others at once. A consumer that still runs joins again by itself.
    """
    if not (member or instance or everybody):
        raise ConfigError("no member was named", hint="--member ID, --instance ID or --all")
    if everybody and (member or instance):
        raise ConfigError("--all excludes --member and --instance")
    with connected(bootstrap, timeout) as client:
        found = client.admin.describe_group(group, timeout=timeout)
        if everybody:
            if not found.members:
                note(f"group {group} has no members")
                return ExitCode.OK
            member = [one.member_id for one in found.members]
        named = {*(member or ()), *(instance or ())}
        count = count_of(len(named), "member")
        if dry_run or (not yes and sys.stdin.isatty()):
            rows = [
                _in_line(one)
                for one in found.members
                if one.member_id in named or one.instance_id in named
            ]
            emit_rows(rows, Format.TABLE, title="members of that name")
        if dry_run:
            note("nobody was removed")
            return ExitCode.OK
        _ask(yes, f"Remove {count} from group {group}?", "nobody was removed")
        client.admin.remove_members(
            group, members=member or (), instances=instance or (), timeout=timeout
        )
    note(f"removed {count} from group {group}")
    return ExitCode.OK


def _ask(yes: bool, question: str, untouched: str) -> None:
    """Return only when it is really meant."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(untouched, hint="add --yes to do it, or --dry-run to see what it is")
    typer.confirm(question, abort=True, err=True)


def topics_named(words: list[str]) -> list[str | tuple[str, int]]:
    """TOPIC, or TOPIC:P,P for some of its partitions."""
    out: list[str | tuple[str, int]] = []
    for word in words:
        topic, colon, numbers = word.partition(":")
        if not colon:
            out.append(topic)
            continue
        for number in numbers.split(","):
            if not (number.isascii() and number.isdecimal() and len(number) < 10):
                raise ConfigError(f"--topic {word!r} is not TOPIC or TOPIC:P,P")
            out.append((topic, int(number)))
    return out
