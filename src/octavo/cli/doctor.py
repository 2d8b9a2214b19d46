"""`octavo doctor`: what of this machine and of the way to the cluster is wrong, step by step.

Each check is bounded in time, looks and never repairs, and comes to one finding: ok, warn or fail,
with a next step unless it is ok. What cannot be found out is a warning, not ok.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from octavo.cli.failures import ExitCode
from octavo.cli.finding import Finding, Verdict
from octavo.cli.folder import DEFAULT_DATA, DataOption
from octavo.cli.output import Format, FormatOption, beside_work, emit_rows, write_text
from octavo.cli.session import DEFAULT_BOOTSTRAP, BootstrapOption
from octavo.cli.terminal import wrapped

DOCTOR_TIMEOUT_S = 5.0
_INDENT = " " * 6


def doctor(
    data: DataOption = DEFAULT_DATA,
    output: FormatOption = Format.TABLE,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds for each step to the cluster.", min=0.1)
    ] = DOCTOR_TIMEOUT_S,
) -> int:
    """Check this machine and the way to the cluster.

    Exit code 1: something of this machine fails; 5: only the cluster does. Warnings alone are 0.
    """
    # Imported here: loads the process table, and the SDK at its last steps.
    from octavo.cli.checkup import checks

    findings: list[Finding] = []
    with beside_work():
        for check in checks(data.absolute(), bootstrap, timeout):
            for finding in check():
                findings.append(finding)
                if output is Format.TABLE:
                    write_text(_line(finding))
        if output is not Format.TABLE:
            emit_rows(
                [
                    {
                        "check": one.check,
                        "verdict": one.verdict.value,
                        "found": one.found,
                        "next_step": one.next_step or None,
                    }
                    for one in findings
                ],
                output,
            )
    return exit_code_of(findings)


def exit_code_of(findings: list[Finding]) -> ExitCode:
    """1 when this machine fails, 5 when only the cluster does."""
    failed = [one for one in findings if one.verdict is Verdict.FAIL]
    if not failed:
        return ExitCode.OK
    return ExitCode.UNAVAILABLE if all(one.of_cluster for one in failed) else ExitCode.ERROR


def _line(finding: Finding) -> str:
    head = f"{finding.verdict.value:<4}  {finding.check}: {finding.found}"
    text = wrapped(head, sys.stdout, _INDENT) + "\n"
    if finding.next_step:
        text += wrapped(_INDENT + finding.next_step, sys.stdout, _INDENT) + "\n"
    return text
