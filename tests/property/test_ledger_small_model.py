"""The small model of spec/ledger.md §4.6, searched exhaustively.

One entry, one writer, one recoverer; E = Qw = 3, Qa = 2. Messages arrive in any order or never;
bookies crash, and may lose their disk. The question is one: can recovery close without the entry
although the writer collects Qa copies of it? The protocol as specified says no in every reachable
state; each weakened variant must say yes.

Bookies are alike, so a state is the sorted tuple of its three bookies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

QA = 2


class Bookie(NamedTuple):
    """One bookie and the messages between it and the two clients."""

    add: str = "sent"  # sent, queued (accepted, unsynced), stored, gone
    ack: str = ""  # "", sent, counted
    fence: str = ""  # "", queued (volatile flag), durable
    reply: str = "asked"  # fence request: asked, waiting, sent, counted
    read: str = ""  # "", asked, waiting, present, absent, unknown, +present, +absent, +unknown
    age: str = ""  # "", wiped (same identity), reborn (new incarnation, B-25)


class State(NamedTuple):
    """Everything there is."""

    bookies: tuple[Bookie, ...]
    crashes: int
    wipes: int
    closed: bool  # closed without the entry


class Rules(NamedTuple):
    """The protocol, or a weakened variant of it."""

    reads_fence: bool = True  # R-13; off: H1
    answers_durable_fence: bool = True  # B-F2; off: H2
    sees_queued_adds: bool = True  # B-F3, INV-9; off: H3
    negatives: int = 2
    wipe: str = "reborn"  # B-25, or "wiped": rejoins as is


def answer_of(b: Bookie, rules: Rules) -> str:
    """What a read finds."""
    if b.age == "reborn":
        return "unknown"
    return "present" if b.add == "stored" else "absent"


def add_arrives(b: Bookie, rules: Rules) -> Bookie:
    refused = b.fence != "" or b.age == "reborn"
    return b._replace(add="gone" if refused else "queued")


def fence_arrives(b: Bookie, rules: Rules) -> Bookie:
    if b.age == "reborn" or b.fence == "durable":
        return b._replace(reply="sent")
    fence = b.fence or "queued"
    return b._replace(fence=fence, reply="waiting" if rules.answers_durable_fence else "sent")


def read_arrives(b: Bookie, rules: Rules) -> Bookie:
    if b.age == "reborn":
        return b._replace(read="unknown")
    if not rules.sees_queued_adds:
        found = answer_of(b, rules)
        return b._replace(read=found, fence=b.fence or "queued")
    if rules.reads_fence and b.fence != "durable":
        if not rules.answers_durable_fence and b.add != "queued":
            return b._replace(read=answer_of(b, rules), fence=b.fence or "queued")
        return b._replace(read="waiting", fence=b.fence or "queued")
    return b._replace(read="waiting") if b.add == "queued" else b._replace(read=answer_of(b, rules))


def sync(b: Bookie, rules: Rules) -> Bookie:
    if b.add == "queued":
        b = b._replace(add="stored", ack="sent")
    if b.fence == "queued":
        b = b._replace(fence="durable")
    if b.reply == "waiting":
        b = b._replace(reply="sent")
    if b.read == "waiting":
        b = b._replace(read=answer_of(b, rules))
    return b


def crash(b: Bookie, *, kept: bool) -> Bookie:
    """Unsynced records are lost, or kept though no reply left; waiting requests are forgotten."""
    add = b.add
    if add == "queued":
        add = "stored" if kept else "gone"
    fence = "" if b.fence == "queued" else b.fence
    return b._replace(
        add=add,
        fence=fence,
        reply="" if b.reply == "waiting" else b.reply,
        read="+unknown" if b.read == "waiting" else b.read,
    )


def wipe(b: Bookie, rules: Rules) -> Bookie:
    b = crash(b, kept=False)
    return b._replace(add="gone" if b.add == "stored" else b.add, fence="", age=rules.wipe)


def moves_of(b: Bookie, rules: Rules) -> Iterator[Bookie]:
    """Every message that may arrive, and a sync."""
    if b.add == "sent":
        yield add_arrives(b, rules)
    if b.ack == "sent":
        yield b._replace(ack="counted")
    if b.reply == "asked":
        yield fence_arrives(b, rules)
    if b.reply == "sent":
        yield b._replace(reply="counted")
    if b.read == "asked":
        yield read_arrives(b, rules)
    if b.read in ("present", "absent", "unknown"):
        yield b._replace(read="+" + b.read)
    if "queued" in (b.add, b.fence) or "waiting" in (b.reply, b.read):
        yield sync(b, rules)


def successors(s: State, rules: Rules) -> Iterator[State]:
    for i, b in enumerate(s.bookies):
        others = s.bookies[:i] + s.bookies[i + 1 :]

        def having(changed: Bookie, others: tuple[Bookie, ...] = others) -> tuple[Bookie, ...]:
            return tuple(sorted((*others, changed)))

        for moved in moves_of(b, rules):
            yield s._replace(bookies=having(moved))
        if s.crashes and "queued" in (b.add, b.fence):
            for kept in (False, True):
                yield s._replace(bookies=having(crash(b, kept=kept)), crashes=s.crashes - 1)
        if s.wipes and not b.age:
            yield s._replace(bookies=having(wipe(b, rules)), wipes=s.wipes - 1)
    yield from recoverer_moves(s, rules)


def recoverer_moves(s: State, rules: Rules) -> Iterator[State]:
    covered = sum(b.reply == "counted" for b in s.bookies) >= 2  # R-10 for 3,3,2
    asked = any(b.read for b in s.bookies)
    if covered and not asked:
        yield s._replace(bookies=tuple(sorted(b._replace(read="asked") for b in s.bookies)))
    present = any(b.read == "+present" for b in s.bookies)
    absent = sum(b.read == "+absent" for b in s.bookies)
    if not present and absent >= rules.negatives and not s.closed:
        yield s._replace(closed=True)


def is_violated(s: State) -> bool:
    """INV-2: closed without an entry that its writer sees confirmed."""
    return s.closed and sum(b.ack == "counted" for b in s.bookies) >= QA


def explore(rules: Rules, *, crashes: int, wipes: int, limit: int = 400_000) -> tuple[bool, int]:
    """Whether a violation is reachable, and how many states were seen."""
    start = State((Bookie(),) * 3, crashes, wipes, False)
    seen = {start}
    todo = [start]
    while todo:
        state = todo.pop()
        for following in successors(state, rules):
            if following in seen:
                continue
            if is_violated(following):
                return True, len(seen)
            seen.add(following)
            todo.append(following)
        assert len(seen) < limit
    return False, len(seen)


@pytest.mark.parametrize(("crashes", "wipes"), [(0, 0), (1, 0), (0, 1)])
def test_the_protocol_is_safe(crashes: int, wipes: int) -> None:
    violated, states = explore(Rules(), crashes=crashes, wipes=wipes)
    assert not violated
    assert states > 1000


@pytest.mark.parametrize(
    ("rules", "crashes", "wipes"),
    [
        pytest.param(Rules(reads_fence=False), 0, 0, id="H1"),
        pytest.param(Rules(answers_durable_fence=False), 2, 0, id="H2"),
        pytest.param(Rules(sees_queued_adds=False), 0, 0, id="H3"),
        pytest.param(Rules(negatives=1), 0, 0, id="R-14-one-negative"),
        pytest.param(Rules(wipe="wiped"), 0, 1, id="H4-wiped-bookie-rejoins"),
    ],
)
def test_each_hole_is_found(rules: Rules, crashes: int, wipes: int) -> None:
    violated, _ = explore(rules, crashes=crashes, wipes=wipes)
    assert violated
