"""The life of `octavo up`: start the cluster, wait for a reason to stop, stop it.

Reasons: SIGINT or SIGTERM; under `--control` also the word `stop` or the end of standard input.
Control mode is how `octavo.testing` drives a cluster: one command per line in, one JSON object per
line out, and a parent that dies closes the pipe.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable

from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import InvalidRequest, InvariantViolation, OctavoError
from octavo.runtime.invariant import invariant
from octavo.runtime.process import STOP_SIGNALS, handled_signals
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.unexpected import watch_loop
from octavo.supervisor.cluster_file import ClusterFile
from octavo.supervisor.control import Answer, ControlServer, Tell, is_supported
from octavo.supervisor.spec import ClusterSpec
from octavo.supervisor.supervisor import SUPERVISOR, ClusterEvent, Supervisor

CONTROL_LINE_BYTES_MAX = 4096


async def serve(
    spec: ClusterSpec,
    *,
    on_event: Callable[[ClusterEvent], None],
    on_up: Callable[[ClusterFile], None],
    control: bool = False,
) -> None:
    """Run the cluster until told to stop.

    Raises what kept it from starting, and what broke the metadata server that lives in here: its
    children are stopped in good order, they are processes of their own.
    """
    stop = asyncio.Event()
    broken: list[BaseException] = []

    def on_broken(error: BaseException) -> None:
        broken.append(error)
        stop.set()

    watch_loop(on_broken)
    listeners: list[Callable[[ClusterEvent], None]] = [on_event]

    def tell_all(event: ClusterEvent) -> None:
        for listener in listeners:
            listener(event)

    supervisor = Supervisor(spec, clock=SystemClock(), entropy=SystemEntropy(), on_event=tell_all)
    requests: ControlServer | None = None
    tasks = TaskOwner("serve")
    starting = Starting(supervisor, stop)
    with handled_signals(STOP_SIGNALS, starting.on_signal):
        try:
            if not await starting.run():
                return
            requests = await _take_requests(supervisor, listeners)
            on_up(supervisor.cluster)
            if control:
                tasks.spawn(_obey(supervisor, stop), name="control")
            with handled_signals(
                (signal.SIGHUP,),
                lambda: tasks.spawn(supervisor.start_down(), name="start down"),
            ):
                await stop.wait()
            if broken:
                raise InvariantViolation(f"the supervisor failed: {broken[0]!r}") from broken[0]
        finally:
            if requests is not None:
                await requests.close()
            await tasks.close()
            await supervisor.stop()


async def _take_requests(
    supervisor: Supervisor, listeners: list[Callable[[ClusterEvent], None]]
) -> ControlServer | None:
    """Obey `octavo restart`; without the socket for it the cluster runs all the same."""

    async def obey(words: list[str], tell: Tell) -> None:
        match words:
            case ["restart", name]:

                def about_it(event: ClusterEvent) -> None:
                    if event.name == name:
                        tell(Answer(event.kind, event.name, event.text))

                listeners.append(about_it)
                try:
                    await supervisor.restart(name, gently=True)
                finally:
                    listeners.remove(about_it)
            case _:
                raise InvalidRequest(f"unknown request {' '.join(words)!r}")

    if not is_supported():
        return None
    server = ControlServer(supervisor.cluster.folder, obey)
    try:
        await server.start()
    except OSError as error:
        why = f"`octavo restart` will not work: {error}"
        listeners[0](ClusterEvent("trouble", SUPERVISOR, why))
        return None
    return server


class Starting:
    """The start of a cluster, which a signal takes back; afterwards signals set `stop`."""

    def __init__(self, supervisor: Supervisor, stop: asyncio.Event) -> None:
        self._supervisor = supervisor
        self._stop = stop
        self._task: asyncio.Task[object] | None = None
        """Who starts, for as long as it does."""

    def on_signal(self) -> None:
        """The handler of signals that stop."""
        self._stop.set()
        if self._task is not None:
            self._task.cancel()

    async def run(self) -> bool:
        """Start; False when a signal arrived first (the start is then taken back)."""
        me = self._task = asyncio.current_task()
        invariant(me is not None, "serve() runs in a task")
        try:
            await self._supervisor.start()
        except asyncio.CancelledError:
            if not self._stop.is_set() or me is None:
                raise
            me.uncancel()
            return False
        finally:
            self._task = None
        return True


async def _obey(supervisor: Supervisor, stop: asyncio.Event) -> None:
    reader = asyncio.StreamReader(limit=CONTROL_LINE_BYTES_MAX)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        words = line.decode("utf-8", "replace").split()
        match words:
            case ["restart", name]:
                try:
                    await supervisor.restart(name)
                    answer(ClusterEvent("ready", name, "restarted"), event="restarted")
                except OctavoError as error:
                    answer(ClusterEvent("down", name, str(error)), event="failed")
            case ["stop"]:
                break
            case _:
                answer(ClusterEvent("down", "", f"unknown command {words}"), event="failed")
    stop.set()


def answer(happened: ClusterEvent, *, event: str | None = None) -> None:
    """Write one event as a JSON line to standard output (control mode)."""
    line = {"event": event or happened.kind, "name": happened.name, "text": happened.text}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
