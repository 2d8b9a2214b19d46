"""Runs the `octavo` command and turns whatever happened into an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from octavo.cli.app import app
from octavo.cli.failures import ExitCode, OutputClosed, report, say_error
from octavo.cli.output import discard_output, output_is_closed


def run(words: Sequence[str]) -> int:
    """Run one command line and return its exit code; nothing is raised."""
    try:
        code = app(list(words), prog_name="octavo", standalone_mode=False)
        if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison]
            sys.stdout.flush()
    except OutputClosed:
        discard_output()
        return ExitCode.OK
    except BrokenPipeError as error:
        if not output_is_closed():
            return report(error)
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


def _usage(error: typer.TyperException) -> int:
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "octavo")
    message = getattr(error, "format_message", error.__str__)()
    say_error(message, f"see `{path} --help`")
    return ExitCode.USAGE
