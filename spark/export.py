"""`octavo export` as a function: copy closed ledgers of a cluster to Arrow files."""

from __future__ import annotations

import asyncio
import os

from octavo.client.exports.arrow_files import check_codec
from octavo.client.exports.repair import OnChecked
from octavo.client.exports.run import ExportProgress, ExportReport, OnProgress, export_log
from octavo.spark.live import cluster_log

__all__ = ["ExportProgress", "ExportReport", "export_topic", "export_topic_async"]


async def export_topic_async(
    bootstrap: str,
    topic: str,
    to: str | os.PathLike[str],
    *,
    codec: str = "zstd",
    fmt: str = "arrow",
    progress: OnProgress | None = None,
    verify: bool = False,
    checked: OnChecked | None = None,
) -> ExportReport:
    """Copy the closed ledgers of `topic` that `to`, a folder or URI, does not hold yet.

    Files appear below `to`/`topic`; a run with nothing new changes nothing. `verify` reads every
    exported file, tells `checked` of each, and damaged ones are written again from their ledgers.
    Cancelling it keeps what was published and removes unfinished files. Raises UnknownTopic,
    BrokerUnavailable, ConfigError (codec, format, or the folder holds another topic), ReadUnknown
    and StorageFailed.
    """
    check_codec(codec, fmt)
    async with cluster_log(bootstrap) as source:
        return await export_log(
            source,
            topic,
            to,
            codec=codec,
            fmt=fmt,
            progress=progress,
            verify=verify,
            checked=checked,
        )


def export_topic(
    bootstrap: str,
    topic: str,
    to: str | os.PathLike[str],
    *,
    codec: str = "zstd",
    fmt: str = "arrow",
    progress: OnProgress | None = None,
    verify: bool = False,
    checked: OnChecked | None = None,
) -> ExportReport:
    """`export_topic_async` for ordinary code; blocks until done, Ctrl-C stops it."""
    return asyncio.run(
        export_topic_async(
            bootstrap,
            topic,
            to,
            codec=codec,
            fmt=fmt,
            progress=progress,
            verify=verify,
            checked=checked,
        )
    )
