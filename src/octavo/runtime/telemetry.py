"""Structured logging of the servers: event name plus key-values, bound as context becomes known.

The SDK uses the standard library's logging only (interface §5); servers call `configure_logging`
once.
"""

from __future__ import annotations

import contextlib
import logging
import pathlib
import sys

import structlog
from structlog.typing import FilteringBoundLogger, Processor

Logger = FilteringBoundLogger


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


def configure_logging(level: str = "INFO", log_file: pathlib.Path | None = None) -> None:
    """Send structlog and standard-library records, one line each, to `log_file` or stderr."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    handler: logging.Handler = LogFile(log_file) if log_file else logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.KeyValueRenderer(
                    key_order=["timestamp", "level", "event"], sort_keys=False
                ),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level.lower()),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def get_logger(name: str, **bound: object) -> FilteringBoundLogger:
    """A logger for one component with context already bound."""
    logger: FilteringBoundLogger = structlog.get_logger(name, **bound)
    return logger
