"""The only place where servers start threads: named, ended in order, their errors reported.

A `Worker` is one thread with one job that lives as long as its owner (a commit thread, an index
writer); what it works on comes through a bounded queue of its owner's. A `WorkerPool` runs single
blocking calls for a loop, a `DetachedPool` those that may never come back. Short blocking calls
without an owner use `asyncio.to_thread`.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
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


class DetachedPool:
    """Threads for blocking calls that may never come back: of a file system that hangs.

    Daemons: neither closing nor the end of the process waits for a call that hangs. What was given
    keeps its place until it has ended, so that calls on a file system that hangs do not pile up:
    further callers wait in `run()`, and give up when their own time is over.

    Args:
        name: of the threads, with a number behind it.
        threads: calls that run at a time; they are started when they are needed.
        waiting_max: calls that may wait for a thread.
    """

    def __init__(self, name: str, threads: int, waiting_max: int) -> None:
        self._name = name
        self._threads_max = threads
        self._places = asyncio.Semaphore(threads + waiting_max)
        self._calls: queue.Queue[Callable[[Worker], None] | None] = queue.Queue(
            threads + waiting_max + threads
        )
        """At most as many as there are places, and an end for each thread: no put ever waits."""
        self._workers: list[Worker] = []
        self._unfinished = 0
        self._closed = False

    async def run(self, call: Callable[..., T], *args: object) -> T:
        """The result of `call(*args)` on a thread; raises what it raises.

        A caller that is cancelled takes back a call that did not begin; one that runs goes on, and
        nobody hears its result. Raises IllegalStateError once it is closed.
        """
        await self._places.acquire()
        if self._closed:
            self._places.release()
            raise IllegalStateError(f"{self._name} is closed")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def done(tell: Callable[[], None]) -> None:
            self._places.release()
            self._unfinished -= 1
            if not answer.done():
                tell()

        def work(worker: Worker) -> None:
            if answer.cancelled():
                return worker.tell(done, _nothing)
            try:
                result = call(*args)
            except BaseException as error:  # noqa: BLE001 - the caller's, whatever it is
                return worker.tell(done, lambda error=error: answer.set_exception(error))
            return worker.tell(done, lambda: answer.set_result(result))

        self._unfinished += 1
        self._calls.put_nowait(work)
        if len(self._workers) < min(self._threads_max, self._unfinished):
            self._start(loop)
        return await answer

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        def body() -> None:
            while (work := self._calls.get()) is not None:
                work(worker)

        worker = Worker(f"{self._name}-{len(self._workers)}", body, _raised)
        self._workers.append(worker)
        worker.start(loop)

    async def close(self, timeout_s: float) -> bool:
        """End the threads that end within `timeout_s`; whether all did."""
        if not self._closed:
            self._closed = True
            for _ in self._workers:
                self._calls.put_nowait(None)
        return await asyncio.to_thread(self._join, timeout_s)

    def _join(self, timeout_s: float) -> bool:
        until_s = time.monotonic() + timeout_s
        return all([one.join(max(until_s - time.monotonic(), 0)) for one in self._workers])


def _nothing() -> None:
    """Nobody waits any more."""


def _raised(error: BaseException) -> None:
    """Of a thread whose calls hand on what they raise: a fault of this module."""
    raise error
