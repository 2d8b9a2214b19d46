"""Brokers that watch each other in simulated time, and what must hold whatever happens to them.

Each broker is one `Suspicion`; the world answers its heartbeats, or not: brokers die, stand still
and go on, the store takes registrations away and the living register again as another life. What
is promised is judged by the world's own knowledge, never by the core's.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from octavo.serving.liveness.suspicion import WATCHERS, Peer, Suspicion

SILENCE_S = 1.5
BEAT_S = 0.25
TICK_S = 0.05
LATE_S = 1.0
"""Beyond the limit: what a replacement may take besides, several leaders that die in turn too."""


@dataclass
class Process:
    """One broker as the world knows it."""

    peer: Peer
    core: Suspicion
    life: int = 0
    alive: bool = True
    frozen_until_s: float = 0.0
    frozen_at_s: float = -100.0
    ran_s: float = 0.0
    beats: dict[Peer, float] = field(default_factory=dict[Peer, float])
    since: dict[Peer, float] = field(default_factory=dict[Peer, float])
    """Whom it watches, and since when."""
    replaced: dict[str, int] = field(default_factory=dict[str, int])
    """How often this broker replaced others that lived."""

    def runs(self, now_s: float) -> bool:
        return self.alive and now_s >= self.frozen_until_s


class World:
    """Brokers `a`, `b`, …; each `tick` is TICK_S of everybody's life."""

    def __init__(self, count: int, seed: int, kind: type[Suspicion] = Suspicion) -> None:
        self.random = random.Random(seed)
        self.now_s = 100.0
        self.registered: dict[str, Peer] = {}
        self.processes: dict[str, Process] = {}
        self.broken: list[str] = []
        self.died_s: dict[Peer, float] = {}
        for number in range(count):
            name = chr(ord("a") + number)
            peer = Peer(name, f"{name}0".encode(), f"{name}:1")
            core = kind(name, silence_s=SILENCE_S)
            self.processes[name] = Process(peer, core, ran_s=self.now_s)
            self.registered[name] = peer
        self._tell_members()

    # --- what happens ---------------------------------------------------------------------------

    def kill(self, name: str) -> None:
        process = self.processes[name]
        process.alive = False
        self.died_s[process.peer] = self.now_s

    def freeze(self, name: str, seconds: float) -> None:
        process = self.processes[name]
        if process.runs(self.now_s):
            process.frozen_at_s = self.now_s
        process.frozen_until_s = self.now_s + seconds

    def run(self, seconds: float) -> None:
        ends_s = self.now_s + seconds
        while self.now_s < ends_s:
            self.tick()

    def tick(self) -> None:
        self.now_s += TICK_S
        for process in list(self.processes.values()):
            if process.runs(self.now_s):
                self._live(process)
        self._judge_time()

    def _live(self, process: Process) -> None:
        pause_s = self.now_s - process.ran_s - TICK_S
        process.ran_s = self.now_s
        if pause_s > TICK_S:
            process.core.stalled(pause_s, self.now_s)
        mine = self.registered.get(process.peer.broker_id)
        if mine != process.peer:  # replaced: registers as its next life
            process.life += 1
            name = process.peer.broker_id
            process.peer = process.peer._replace(process_nonce=f"{name}{process.life}".encode())
            self.registered[name] = process.peer
            self._tell_members()
        for peer in process.core.watched() if pause_s <= TICK_S else ():
            self._beat(process, peer)  # after a pause answers are read later than the clock
        orders = process.core.due(self.now_s)
        for order in orders:
            self._judge(process, order.peer)
        for order in orders:
            self._replace(process, order.peer)
        process.core.validate()

    def _beat(self, process: Process, peer: Peer) -> None:
        other = self.processes[peer.broker_id]
        if not other.alive:
            process.core.refused(peer)
        elif other.runs(self.now_s) and self.now_s - process.beats.get(peer, 0.0) >= BEAT_S:
            process.beats[peer] = self.now_s
            process.core.answered(peer, other.peer.process_nonce, self.now_s)

    def _replace(self, by: Process, peer: Peer) -> None:
        if self.random.random() < 0.2:
            by.core.kept(peer)  # the store did not answer
            return
        if self.registered.get(peer.broker_id) == peer:
            del self.registered[peer.broker_id]
            if self.processes[peer.broker_id].alive:
                by.replaced[peer.broker_id] = by.replaced.get(peer.broker_id, 0) + 1
        by.core.replaced(peer, self.now_s)
        self._tell_members()

    def _tell_members(self) -> None:
        for process in self.processes.values():
            if process.alive:
                process.core.members(list(self.registered.values()), self.now_s)
                since = process.since
                process.since = {p: since.get(p, self.now_s) for p in process.core.watched()}

    # --- what must hold -------------------------------------------------------------------------

    def _judge(self, by: Process, peer: Peer) -> None:
        other = self.processes[peer.broker_id]
        order = sorted(self.registered)
        if by.peer.broker_id not in order[:WATCHERS]:
            self.broken.append("HB-1: who does not watch acts")
            return
        for name in order[: order.index(by.peer.broker_id)]:
            if self.processes[name].runs(self.now_s - SILENCE_S / 2):
                self.broken.append("HB-3: a living leader stands before")
        if not other.alive or other.peer != peer:
            return
        silent_s = self.now_s - other.frozen_at_s
        stood_still = other.frozen_until_s > self.now_s - BEAT_S - TICK_S
        limit_s = SILENCE_S * factor(by, peer) - BEAT_S - 2 * TICK_S
        if not stood_still:
            self.broken.append("HB-6: a broker that answered is replaced")
        elif silent_s < limit_s:
            self.broken.append("HB-5: replaced before its limit")
        watched = [self.processes[name] for name in order if name != by.peer.broker_id]
        if len(watched) > 1 and not any(self._is_heard(by, one) for one in watched):
            self.broken.append("HB-4: nobody answers, and somebody is replaced")

    def _is_heard(self, by: Process, other: Process) -> bool:
        """Whether it surely was heard lately, or is known to be dead."""
        limit_s = SILENCE_S * factor(by, other.peer)
        since_s = max(by.since.get(other.peer, self.now_s), by.frozen_until_s)
        stood_s = self.now_s - max(other.frozen_at_s, since_s)
        return not other.alive or other.runs(self.now_s) or stood_s < limit_s

    def _judge_time(self) -> None:
        acting = [
            name
            for name in sorted(self.registered)[:WATCHERS]
            if self.processes[name].runs(self.now_s)
            and self.processes[name].frozen_until_s < self.now_s - LATE_S
        ]
        for name, peer in self.registered.items():
            died_s = self.died_s.get(peer)
            others = [other for other in acting if other != name]
            late = SILENCE_S * 16 + LATE_S if len(self.died_s) < len(self.processes) - 1 else 1e9
            if died_s is not None and others and self.now_s - died_s > late:
                self.broken.append("HB-2: a dead broker stays registered")
                return


def factor(by: Process, peer: Peer) -> int:
    """HB-5, as often as the world saw it."""
    return 1 << min(3, max(0, by.replaced.get(peer.broker_id, 0) - 1))
