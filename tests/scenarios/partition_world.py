"""Stories of one partition: real brokers' shells over the ledgers and metadata of a test cluster.

Commands, BROKER being any name: `open BROKER`, `read BROKER [from=]`, `roll BROKER`,
`send BROKER VALUE... [pid= epoch= seq= time= acks=all|one|none]`, `close BROKER`,
`segments BROKER`, `at-time BROKER MS`, `hold`, `release`, `live BOOKIES`,
`recovery-finds none|all`, `lose-reply BROKER OPERATION` (of the metadata store: it happens and
nobody is told), `wait BROKER end=|segments=|degraded=`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from octavo.proto import batch as batches
from octavo.runtime.errors import OctavoError
from octavo.serving.partition.log import ACKS_ALL, ACKS_NONE, ACKS_ONE, Answer
from octavo.serving.partition.read_path import offset_for_time, read_at
from octavo.serving.partition.shell import PartitionShell
from tests.scenarios.language import Handler, Step
from tests.serving_rig import NOW_MS, Broker, Rig, make_batch, until

ACKS = {"all": ACKS_ALL, "one": ACKS_ONE, "none": ACKS_NONE}
QUIET_TURNS = 100
"""So many turns of the loop without an answer: what is left waits for something else."""


class PartitionWorld:
    """A cluster inside one event loop, and the partition `orders-0`."""

    def __init__(self) -> None:
        self._rig = Rig()
        self._brokers: dict[str, Broker] = {}
        self._shells: dict[str, PartitionShell] = {}
        self._said: list[str] = []
        self._sent = 0

    @property
    def handlers(self) -> dict[str, Handler]:
        """One per command."""
        return {
            "open": self._open,
            "send": self._send,
            "read": self._read,
            "roll": self._roll,
            "close": self._close,
            "segments": self._segments,
            "hold": self._hold,
            "release": self._release,
            "live": self._live,
            "recovery-finds": self._recovery_finds,
            "wait": self._wait,
            "lose-reply": self._lose_reply,
            "at-time": self._at_time,
        }

    async def happened(self) -> list[str]:
        """Answers that came, and owners that gave up."""
        quiet = 0
        before = -1
        while quiet < QUIET_TURNS:
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(self._said) == before else 0
            before = len(self._said)
        for name, broker in self._brokers.items():
            self._said += [f"{name} gave up: {error.code}" for error in broker.gone]
            broker.gone.clear()
        said, self._said = self._said, []
        return said

    async def close(self) -> None:
        """End the cluster."""
        await self._rig.close()

    async def _open(self, step: Step) -> None:
        name = step.args[0]
        broker = self._brokers.setdefault(name, self._rig.broker(broker_id=name))
        self._shells[name] = shell = await broker.open()
        self._said.append(
            f"{name} serves {shell.log_start} to {shell.high_watermark}, epoch {shell.owner_epoch}"
        )

    async def _send(self, step: Step) -> None:
        self._sent += 1
        number = self._sent
        batch = make_batch(
            [value.encode() for value in step.args[1:]],
            timestamp_ms=step.number("time", NOW_MS),
            pid=step.number("pid", -1),
            epoch=step.number("epoch", -1),
            sequence=step.number("seq", -1),
        )

        def answered(answer: Answer) -> None:
            if isinstance(answer, OctavoError):
                self._said.append(f"#{number} {answer.code}")
                return
            if answer.base_offset < 0:
                self._said.append(f"#{number} taken")
                return
            again = ", again" if answer.duplicate else ""
            self._said.append(f"#{number} stored at {answer.base_offset}{again}")

        acks = ACKS[step.options.get("acks", "all")]
        try:
            self._shells[step.args[0]].append(batch, acks, answered)
        except OctavoError as error:
            self._said.append(f"#{number} refused: {error.code}")

    async def _read(self, step: Step) -> None:
        shell = self._shells[step.args[0]]
        offset = step.number("from", shell.log_start)
        while offset < shell.high_watermark:
            found = await read_at(shell.view(), offset, 1 << 20, at_least_one=True)
            for payload in found.batches:
                rows = batches.decode_rows(payload)
                for at, value in zip(rows.offsets, rows.values, strict=True):
                    if at >= offset:
                        self._said.append(f"{at} {(value or b'').decode()}")
            offset = found.next_offset
        self._said.append(f"end {shell.high_watermark}")

    async def _at_time(self, step: Step) -> None:
        found = await offset_for_time(self._shells[step.args[0]].view(), int(step.args[1]))
        self._said.append("none" if found is None else f"offset {found.offset}")

    async def _lose_reply(self, step: Step) -> None:
        self._brokers[step.args[0]].store.faults.lose_reply(step.args[1])

    async def _roll(self, step: Step) -> None:
        self._said.append(f"rolled at {await self._shells[step.args[0]].roll()}")

    async def _close(self, step: Step) -> None:
        await self._shells[step.args[0]].close(1.0)

    async def _segments(self, step: Step) -> None:
        for segment in self._shells[step.args[0]].described():
            end = "open" if segment.end_offset is None else segment.end_offset
            self._said.append(f"{segment.base_offset} to {end}")

    async def _hold(self, step: Step) -> None:
        self._rig.bookies.hold = True
        self._rig.bookies.first_copies = step.options.get("first") == "acks"

    async def _release(self, step: Step) -> None:
        self._rig.bookies.release()

    async def _live(self, step: Step) -> None:
        self._rig.bookies.live = int(step.args[0])
        for writer in self._rig.bookies.writers:  # the ledger client sees that they are back (3.7)
            writer.wants_roll = writer.metadata.quorum.write < self._rig.bookies.live
        self._rig.bookies.release()

    async def _recovery_finds(self, step: Step) -> None:
        all_of_them = step.args[0] == "all"
        self._rig.bookies.survivors = lambda unacknowledged: unacknowledged if all_of_them else 0

    async def _wait(self, step: Step) -> None:
        shell = self._shells[step.args[0]]
        for name, value in step.options.items():
            reached: Callable[[], int] = {
                "end": lambda: shell.high_watermark,
                "segments": lambda: len(shell.described()),
                "degraded": lambda: int(shell.degraded),
            }[name]
            await until(partial(self._reached, shell, reached, int(value)), step.text)

    @staticmethod
    def _reached(shell: PartitionShell, reached: Callable[[], int], wanted: int) -> bool:
        shell.tick()  # as housekeeping does
        return reached() == wanted
