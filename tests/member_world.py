"""Members of a group as the SDK has them, at a real coordinator, in a hostile little world.

Replies are lost, requests arrive twice or late, coordinators move, processes freeze, callbacks take
long, raise, and are interrupted before they begin. `MemberWorld` plays events and judges after each
what must hold: GP-5 for what members hand out, GP-6 for what they commit, RB11's order for what the
user hears and the coordinator is told, RB10, RB12, RB13; and once the world is kind, GP-3.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from octavo.client.messaging.membership.member_core import MemberCore
from octavo.client.messaging.membership.values import (
    Action,
    Beat,
    Begin,
    Drop,
    Duty,
    GiveUp,
    MemberSettings,
    MemberState,
    Refused,
    Slot,
    Start,
    Stop,
    Task,
    Told,
)
from octavo.proto import group_records
from octavo.proto.group_records import OffsetKey, Subscription
from octavo.runtime.entropy import SeededEntropy
from octavo.serving.groups.core import GroupLimits
from octavo.serving.groups.request_checks import PartitionLimits
from octavo.serving.groups.values import (
    CommitReply,
    Committer,
    Heartbeat,
    HeartbeatReply,
    OffsetToCommit,
    Refusal,
)
from tests.group_shell import Shell, topics

SESSION_S, INTERVAL_S, IDLE_S = 45.0, 3.0, 60.0
LIMIT_S = SESSION_S - 2 * INTERVAL_S
LIMITS = PartitionLimits(
    group=GroupLimits(session_timeout_s=SESSION_S, heartbeat_interval_s=INTERVAL_S, members_max=10)
)
PARTITIONS = 4
READS_T = Subscription(frozenset({"t"}), rebalance_timeout_s=IDLE_S)
FINAL = {
    Refusal.UNKNOWN_MEMBER_ID: Refused.FENCED,
    Refusal.FENCED_MEMBER_EPOCH: Refused.FENCED,
    Refusal.FENCED_INSTANCE_ID: Refused.FATAL,
}


def slot_of(slot: group_records.Slot) -> Slot:
    return Slot(slot.topic_id.removeprefix("id-"), slot.partition, slot.topic_id.encode())


def told_slot(slot: Slot) -> group_records.Slot:
    return group_records.Slot(slot.topic_id.decode(), slot.partition)


@dataclass
class Sent:
    """A heartbeat under way."""

    beat: Beat
    token: int | None = None
    """At the coordinator."""
    late_at_s: float = 0.0
    sent_s: float = 0.0


@dataclass(eq=False)
class Process:
    """One consumer's process: what its shell knows and what its user saw."""

    name: str
    core: MemberCore
    instance_id: str | None = None
    sent: list[Sent] = field(default_factory=lambda: list[Sent]())
    """The one waited for; and those given up, which may still arrive."""
    waits_for: int | None = None
    handed_out: set[Slot] = field(default_factory=lambda: set[Slot]())
    """What its user may get records of."""
    told: set[Slot] = field(default_factory=lambda: set[Slot]())
    """Assigned, as the user heard."""
    looking_up: list[Begin] = field(default_factory=lambda: list[Begin]())
    committing: list[Duty] = field(default_factory=lambda: list[Duty]())
    callback: Duty | None = None
    """The user is in it."""
    unacknowledged: set[Slot] = field(default_factory=lambda: set[Slot]())
    """To be revoked or lost, and the callback is not over."""
    heard_s: float = 0.0
    """When the last heartbeat was sent that was answered."""
    frozen: bool = False
    thawed: bool = False
    """It stood still, and neither its timer nor its user came to anything since."""
    away_since_s: float | None = None
    alive: bool = True
    absent: bool = False
    """Its user is busy elsewhere, and asks for no records."""
    unknown: bool = False
    """The outcome of its last heartbeat is."""
    assigned: dict[int, set[Slot]] = field(default_factory=lambda: {0: set[Slot]()})
    """By number, as it was told."""
    replaced: bool = False
    """Somebody took its instance id while it lived."""


