"""What a fork leaves of gRPC, and so whether a forked child may have a client of its own.

gRPC's threads do not survive a fork, and its core cannot be started anew while it believes that
they run: a client in such a child would wait for ever. When the last channel of a process is
closed, the core ends with all its threads; a child that is forked then starts with a clean one. So
two questions are asked just before each fork: is a client open, and do any of gRPC's threads live?
Until the fork is done no client opens: other handlers run in between, and other threads with them.
`docs/forking.md` has the recipes that follow from it.
"""

from __future__ import annotations

import gc
import os
import pathlib
import sys
import threading

from octavo.runtime.errors import ForkedClientError

THREADS = pathlib.Path("/proc/self/task")
"""One folder for each thread of this process, where the system has that."""
_GRPC_THREADS = ("grpc_", "event_engine", "lifeguard")
"""How the names of gRPC's own threads begin."""
_OFF = ("", "0", "false", "no")

CLIENT_THREAD = "octavo-client"
"""Name of the thread of a sync client."""

_gate = threading.RLock()
"""Held from just before a fork until it is done, and while a client begins to open channels."""
_forking = False
"""Whether the gate is held by a fork."""
_used = False
"""Whether this process started gRPC through this package."""
_open = 0
"""Clients of this process that hold channels."""
_running = False
"""Whether gRPC ran when the fork began that is under way."""
_left_behind = False
"""Whether this process is a child that was forked while gRPC ran, or a child of such a one."""


def claim_grpc() -> None:
    """A client of this process opens channels, until `release_grpc`.

    Raises ForkedClientError where a parent process forked this one while gRPC ran there.
    """
    global _used, _open, _running
    if _left_behind:
        raise ForkedClientError(
            "a client was open in the parent process when it forked this one, so gRPC cannot work "
            "here",
            hint="close the parent's clients before it forks, make them in the children only, or "
            "start workers with spawn or forkserver: docs/forking.md has the recipe for gunicorn, "
            "celery, multiprocessing and ProcessPoolExecutor",
        )
    with _gate:
        _used = True
        _open += 1
        if _forking:  # a handler of the forking thread itself, which the gate lets pass
            _running = True


def release_grpc() -> None:
    """The client has closed its channels."""
    global _open
    _open -= 1


def foreign_client(pid: int) -> ForkedClientError:
    """The error of a call to a client that process `pid` made before it forked this one."""
    return ForkedClientError(f"this client belongs to process {pid}")


def grpc_runs() -> bool:
    """Whether threads of gRPC live, or of a client that is just ending.

    Where threads cannot be listed, whatever was once used is taken to run.
    """
    if any(thread.name == CLIENT_THREAD for thread in threading.enumerate()):
        return True
    try:
        tasks = list(THREADS.iterdir())
    except OSError:
        return _used
    return any(_name(task).startswith(_GRPC_THREADS) for task in tasks)


def _name(task: pathlib.Path) -> str:
    try:
        return (task / "comm").read_text()
    except OSError:  # it ended meanwhile
        return ""


def _before() -> None:
    global _forking
    _gate.acquire()
    _forking = True
    _look()


def _look() -> None:
    global _running
    _running = False
    if "grpc" not in sys.modules:
        return
    handlers_off = os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "").lower() in _OFF
    if not _used and not handlers_off:
        return  # the program's own use of gRPC, which asked for gRPC's fork handlers
    _running = _open > 0 or grpc_runs()
    if _running and not _open:
        gc.collect()  # a channel in a cycle, such as in the traceback of a failed call
        _running = grpc_runs()


def _after_in_parent() -> None:
    global _forking
    if _forking:  # else the wait for the gate was interrupted
        _forking = False
        _gate.release()


def _after_in_child() -> None:
    global _used, _open, _left_behind, _forking, _gate
    _left_behind = _left_behind or _running
    _used, _open, _forking = False, 0, False
    _gate = threading.RLock()


os.register_at_fork(
    before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
)
