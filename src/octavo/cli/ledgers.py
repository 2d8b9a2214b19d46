"""`octavo ledger show` and `octavo cluster health`: what the storage looks like now."""

from __future__ import annotations

from typing import Annotated

import typer

from octavo.cli.failures import ExitCode
from octavo.cli.output import Format, FormatOption, Row, emit_one, emit_rows, write_text
from octavo.cli.session import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    BootstrapOption,
    TimeoutOption,
    connected,
)

ledger_app = typer.Typer(help="Look at ledgers.")
cluster_app = typer.Typer(help="Look at the cluster.")
