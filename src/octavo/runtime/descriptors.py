"""Descriptors of a process: the three standard ones, and how many it may have."""

from __future__ import annotations

import contextlib
import os
import resource

DESCRIPTORS_MAX = 1 << 20
"""No server asks for more, where the system sets no limit."""
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


def descriptor_limit() -> int:
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> None:
    """Let this process open as many files as its hard limit allows.

    The soft limit of many shells, 1,024, is for programs that call select(), which no server does.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # some systems allow less than they tell
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
