"""Heartbeats that wait for news of their member, one for each at most (RB5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from octavo.serving.groups.deadlines import Deadlines, Due, DueKey
from octavo.serving.groups.member import Member
from octavo.serving.groups.values import Heartbeat, HeartbeatReply, Refusal, Token


class Answer(NamedTuple):
    """Answer a heartbeat, once everything appended before is durable."""

    token: Token
    reply: HeartbeatReply


class _Held(NamedTuple):
    token: Token
    heartbeat: Heartbeat


class HeldHeartbeats:
    """By member id; each has a deadline among those of its group."""

    def __init__(self, deadlines: Deadlines, interval_s: float) -> None:
        self._of: dict[str, _Held] = {}
        self._deadlines = deadlines
        self._interval_s = interval_s

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._of))

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._of

    def hold(self, token: Token, heartbeat: Heartbeat, now_s: float) -> None:
        """Until it is told, refused or withdrawn; for the heartbeat interval at most."""
        member_id = heartbeat.member_id
        self._of[member_id] = _Held(token, heartbeat)
        self._deadlines.set(DueKey(Due.HELD_HEARTBEAT, member_id), now_s + self._interval_s)

    def has_news(self, member: Member) -> bool:
        """Whether the member does not know yet what is so."""
        told = self._of[member.member_id].heartbeat
        return told.epoch != member.epoch or told.seen != member.number

    def tell(self, member: Member) -> list[Answer]:
        """Answer it, if it waits, with all that is so; a list of owned slots only if it is new."""
        held = self._pop(member.member_id)
        if held is None:
            return []
        assigned = None
        if held.heartbeat.seen != member.number or held.heartbeat.owned is not None:
            assigned = tuple(sorted(member.owned))
        return [Answer(held.token, HeartbeatReply(None, member.epoch, member.number, assigned))]

    def refuse(self, member_id: str, refusal: Refusal) -> list[Answer]:
        """Answer it, if it waits, that its member is not what it was."""
        held = self._pop(member_id)
        return [] if held is None else [Answer(held.token, HeartbeatReply(refusal))]

    def withdraw(self, member_id: str, token: Token) -> None:
        """Whoever sent it is gone: it is not answered, and nothing is told to its connection."""
        held = self._of.get(member_id)
        if held is not None and held.token is token:
            self._pop(member_id)

    def drop(self) -> list[Token]:
        """Whatever waits, to be answered by somebody else."""
        tokens = [held.token for held in self._of.values()]
        self._of.clear()
        return tokens

    def _pop(self, member_id: str) -> _Held | None:
        self._deadlines.clear(DueKey(Due.HELD_HEARTBEAT, member_id))
        return self._of.pop(member_id, None)