class MemberWorld:
    core_type: type[MemberCore] = MemberCore

    def __init__(self, seed: int, core_type: type[MemberCore] | None = None) -> None:
        self.rng = random.Random(seed)
        self.shell = Shell(topics(t=PARTITIONS), LIMITS)
        self.core_type = core_type or self.core_type
        self.processes: list[Process] = []
        self.events = 0
        self.hand_overs = 0
        self.losses = 0

    @property
    def now_s(self) -> float:
        return self.shell.now_s

    @property
    def alive(self) -> list[Process]:
        return [one for one in self.processes if one.alive]

    def start(self, instance_id: str | None = None) -> Process:
        number = len(self.processes)
        settings = MemberSettings(
            instance_id=instance_id,
            auto_commit=number % 3 != 2,
            max_poll_interval_s=IDLE_S,
            first_sequence=int(self.now_s * 1000) * 1024,
        )
        core = self.core_type(settings, SeededEntropy(number))
        process = Process(f"m{number}", core, instance_id)
        self.processes.append(process)
        self.act(process, core.subscribe(READS_T, self.now_s))
        return process

    # -- what a shell does

    def act(self, process: Process, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Beat():
                    self._send(process, action)
                case GiveUp(sequence):
                    assert process.waits_for == sequence, "GiveUp of another heartbeat"
                    process.waits_for = None
                    process.unknown = True
                case Stop(slots):
                    process.handed_out.difference_update(slots)
                    process.unacknowledged.update(process.told.intersection(slots))
                case Drop(slots):
                    process.handed_out.difference_update(slots)
                case Begin():
                    process.looking_up.append(action)
                case Start(slots):
                    assert process.told.issuperset(slots), "RB11: handed out before on_assign"
                    process.handed_out.update(slots)
                case _:
                    pass
        process.core.validate()
        if process.core.state is not MemberState.LEAVING:
            assert process.core.owned.issuperset(process.handed_out), "handed out, not owned"

    def _send(self, process: Process, beat: Beat) -> None:
        assert process.waits_for is None, "RB10: two heartbeats at once"
        held = set(process.told)
        if process.callback is not None and process.callback.task is Task.ASSIGNED:
            held.difference_update(process.callback.slots)  # its own when that is over
        lost = held - process.core.owned
        duty = process.core.duty
        if beat.epoch >= 0:
            assert duty is None or duty.task is not Task.LOST, "RB12: before on_lost"
            assert not lost, f"RB11: the coordinator hears of {lost} before the user is through"
            assert beat.subscription or not process.unknown, "RB10: an outcome is unknown"
            process.unknown = False
            if beat.epoch:
                carried = process.assigned[beat.applied]
                assert carried >= held, f"RB11: {held} and {beat.applied}, {carried}, carried out"
            if beat.owned is not None:
                assert beat.owned.issuperset(held), "RB11: owned is not what the user has"
        process.waits_for = beat.sequence
        process.sent.append(Sent(beat, None, self.now_s + INTERVAL_S + 3.0, self.now_s))

    def _deliver(self, process: Process, sent: Sent) -> None:
        beat = sent.beat
        if beat.epoch == 0 and process.instance_id is not None and process.alive:
            for other in self.processes:
                if other is not process and other.instance_id == process.instance_id:
                    other.replaced = True
        owned = None if beat.owned is None else frozenset(map(told_slot, beat.owned))
        sent.token = self.shell.heartbeat(
            "g",
            Heartbeat(
                process.name,
                beat.epoch,
                process.instance_id,
                beat.subscription,
                owned,
                beat.sequence,
                beat.seen,
                beat.applied,
            ),
        )

    def _receive(self, process: Process, sent: Sent, reply: HeartbeatReply) -> None:
        process.sent.remove(sent)
        if process.waits_for != sent.beat.sequence or not process.alive:
            return
        process.waits_for = None
        core, sequence = process.core, sent.beat.sequence
        if reply.refusal is None:
            process.heard_s = sent.sent_s
            slots = reply.assigned
            assigned = None if slots is None else frozenset(map(slot_of, slots))
            if assigned is not None:
                process.assigned[reply.number] = set(assigned)
            told = Told(reply.epoch, reply.number, assigned, INTERVAL_S, SESSION_S)
            assert reply.epoch >= core.epoch or core.leaving, "GP-2"
            self.act(process, core.answered(sequence, told, self.now_s))
        elif reply.refusal in FINAL:
            self.act(process, core.refused(sequence, FINAL[reply.refusal], self.now_s))
        else:
            process.unknown = True
            self.act(process, core.unanswered(sequence, self.now_s))

    # -- events

    def deliver(self, process: Process) -> None:
        for sent in process.sent:
            if sent.token is None:
                self._deliver(process, sent)
                return

    def deliver_again(self, process: Process) -> None:
        """A request arrives twice; nobody waits for the second answer."""
        for sent in process.sent:
            if sent.token is not None and process.waits_for == sent.beat.sequence:
                token = sent.token
                self._deliver(process, sent)
                if token in self.shell.answers:
                    sent.token = token
                return

    def receive(self, process: Process) -> None:
        for sent in list(process.sent):
            reply = self.shell.answers.get(sent.token or 0)
            if reply is not None:
                assert isinstance(reply, HeartbeatReply)
                self._receive(process, sent, reply)
                return

    def lose(self, process: Process) -> None:
        """The request or its answer is lost: its time will be over."""
        if process.sent:
            process.sent.remove(self.rng.choice(process.sent))

    def go_on(self, process: Process, *, short: bool = False) -> None:
        """Everything that concerns one member works for a moment."""
        self.deliver(process)
        self.shell.settle()
        self.receive(process)
        self.look_up(process)
        self.committed(process)
        self.called(process)
        self.poll(process, short=short)

    def expire(self, process: Process) -> None:
        waits = process.waits_for
        if waits is None:
            return
        late = [one for one in process.sent if one.beat.sequence == waits]
        if not late or late[0].late_at_s <= self.now_s:
            process.waits_for = None
            process.unknown = True
            self.act(process, process.core.unanswered(waits, self.now_s))

    def poll(self, process: Process, *, short: bool = False) -> None:
        """A reading call of the user's, up to what it has to do first."""
        core = process.core
        if process.callback is not None or core.subscription is None or process.absent:
            return
        process.away_since_s = None
        process.thawed = False
        self.act(process, core.entered(self.now_s))
        self.judge()
        for _ in range(20):
            duty = core.duty
            if duty is None:
                break
            core.begun(duty)
            if duty.task is Task.COMMIT:
                assert process.told.issuperset(duty.slots), "a commit of what nobody got"
                assert process.handed_out.isdisjoint(duty.slots), "RB11: commit before the stop"
                process.committing.append(duty)
                continue
            if not short and self.rng.random() < 0.1:  # interrupted before it began
                self.act(process, core.not_begun(duty))
                continue
            self.call(process, duty)
            process.away_since_s = self.now_s
            core.left(self.now_s)
            if not short and self.rng.random() < 0.4:
                return
            self.called(process)
        process.away_since_s = self.now_s
        core.left(self.now_s)

    def call(self, process: Process, duty: Duty) -> None:
        slots = set(duty.slots)
        process.callback = duty
        match duty.task:
            case Task.ASSIGNED:
                assert process.told.isdisjoint(slots), "RB11: assigned twice"
                assert not process.unacknowledged, "RB11: on_assign before on_revoke"
                process.told |= slots
                self.hand_overs += bool(slots)
            case Task.REVOKED:
                assert slots, "on_revoke of nothing"
                assert process.told >= slots, "RB11: revoked, never assigned"
                assert process.handed_out.isdisjoint(slots), "RB11: revoked and handed out"
            case _:
                self.losses += 1
                assert process.told == slots, "RB12: on_lost of everything"
                assert not process.handed_out, "RB12: lost and handed out"

    def called(self, process: Process) -> None:
        """The callback is over; whether it raised makes no difference."""
        duty = process.callback
        if duty is None:
            return
        process.callback = None
        process.away_since_s = None
        self.act(process, process.core.entered(self.now_s))
        if duty.task is not Task.ASSIGNED:
            process.told.difference_update(duty.slots)
            process.unacknowledged.difference_update(duty.slots)
        self.act(process, process.core.done(duty, self.now_s))

    def committed(self, process: Process) -> None:
        if process.committing:
            duty = process.committing.pop(0)
            self.act(process, process.core.done(duty, self.now_s))

    def look_up(self, process: Process) -> None:
        if process.looking_up:
            begin = process.looking_up.pop(0)
            self.act(process, process.core.positions_known(begin.number, self.now_s))

    def commit(self, process: Process) -> None:
        """GP-6: accepted only from who owns it, and always from who owns it (RB7)."""
        self._tick(process)
        owned = sorted(process.core.owned)
        if not owned or process.core.epoch <= 0:
            return
        slot = self.rng.choice(owned)
        self.events += 1
        one = OffsetToCommit(OffsetKey(*_key(slot)), self.events)
        who = Committer(process.name, process.core.epoch, process.instance_id)
        token = self.shell.commit("g", who, one)
        self.shell.settle()
        reply = self.shell.answers[token]
        assert isinstance(reply, CommitReply)
        if reply.refusal is None:
            others = [
                other.name
                for other in self.alive
                if other is not process
                and slot in other.handed_out
                and not (other.replaced or other.frozen or other.thawed)
            ]
            assert not others, f"GP-6: {process.name} commits {slot} of {others}"

    def stand_still(self) -> None:
        """One that reads does, or one that did goes on."""
        of_interest = [one for one in self.alive if one.frozen or one.handed_out]
        self.freeze(self.rng.choice(of_interest or self.alive))

    def freeze(self, process: Process) -> None:
        process.frozen = not process.frozen
        process.thawed = not process.frozen
        if process.thawed and self.rng.random() < 0.5:  # its user is first
            self.poll(process)

    def turn_away(self, process: Process) -> None:
        process.absent = not process.absent

    def leave(self, process: Process) -> None:
        """close(): the last callback, then the goodbye; its process ends."""
        if process.callback is not None:
            return
        core = process.core
        self.act(process, core.part(self.now_s))
        duty = core.duty
        assert not process.handed_out
        if duty is not None:
            core.begun(duty)
            assert process.told == set(duty.slots), "the last callback is about everything"
            process.told.clear()
            self.act(process, core.done(duty, self.now_s))
        process.told.clear()
        stays = process.instance_id is not None and self.rng.random() < 0.7
        self.act(process, core.leave(self.now_s, stays=stays))
        self.deliver(process)
        self.kill(process)

    def kill(self, process: Process) -> None:
        process.alive = False
        process.handed_out.clear()
        process.told.clear()

    def crash(self) -> None:
        self.shell.crash(stored=self.rng.random() < 0.7, clean=self.rng.random() < 0.3)

    def pass_time(self, seconds: float) -> None:
        """In steps, so that every process that is not frozen meets its deadlines."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            dues = [
                due
                for one in self.alive
                if not one.frozen and (due := one.core.next_deadline_s()) is not None
            ]
            step_s = min([until_s, *(due for due in dues if due > self.now_s)]) - self.now_s
            self.shell.pass_time(min(max(step_s, 0.01), 1.0))
            for process in self.alive:
                if not process.frozen:
                    self._tick(process)
            self.judge()

    def _tick(self, process: Process) -> None:
        process.thawed = False
        self.expire(process)
        due_s = process.core.next_deadline_s()
        if due_s is not None and due_s <= self.now_s:
            self.act(process, process.core.tick(self.now_s))

    # -- what must hold

    def judge(self) -> None:
        """GP-5, RB12, RB13."""
        readers: dict[Slot, Process] = {}
        for process in self.alive:
            if process.frozen or process.thawed or process.replaced:
                continue
            for slot in process.handed_out:
                other = readers.setdefault(slot, process)
                assert other is process, f"GP-5: {slot} at {other.name} and {process.name}"
            if process.handed_out:
                assert self.now_s <= process.heard_s + LIMIT_S, f"RB12: {process.name} went on"
            away_s = process.away_since_s
            if away_s is not None and self.now_s > away_s + IDLE_S:
                assert not process.handed_out, f"RB13: {process.name} went on"

    def step(self) -> None:
        usable = [one for one in self.alive if not one.frozen]
        if not usable or (len(self.alive) < 3 and self.rng.random() < 0.1):
            self.start(self.rng.choice((None, None, "i")))
            return
        process = self.rng.choice(usable)
        some: Callable[[Callable[[Process], object]], Callable[[], object]]
        some = lambda event: lambda: event(process)  # noqa: E731
        events: list[tuple[int, Callable[[], object]]] = [
            (12, some(self.deliver)),
            (12, some(self.receive)),
            (12, some(self.poll)),
            (16, some(self.go_on)),
            (8, some(self.called)),
            (8, some(self.look_up)),
            (8, some(self.committed)),
            (3, some(self.commit)),
            (2, some(self.lose)),
            (1, some(self.deliver_again)),
            (12, self.shell.store),
            (8, self.shell.compute),
            (4, lambda: self.pass_time(self.rng.choice((0.2, 1.0, 3.0)))),
            (2, lambda: self.pass_time(self.rng.choice((10.0, 25.0, 40.0)))),
            (1, self.crash),
            (1, self.stand_still),
            (1, some(self.leave)),
            (1, some(self.turn_away)),
        ]
        if self.rng.random() < 0.01:
            self.kill(process)
            return
        self.rng.choices([event for _, event in events], [weight for weight, _ in events])[0]()
        self.judge()

    def run(self, steps: int = 250) -> MemberWorld:
        for _ in range(self.rng.randrange(1, 4)):
            self.start()
        for _ in range(steps):
            self.step()
        self.finish()
        return self

    def finish(self) -> None:
        """GP-3: in a kind world everybody gets what it shall have, soon."""
        if all(one.core.state is MemberState.FATAL for one in self.alive):
            self.start()
        for process in self.alive:
            process.thawed = process.thawed or process.frozen
            process.frozen = process.absent = False
        for _ in range(60):
            for process in self.alive:
                self._tick(process)
                for _ in range(4):
                    self.go_on(process, short=True)
            self.pass_time(1.0)
        live = [one for one in self.alive if one.core.state is not MemberState.FATAL]
        shares = [one.handed_out for one in live]
        assert sum(map(len, shares)) == PARTITIONS, f"GP-3: {shares}"
        for process in live:
            assert process.core.state is MemberState.STABLE, f"GP-3: {process.core.state}"


def _key(slot: Slot) -> tuple[str, str, int]:
    return slot.topic_id.decode(), slot.topic, slot.partition
