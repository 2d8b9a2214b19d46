"""Structured logging: event name plus key-values, bound as context becomes known.

Every record goes through the standard library's logging, whoever runs our code: a program that
never called `configure_logging` decides by its own handlers, and its stdout and its structlog stay
its own. Servers call `configure_logging` once. The SDK does not need this module (interface §5).
"""

from __future__ import annotations

import contextlib
import logging
import pathlib
import sys
from typing import Any, Literal

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from octavo.runtime.log_objects import json_line
from octavo.runtime.request_trace import current_trace_id

LogFormat = Literal["text", "json"]


class LogFile(logging.FileHandler):
    """A log file whose disk may be full.

    That is said once on stderr, not as a traceback for every line, and ends nothing.
    """

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace")
        self._failing = False

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exception()
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._failing:
            self._failing = True
            with contextlib.suppress(OSError, AttributeError):  # stderr may be closed as well
                sys.stderr.write(f"{self.baseFilename}: {error.strerror}: log lines are lost\n")


def _name_trace(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    """The trace that the request belongs to which is being served."""
    if trace_id := current_trace_id():
        event.setdefault("trace_id", trace_id)
    return event


_SHARED: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    _name_trace,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
]
_PLAIN = structlog.processors.KeyValueRenderer(key_order=["event"], sort_keys=False)


_TEXT: Processor = structlog.processors.KeyValueRenderer(
    key_order=["timestamp", "level", "event"], sort_keys=False
)


def _name_component(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    """The logger's name: which part of which server speaks."""
    record = event.get("_record")
    if isinstance(record, logging.LogRecord):
        event.setdefault("component", record.name)
    return event


def _as_json(_logger: WrappedLogger, _name: str, event: EventDict) -> str:
    return json_line(event)


class LineFormatter(structlog.stdlib.ProcessorFormatter):
    """One line for each record, of ours or of a library."""

    def __init__(self, log_format: LogFormat = "text") -> None:
        last = [_TEXT] if log_format == "text" else [_as_json]
        first = [] if log_format == "text" else [_name_component]
        super().__init__(
            foreign_pre_chain=_SHARED,
            processors=[*first, self.remove_processors_meta, *last],
        )


def configure_logging(
    level: str = "INFO", log_file: pathlib.Path | None = None, log_format: LogFormat = "text"
) -> None:
    """Send every record, one line each, to `log_file` or stderr."""
    handler: logging.Handler = LogFile(log_file) if log_file else logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(log_format))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _hand_over(
    logger: WrappedLogger, name: str, event: EventDict
) -> tuple[tuple[EventDict], dict[str, dict[str, Any]]] | str:
    """To our formatter as it is; to somebody else's handlers as a text."""
    handlers = logging.getLogger().handlers
    if handlers and all(isinstance(handler.formatter, LineFormatter) for handler in handlers):
        return structlog.stdlib.ProcessorFormatter.wrap_for_formatter(logger, name, event)
    event.pop("timestamp", None)
    event.pop("level", None)
    return _PLAIN(logger, name, event)


_CHAIN: list[Processor] = [structlog.stdlib.filter_by_level, *_SHARED, _hand_over]


def get_logger(name: str, **bound: object) -> structlog.stdlib.BoundLogger:
    """A logger for one component with context already bound."""
    logger: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=_CHAIN,
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return logger.bind(**bound) if bound else logger
