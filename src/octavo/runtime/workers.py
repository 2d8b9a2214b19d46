"""The only place where servers start threads: named, ended in order, their errors reported.

A `Worker` is one thread with one job that lives as long as its owner (a commit thread, an index
writer); what it works on comes through a bounded queue of its owner's. A `WorkerPool` runs single
blocking calls for a loop. Short blocking calls without an owner use `asyncio.to_thread`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from octavo.runtime.errors import IllegalStateError

T = TypeVar("T")


class Worker:
    """One thread that runs `body` once.

    A daemon: a process that must end is not held up by a disk that hangs. An orderly stop tells
    `body` to return, by whatever it waits for, and then joins.

    Args:
        name: of the thread, as debuggers and profilers show it.
        body: returns when it was told to stop, or raises.
        on_failure: called once with what `body` raised, on the loop given to `start()`, or on the
            worker's own thread without one.
    """

    def __init__(
        self, name: str, body: Callable[[], None], on_failure: Callable[[BaseException], None]
    ) -> None:
        self._name = name
        self._body = body
        self._on_failure = on_failure
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Start the thread, once; `loop` is where `tell()` and failures go."""
        if self._thread is not None:
            raise IllegalStateError(f"worker {self._name} was started before")
        self._loop = loop
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until `body` has ended (blocking); at once when it was never started.

        False when it has not within `timeout_s`: a daemon, it ends with the process.
        """
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def tell(self, function: Callable[..., object], *args: object) -> None:
        """From the worker: call `function` on the loop; nothing when that loop is closed."""
        if self._loop is None:
            raise IllegalStateError(f"worker {self._name} was started without a loop")
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            return  # the loop is closed: nobody is left to tell

    def _run(self) -> None:
        try:
            self._body()
        except Exception as error:  # noqa: BLE001 - reported, whatever it was
            if self._loop is None:
                self._on_failure(error)
            else:
                self.tell(self._on_failure, error)


class WorkerPool:
    """Threads that run blocking calls of one loop, oldest call first.

    Args:
        name: of the threads, with a number behind it.
        threads: calls that run at a time; with one, calls never overlap.
        waiting_max: calls that may wait for a thread; callers beyond it wait in `run()`.
    """

    def __init__(self, name: str, threads: int, waiting_max: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._places = asyncio.Semaphore(threads + waiting_max)

    async def run(self, call: Callable[..., T], *args: object) -> T:
        """The result of `call(*args)` on a thread; raises what it raises.

        A caller that is cancelled takes back a call that did not begin; one that runs goes on, and
        nobody hears its result.
        """
        async with self._places:
            return await asyncio.get_running_loop().run_in_executor(self._executor, call, *args)

    async def close(self) -> None:
        """Wait until calls that were given to threads have ended, then end the threads."""
        await asyncio.to_thread(self._executor.shutdown)
