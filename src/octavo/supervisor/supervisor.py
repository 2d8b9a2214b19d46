"""Runs one local cluster: starts it in order, keeps cluster.json true, stops it in order.

The supervisor never restarts a child by itself: whoever kills a process on purpose wants to see it
down. It says so, goes on with the rest, and starts the child again when asked.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Literal, NamedTuple

import psutil

from octavo.metadata.embedded_server import EmbeddedMetadataServer
from octavo.runtime.address import join_address
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import IllegalStateError, NotReady, OctavoError
from octavo.runtime.system_errors import explained
from octavo.runtime.tasks import TaskOwner
from octavo.supervisor import layout
from octavo.supervisor.child import Child, describe_exit
from octavo.supervisor.cluster_file import (
    ClusterFile,
    folder_identity,
    read_cluster_file,
    write_cluster_file,
)
from octavo.supervisor.disks import keeps_space_because, read_only_because
from octavo.supervisor.health import bookie_info, is_serving
from octavo.supervisor.leftovers import end_leftovers
from octavo.supervisor.lock import DataDirLock
from octavo.supervisor.spec import ClusterSpec, Role

READY_POLL_S = 0.05
LATE_POLL_S = 1.0
STILL_WAITING_EVERY_S = 5.0
DISK_LOOK_EVERY_S = 10.0
SUPERVISOR = "supervisor"

EventKind = Literal["waiting", "starting", "ready", "down", "killed", "leftover", "trouble"]
"""waiting: a start goes on and this is what it waits for. trouble: something failed without which
the cluster goes on.
"""


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
        self._folder = ""
        """Identity of the data folder: one put in its place later is somebody else's."""
        self._starting = True
        self._stopping = False
        self._restarting: set[str] = set()
        self._ending: set[str] = set()
        """Children whose end is meant: it is not announced as a loss."""

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
            folder=self._folder,
            port=self._spec.port,
        )

    async def start(self) -> None:
        """Start all and return when each child is ready; on failure nothing is left running.

        Where the folder was a cluster before, a child that cannot start does not keep the others
        down as long as enough of them serve (`ClusterSpec.enough`): that is said, it stays down.
        """
        self._spec.data_dir.mkdir(parents=True, exist_ok=True)
        self._lock.acquire()
        self._folder = folder_identity(self._spec.data_dir)
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
                await self._all_ready(role, may_miss=old is not None)
            self._starting = False
            self._tasks.spawn(self._watch_disks(), name="watch disks")
        except BaseException:
            await self.stop()
            raise

    async def _start_metadata(self, port: int | None) -> None:
        if port is None:
            return
        folder = self._spec.data_dir / layout.METADATA_FOLDER
        folder.mkdir(exist_ok=True)
        address = join_address(self._spec.host, port)
        self._say("waiting", "metadata", f"metadata starting on {address}")
        self._metadata = EmbeddedMetadataServer(folder, self._clock)
        # Children die with their supervisor and leftovers were ended: nobody holds an old session.
        await self._metadata.start(port, self._spec.host, clients_are_dead=True)

    async def _launch(self, child: Child) -> None:
        await child.start()
        name = child.spec.name
        self._watchers[name] = self._tasks.spawn(self._watch(child), name=f"watch {name}")
        if self._starting:
            self._write_file()  # a folder that cannot be written is no place for a cluster
        else:
            self._write_file_or_say()
        self._ending.discard(name)
        self._say("starting", name, f"{name} starting on {child.spec.address}")

    async def _all_ready(self, role: Role, *, may_miss: bool) -> None:
        waiting = [child for child in self._children.values() if child.spec.role == role]
        enough = self._spec.enough(role) if may_miss else len(waiting)
        self._say("waiting", role, "waiting for " + ", ".join(c.spec.name for c in waiting))
        missing: dict[str, NotReady] = {}

        async def wait(child: Child) -> None:
            try:
                await self._wait_ready(child)
            except NotReady as error:
                missing[child.spec.name] = error
                if len(waiting) - len(missing) < enough:
                    raise

        await _all(wait(child) for child in waiting)
        for name, error in missing.items():
            self._say("down", name, f"going on without {name}: {error.cause} ({error.hint})")
            if self._children[name].running:
                self._tasks.spawn(self._wait_late(self._children[name]), name=f"late {name}")

    async def _wait_late(self, child: Child) -> None:
        """A child that was slow is ready after all, whenever that is."""
        while child.running and not await is_serving(child.spec.health_address):
            await self._clock.sleep(LATE_POLL_S)
        if child.running:
            self._is_ready(child)

    async def _wait_ready(self, child: Child) -> None:
        name, limit_s = child.spec.name, self._spec.start_timeout_s
        began = self._clock.monotonic()
        next_word_s = STILL_WAITING_EVERY_S
        while not await is_serving(child.spec.health_address):
            waited_s = self._clock.monotonic() - began
            if not child.running:
                said = child.complaint()
                raise NotReady(
                    f"{name} ended while starting ({describe_exit(child.exit_code or 0)}): "
                    f"{said.cause}",
                    hint=f"{said.hint}; log: {child.spec.log}" if said.hint else _read(child),
                )
            if waited_s > limit_s:
                raise NotReady(f"{name} was not ready within {limit_s:.0f} s", hint=_read(child))
            if waited_s > next_word_s:
                next_word_s += STILL_WAITING_EVERY_S
                self._say(
                    "waiting",
                    name,
                    f"still waiting for {name}, {waited_s:.0f} s of at most {limit_s:.0f}; "
                    f"its log ends with: {child.last_event() or 'nothing yet'}",
                )
            await self._clock.sleep(READY_POLL_S)
        self._is_ready(child)

    def _is_ready(self, child: Child) -> None:
        if child.state == "starting":
            child.state = "ready"
            self._write_file_or_say()
            self._say("ready", child.spec.name, f"{child.spec.name} ready on {child.spec.address}")

    async def _watch(self, child: Child) -> None:
        code = await child.wait()
        if self._stopping:
            return
        name = child.spec.name
        if self._metadata is not None:
            # A process that was waited for is dead: others take over without waiting for its lease.
            await self._metadata.end_sessions_of(name)
        self._write_file_or_say()
        told = f"{name} is down ({describe_exit(code)})"
        if not self._starting and name not in self._ending:
            told += (
                f"; the cluster goes on without it. Log: {child.spec.log}. "
                f"Start it again: octavo restart {name} --data {self._spec.data_dir}"
            )
        self._say("down", name, told)

    async def _watch_disks(self) -> None:
        """Say when a bookie stops taking records, and when it does again (6.13); and when it
        gives no space back, and why (6.14)."""
        read_only: set[str] = set()
        keeping: dict[str, str] = {}
        while True:
            for child in self._children.values():
                if child.spec.role != "bookie" or child.state != "ready":
                    continue
                name = child.spec.name
                info = await bookie_info(child.spec.health_address)
                if info is None:
                    continue
                why = read_only_because(child.entry(), info, self._spec.data_dir)
                if why is not None and name not in read_only:
                    read_only.add(name)
                    self._say("trouble", name, why)
                elif why is None and name in read_only:
                    read_only.discard(name)
                    self._say("ready", name, f"{name} takes records again")
                kept = keeps_space_because(child.entry(), info)
                if kept is not None and kept != keeping.get(name):
                    self._say("trouble", name, kept)
                keeping[name] = kept or ""
            await self._clock.sleep(DISK_LOOK_EVERY_S)

    async def restart(self, name: str, *, gently: bool = False) -> None:
        """Start a child again and wait until it is ready.

        One that runs is killed first, or `gently` asked to stop, and killed if it takes too long.
        Raises IllegalStateError while another restart of it goes on.
        """
        child = self._children.get(name)
        if child is None:
            raise IllegalStateError(
                f"no process called {name!r} here", hint=f"known: {', '.join(self._children)}"
            )
        if name in self._restarting:
            raise IllegalStateError(f"{name} is being restarted already", hint="wait for that")
        self._restarting.add(name)
        self._ending.add(name)
        try:
            if child.running and gently:
                self._say("waiting", name, f"waiting for {name} to stop")
                if not await child.stop(self._spec.stop_timeout_s):
                    self._say("killed", name, f"{name} did not stop in time and was killed")
            elif child.running:
                await child.kill()
            await self._watchers[name]
            await self._launch(child)
            try:
                await self._wait_ready(child)
            except NotReady:
                if child.running:  # it may be at work for long, on an index that was lost
                    self._tasks.spawn(self._wait_late(child), name=f"late {name}")
                raise
        finally:
            self._restarting.discard(name)
            self._ending.discard(name)

    async def start_down(self) -> None:
        """Start every child that is down (SIGHUP). What fails is said, it ends nothing else."""
        down = [
            name
            for name, child in self._children.items()
            if not child.running and name not in self._restarting
        ]
        for outcome in await asyncio.gather(*map(self.restart, down), return_exceptions=True):
            if isinstance(outcome, OctavoError | OSError):
                self._say("trouble", SUPERVISOR, f"not started again: {outcome}")
            elif outcome is not None:
                raise outcome

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
            self._write_file_or_say()
        self._lock.release()

    def _write_file(self) -> None:
        if folder_identity(self._spec.data_dir) != self._folder:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(self._spec.data_dir))
        write_cluster_file(self._spec.data_dir, self.cluster)

    def _write_file_or_say(self) -> None:
        """A full disk must not end the cluster: what is written stays behind until it works."""
        try:
            self._write_file()
        except OSError as error:
            self._say("trouble", SUPERVISOR, f"cluster.json is out of date: {explained(error)[0]}")

    def _say(self, kind: EventKind, name: str, text: str) -> None:
        self._on_event(ClusterEvent(kind, name, text))


def _read(child: Child) -> str:
    return f"read {child.spec.log}"


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run together; the first failure ends the others and is raised as itself."""
    try:
        async with asyncio.TaskGroup() as group:
            for coro in work:
                group.create_task(coro)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
