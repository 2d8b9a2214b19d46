"""`octavo export --follow`: an exporter that goes on until it is stopped."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from octavo.cli.export_report import emit_reports, tell_lost
from octavo.cli.failures import ExitCode
from octavo.cli.output import Format, count_of, note
from octavo.cli.session import connected
from octavo.cli.stopping import loop_stops
from octavo.cli.terminal import is_terminal
from octavo.runtime.errors import OctavoError
from octavo.runtime.system_errors import explained

if TYPE_CHECKING:
    from octavo.client.exports.following import FollowSettings
    from octavo.spark.export import (
        ExportProgress,
        ExportReport,
        FollowEvents,
        FollowReport,
        JoinProgress,
    )


def follow_topics(
    bootstrap: str,
    topics: list[str],
    pattern: str | None,
    to: str,
    *,
    settings: FollowSettings,
    output: Format,
    timeout_s: float,
) -> ExitCode:
    """Follow until Ctrl-C or SIGTERM, which end it well: what was done is printed, exit code 0.

    1 when topics were given up before.
    """
    # Imported here: loads Arrow and the SDK.
    from octavo.spark.export import export_follow_async

    events = spoken()
    with connected(bootstrap, timeout_s):
        pass  # who cannot be reached now is an error now; later it is waited for

    async def run() -> FollowReport:
        with loop_stops() as stop:
            return await export_follow_async(
                bootstrap, topics, to, stop=stop, pattern=pattern, settings=settings, events=events
            )

    report = asyncio.run(run())
    several = pattern is not None or len(topics) > 1
    emit_reports([report.topics[name] for name in sorted(report.topics)], output, several=several)
    return ExitCode.ERROR if report.left else ExitCode.OK


def spoken() -> FollowEvents:
    """Whatever happens, as lines for a person or a log."""
    from octavo.spark.export import FollowEvents

    return FollowEvents(
        published=_published,
        joined=_joined,
        looked=_looked,
        trouble=_trouble,
        recovered=lambda: say("going on"),
        left=_left,
    )


def say(text: str) -> None:
    """A line on stderr; where no person looks at it, with the time."""
    if not is_terminal(sys.stderr):
        text = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {text}"
    note(text)


def _published(made: ExportProgress) -> None:
    ledgers = count_of(len(made.ledgers), "ledger")
    records = count_of(made.rows, "record")
    say(f"{made.topic}-{made.partition}: {records} of {ledgers}, {_size(made.bytes)}")


def _joined(made: JoinProgress) -> None:
    say(
        f"{made.topic}-{made.partition}: {made.files} small files became one of "
        f"{count_of(made.rows, 'record')}, {_size(made.bytes)}"
    )


def _looked(report: ExportReport) -> None:
    tell_lost(report)
    for name in report.unrepaired:
        say(f"error: {name} is damaged and its ledgers are gone: it cannot be written again")


def _trouble(topic: str, error: Exception) -> None:
    say(f"warning: {topic or 'topics'}: {_cause(error)}; trying again until it works")


def _left(topic: str, error: Exception) -> None:
    say(f"error: {topic} is followed no more: {_cause(error)}")


def _cause(error: Exception) -> str:
    if isinstance(error, OctavoError):
        return error.cause
    return explained(error)[0] if isinstance(error, OSError) else str(error)


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB" if size_bytes >= 100_000 else f"{size_bytes / 1e3:.1f} kB"
