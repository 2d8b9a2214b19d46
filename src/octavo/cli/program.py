"""Runs the `octavo` command and turns whatever happened into an exit code."""

from __future__ import annotations

import codecs
import io
import sys
from collections.abc import Sequence

import typer

from octavo.cli.app import app
from octavo.cli.failures import ExitCode, OutputClosed, report, say_error
from octavo.cli.output import closed_pipe_is_quiet, discard_output, output_is_closed

FAITHFUL = "octavo.faithful"
"""Name of the error handler of our standard streams."""


def run(words: Sequence[str]) -> int:
    """Run one command line and return its exit code; nothing is raised."""
    _print_anything()
    try:
        code = app(list(words), prog_name="octavo", standalone_mode=False)
        if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison]
            with closed_pipe_is_quiet():
                sys.stdout.flush()
    except OutputClosed:
        discard_output()
        return ExitCode.OK
    except BrokenPipeError as error:
        if not output_is_closed():
            return report(error)
        discard_output()
        return ExitCode.OK
    except SystemExit as end:  # the parser's own answer to a closed pipe while it prints help
        if not output_is_closed():
            return end.code if isinstance(end.code, int) else ExitCode.ERROR
        discard_output()
        return ExitCode.OK
    except typer.BadParameter as error:
        return _usage(error)
    except typer.Abort:
        say_error("stopped: nothing was changed", "")
        return ExitCode.ERROR
    except typer.TyperException as error:
        return _usage(error)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last line of defence
        return report(error)
    return code if isinstance(code, int) else ExitCode.OK


def _print_anything() -> None:
    """No text fails to print.

    What came in as bytes (arguments, paths) goes out as the same bytes, other characters that the
    terminal's encoding lacks as escapes.
    """
    codecs.register_error(FAITHFUL, _faithful)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=FAITHFUL)


def _faithful(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    out = bytearray()
    for character in error.object[error.start : error.end]:
        code = ord(character)
        if 0xDC80 <= code <= 0xDCFF:  # a byte that was no text (PEP 383)
            out.append(code - 0xDC00)
        else:
            out += character.encode("ascii", "backslashreplace")
    return bytes(out), error.end


def _usage(error: typer.TyperException) -> int:
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "octavo")
    message = getattr(error, "format_message", error.__str__)()
    say_error(message, f"see `{path} --help`")
    return ExitCode.USAGE
