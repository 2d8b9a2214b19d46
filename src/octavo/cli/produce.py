"""`octavo produce`: one record per line of standard input."""

from __future__ import annotations

import collections
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, BinaryIO, cast

import typer

from octavo.cli.failures import ExitCode
from octavo.cli.output import note, write_text
from octavo.cli.session import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    BootstrapOption,
    TimeoutOption,
    connected,
    parse_settings,
    typed,
)
from octavo.runtime.errors import ConfigError, InvalidRecord

if TYPE_CHECKING:
    from octavo.client.messaging import SendFuture

PENDING_MAX = 10_000
"""Unacknowledged records kept; the producer's own buffer limit usually comes first."""


def produce(
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    key_json: Annotated[
        str | None,
        typer.Option(
            "-k", "--key-json", metavar="FIELD", help="Lines are JSON; key by this field."
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(help="The same key for all records.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("-H", "--header", metavar="NAME=VALUE", help="Header of each; repeatable."),
    ] = None,
    partition: Annotated[int | None, typer.Option("-p", help="Partition to send to.")] = None,
    file: Annotated[
        typer.FileBinaryRead | None, typer.Option("--file", help="Read this instead of stdin.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("-X", metavar="KEY=VALUE", help="Producer setting, such as acks=1."),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("-v", help="Print where each record went, as JSON.")
    ] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """Send each line of standard input as a record; returns when all are acknowledged."""
    if key is not None and key_json is not None:
        raise ConfigError("--key and --key-json exclude each other")
    headers = [(name, value.encode()) for name, value in _pairs(header or [])]
    config = typed(parse_settings(settings or [], "-X"))
    source = cast("BinaryIO", file) if file is not None else sys.stdin.buffer
    pending: collections.deque[SendFuture] = collections.deque()
    sent = 0
    with connected(bootstrap, timeout) as client, client.producer(**config) as producer:
        client.admin.describe_topic(topic, timeout=timeout)  # a missing one is said before line 1
        for number, line in enumerate(lines(source), 1):
            record_key = key.encode() if key is not None else None
            if key_json is not None:
                record_key = json_key(line, key_json, number)
            pending.append(
                producer.send_nowait(
                    topic, line, key=record_key, headers=headers or None, partition=partition
                )
            )
            while pending and (pending[0].done() or len(pending) > PENDING_MAX):
                sent += _acknowledged(pending.popleft(), verbose)
        producer.flush()
        while pending:
            sent += _acknowledged(pending.popleft(), verbose)
    note(f"{sent} records sent to {topic}")
    return ExitCode.OK


def _acknowledged(future: SendFuture, verbose: bool) -> int:
    meta = future.result()
    if verbose:
        write_text(
            json.dumps(
                {
                    "topic": meta.topic,
                    "partition": meta.partition,
                    "offset": meta.offset,
                    "timestamp_ms": meta.timestamp_ms,
                }
            )
            + "\n"
        )
    return 1


def lines(source: BinaryIO) -> Iterator[bytes]:
    """Lines without their line feed, as they arrive; an unfinished last line counts."""
    for line in source:
        yield line[:-1] if line.endswith(b"\n") else line


def json_key(line: bytes, field: str, number: int) -> bytes:
    """The key that `field` of a JSON line gives: text as it is, anything else as compact JSON.

    Raises InvalidRecord naming the line.
    """
    try:
        parsed: object = json.loads(line)
    except ValueError as error:
        raise InvalidRecord(
            f"line {number} is not JSON: {error}",
            hint="leave --key-json out to send lines as they are",
        ) from error
    if not isinstance(parsed, dict) or field not in parsed:
        raise InvalidRecord(f"line {number} has no field {field!r}")
    value = cast("dict[str, object]", parsed)[field]
    return (value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))).encode()


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    """NAME=VALUE words in order; the same name may come twice."""
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise ConfigError(f"--header {word!r} is not of the form NAME=VALUE")
        yield name, value
