"""`octavo export` as functions: copy closed ledgers of a cluster to Arrow or Parquet files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Unpack

from octavo.client.exports.arrow_files import CODECS, FORMATS, check_codec
from octavo.client.exports.following import (
    ExportFollower,
    FollowEvents,
    FollowReport,
    FollowSettings,
    topic_pattern,
)
from octavo.client.exports.places import tree_at
from octavo.client.exports.reports import (
    ExportChoices,
    ExportProgress,
    ExportReport,
    JoinProgress,
)
from octavo.client.exports.run import export_log
from octavo.runtime.errors import ConfigError
from octavo.spark.live import cluster_log

__all__ = [
    "ExportChoices",
    "ExportProgress",
    "ExportReport",
    "FollowEvents",
    "FollowReport",
    "FollowSettings",
    "JoinProgress",
    "export_follow",
    "export_follow_async",
    "export_topic",
    "export_topic_async",
]


async def export_topic_async(
    bootstrap: str, topic: str, to: str | os.PathLike[str], **choices: Unpack[ExportChoices]
) -> ExportReport:
    """Copy the closed ledgers of `topic` that `to`, a folder or URI, does not hold yet.

    Files appear below `to`/`topic`; a run with nothing new changes nothing. Cancelling it keeps
    what was published and removes unfinished files. Raises UnknownTopic, BrokerUnavailable,
    ConfigError (codec, format, or the folder holds another topic), ReadUnknown and StorageFailed.
    """
    check_codec(choices.get("codec", CODECS[0]), choices.get("fmt", FORMATS[0]))
    async with cluster_log(bootstrap) as source:
        return await export_log(source, topic, to, **choices)


def export_topic(
    bootstrap: str, topic: str, to: str | os.PathLike[str], **choices: Unpack[ExportChoices]
) -> ExportReport:
    """`export_topic_async` for ordinary code; blocks until done, Ctrl-C stops it."""
    return asyncio.run(export_topic_async(bootstrap, topic, to, **choices))


async def export_follow_async(
    bootstrap: str,
    topics: Sequence[str],
    to: str | os.PathLike[str],
    *,
    stop: asyncio.Event,
    pattern: str | None = None,
    settings: FollowSettings | None = None,
    events: FollowEvents | None = None,
) -> FollowReport:
    """Export `topics`, or those whose whole names match `pattern`, as their ledgers close.

    Until `stop` is set or no topic is left, it closes open ledgers for the lag target, copies them,
    and joins small files (`FollowSettings`). Errors that may pass are tried again and told to
    `events`; what cannot pass ends a topic (`FollowReport.left`). It may be killed at any moment,
    and several may write to one folder. Raises ConfigError, and what fails at the start:
    BrokerUnavailable, or the error of the only topic.
    """
    if bool(topics) == (pattern is not None):
        raise ConfigError("either topics or a pattern must be given")
    chosen = settings or FollowSettings()
    chosen.validate()
    check_codec(chosen.codec, chosen.fmt)
    compiled = None if pattern is None else topic_pattern(pattern)
    async with cluster_log(bootstrap) as source:
        follower = ExportFollower(
            source, tree_at(to), topics, chosen, pattern=compiled, events=events
        )
        report = await follower.run(stop)
    if report.left and not report.topics:
        raise next(iter(report.left.values()))
    return report


def export_follow(
    bootstrap: str,
    topics: Sequence[str],
    to: str | os.PathLike[str],
    *,
    pattern: str | None = None,
    settings: FollowSettings | None = None,
    events: FollowEvents | None = None,
) -> FollowReport:
    """`export_follow_async` for ordinary code: blocks until no topic is left; Ctrl-C stops it."""

    async def run() -> FollowReport:
        return await export_follow_async(
            bootstrap,
            topics,
            to,
            stop=asyncio.Event(),
            pattern=pattern,
            settings=settings,
            events=events,
        )

    return asyncio.run(run())
