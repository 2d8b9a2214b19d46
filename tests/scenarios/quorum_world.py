"""Stories of one ledger's writer: the real QuorumCore, told what each bookie answered.

Commands: `ensemble E Qw Qa`, `add [count]`, `ack SLOT FIRST[-LAST]`, `refuse SLOT FIRST STATUS`,
`fail SLOT STATUS`, `replace SLOT=BOOKIE...`, `commit`, `conflict`, `pass SECONDS`.
"""

from __future__ import annotations

import uuid

from octavo.client.ledger.quorum import QuorumCore
from octavo.client.ledger.quorum_actions import (
    Action,
    ChooseReplacements,
    CommitEnsemble,
    QuorumLimits,
    Resend,
    RetrySlot,
    Stopped,
    WriteLac,
)
from octavo.metadata.ledger_record import Quorum
from octavo.proto.bookie_wire import Status
from octavo.runtime.ids import Member
from tests.scenarios.language import Handler, Step


class QuorumWorld:
    """One handle; time passes only when a story says so."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._said: list[str] = []
        self._lac = -1
        self._core: QuorumCore | None = None

    @property
    def handlers(self) -> dict[str, Handler]:
        """One per command."""
        return {
            "ensemble": self._ensemble,
            "add": self._add,
            "ack": self._ack,
            "refuse": self._refuse,
            "fail": self._fail,
            "replace": self._replace,
            "commit": self._commit,
            "conflict": self._conflict,
            "pass": self._pass,
        }

    async def happened(self) -> list[str]:
        """Actions of the core, and the confirmed end when it moved."""
        core = self._handle
        if core.lac != self._lac:
            self._lac = core.lac
            self._said.append(f"confirmed up to {core.lac}")
        said, self._said = self._said, []
        return said

    async def close(self) -> None:
        """Nothing is open."""

    @property
    def _handle(self) -> QuorumCore:
        assert self._core is not None, "a story begins with `ensemble`"
        return self._core

    async def _ensemble(self, step: Step) -> None:
        size, write, ack = (int(word) for word in step.args)
        members = [self._member(f"bookie-{slot}") for slot in range(size)]
        limits = QuorumLimits(late_failure_delay_s=0.0)
        self._core = QuorumCore(Quorum(size, write, ack), members, now=0.0, limits=limits)

    @staticmethod
    def _member(name: str) -> Member:
        return Member(name, uuid.uuid5(uuid.NAMESPACE_DNS, name))

    async def _add(self, step: Step) -> None:
        for _ in range(int(step.args[0]) if step.args else 1):
            self._said.append(f"entry {self._handle.add(100, self._now_s)}")

    async def _ack(self, step: Step) -> None:
        slot = int(step.args[0])
        first, _, last = step.args[1].partition("-")
        generation = step.number("generation", self._handle.slots.generation(slot))
        self._perform(self._handle.acked(slot, generation, int(first), int(last or first)))

    async def _refuse(self, step: Step) -> None:
        slot, entry = int(step.args[0]), int(step.args[1])
        generation, status = self._handle.slots.generation(slot), Status[step.args[2]]
        self._perform(self._handle.refused(slot, generation, entry, entry, status, self._now_s))

    async def _fail(self, step: Step) -> None:
        slot = int(step.args[0])
        generation, status = self._handle.slots.generation(slot), Status[step.args[1]]
        self._perform(self._handle.slot_failed(slot, generation, status, self._now_s))

    async def _replace(self, step: Step) -> None:
        found = {int(slot): self._member(name) for slot, name in step.options.items()}
        self._perform(self._handle.replacements(found, self._now_s))

    async def _commit(self, step: Step) -> None:
        self._perform(self._handle.change_committed(self._now_s))

    async def _conflict(self, step: Step) -> None:
        self._perform(self._handle.change_conflicted("another writer"))

    async def _pass(self, step: Step) -> None:
        self._now_s += float(step.args[0])
        self._perform(self._handle.tick(self._now_s))

    def _perform(self, actions: object) -> None:
        todo: list[Action] = list(actions)  # type: ignore[call-overload]
        for action in todo:
            match action:
                case Resend():
                    self._said.append(f"send {action.first}-{action.last} to slot {action.slot}")
                case RetrySlot():
                    self._said.append(f"slot {action.slot} is tried again")
                case ChooseReplacements():
                    slots = ", ".join(f"{f.slot} ({f.status.name})" for f in action.failed)
                    self._said.append(f"choose others for slot {slots}")
                case CommitEnsemble():
                    names = " ".join(member.bookie_id for member in action.members)
                    self._said.append(f"metadata: from entry {action.start} on {names}")
                case WriteLac():
                    self._said.append(f"tell members the end {action.lac}")
                case Stopped():
                    self._said.append(f"stopped: {action.reason.value}")
