"""The three standard descriptors of a process."""

from __future__ import annotations

import os

STANDARD_MAX = 2
"""Descriptors 0 to 2 are standard input, output and error."""


def keep_standard_descriptors() -> None:
    """Open the null device at those of the standard descriptors that are closed.

    Else the next descriptors that the process opens get these numbers: a socket that everything
    printed goes to, or one of the event loop's, at whose closing libuv aborts the process.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= STANDARD_MAX:
        continue
    os.close(opened)
