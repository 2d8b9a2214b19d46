"""`octavo topic advise`: what a load needs, from what was measured. Asks no server."""

from __future__ import annotations

from typing import Annotated

import typer

from octavo.cli import sizing_figures as measured
from octavo.cli.failures import ExitCode
from octavo.cli.output import Format, FormatOption, Row, emit_one, emit_rows, note
from octavo.cli.sizing import DISK_USED_AT_MOST, MB, Advice, Load, advise, partition_mb_per_s
from octavo.runtime.errors import ConfigError

_UNITS = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"))
_REASONS = {
    "least": "{} are the least for a topic that may grow",
    "consumers": "two for each consumer of a group",
    "throughput": "one for each {:.3g} MB/s",
}
_BOOKIE_REASONS = {
    "copies": "each copy on another one",
    "throughput": f"one takes {measured.BROKER_WRITE_MB_PER_S.value:g} MB/s, copies included",
    "disk": "as many disks as hold all copies",
}


def topic_advise(
    messages_per_s: Annotated[
        float | None, typer.Option("-r", "--messages-per-s", help="At the busiest time.")
    ] = None,
    target_mbps: Annotated[
        float | None,
        typer.Option(help="Megabytes (10^6) per second, in place of --messages-per-s."),
    ] = None,
    message_bytes: Annotated[
        float, typer.Option("-s", "--message-bytes", help="Of one message, on average.")
    ] = 1_024,
    consumers: Annotated[
        int | None,
        typer.Option(help="Of the largest group. [default: as many as the rate needs]"),
    ] = None,
    groups: Annotated[int, typer.Option(help="Groups that each read everything.")] = 1,
    retention_days: Annotated[float, typer.Option(help="How long records are kept.")] = 7,
    replication: Annotated[int, typer.Option(help="Copies of each record.")] = 3,
    stored_ratio: Annotated[
        float, typer.Option(help="Bytes stored for one that is sent: 0.3 where records compress.")
    ] = 1.0,
    keys: Annotated[int | None, typer.Option(help="How many different keys there are.")] = None,
    p99_ms: Annotated[float | None, typer.Option(help="Longest publish, 99 of 100 times.")] = None,
    bookie_disk_tb: Annotated[
        float | None, typer.Option(help="Disk of one bookie, terabytes (10^12).")
    ] = None,
    output: FormatOption = Format.TABLE,
) -> int:
    """Say how many partitions, brokers and bookies a load needs, and how much disk.

    From what was measured (docs/sizing.md); no server is asked. What goes beyond it is named.
    """
    load = Load(
        messages_per_s=_rate(messages_per_s, target_mbps, message_bytes),
        message_bytes=message_bytes,
        consumers=consumers,
        groups=groups,
        retention_days=retention_days,
        replication=replication,
        stored_ratio=stored_ratio,
        keys=keys,
        p99_ms=p99_ms,
        bookie_disk_tb=bookie_disk_tb,
    )
    found = advise(load)
    if output in (Format.TABLE, Format.CSV):
        emit_rows(_rows(load, found), output)
        for text in found.warnings:
            note(f"warning: {text}")
        for text in found.beyond:
            note(f"beyond what was measured: {text}")
    else:
        emit_one(_object(found), output)
    return ExitCode.OK


def _rate(messages_per_s: float | None, target_mbps: float | None, message_bytes: float) -> float:
    """Messages per second, however they were told."""
    if (messages_per_s is None) == (target_mbps is None):
        raise ConfigError(
            "how much is sent is not known" if messages_per_s is None else "two rates were named",
            hint="one of --messages-per-s (with --message-bytes) and --target-mbps",
        )
    if messages_per_s is not None:
        return messages_per_s
    if target_mbps is None or not message_bytes > 0:
        raise ConfigError(
            f"--message-bytes {message_bytes} is not allowed", hint="a number above 0"
        )
    return target_mbps * MB / message_bytes


def _rows(load: Load, found: Advice) -> list[Row]:
    asks = _largest(found.partition_reasons)
    why = _REASONS[asks].format(
        found.partition_reasons[asks] if asks == "least" else partition_mb_per_s(load.groups)
    )
    if load.keys is not None and load.keys <= found.partitions:
        why = "no more than there are keys"
    stored = f"{load.retention_days:g} days, {load.replication} copies"
    by_rate = found.partition_reasons["throughput"]
    capacity = (
        f"one takes {partition_mb_per_s(load.groups):.3g} MB/s"
        if found.brokers <= by_rate
        else f"one writes at full speed to {measured.PARTITIONS_AT_FULL_SPEED} partitions"
    )
    return [
        _row("partitions", f"{found.partitions:,}", why),
        _row(
            "brokers",
            f"{found.brokers:,}",
            f"{_rate_text(found.write_mb_per_s)} in, {_rate_text(found.read_mb_per_s)} out; "
            f"{capacity}",
        ),
        _row(
            "memory of each",
            _bytes_text(found.broker_idle_memory_bytes),
            "of a broker while nothing is sent",
        ),
        _row(
            "bookies",
            f"{found.bookies:,}",
            _BOOKIE_REASONS[_largest(found.bookie_reasons)],
        ),
        _row(
            "disk of all",
            _bytes_text(found.disk_bytes),
            f"{_bytes_text(found.sent_bytes_per_day)} a day, {_bytes_text(found.kept_bytes)} kept "
            f"for {stored}",
        ),
        _row(
            "disk of each",
            _bytes_text(found.bookie_disk_bytes),
            f"at most {DISK_USED_AT_MOST:.0%} full",
        ),
        _row(
            "producers",
            f"{found.producers:,}",
            f"one sends {measured.PRODUCER_WRITE_MB_PER_S.value:g} MB/s",
        ),
        _row(
            "consumers",
            f"{found.consumers:,}",
            f"of each group; one reads {measured.CONSUMER_READ_MB_PER_S.value:g} MB/s",
        ),
    ]


def _largest(reasons: dict[str, int]) -> str:
    return max(reasons, key=lambda name: reasons[name])


def _row(what: str, advised: str, because: str) -> Row:
    return {"what": what, "at_least": advised, "because": because}


def _object(found: Advice) -> Row:
    """All of it as numbers, for programs."""
    return {
        "partitions": found.partitions,
        "brokers": found.brokers,
        "bookies": found.bookies,
        "producers": found.producers,
        "consumers": found.consumers,
        "partition_reasons": found.partition_reasons,
        "bookie_reasons": found.bookie_reasons,
        "write_mb_per_s": found.write_mb_per_s,
        "read_mb_per_s": found.read_mb_per_s,
        "sent_bytes_per_day": found.sent_bytes_per_day,
        "kept_bytes": found.kept_bytes,
        "disk_bytes": found.disk_bytes,
        "bookie_disk_bytes": found.bookie_disk_bytes,
        "broker_idle_memory_bytes": found.broker_idle_memory_bytes,
        "warnings": found.warnings,
        "beyond_what_was_measured": found.beyond,
    }


def _rate_text(mb_per_s: float) -> str:
    return f"{mb_per_s:,.4g} MB/s" if mb_per_s < 1_000 else f"{mb_per_s:,.0f} MB/s"


def _bytes_text(size_bytes: int) -> str:
    for unit_bytes, name in _UNITS:
        if size_bytes >= unit_bytes:
            return f"{size_bytes / unit_bytes:.3g} {name}"
    return f"{size_bytes} B"
