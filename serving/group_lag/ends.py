"""Tells other brokers where the logs begin and end that this one owns (M4).

The answer comes within a moment, whatever one of the logs costs: what is not known by then is not
told. A broker in doubt proves ends as it does for clients (design.md §12), of a few logs.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

from octavo.proto import peers_pb2 as pb
from octavo.runtime.errors import InvalidRequest, OctavoError
from octavo.runtime.telemetry import get_logger
from octavo.serving.ownership import Ownership
from octavo.serving.partition.core import PartitionStateName
from octavo.serving.partition.read_path import batch_at
from octavo.serving.partition.rereading import reread
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.registry import PartitionRegistry

LOGS_MAX = 10_000
"""Most that one request may name."""
POSITIONS_MAX = 10_000
"""Most positions that it may ask about, over all of its logs."""
ANSWER_S = 0.7
"""How long all that is not known at once may take."""
OPENED_MAX = 64
"""Logs of one request that are opened, because nobody had asked for them yet."""
PROOFS_MAX = 32
"""Logs of one request whose ends are proved, by the metadata store or by a mark, in doubt."""
READS_MAX = 256
"""Positions of one request whose append times are read that are not in the tail's cache."""
AT_ONCE = 8
"""Such steps at a time."""
TOPIC_ID_BYTES = 16
LOGS_IN_A_TURN = 200
"""Logs that are looked at between two turns of the event loop."""

_log = get_logger("octavo.serving.ends")

_Step: TypeAlias = Callable[[], Awaitable[None]]
_Asked: TypeAlias = "tuple[pb.AskedLog, pb.ToldLog]"


class LogEnds:
    """Of the partitions of one broker."""

    def __init__(self, registry: PartitionRegistry, ownership: Callable[[], Ownership]) -> None:
        self._registry = registry
        self._ownership = ownership

    async def tell(self, request: pb.EndsRequest) -> pb.EndsReply:
        """One answer for each log that is asked about; raises InvalidRequest."""
        logs = request.logs
        if len(logs) > LOGS_MAX or sum(len(one.positions) for one in logs) > POSITIONS_MAX:
            raise InvalidRequest(
                f"more than {LOGS_MAX} logs or {POSITIONS_MAX} positions are asked about at once"
            )
        if any(len(one.topic_id) != TOPIC_ID_BYTES for one in logs):
            raise InvalidRequest(f"a topic id has {TOPIC_ID_BYTES} bytes")
        told = [pb.ToldLog() for _ in logs]
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._fill(list(zip(logs, told, strict=True)))
        except TimeoutError:
            _log.debug("ends-not-told", logs=sum(not one.known for one in told))
        return pb.EndsReply(logs=told)

    async def _fill(self, both: list[_Asked]) -> None:
        unopened: list[_Step] = []
        doubted: list[_Asked] = []
        for number, (asked, answer) in enumerate(both, 1):
            if number % LOGS_IN_A_TURN == 0:
                await asyncio.sleep(0)  # requests have their turn
            shell = self._find(asked)
            if shell is None:
                if len(unopened) < OPENED_MAX:
                    unopened.append(partial(self._open, asked, answer))
            elif self._registry.certain():
                _note(shell, answer)
            else:
                doubted.append((asked, answer))
        rest = [one for one in both if not one[1].known]
        await self._tell_times(both)  # before anything that may take long
        proofs = [partial(self._prove, *one) for one in doubted[:PROOFS_MAX]]
        await _together([*proofs, *unopened])
        await self._tell_times(rest)

    def _find(self, asked: pb.AskedLog) -> PartitionShell | None:
        shell = self._registry.find(asked.topic, asked.partition)
        return shell if shell and shell.name.topic_id.bytes == asked.topic_id else None

    async def _prove(self, asked: pb.AskedLog, answer: pb.ToldLog) -> None:
        shell = self._find(asked)
        if shell is None:
            return
        try:
            await shell.prove_end()
        except OctavoError as error:
            _log.debug("end-not-told", partition=str(shell.name), cause=error.cause)
        else:
            _note(shell, answer)

    async def _open(self, asked: pb.AskedLog, answer: pb.ToldLog) -> None:
        """As a client's look-up would: the bundle is taken if it is for this broker (O-2)."""
        ownership = self._ownership()
        bundle = self._registry.bundle(uuid.UUID(bytes=asked.topic_id), asked.partition)
        try:
            await ownership.locate(bundle)
            if ownership.owns(bundle):
                await self._registry.resolve_life(
                    asked.topic, asked.partition, asked.topic_id, ANSWER_S, brief=True
                )
                await self._prove(asked, answer)
        except OctavoError as error:
            _log.debug("end-not-told", topic=asked.topic, cause=error.cause)

    async def _tell_times(self, both: list[_Asked]) -> None:
        steps: list[_Step] = []
        for number, (asked, answer) in enumerate(both, 1):
            if number % LOGS_IN_A_TURN == 0:
                await asyncio.sleep(0)
            wanted = [p for p in asked.positions if max(p, answer.log_start) < answer.end]
            shell = self._find(asked) if wanted and answer.known else None
            if shell is None or shell.state is not PartitionStateName.SERVING:
                continue
            for position in wanted:
                step = partial(_tell_time, shell, position, answer)
                if shell.view().tail.holds(max(position, answer.log_start)):
                    await step()  # it does not wait
                elif len(steps) < READS_MAX:
                    steps.append(step)
        await _together(steps)


def _note(shell: PartitionShell, answer: pb.ToldLog) -> None:
    answer.known = True
    answer.log_start, answer.end = shell.log_start, shell.high_watermark


async def _tell_time(shell: PartitionShell, position: int, answer: pb.ToldLog) -> None:
    try:
        at = max(position, answer.log_start)
        header = await reread(shell.view, lambda view: batch_at(view, at))
    except OctavoError as error:  # trimmed meanwhile, moved, or no bookie tells
        _log.debug("append-time-not-told", partition=str(shell.name), cause=error.cause)
    else:
        if header is not None:
            answer.times.add(position=position, append_ms=header.append_time_ms)


async def _together(steps: list[_Step]) -> None:
    """Take all of the steps, a few at a time."""
    left = iter(steps)

    async def work() -> None:
        for step in left:
            await step()

    async with asyncio.TaskGroup() as group:
        for _ in range(min(AT_ONCE, len(steps))):
            group.create_task(work())
