"""Runs one local cluster: starts it in order, keeps cluster.json true, stops it in order.

The supervisor never restarts a child by itself: whoever kills a process on purpose wants to see it
down. It says so, goes on with the rest, and starts the child again when asked.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Literal, NamedTuple

import psutil

from octavo.metadata.embedded_server import EmbeddedMetadataServer
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import IllegalStateError, NotReady
from octavo.runtime.tasks import TaskOwner
from octavo.supervisor import layout
from octavo.supervisor.child import Child, describe_exit
from octavo.supervisor.cluster_file import (
    ClusterFile,
    folder_identity,
    read_cluster_file,
    write_cluster_file,
)
from octavo.supervisor.health import is_serving
from octavo.supervisor.leftovers import end_leftovers
from octavo.supervisor.lock import DataDirLock
from octavo.supervisor.spec import ClusterSpec, Role

READY_POLL_S = 0.05
SUPERVISOR = "supervisor"

EventKind = Literal["starting", "ready", "down", "killed", "leftover"]


class ClusterEvent(NamedTuple):
    """Something the person at the terminal wants to know."""

    kind: EventKind
    name: str
    text: str


class Supervisor:
    """Owns the metadata server, the children and the folder's lock from `start()` to `stop()`."""

    def __init__(
        self,
        spec: ClusterSpec,
        *,
        clock: Clock,
        entropy: Entropy,
        on_event: Callable[[ClusterEvent], None],
    ) -> None:
        spec.validate()
        self._spec = spec
        self._clock = clock
        self._entropy = entropy
        self._on_event = on_event
        self._lock = DataDirLock(spec.data_dir)
        self._tasks = TaskOwner(SUPERVISOR)
        self._children: dict[str, Child] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._metadata: EmbeddedMetadataServer | None = None
        self._layout: layout.Layout | None = None
        self._stopping = False

    @property
    def cluster(self) -> ClusterFile:
        """The present state, as cluster.json shows it."""
        if self._layout is None:
            raise IllegalStateError("the cluster was not started")
        return ClusterFile(
            supervisor_pid=os.getpid(),
            supervisor_started=psutil.Process().create_time(),
            bootstrap_servers=self._layout.bootstrap_servers,
            metadata=self._layout.metadata_url,
            metadata_log=str(layout.log_path(self._spec.data_dir, SUPERVISOR)),
            children=tuple(child.entry() for child in self._children.values()),
            bookies=self._spec.bookies,
            brokers=self._spec.brokers,
            folder=folder_identity(self._spec.data_dir),
        )

    async def start(self) -> None:
        """Start everything and return when all children are ready; on failure nothing is left
        running.
        """
        self._spec.data_dir.mkdir(parents=True, exist_ok=True)
        self._lock.acquire()
        try:
            old = read_cluster_file(self._spec.data_dir)
            if old is not None:
                for name in end_leftovers(old):
                    self._say(
                        "leftover", name, f"{name} of an earlier start was still running: ended"
                    )
            self._layout = layout.plan(self._spec, old, self._entropy)
            await self._start_metadata(self._layout.metadata_port)
            for child_spec in self._layout.children:
                self._children[child_spec.name] = Child(child_spec)
            for child in self._children.values():
                await self._launch(child)
            for role in ("bookie", "broker"):
                await self._all_ready(role)
        except BaseException:
            await self.stop()
            raise

    async def _start_metadata(self, port: int | None) -> None:
        if port is None:
            return
        folder = self._spec.data_dir / "metadata"
        folder.mkdir(exist_ok=True)
        self._metadata = EmbeddedMetadataServer(folder, self._clock)
        # Children die with their supervisor and leftovers were ended: nobody holds an old session.
        await self._metadata.start(port, self._spec.host, clients_are_dead=True)

    async def _launch(self, child: Child) -> None:
        await child.start()
        name = child.spec.name
        self._watchers[name] = self._tasks.spawn(self._watch(child), name=f"watch {name}")
        self._write_file()
        self._say("starting", name, f"{name} starting on {child.spec.address}")

    async def _all_ready(self, role: Role) -> None:
        waiting = [child for child in self._children.values() if child.spec.role == role]
        await _all(self._wait_ready(child) for child in waiting)

    async def _wait_ready(self, child: Child) -> None:
        name = child.spec.name
        deadline = self._clock.monotonic() + self._spec.start_timeout_s
        while not await is_serving(child.spec.health_address):
            if not child.running:
                raise NotReady(
                    f"{name} ended while starting ({describe_exit(child.exit_code or 0)}): "
                    f"{child.complaint()}",
                    hint=f"read {child.spec.log}",
                )
            if self._clock.monotonic() > deadline:
                raise NotReady(
                    f"{name} was not ready within {self._spec.start_timeout_s:.0f} s",
                    hint=f"read {child.spec.log}",
                )
            await self._clock.sleep(READY_POLL_S)
        if child.state == "starting":
            child.state = "ready"
            self._write_file()
            self._say("ready", name, f"{name} ready on {child.spec.address}")

    async def _watch(self, child: Child) -> None:
        code = await child.wait()
        if self._stopping:
            return
        name = child.spec.name
        if self._metadata is not None:
            # A process that was waited for is dead: others take over without waiting for its lease.
            await self._metadata.end_sessions_of(name)
        self._write_file()
        self._say(
            "down",
            name,
            f"{name} is down ({describe_exit(code)}); the cluster goes on without it. "
            f"Log: {child.spec.log}. Start it again: kill -HUP {os.getpid()}",
        )

    async def restart(self, name: str) -> None:
        """Start a child again, killing it first if it runs, and wait until it is ready."""
        child = self._children.get(name)
        if child is None:
            raise IllegalStateError(
                f"no process called {name!r} here", hint=f"known: {', '.join(self._children)}"
            )
        if child.running:
            await child.kill()
        await self._watchers[name]
        await self._launch(child)
        await self._wait_ready(child)

    async def start_down(self) -> None:
        """Start every child that is down (SIGHUP)."""
        down = [name for name, child in self._children.items() if not child.running]
        await _all(self.restart(name) for name in down)

    async def stop(self) -> None:
        """Stop brokers, then bookies, then metadata; release the folder. May be called again."""
        self._stopping = True
        for role in ("broker", "bookie"):
            running = [c for c in self._children.values() if c.spec.role == role and c.running]
            gentle = await asyncio.gather(*(c.stop(self._spec.stop_timeout_s) for c in running))
            for child, was_gentle in zip(running, gentle, strict=True):
                if not was_gentle:
                    name = child.spec.name
                    self._say("killed", name, f"{name} did not stop in time and was killed")
        await self._tasks.close()
        if self._metadata is not None:
            await self._metadata.stop()
            self._metadata = None
        if self._layout is not None:
            self._write_file()
        self._lock.release()

    def _write_file(self) -> None:
        write_cluster_file(self._spec.data_dir, self.cluster)

    def _say(self, kind: EventKind, name: str, text: str) -> None:
        self._on_event(ClusterEvent(kind, name, text))


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run together; the first failure ends the others and is raised as itself."""
    try:
        async with asyncio.TaskGroup() as group:
            for coro in work:
                group.create_task(coro)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
