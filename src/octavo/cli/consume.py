"""`octavo consume`: records of a topic on standard output, or as Arrow."""

from __future__ import annotations

import enum
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli import records
from octavo.cli.arrow_output import ArrowOutput
from octavo.cli.completion import group_names, topic_names
from octavo.cli.failures import ExitCode
from octavo.cli.group_consume import consume_in_group, reset_policy
from octavo.cli.output import count_of, note, write_bytes
from octavo.cli.positions import Start, parse_start
from octavo.cli.progress import Progress
from octavo.cli.session import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    BootstrapOption,
    TimeoutOption,
    connected,
)
from octavo.cli.stopping import stop_requests, terminable
from octavo.cli.terminal import is_terminal
from octavo.cli.window import Window
from octavo.runtime.errors import ConfigError, InvalidPartition, OffsetOutOfRange

if TYPE_CHECKING:
    from octavo.client.messaging import Client, Consumer, TopicPartition

POLL_S = 0.5
POLL_RECORDS = 1000


class RecordForm(enum.StrEnum):
    """How records are printed."""

    VALUE = "value"
    JSON = "json"
    CSV = "csv"


_RENDERERS: dict[RecordForm, records.Renderer] = {
    RecordForm.VALUE: records.as_value,
    RecordForm.JSON: records.as_json,
    RecordForm.CSV: records.as_csv,
}


TopicsArgument = Annotated[
    list[str],
    typer.Argument(metavar="TOPIC...", help="Name of the topic.", autocompletion=topic_names),
]
GroupOption = Annotated[
    str | None,
    typer.Option(
        "--group",
        help="Be a member of this group: share partitions, commit what was written.",
        autocompletion=group_names,
    ),
]
StartOption = Annotated[
    str,
    typer.Option("--from", help="start, end, OFFSET, end-N (last N of each partition), or @TIME."),
]
TailOption = Annotated[int | None, typer.Option("--tail", help="The same as --from end-N.", min=0)]
UntilOption = Annotated[
    str | None, typer.Option("--until", help="Stop before this OFFSET or @TIME.")
]
CountOption = Annotated[int | None, typer.Option("-n", help="Stop after this many.", min=1)]
FollowOption = Annotated[
    bool, typer.Option("--follow", help="Wait for new records; implied by --from end.")
]
PartitionOption = Annotated[
    int | None, typer.Option("-p", "--partition", help="Only this partition.", min=0)
]
FormOption = Annotated[RecordForm, typer.Option("-o", "--output", help="Form of each record.")]
FormatOption = Annotated[
    str | None, typer.Option("-f", "--format", help="kcat-style, such as '%k: %s\\n'.")
]
KeyOption = Annotated[
    str | None, typer.Option("-K", metavar="DELIM", help="Print each key and this before it.")
]
NullOption = Annotated[bool, typer.Option("-Z", help="Print NULL for tombstones and missing keys.")]
ArrowOption = Annotated[
    str | None,
    typer.Option(
        "--arrow", metavar="PATH", help="Write an Arrow file instead; - streams to stdout."
    ),
]


