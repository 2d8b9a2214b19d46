"""`octavo consume`: records of a topic on standard output, or into an Arrow file."""

from __future__ import annotations

import enum
import pathlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli import records
from octavo.cli.failures import ExitCode
from octavo.cli.output import note, write_bytes
from octavo.cli.positions import Start, parse_start
from octavo.cli.session import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    BootstrapOption,
    TimeoutOption,
    connected,
)
from octavo.runtime.errors import ConfigError, InvalidPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from octavo.client.messaging import Client, Consumer, Record, TopicPartition

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


def consume(
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    start: Annotated[
        str,
        typer.Option("--from", help="start, end, OFFSET, -N (last N of each partition), or @TIME."),
    ] = "start",
    count: Annotated[int | None, typer.Option("-n", help="Stop after this many.", min=1)] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait for new records; implied by --from end.")
    ] = False,
    partition: Annotated[int | None, typer.Option("-p", help="Only this partition.", min=0)] = None,
    output: Annotated[
        RecordForm, typer.Option("-o", "--output", help="Form of each record.")
    ] = RecordForm.VALUE,
    form: Annotated[
        str | None, typer.Option("-f", "--format", help="kcat-style, such as '%k: %s\\n'.")
    ] = None,
    arrow: Annotated[
        pathlib.Path | None, typer.Option("--arrow", help="Write an Arrow file instead.")
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """Print records; without --follow it stops at the end of the topic as it is now."""
    begin = parse_start(start, time.time_ns() // 1_000_000)
    render = records.compile_format(form) if form is not None else _RENDERERS[output]
    if arrow is not None and form is not None:
        raise ConfigError("--arrow and --format exclude each other")
    until_stopped = follow or begin.kind == "end"
    printed = 0
    with (
        connected(bootstrap, timeout) as client,
        client.consumer(auto_offset_reset="earliest") as consumer,
    ):
        places = _assign(client, consumer, topic, partition)
        ends = None if until_stopped else consumer.end_offsets(*places)
        _seek(consumer, places, begin)
        try:
            if arrow is not None:
                printed = _to_arrow(consumer, arrow, ends, count)
            else:
                printed = _to_stdout(consumer, render, ends, count)
        except KeyboardInterrupt:
            if not until_stopped:
                raise
    if arrow is not None:
        note(f"{printed} records written to {arrow}")
    return ExitCode.OK


def _assign(
    client: Client, consumer: Consumer, topic: str, partition: int | None
) -> list[TopicPartition]:
    # Imported here: loads gRPC.
    from octavo.client.messaging import TopicPartition

    found = client.admin.describe_topic(topic).partitions
    places = [TopicPartition(topic, p.partition) for p in found]
    if partition is not None:
        places = [place for place in places if place.partition == partition]
        if not places:
            raise InvalidPartition(
                f"topic {topic} has {len(found)} partitions, none is {partition}"
            )
    consumer.assign(places)
    return places


def _seek(consumer: Consumer, places: list[TopicPartition], start: Start) -> None:
    match start.kind:
        case "start":
            consumer.seek_to_beginning(*places)
        case "end":
            consumer.seek_to_end(*places)
        case "time":
            consumer.seek_to_time(start.value, *places)
        case "offset":
            for place in places:
                consumer.seek(place, start.value)
        case _:
            ends, begins = consumer.end_offsets(*places), consumer.beginning_offsets(*places)
            for place in places:
                consumer.seek(place, max(begins[place], ends[place] - start.value))


def _at_end(consumer: Consumer, ends: dict[TopicPartition, int] | None) -> bool:
    return ends is not None and all(consumer.position(p) >= end for p, end in ends.items())


def _to_stdout(
    consumer: Consumer,
    render: records.Renderer,
    ends: dict[TopicPartition, int] | None,
    count: int | None,
) -> int:
    printed = 0
    while not _at_end(consumer, ends) and (count is None or printed < count):
        for record in _until(consumer.poll(max_records=POLL_RECORDS, timeout=POLL_S), ends):
            write_bytes(render(record), flush=False)
            printed += 1
            if printed == count:
                break
        write_bytes(b"", flush=True)
    return printed


def _until(polled: list[Record], ends: dict[TopicPartition, int] | None) -> Iterator[Record]:
    """What lies before the end offsets of the beginning: newer records belong to --follow."""
    for record in polled:
        if ends is None or record.offset < ends[record.topic_partition]:
            yield record


def _to_arrow(
    consumer: Consumer,
    path: pathlib.Path,
    ends: dict[TopicPartition, int] | None,
    count: int | None,
) -> int:
    """Write an Arrow IPC file (Spark's Kafka columns); a file appears only when it is complete."""
    # Imported here: loads Arrow.
    import pyarrow as pa

    from octavo.client.messaging.arrow import SCHEMA

    written = 0
    staged = path.with_name(path.name + ".part")
    try:
        with pa.ipc.new_file(str(staged), SCHEMA) as file:
            while not _at_end(consumer, ends) and (count is None or written < count):
                batch = consumer.poll_arrow(timeout=POLL_S)
                if batch is None:
                    continue
                rows = _before(batch, ends)
                if count is not None:
                    rows = rows.slice(0, count - written)
                file.write_batch(rows)
                written += rows.num_rows
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)
    return written


def _before(batch: pa.RecordBatch, ends: dict[TopicPartition, int] | None) -> pa.RecordBatch:
    """Rows that lie before the end offsets of the beginning."""
    # Imported here: loads Arrow.
    import pyarrow.compute as pc

    if ends is None:
        return batch
    for place, end in ends.items():
        here = pc.equal(batch.column("partition"), place.partition)
        late = pc.and_(here, pc.greater_equal(batch.column("offset"), end))
        batch = batch.filter(pc.invert(late))
    return batch
