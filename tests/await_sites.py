"""Strikes the awaits of a package one at a time, and knows which there are.

Every task that a run starts is watched: each time one of its coroutines is resumed is a step. A
step's site is the chain of awaits that the task waits in, outermost first, so the same request is
another site when another part waits for it. At the step asked for, a fault acts: it may do
something to the world, and may raise in the place of what the await would have given. It acts as
the task goes on, or, if asked to, already as it begins to wait there.
"""

from __future__ import annotations

import ast
import asyncio
import contextvars
import gc
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator
from types import CodeType, ModuleType
from typing import Any, NamedTuple

Place = tuple[str, int]
"""File and line of an await; of a task that has not begun, those of its coroutine."""
Site = tuple[Place, ...]
Fault = Callable[[], BaseException | None]


class Step(NamedTuple):
    """The `occurrence`-th time (from 1) that a task goes on at `site`."""

    site: Site
    occurrence: int


_WATCH: contextvars.ContextVar[Watch] = contextvars.ContextVar("watch")


class Watch:
    """One run: what its tasks await, and at which step the fault acts."""

    def __init__(
        self,
        files: Collection[str],
        at: Step | None = None,
        fault: Fault | None = None,
        *,
        waiting: bool = False,
    ) -> None:
        self.files = files
        self.at = at
        self.fault = fault
        self.seen: Counter[Site] = Counter()
        self.waiting = waiting
        """The fault acts as the wait before the step begins; what it returns is of no matter."""
        self.struck = False
        self.struck_task = ""
        """Name of the task that was struck."""
        self.cancels = False
        """The fault cancels the task that goes on."""
        self.tasks: list[asyncio.Task[Any]] = []

    def start(self, coro: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
        """Run `coro` and all that it starts under this watch."""
        context = contextvars.copy_context()
        context.run(_WATCH.set, self)
        return asyncio.get_running_loop().create_task(coro, context=context)

    def step(self, coro: Awaitable[object]) -> BaseException | None:
        """A task goes on; what to raise there."""
        site = site_of(coro, self.files)
        self.seen[site] += 1
        return None if self.waiting else self._strike(Step(site, self.seen[site]))

    def waits(self, coro: Awaitable[object]) -> None:
        """A task begins to wait."""
        if self.waiting and not self.struck:
            site = site_of(coro, self.files)
            self._strike(Step(site, self.seen[site] + 1))

    def _strike(self, step: Step) -> BaseException | None:
        if self.struck or self.fault is None or self.at != step:
            return None
        task = asyncio.current_task()
        assert task is not None
        self.struck, self.struck_task = True, task.get_name()
        return self.fault()


def site_of(coro: object, files: Collection[str]) -> Site:
    """Where a suspended coroutine is, as far as it is in `files`."""
    places: list[Place] = []
    while coro is not None:
        if type(coro).__name__ in _UNNAMED:
            coro = next(
                (held for held in gc.get_referents(coro) if hasattr(held, "ag_frame")), None
            )
            continue
        frame = next((found for name in _FRAMES if (found := getattr(coro, name, None))), None)
        if frame is not None and frame.f_code.co_filename in files:
            places.append((frame.f_code.co_filename, frame.f_lineno))
        coro = next((found for name in _INNER if (found := getattr(coro, name, None))), None)
    return tuple(places)


_FRAMES = ("cr_frame", "ag_frame", "gi_frame")
_INNER = ("cr_await", "ag_await", "gi_yieldfrom")
_UNNAMED = ("async_generator_asend", "async_generator_athrow")
"""Steps of an async generator, which have no attribute that leads to it."""


def task_factory(
    loop: asyncio.AbstractEventLoop, coro: Any, **options: Any
) -> asyncio.Task[object]:
    """Watches the tasks of watched runs whose coroutine is in the watch's files."""
    watch = options.get("context", contextvars.copy_context()).get(_WATCH)
    code: CodeType | None = getattr(coro, "cr_code", None)
    if watch is None or code is None or code.co_filename not in watch.files:
        return asyncio.Task(coro, loop=loop, **options)
    task: asyncio.Task[object] = asyncio.Task(_stepped(coro, watch), loop=loop, **options)
    task.add_done_callback(lambda _: coro.close())  # one that never began is not reported
    if task.get_name().startswith("Task-"):
        task.set_name(coro.__qualname__)
    watch.tasks.append(task)
    return task


async def _stepped(coro: Coroutine[Any, Any, object], watch: Watch) -> object:
    return await _Watched(coro, watch)


class _Watched:
    """Hands values and exceptions to and from a coroutine, and strikes between."""

    def __init__(self, coro: Coroutine[Any, Any, object], watch: Watch) -> None:
        self._coro, self._watch = coro, watch

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._coro.__await__()
        value: Any = None
        error: BaseException | None = None
        while True:
            if not isinstance(error, GeneratorExit):
                error = self._watch.step(self._coro) or error
                if self._watch.cancels:
                    error = yield from self._cancelled()
            try:
                waited = inner.send(value) if error is None else inner.throw(error)
            except StopIteration as done:
                return done.value
            finally:
                value, error = None, None  # an error kept here would keep this frame, and itself
            self._watch.waits(self._coro)
            try:
                value = yield waited
            except BaseException as thrown:  # noqa: BLE001  handed on to the coroutine
                error = thrown

    def _cancelled(self) -> Generator[Any, Any, BaseException]:
        """Cancel the running task for good: it is suspended for a turn, and met there."""
        self._watch.cancels = False
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            yield
        except asyncio.CancelledError as error:
            return error
        raise AssertionError("a cancelled task went on")


def awaits_of(module: ModuleType, *, but: Collection[str] = ()) -> dict[Place, str]:
    """Each `await` of a module with its text; those in functions named in `but` left out."""
    file = module.__file__
    assert file is not None
    found: dict[Place, str] = {}
    source = inspect.getsource(module)

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef) and node.name in but:
            return
        if isinstance(node, ast.Await):
            found[file, node.lineno] = ast.get_source_segment(source, node) or ""
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(source))
    return found
