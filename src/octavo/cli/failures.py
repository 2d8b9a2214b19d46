"""From exceptions to exit codes and to the two lines that a person reads on stderr."""

from __future__ import annotations

import enum
import os
import sys
import traceback
from typing import TextIO

from octavo.cli.terminal import wrapped
from octavo.runtime import errors, errors_of_groups
from octavo.runtime.system_errors import explained

TRACE_VARIABLE = "OCTAVO_TRACE"
NO_TEXT_HINT = "write it in UTF-8; where the locale is not UTF-8, set LC_ALL=C.UTF-8"


class ExitCode(enum.IntEnum):
    """Stable exit codes (spec interface §2)."""

    OK = 0
    ERROR = 1
    USAGE = 2
    NOT_FOUND = 3
    DENIED = 4
    UNAVAILABLE = 5
    TIMEOUT = 6
    INTERRUPTED = 130


class OutputClosed(Exception):
    """The reader of our standard output went away: a command whose work is output ends quietly."""


_BY_CLASS: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (errors.ConfigError, ExitCode.USAGE),
    (errors.InvalidTopic, ExitCode.USAGE),
    (errors.InvalidPartitions, ExitCode.USAGE),
    (errors.InvalidReplicationFactor, ExitCode.USAGE),
    (errors.InvalidConfig, ExitCode.USAGE),
    (UnicodeEncodeError, ExitCode.USAGE),
    (errors.UnknownTopic, ExitCode.NOT_FOUND),
    (errors.OffsetOutOfRange, ExitCode.NOT_FOUND),
    (errors.InvalidPartition, ExitCode.NOT_FOUND),
    (errors.NoSuchLedger, ExitCode.NOT_FOUND),
    (errors.NoSuchEntry, ExitCode.NOT_FOUND),
    (errors_of_groups.InvalidGroupId, ExitCode.USAGE),
    (errors_of_groups.GroupIdNotFound, ExitCode.NOT_FOUND),
    (errors_of_groups.UnknownMemberId, ExitCode.NOT_FOUND),
    (errors.RequestTimedOut, ExitCode.TIMEOUT),
    (errors.UnknownOutcome, ExitCode.TIMEOUT),
    (errors.FlushTimeout, ExitCode.TIMEOUT),
    (errors.DeliveryFailed, ExitCode.TIMEOUT),
    (errors.RetriableError, ExitCode.UNAVAILABLE),
    (TimeoutError, ExitCode.TIMEOUT),
    (PermissionError, ExitCode.DENIED),
    (FileNotFoundError, ExitCode.NOT_FOUND),
    (KeyboardInterrupt, ExitCode.INTERRUPTED),
)


EXTRA_OF = {
    "deltalake": "delta",
    "grpc_health": "cli",
    "kazoo": "server",
    "psutil": "cli",
    "pydantic": "server",
    "pydantic_settings": "server",
    "pyspark": "spark",
    "rocksdict": "server",
    "structlog": "server",
    "typer": "cli",
}
"""Packages that the SDK alone does not need, and the extra of Octavo that brings each."""


def missing_package(error: ModuleNotFoundError) -> tuple[str, str] | None:
    """Cause and hint when a package of one of our extras is not installed, else None."""
    package = (error.name or "").partition(".")[0]
    extra = EXTRA_OF.get(package)
    if extra is None:
        return None
    return f"this needs the package {package}", f"pip install 'octavo[{extra}]'"


def exit_code_for(error: BaseException) -> ExitCode:
    """The first matching class of the table decides; anything unknown is 1."""
    return next((code for cls, code in _BY_CLASS if isinstance(error, cls)), ExitCode.ERROR)


def report(error: BaseException) -> ExitCode:
    """Print cause and hint to stderr, return the exit code; `OCTAVO_TRACE=1` adds the traceback."""
    if os.environ.get(TRACE_VARIABLE) == "1":
        tell("".join(traceback.format_exception(error)))
    code = exit_code_for(error)
    if isinstance(error, errors.OctavoError):
        usage_hint = "see the command's --help" if code is ExitCode.USAGE else ""
        say_error(error.cause, error.hint or usage_hint)
    elif isinstance(error, ModuleNotFoundError) and (missing := missing_package(error)):
        say_error(*missing)
    elif isinstance(error, KeyboardInterrupt):
        pass
    elif isinstance(error, OSError):
        if isinstance(error, TimeoutError) and error.errno is None:
            say_error(str(error) or "it took too long", "give it more time with --timeout")
        else:
            say_error(*explained(error))
    elif isinstance(error, UnicodeEncodeError):  # an argument whose bytes are no text (PEP 383)
        say_error(f"{error.object!r} is no UTF-8 text", NO_TEXT_HINT)
    elif isinstance(error, ValueError):
        say_error(str(error) or type(error).__name__, "see the command's --help")
    else:
        say_error(
            f"unexpected {type(error).__name__}: {error}",
            f"this is a bug in Octavo: run again with {TRACE_VARIABLE}=1 and report the traceback",
        )
    return code


def say_error(cause: str, hint: str) -> None:
    """One line for what happened, one for what to do."""
    lines = wrapped(f"error: {_one_line(cause)}", sys.stderr) + "\n"
    if hint:
        lines += wrapped(f"hint: {_one_line(hint)}", sys.stderr) + "\n"
    tell(lines)


def tell(text: str) -> None:
    """Write to stderr. When it is closed, full or unread the work goes on: its exit code counts."""
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison] - closed at the start
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        point_at_nothing(sys.stderr)


def point_at_nothing(stream: TextIO) -> None:
    """Let a stream whose reader went away swallow what follows, also its last flush."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, stream.fileno())
    os.close(nothing)


def _one_line(text: str) -> str:
    return " ".join(text.split())
