"""Run small programs that each show one fault, and count their verdicts. Run by `make cases`.

A case is a file `NN-name.py` whose last line on stdout is its verdict: `case: RIGHT …` (exit code
0), `case: WRONG …` (1), `case: SKIPPED why` (77: this machine cannot) or `case: BROKEN …` (2: it no
longer fits the code). Cases run one after the other, for several of them judge by time. The last
line printed is `cases: right=R wrong=W skipped=S`, with ` broken=B` behind it when there are any.

Exit codes: 0 when nothing is wrong or broken, also when the folder is not here (which is said); 1
otherwise; 2 for a folder or a name that selects nothing.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT_S = 600.0
"""Longest that one case may take; each has a shorter limit of its own."""

VERDICTS = ("RIGHT", "WRONG", "SKIPPED", "BROKEN")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one case said: one of `VERDICTS` and the words behind it."""

    verdict: str
    words: str


def read_verdict(output: str, code: int | None) -> Outcome:
    """The verdict in the last line of a case; anything else, or a wrong exit code, is BROKEN."""
    lines = [line for line in output.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    mark, _, rest = last.partition(" ")
    verdict, _, words = rest.partition(" ")
    expected = {"RIGHT": 0, "WRONG": 1, "SKIPPED": 77, "BROKEN": 2}
    if mark == "case:" and expected.get(verdict) == code:
        return Outcome(verdict, words)
    how = "did not end in time" if code is None else f"exit code {code}"
    return Outcome("BROKEN", f"no verdict ({how}): {last[:200]}")


def run_case(path: pathlib.Path, log: pathlib.Path, limit_s: float = LIMIT_S) -> Outcome:
    """Run one case in a process group of its own, so that nothing it started outlives it."""
    env = {**os.environ, "PYTHONSAFEPATH": "1"}
    with log.open("wb") as errors:
        child = subprocess.Popen(
            [sys.executable, str(path)],
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        try:
            output, _ = child.communicate(timeout=limit_s)
            code: int | None = child.returncode
        except subprocess.TimeoutExpired:
            output, code = b"", None
        finally:
            _end_group(child)
    return read_verdict(output.decode("utf-8", "replace"), code)


def _end_group(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):  # everybody had left already
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if child.stdout is not None:
        child.stdout.close()


def chosen(folder: pathlib.Path, names: list[str]) -> list[pathlib.Path]:
    """The case files of a folder, all of them or those whose names begin with one of `names`."""
    found = sorted(folder.glob("[0-9]*.py"))
    return [path for path in found if not names or path.name.startswith(tuple(names))]


def summary(counts: collections.Counter[str]) -> str:
    """The last line."""
    line = f"cases: right={counts['RIGHT']} wrong={counts['WRONG']} skipped={counts['SKIPPED']}"
    return line + (f" broken={counts['BROKEN']}" if counts["BROKEN"] else "")


def main() -> int:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(prog="make cases", description=__doc__)
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="where the cases lie")
    parser.add_argument("names", nargs="*", help="beginnings of file names, such as 07 or 31-late")
    asked = parser.parse_args()
    if not asked.folder.is_dir():
        print(f"cases: there is no folder {asked.folder} here, nothing was run")
        return 0
    paths = chosen(asked.folder, asked.names)
    if not paths:
        print(f"cases: nothing in {asked.folder} matches {' '.join(asked.names) or '[0-9]*.py'}")
        return 2
    # A shell starts background jobs with SIGINT ignored, and children would inherit that: cases
    # about Ctrl-C must not depend on how they were started.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    counts: collections.Counter[str] = collections.Counter()
    logs = pathlib.Path(tempfile.mkdtemp(prefix="octavo-cases-"))
    for path in paths:
        began = time.monotonic()
        outcome = run_case(path, logs / f"{path.stem}.log")
        counts[outcome.verdict] += 1
        took_s = time.monotonic() - began
        print(f"{path.stem}: {outcome.verdict} {outcome.words} ({took_s:.0f} s)", flush=True)
    if counts["WRONG"] or counts["BROKEN"]:
        print(f"cases: what they wrote to stderr is in {logs}")
    print(summary(counts))
    return 1 if counts["WRONG"] or counts["BROKEN"] else 0


if __name__ == "__main__":
    sys.exit(main())