def consume(
    topics: TopicsArgument,
    group: GroupOption = None,
    start: StartOption = "start",
    tail: TailOption = None,
    until: UntilOption = None,
    count: CountOption = None,
    follow: FollowOption = False,
    partition: PartitionOption = None,
    output: FormOption = RecordForm.VALUE,
    form: FormatOption = None,
    key_delimiter: KeyOption = None,
    null_word: NullOption = False,
    arrow: ArrowOption = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """Print the records of a topic.

    Without --follow it stops at the end of the topic as it is now. With --group it shares topics
    with the other members of the group, goes on where the group left off (--from is for what it
    never committed), and commits once records are out.
    """
    now_ms = time.time_ns() // 1_000_000
    begin = _begin(start, tail, now_ms)
    stop = None if until is None else _stop(until, now_ms, follow=follow)
    render = _renderer(output, form, key_delimiter, null_word=null_word)
    if arrow is not None and render is not _RENDERERS[output]:
        raise ConfigError("--arrow excludes --format, -K and -Z")
    follow = follow or (begin.kind == "end" and stop is None)
    if group is not None:
        _check_of_group(partition, tail, until, arrow)
        policy = reset_policy(begin)
        with connected(bootstrap, timeout) as client:
            return consume_in_group(
                client,
                topics,
                group,
                policy=policy,
                render=render,
                count=count,
                follow=follow,
                timeout_s=timeout,
            )
    topic = _only(topics)
    limit_ms = max(round(timeout * 1000), 1_000)
    with (
        terminable(),
        connected(bootstrap, timeout) as client,
        client.consumer(auto_offset_reset="earliest", request_timeout_ms=limit_ms) as consumer,
    ):
        places = _assign(client, consumer, topic, partition, timeout)
        ends = None if follow and stop is None else consumer.end_offsets(*places)
        if ends is not None and stop is not None:
            ends = _stop_offsets(client, topic, stop, ends, follow=follow, timeout_s=timeout)
        floors = _seek(consumer, places, begin)
        window = Window(consumer, floors, ends)
        if arrow is not None:
            return _to_arrow(consumer, window, arrow, count, follow=follow)
        return _to_stdout(consumer, window, render, count, follow=follow)


def _check_of_group(*excluded: object) -> None:
    if any(one is not None for one in excluded):
        raise ConfigError("--group excludes -p, --tail, --until and --arrow")


def _only(topics: list[str]) -> str:
    if len(topics) > 1:
        raise ConfigError("several topics need --group", hint="or run one command for each")
    return topics[0]


def _begin(start: str, tail: int | None, now_ms: int) -> Start:
    if tail is None:
        return parse_start(start, now_ms)
    if start != "start":
        raise ConfigError("--tail and --from exclude each other")
    return Start("last", tail)


def _stop(until: str, now_ms: int, *, follow: bool) -> Start:
    stop = parse_start(until, now_ms, "--until")
    if stop.kind not in ("offset", "time", "end"):
        raise ConfigError(f"--until {until!r} is not allowed", hint="an OFFSET, @TIME or end")
    if follow and stop.kind != "offset":
        raise ConfigError("--follow goes on: with it, --until must be an OFFSET")
    return stop


def _renderer(
    output: RecordForm, form: str | None, delimiter: str | None, *, null_word: bool
) -> records.Renderer:
    if form is not None:
        if delimiter is not None or null_word:
            raise ConfigError("--format excludes -K and -Z")
        return records.compile_format(form)
    if delimiter is None and not null_word:
        return _RENDERERS[output]
    if output is not RecordForm.VALUE:
        raise ConfigError(f"-o {output.value} excludes -K and -Z")
    key_end = None if delimiter is None else records.unescaped(delimiter)
    return records.keyed(key_end, b"NULL" if null_word else b"")


def _assign(
    client: Client, consumer: Consumer, topic: str, partition: int | None, timeout_s: float
) -> list[TopicPartition]:
    # Imported here: loads gRPC.
    from octavo.client.messaging import TopicPartition

    found = client.admin.describe_topic(topic, timeout=timeout_s).partitions
    places = [TopicPartition(topic, p.partition) for p in found]
    if partition is not None:
        places = [place for place in places if place.partition == partition]
        if not places:
            raise InvalidPartition(
                f"topic {topic} has {count_of(len(found), 'partition')}, none is {partition}"
            )
    consumer.assign(places)
    return places


def _stop_offsets(
    client: Client,
    topic: str,
    stop: Start,
    ends: dict[TopicPartition, int],
    *,
    follow: bool,
    timeout_s: float,
) -> dict[TopicPartition, int]:
    """Where each partition stops: what is asked for, and without --follow its end at most."""
    if stop.kind == "end":
        return ends
    if stop.kind == "offset":
        return {p: stop.value if follow else min(stop.value, end) for p, end in ends.items()}
    found = client.admin.list_offsets(topic, stop.value, timeout=timeout_s)
    asked = {place: found.get(place.partition) for place in ends}
    return {
        place: end if (offset := asked[place]) is None else min(offset, end)
        for place, end in ends.items()
    }


def _seek(
    consumer: Consumer, places: list[TopicPartition], start: Start
) -> dict[TopicPartition, int]:
    """Go to the start; returns offsets that do not exist yet, which are waited for."""
    match start.kind:
        case "start":
            consumer.seek_to_beginning(*places)
        case "end":
            consumer.seek_to_end(*places)
        case "time":
            consumer.seek_to_time(start.value, *places)
        case "offset":
            ends = consumer.end_offsets(*places)
            if places and all(start.value > end for end in ends.values()):
                raise OffsetOutOfRange(
                    f"--from {start.value} is beyond the end of {places[0].topic}, which is "
                    + ", ".join(f"{end} in {place}" for place, end in list(ends.items())[:5]),
                    hint="--from end --follow waits for new records",
                )
            for place in places:
                consumer.seek(place, min(start.value, ends[place]))
            return {place: start.value for place, end in ends.items() if start.value > end}
        case _:
            ends, begins = consumer.end_offsets(*places), consumer.beginning_offsets(*places)
            for place in places:
                consumer.seek(place, max(begins[place], ends[place] - start.value))
    return {}


def _to_stdout(
    consumer: Consumer,
    window: Window,
    render: records.Renderer,
    count: int | None,
    *,
    follow: bool,
) -> int:
    printed = 0

    def line(passed_s: float) -> str:
        return f"{printed:,} records written, {printed / passed_s:,.0f}/s"

    progress = Progress(line, wanted=not is_terminal(sys.stdout))
    try:
        while not window.done and (count is None or printed < count):
            polled = consumer.poll(max_records=POLL_RECORDS, timeout=POLL_S)
            for record in window.records(polled):
                write_bytes(render(record), flush=False)
                printed += 1
                if printed == count:
                    break
            write_bytes(b"", flush=True)
            progress.show()
            if not polled:
                window.look()
    except KeyboardInterrupt:
        if follow:
            return ExitCode.OK
        progress.clear()
        note(f"interrupted after {count_of(printed, 'record')}")
        raise
    finally:
        progress.clear()
    return ExitCode.OK


def _to_arrow(
    consumer: Consumer, window: Window, path: str, count: int | None, *, follow: bool
) -> int:
    """Arrow with the columns of Spark's Kafka source; a file appears only when it is complete."""
    # Imported here: loads Arrow.
    from octavo.proto.kafka_columns import SCHEMA

    out = ArrowOutput(path, SCHEMA)
    try:
        with stop_requests() as stop:
            while not (window.done or stop.came or out.rows == count):
                batch = consumer.poll_arrow(timeout=POLL_S)
                if batch is None:
                    window.look()
                    continue
                rows = window.rows(batch)
                out.write(rows if count is None else rows.slice(0, count - out.rows))
                out.flush()
            if stop.came and not follow:
                note(f"interrupted after {count_of(out.rows, 'record')}; {out.name} is incomplete")
                return ExitCode.INTERRUPTED
            out.finish()
    finally:
        out.abandon()
    note(f"{count_of(out.rows, 'record')} written to {out.name}")
    return ExitCode.OK
