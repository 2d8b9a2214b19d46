"""What one check of `octavo doctor` says: the value between the checks and the command."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Verdict(enum.StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(NamedTuple):
    """What one check found."""

    check: str
    verdict: Verdict
    found: str
    next_step: str = ""
    """What to do; "" when nothing has to be done."""
    of_cluster: bool = False
    """Whether it is the cluster, not this machine, that was looked at."""


Check = Callable[[], Iterator[Finding]]
"""A check yields its findings as it comes to them."""
