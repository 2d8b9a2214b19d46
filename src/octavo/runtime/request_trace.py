"""The trace that a request belongs to: for log lines, and what outlives the request goes without.

It is held by the context of the request's own task. What is started meanwhile and lives on, a
partition that is loaded for it or the heartbeats of a member say, does not speak in its name:
`TaskOwner` starts tasks in `context_of_no_request`.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Generator
from contextlib import contextmanager

_TRACE_ID: contextvars.ContextVar[str] = contextvars.ContextVar("trace_id", default="")
_FORGET: dict[Callable[[], object], None] = {}


def current_trace_id() -> str:
    """32 hexadecimal digits; empty when no trace is being served."""
    return _TRACE_ID.get()


@contextmanager
def logged_trace(trace_id: str) -> Generator[None]:
    """Log lines of this block have the field `trace_id`; empty: they have none."""
    token = _TRACE_ID.set(trace_id)
    try:
        yield
    finally:
        _TRACE_ID.reset(token)


def also_forget(forget: Callable[[], object]) -> None:
    """Have `forget` called in each context that is made without a request; once is enough.

    For a library that keeps the present span in a context variable of its own.
    """
    _FORGET[forget] = None


def context_of_no_request() -> contextvars.Context | None:
    """For a task that outlives the present request; None: there is nothing to leave out."""
    if not _TRACE_ID.get() and not _FORGET:
        return None
    context = contextvars.copy_context()
    context.run(_leave_out)
    return context


def _leave_out() -> None:
    _TRACE_ID.set("")
    for forget in _FORGET:
        forget()
