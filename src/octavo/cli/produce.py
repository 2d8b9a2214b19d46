"""`octavo produce`: one record per line of standard input."""

from __future__ import annotations

import enum
import json
import pathlib
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, BinaryIO, NamedTuple, cast

import typer

from octavo.cli.completion import topic_names
from octavo.cli.delivery import Delivery, Rejects
from octavo.cli.failures import ExitCode
from octavo.cli.input_lines import numbered_lines, reading
from octavo.cli.output import count_of, note
from octavo.cli.progress import Progress
from octavo.cli.records import unescaped
from octavo.cli.session import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    BootstrapOption,
    TimeoutOption,
    connected,
    parse_settings,
    typed,
)
from octavo.cli.stopping import terminable
from octavo.proto.batch import DEFAULT_RECORD_BYTES
from octavo.runtime.errors import ConfigError, InvalidRecord, MessageTooLarge

if TYPE_CHECKING:
    from octavo.client.messaging import Producer


class OnError(enum.StrEnum):
    """What to do with a line that cannot be a record."""

    STOP = "stop"
    SKIP = "skip"


class Fields(NamedTuple):
    """Key and value of one record."""

    key: bytes | None
    value: bytes | None


Splitter = Callable[[int, bytes], Fields]
"""Number and bytes of a line to its record; raises InvalidRecord naming the line."""


def produce(
    topic: Annotated[str, typer.Argument(help="Name of the topic.", autocompletion=topic_names)],
    key_json: Annotated[
        str | None,
        typer.Option(
            "-k", "--key-json", metavar="FIELD", help="Lines are JSON; key by this field."
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(help="The same key for all records.")] = None,
    key_delimiter: Annotated[
        str | None,
        typer.Option("-K", metavar="DELIM", help="Lines are KEY, this delimiter and VALUE."),
    ] = None,
    empty_is_null: Annotated[
        bool, typer.Option("-Z", help="An empty value is a tombstone, an empty key none.")
    ] = False,
    header: Annotated[
        list[str] | None,
        typer.Option("-H", "--header", metavar="NAME=VALUE", help="Header of each; repeatable."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("-p", "--partition", help="Partition to send to.")
    ] = None,
    file: Annotated[
        typer.FileBinaryRead | None, typer.Option("--file", help="Read this instead of stdin.")
    ] = None,
    on_error: Annotated[
        OnError, typer.Option("--on-error", help="What a line that is no record does.")
    ] = OnError.STOP,
    rejects: Annotated[
        pathlib.Path | None,
        typer.Option("--rejects", help="Append skipped lines to this file."),
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
    """Send each line of standard input as a record.

    Returns when all are acknowledged.
    """
    delimiter = None if key_delimiter is None else unescaped(key_delimiter)
    split = _splitter(key_json, key, delimiter, empty_is_null=empty_is_null)
    headers = list(_headers(header or []))
    config = typed(parse_settings(settings or [], "-X"))
    if rejects is not None and on_error is not OnError.SKIP:
        raise ConfigError("--rejects needs --on-error skip")
    source = _source(file)
    with Rejects(skip=on_error is OnError.SKIP, path=rejects) as rejected:
        delivery = Delivery(rejected, verbose=verbose)
        with _counted(topic, delivery), terminable(), connected(bootstrap, timeout) as client:
            found = client.admin.describe_topic(topic, timeout=timeout)  # said at once if missing
            takes = int(found.config.get("max.message.bytes", DEFAULT_RECORD_BYTES))
            config.setdefault("max_request_size", takes)
            with client.producer(**config) as producer, Progress(delivery.progress) as progress:
                limit = min(producer.config.max_request_size, takes) + len(delimiter or b"")
                for number, line in _lines(source, limit, delivery, progress):
                    _send(producer, delivery, topic, split, number, line, headers, partition)
                    delivery.settle()
                    progress.show()
                producer.flush()
                delivery.finish()
    skipped = f", {count_of(rejected.count, 'line')} skipped" if rejected.count else ""
    note(f"{count_of(delivery.acknowledged, 'record')} sent to {topic}{skipped}")
    return ExitCode.OK


def _lines(
    source: BinaryIO, limit_bytes: int, delivery: Delivery, progress: Progress
) -> Iterator[tuple[int, bytes]]:
    """The numbered lines; while one is waited for, acknowledgements are looked at."""

    def meanwhile() -> bool:
        progress.show()
        return delivery.settle()

    read = reading(source, meanwhile)
    for number, line in numbered_lines(
        read, limit_bytes, lambda long: delivery.too_long(long, limit_bytes)
    ):
        delivery.read = number
        yield number, line


def _send(
    producer: Producer,
    delivery: Delivery,
    topic: str,
    split: Splitter,
    number: int,
    line: bytes,
    headers: list[tuple[str, bytes]],
    partition: int | None,
) -> None:
    """Queue one line, or have it rejected."""
    try:
        fields = split(number, line)
        future = producer.send_nowait(
            topic, fields.value, key=fields.key, headers=headers or None, partition=partition
        )
    except (InvalidRecord, MessageTooLarge) as error:
        delivery.rejects.reject(number, line, error)
    else:
        delivery.add(number, line, future)


@contextmanager
def _counted(topic: str, delivery: Delivery) -> Generator[None]:
    """Whatever ends the command early: say how many records are in the topic already."""
    try:
        yield
    except BaseException:
        if delivery.read:
            note(delivery.tally(topic))
        raise


def _source(file: BinaryIO | None) -> BinaryIO:
    if file is not None:
        return file
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise ConfigError("standard input is closed", hint="--file reads a file")
    return sys.stdin.buffer


def _splitter(
    key_json: str | None, key: str | None, delimiter: bytes | None, *, empty_is_null: bool
) -> Splitter:
    """How a line becomes key and value."""
    if sum(option is not None for option in (key_json, key, delimiter)) > 1:
        raise ConfigError("--key, --key-json and -K exclude each other")
    if delimiter == b"":
        raise ConfigError("-K needs a delimiter", hint="for example -K :")
    fixed = None if key is None else _utf8("--key", key)

    def split(number: int, line: bytes) -> Fields:
        found, value = fixed, line
        if key_json is not None:
            found = json_key(line, key_json, number)
        elif delimiter is not None:
            found, mark, value = line.partition(delimiter)
            if not mark:
                raise InvalidRecord(f"line {number} has no delimiter {delimiter!r}")
        if empty_is_null:
            return Fields(found or None, value or None)
        return Fields(found, value)

    return split


def json_key(line: bytes, field: str, number: int) -> bytes | None:
    """The key that `field` of a JSON line gives: text as it is, anything else as compact JSON.

    null is no key. Raises InvalidRecord naming the line.
    """
    if not line.strip():
        raise InvalidRecord(f"line {number} is blank, not JSON")
    try:
        parsed: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRecord(
            f"line {number} is not JSON: {error}",
            hint="leave --key-json out to send lines as they are",
        ) from error
    if not isinstance(parsed, dict) or field not in parsed:
        raise InvalidRecord(f"line {number} has no field {field!r}")
    value = cast("dict[str, object]", parsed)[field]
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRecord(
            f"line {number}: field {field!r} is no Unicode text: it has half a surrogate pair"
        ) from error


def _utf8(option: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{option} {text!r} is no UTF-8 text") from error


def _headers(words: list[str]) -> Iterator[tuple[str, bytes]]:
    """NAME=VALUE words in order; the same name may come twice."""
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise ConfigError(f"--header {word!r} is not of the form NAME=VALUE")
        _utf8("--header", name)
        yield name, _utf8("--header", value)
