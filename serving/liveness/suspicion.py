"""Which brokers must be replaced, from what their heartbeats say. Pure.

Being wrong costs a hand-over and never data (ledger §8.3); being late costs everybody who waits.
Rules:

- HB-1 The first WATCHERS registered brokers, by id, watch all others; the rest watches nobody.
- HB-2 A broker is suspected at once when its address refuses connections or another process
  answers there, and else once it was silent for its limit.
- HB-3 Only a registered broker acts, and only when it suspects each one that stands before it: the
  leader, or a deputy of a leader that is gone. Two that act at once do the same thing.
- HB-4 When more than one is watched and all of them are silent, nobody is replaced for silence: it
  is this broker that does not hear. Their sessions decide.
- HB-5 Who was replaced for silence more than FREE_REPLACEMENTS times and came back has twice the
  limit for each further time, up to LIMIT_FACTOR_MAX times; one replacement is forgotten after each
  CALM_S. A slow broker keeps its partitions after a while.
- HB-6 A pause of this process is no silence of others: each limit is longer by the pause.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from octavo.runtime.invariant import invariant

WATCHERS = 3
"""A leader and two deputies."""
FREE_REPLACEMENTS = 1
LIMIT_FACTOR_MAX = 8
CALM_S = 60.0
"""After so long without a replacement one of them is forgotten."""
COUNTED_MAX = 4
"""Replacements of one broker that are remembered: with one more the limit does not grow."""
REMEMBERED_MAX = 1_000
"""Brokers whose replacements are remembered; beyond it the oldest one is forgotten."""


class Peer(NamedTuple):
    """One life of a broker, as registered."""

    broker_id: str
    process_nonce: bytes
    address: str


class Replace(NamedTuple):
    """Take the registration of this life away, and then its bundles; `replaced` or `kept` tells."""

    peer: Peer
    why: str


class _Watched:
    __slots__ = ("gone", "heard_s", "peer", "replacing")

    def __init__(self, peer: Peer, now_s: float) -> None:
        self.peer = peer
        self.heard_s = now_s
        self.gone = ""
        """Why the process surely is not there any more."""
        self.replacing = False


class _Past(NamedTuple):
    """A broker that was replaced for silence."""

    times: int
    at_s: float


class Suspicion:
    """What one broker thinks of the others.

    Args:
        me: this broker's id.
        silence_s: without an answer for this long a broker is suspected.
    """

    def __init__(self, me: str, *, silence_s: float) -> None:
        self._me = me
        self._silence_s = silence_s
        self._order: list[str] = []
        self._watched: dict[str, _Watched] = {}
        self._past: dict[str, _Past] = {}

    # --- events ---------------------------------------------------------------------------------

    def members(self, registered: Sequence[Peer], now_s: float) -> None:
        """These are registered now; those that are new to this broker are heard now."""
        self._order = sorted(peer.broker_id for peer in registered)
        watches = self._me in self._order[:WATCHERS]  # HB-1
        before, self._watched = self._watched, {}
        for peer in registered:
            if not watches or peer.broker_id == self._me:
                continue
            known = before.get(peer.broker_id)
            if known is None or known.peer != peer:
                known = _Watched(peer, now_s)
            self._watched[peer.broker_id] = known

    def watched(self) -> list[Peer]:
        """Whom to send heartbeats, in order."""
        return [self._watched[name].peer for name in self._order if name in self._watched]

    def answered(self, peer: Peer, process_nonce: bytes, now_s: float) -> None:
        """A heartbeat sent to `peer` was answered by this process."""
        known = self._find(peer)
        if known is None:
            return
        if process_nonce != peer.process_nonce:
            known.gone = "another process answers at its address"
            return
        known.heard_s = max(known.heard_s, now_s)
        known.gone = ""

    def refused(self, peer: Peer) -> None:
        """Nobody listens at its address."""
        known = self._find(peer)
        if known is not None:
            known.gone = "its address refuses connections"

    def stalled(self, pause_s: float, now_s: float) -> None:
        """This process could not hear anybody for `pause_s` (HB-6)."""
        for known in self._watched.values():
            known.heard_s = min(now_s, known.heard_s + pause_s)

    def replaced(self, peer: Peer, now_s: float) -> None:
        """Its registration is gone by our doing."""
        known = self._find(peer)
        if known is None or known.gone:
            return
        count = min(self._replacements(peer.broker_id, now_s) + 1, COUNTED_MAX)
        self._past.pop(peer.broker_id, None)
        self._past[peer.broker_id] = _Past(count, now_s)
        if len(self._past) > REMEMBERED_MAX:
            del self._past[next(iter(self._past))]

    def kept(self, peer: Peer) -> None:
        """It could not be replaced now; it may be tried again."""
        known = self._find(peer)
        if known is not None:
            known.replacing = False

    def _find(self, peer: Peer) -> _Watched | None:
        known = self._watched.get(peer.broker_id)
        return known if known is not None and known.peer == peer else None

    # --- decisions ------------------------------------------------------------------------------

    def due(self, now_s: float) -> list[Replace]:
        """Whom to replace now; each life is named once until `kept`."""
        if self._me not in self._order or not self._leads(now_s):
            return []
        deaf = self._hears_nobody(now_s)
        found: list[Replace] = []
        for name in self._order:
            known = self._watched.get(name)
            if known is None or known.replacing or not self._suspects(known, now_s):
                continue
            if not known.gone and deaf:
                continue  # HB-4
            known.replacing = True
            silent_s = now_s - known.heard_s
            found.append(Replace(known.peer, known.gone or f"silent for {silent_s:.1f} s"))
        return found

    def suspected(self, now_s: float) -> frozenset[str]:
        """Who of the watched ones is gone or silent now."""
        watched = self._watched.items()
        return frozenset(name for name, known in watched if self._suspects(known, now_s))

    def next_deadline_s(self) -> float | None:
        """When somebody may be due though nothing happens; None: nobody is watched."""
        waited = [known for known in self._watched.values() if not known.replacing]
        if not waited:
            return None
        return min(0.0 if k.gone else k.heard_s + self._silence_s for k in waited)

    def _limit_s(self, name: str, now_s: float) -> float:
        return self._silence_s * self._factor(name, now_s)

    def _factor(self, name: str, now_s: float) -> int:
        beyond = max(0, self._replacements(name, now_s) - FREE_REPLACEMENTS)
        return min(LIMIT_FACTOR_MAX, 1 << beyond)

    def _replacements(self, name: str, now_s: float) -> int:
        past = self._past.get(name)
        return 0 if past is None else max(0, past.times - int((now_s - past.at_s) / CALM_S))

    def _is_silent(self, known: _Watched, now_s: float) -> bool:
        return now_s - known.heard_s >= self._limit_s(known.peer.broker_id, now_s)

    def _suspects(self, known: _Watched, now_s: float) -> bool:
        return bool(known.gone) or self._is_silent(known, now_s)

    def _leads(self, now_s: float) -> bool:
        """HB-3."""
        if self._me not in self._order[:WATCHERS]:
            return False
        before = self._order[: self._order.index(self._me)]
        return all(
            name in self._watched and self._suspects(self._watched[name], now_s) for name in before
        )

    def _hears_nobody(self, now_s: float) -> bool:
        watched = self._watched.values()
        return len(watched) > 1 and all(
            not known.gone and self._is_silent(known, now_s) for known in watched
        )

    def validate(self) -> None:
        """Raises InvariantViolation when a rule that holds between any two events is broken."""
        invariant(self._me not in self._watched, "nobody watches himself")
        invariant(self._watched.keys() <= set(self._order), "who is watched is registered")
        watches = self._me in self._order[:WATCHERS]
        invariant(watches or not self._watched, "only the first ones watch")
        invariant(len(self._past) <= REMEMBERED_MAX, "what is remembered is bounded")
