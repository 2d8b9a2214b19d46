"""What happens to a partition of groups: plays that say what each rule is, and a sweep of seeds."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from octavo.proto.group_records import (
    OffsetKey,
    OffsetRecord,
    Slot,
    Subscription,
)
from octavo.serving.groups.append_queue import Respond
from octavo.serving.groups.values import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    CommitReply,
    Committer,
    DeleteReply,
    FetchReply,
    Heartbeat,
    HeartbeatReply,
    OffsetToCommit,
    Refusal,
)
from tests.group_shell import LIMITS, NOBODY, Shell, key, known, topics

READS_T = Subscription(frozenset({"t"}))
QUICK = replace(LIMITS, offsets_retention_ms=60_000, offsets_check_interval_ms=10_000)


@dataclass
class Member:
    """As much of a member as its coordinator sees."""

    shell: Shell
    name: str
    group_id: str = "g"
    epoch: int = JOIN_EPOCH
    sequence: int = 0
    seen: int = 0
    owned: frozenset[Slot] = frozenset()
    token: int | None = None
    reads: Subscription = READS_T

    def beat(self) -> None:
        self.take()
        if self.token is not None:
            return
        self.sequence += 1
        self.token = self.shell.heartbeat(
            self.group_id,
            Heartbeat(
                self.name,
                self.epoch,
                None,
                self.reads if self.epoch == JOIN_EPOCH else None,
                self.owned,
                self.sequence,
                self.seen,
                self.seen,
            ),
        )
        self.take()

    def take(self) -> None:
        """Its answer, if there is one; what goes is given up at once."""
        reply = self.shell.answers.get(self.token or 0)
        if reply is None:
            return
        assert isinstance(reply, HeartbeatReply)
        self.token = None
        if reply.refusal in (Refusal.NOT_COORDINATOR, Refusal.THROTTLED):
            return
        if reply.refusal is not None:
            self.epoch, self.owned = JOIN_EPOCH, frozenset()
            return
        self.epoch = reply.epoch
        if reply.assigned is not None:
            self.seen, self.owned = reply.number, frozenset(reply.assigned)

    def leave(self) -> None:
        self.sequence += 1
        beat = Heartbeat(self.name, LEAVE_EPOCH, sequence=self.sequence)
        self.shell.heartbeat(self.group_id, beat)
        self.epoch, self.owned, self.token = JOIN_EPOCH, frozenset(), None

    @property
    def committer(self) -> Committer:
        return Committer(self.name, self.epoch)

    def converge(self) -> None:
        for _ in range(4):
            self.beat()
            self.shell.settle()
            self.take()


def at(offset: int, partition: int = 0, topic: str = "t") -> OffsetToCommit:
    return OffsetToCommit(key(partition, topic), offset, 7, "note")


def refusal_of(shell: Shell, token: int) -> Refusal | None:
    return shell.answers[token].refusal


def committed(shell: Shell, group_id: str = "g") -> dict[int, int]:
    """By partition, after everything is stored."""
    token = shell.fetch(group_id)
    shell.settle()
    reply = shell.answers[token]
    assert isinstance(reply, FetchReply)
    return {slot.partition: value.offset for slot, value in reply.offsets.items() if value}


def offsets_of(shell: Shell, group_id: str) -> dict[str, int]:
    """By topic."""
    found = known(shell.log)
    return {
        record.subject.topic: record.value.offset
        for (group, _, _), record in found.items()
        if group == group_id
        and isinstance(record.value, OffsetRecord)
        and isinstance(record.subject, OffsetKey)
    }


# --- what each rule is -------------------------------------------------------------------------


def o2_o4_a_commit_is_answered_when_it_is_stored(shell: Shell) -> None:
    first = shell.commit("g", NOBODY, at(5))
    second = shell.commit("g", NOBODY, at(6), at(-1, 1), at(1, 9), at(1, 0, "u"))
    fetch = shell.fetch("g", NOBODY, Slot("id-t", 0), Slot("id-t", 1))
    other = shell.fetch("another")
    assert shell.answers.keys() == {other}, "it depends on nothing that is under way"
    shell.store()
    assert shell.answers.keys() == {other, first}
    assert shell.proved[first]
    assert not shell.proved[other]
    shell.store()
    assert shell.answers[second] == CommitReply(
        None,
        {
            Slot("id-t", 1): Refusal.INVALID_COMMIT_OFFSET,
            Slot("id-t", 9): Refusal.UNKNOWN_TOPIC_OR_PARTITION,
            Slot("id-u", 0): Refusal.UNKNOWN_TOPIC_OR_PARTITION,
        },
    )
    value = OffsetRecord(6, 7, "note", shell.now_ms)
    assert shell.answers[fetch] == FetchReply(None, {Slot("id-t", 0): value, Slot("id-t", 1): None})


def o2_metadata_has_a_bound_in_bytes(shell: Shell) -> None:
    fits, too_large = "ä" * 2_048, "ä" * 2_049
    token = shell.commit(
        "g", NOBODY, at(1)._replace(metadata=fits), at(1, 1)._replace(metadata=too_large)
    )
    shell.settle()
    errors = {Slot("id-t", 1): Refusal.OFFSET_METADATA_TOO_LARGE}
    assert shell.answers[token] == CommitReply(None, errors)


def o3_rb7_gp6_who_may_commit(shell: Shell) -> None:
    """O3, RB7: a fenced member's commit is refused, and nothing of it is stored."""
    ghost = shell.commit("g", Committer("a", 1), at(1))
    assert refusal_of(shell, ghost) is Refusal.UNKNOWN_MEMBER_ID
    first, second = Member(shell, "a"), Member(shell, "b")
    first.converge()
    assert len(first.owned) == 3
    before = first.committer
    anybody = shell.commit("g", NOBODY, at(2))
    assert refusal_of(shell, anybody) is Refusal.UNKNOWN_MEMBER_ID
    shell.commit("g", before, at(3, 2))
    for _ in range(3):
        second.converge()
        first.converge()
    assert first.epoch > before.epoch
    kept, given = min(first.owned), min(second.owned)
    stale = shell.commit("g", before, at(4, kept.partition), at(4, given.partition))
    assert refusal_of(shell, stale) is Refusal.STALE_MEMBER_EPOCH
    foreign = shell.commit("g", first.committer, at(4, given.partition))
    assert refusal_of(shell, foreign) is Refusal.STALE_MEMBER_EPOCH
    ahead = shell.commit("g", Committer("a", first.epoch + 1), at(4, kept.partition))
    assert refusal_of(shell, ahead) is Refusal.FENCED_MEMBER_EPOCH
    joining = shell.commit("g", Committer("a", 0), at(4, kept.partition))
    assert refusal_of(shell, joining) is Refusal.STALE_MEMBER_EPOCH
    since = shell.commit("g", before, at(5, kept.partition))  # it held that all the time
    shell.settle()
    assert refusal_of(shell, since) is None
    gone = first.committer
    first.leave()
    late = shell.commit("g", gone, at(9, kept.partition))
    assert refusal_of(shell, late) is Refusal.UNKNOWN_MEMBER_ID
    assert committed(shell) == {2: 3} | {kept.partition: 5}
    asks = shell.fetch("g", gone)
    assert refusal_of(shell, asks) is Refusal.UNKNOWN_MEMBER_ID
    behind = shell.fetch("g", Committer("b", 1))
    assert refusal_of(shell, behind) is Refusal.STALE_MEMBER_EPOCH
    second.converge()
    knows = shell.fetch("g", second.committer)
    shell.settle()
    assert refusal_of(shell, knows) is None


def rb6_rb8_a_fenced_member_after_a_move(shell: Shell) -> None:
    """Who was fenced by the clock stays so at the next coordinator; who was not goes on."""
    member = Member(shell, "a")
    member.converge()
    old = member.committer
    shell.settle()
    shell.crash(stored=True)
    lives = shell.commit("g", old, at(1))
    shell.settle()
    assert refusal_of(shell, lives) is None
    shell.pass_time(LIMITS.group.session_timeout_s)
    shell.settle()
    shell.crash(stored=True, clean=True)
    late = shell.commit("g", old, at(2))
    assert refusal_of(shell, late) is Refusal.UNKNOWN_MEMBER_ID
    assert committed(shell) == {0: 1}


def o3_rb5_a_commit_is_a_sign_of_life(shell: Shell) -> None:
    member = Member(shell, "a")
    member.converge()
    for offset in range(1, 4):
        shell.pass_time(LIMITS.group.session_timeout_s * 0.6)
        shell.commit("g", member.committer, at(offset))
        shell.settle()
    assert committed(shell) == {0: 3}


def o4_rb8_everybody_is_answered_when_it_is_lost(shell: Shell) -> None:
    """Of unknown fate is not "no": NOT_COORDINATOR, and to ask again is safe."""
    member = Member(shell, "a")
    member.converge()
    member.beat()
    under_way = shell.commit("g", member.committer, at(1))
    gathered = shell.commit("g", member.committer, at(2, 1))
    old = shell.core
    shell.crash(stored=True)
    for token in (under_way, gathered):
        assert refusal_of(shell, token) is Refusal.NOT_COORDINATOR
    assert committed(shell) == {0: 1}
    member.take()
    assert member.token is None
    beat = Heartbeat("a", member.epoch)
    again = old.heartbeat(1, "g", beat, now_ms=shell.now_ms, now_s=shell.now_s)
    assert again == [Respond(1, HeartbeatReply(Refusal.NOT_COORDINATOR))]
    assert old.stored(99) == []


def o8_nothing_is_served_before_the_log_is_read(shell: Shell) -> None:
    shell.commit("g", NOBODY, at(1))
    shell.settle()
    core = shell.reader(shell.log)
    asked = core.fetch(1, "g", NOBODY, None)
    assert asked == [Respond(1, FetchReply(Refusal.COORDINATOR_LOAD_IN_PROGRESS))]


def o7_groups_are_deleted_when_nobody_reads(shell: Shell) -> None:
    """O7."""
    member = Member(shell, "a")
    member.converge()
    shell.commit("g", member.committer, at(1))
    shell.settle()
    assert refusal_of(shell, shell.delete_group("g")) is Refusal.NON_EMPTY_GROUP
    assert refusal_of(shell, shell.delete_group("no")) is Refusal.GROUP_ID_NOT_FOUND
    slot = Slot("id-t", 0)
    subscribed = shell.delete_offsets("g", slot)
    assert refusal_of(shell, subscribed) is Refusal.GROUP_SUBSCRIBED_TO_TOPIC
    member.leave()
    shell.settle()
    token = shell.delete_offsets("g", slot)
    assert token not in shell.answers
    shell.settle()
    assert shell.answers[token] == DeleteReply(None)
    shell.commit("g", NOBODY, at(2))
    shell.settle()
    deleted = shell.delete_group("g")
    fetch = shell.fetch("g")
    anew = shell.commit("g", NOBODY, at(1, 1))
    assert not shell.answers.keys() & {deleted, fetch, anew}, "the tombstones are not stored"
    shell.settle()
    assert shell.answers[fetch] == FetchReply(None, {})
    shell.crash(stored=True)
    assert committed(shell) == {1: 1}


def a_target_of_a_group_that_went(shell: Shell) -> None:
    """A group begins anew while a target for its earlier life is computed: it is nobody's."""
    first = Member(shell, "a")
    first.beat()
    shell.store()
    orders, shell.orders = shell.orders, []
    first.leave()
    while shell.under_way:
        shell.store()
    shell.delete_group("g")
    second = Member(shell, "b")
    second.beat()
    shell.orders = orders + shell.orders
    second.converge()
    assert len(second.owned) == 3


def o6_x19_offsets_expire(shell: Shell) -> None:
    """O6, each kind of group by its own clock, over a take-over in the middle."""
    shell = type(shell)(topics(t=3, u=1), QUICK)
    slots = [at(1), at(2, 0, "u")]
    for group_id in ("simple", "left", "moves", "reads"):
        shell.commit(group_id, NOBODY, *slots)
    reader, mover = Member(shell, "a", "reads"), Member(shell, "b", "moves")
    leaver = Member(shell, "c", "left")
    reader.converge()
    leaver.converge()
    mover.beat()  # its target takes for ever: it is not where it shall be
    shell.orders.clear()

    def wait_until(second: int) -> None:
        while shell.now_s < 50 + second:
            shell.pass_time(5.0)
            reader.beat()
            mover.beat()
            shell.store()
            shell.orders.clear()

    wait_until(30)
    leaver.leave()
    wait_until(40)
    shell.crash(stored=True)
    for group_id in ("simple", "left", "moves", "reads"):
        assert len(offsets_of(shell, group_id)) == 2
    wait_until(75)
    assert offsets_of(shell, "simple") == {}
    assert offsets_of(shell, "reads") == {"t": 1}
    assert offsets_of(shell, "moves") == {"t": 1, "u": 2}
    assert offsets_of(shell, "left") == {"t": 1, "u": 2}
    shell.crash(stored=True, clean=True)
    wait_until(110)
    assert offsets_of(shell, "left") == {}
    shell.settle()
    left = {group_id for group_id, _, _ in known(shell.log)}
    assert left == {"moves", "reads"}, "tombstones for what is nothing any more"


def o1_o7_a_deleted_topic_takes_its_offsets(shell: Shell) -> None:
    """O1, O7: a topic that is created again under its name begins without them."""
    shell.commit("g", NOBODY, at(7), at(8, 1))
    shell.settle()
    shell.change_topics(topics())
    assert committed(shell) == {0: 7, 1: 8}, "a directory that does not know it proves nothing"
    shell.do(shell.core.topic_deleted("id-t"))
    shell.settle()
    assert committed(shell) == {}
    assert not known(shell.log)


def f104_bounds_refuse(shell: Shell) -> None:
    """Names, assignors, timeouts, groups and what waits have bounds, with an answer beyond each."""
    limits = replace(LIMITS, groups_max=2, unstored_max=4, name_bytes_max=5)
    shell = type(shell)(None, limits)
    for bad in ("", "äää"):
        token = shell.commit(bad, NOBODY, at(1))
        assert refusal_of(shell, token) is Refusal.INVALID_GROUP_ID
    join = Heartbeat("a", JOIN_EPOCH, None, READS_T, frozenset(), 1)
    wrong = [
        join._replace(member_id="äää"),
        join._replace(instance_id=""),
        join._replace(subscription=READS_T._replace(assignor="best")),
        join._replace(subscription=READS_T._replace(rebalance_timeout_s=float("inf"))),
        join._replace(subscription=READS_T._replace(rebalance_timeout_s=float("nan"))),
    ]
    for beat in wrong:
        assert refusal_of(shell, shell.heartbeat("g", beat)) is Refusal.INVALID_REQUEST
    shell.commit("g", NOBODY, at(1))
    shell.commit("h", NOBODY, at(1))
    full = shell.commit("i", NOBODY, at(1))
    assert refusal_of(shell, full) is Refusal.GROUP_LIMIT_REACHED
    full = shell.heartbeat("i", join)
    assert refusal_of(shell, full) is Refusal.GROUP_LIMIT_REACHED
    shell.commit("g", NOBODY, at(2))
    busy = shell.commit("g", NOBODY, at(3))
    assert refusal_of(shell, busy) is Refusal.THROTTLED
    shell.settle()
    assert committed(shell) == {0: 2}


def a_batch_has_a_bound(shell: Shell) -> None:
    """Beyond it the next event goes into a batch of its own; one event is never divided."""
    shell = type(shell)(topics(t=100), replace(LIMITS, batch_bytes_max=100))
    shell.commit("g", NOBODY, at(1))
    shell.commit("g", NOBODY, *[at(1, partition) for partition in range(50)])
    shell.commit("g", NOBODY, at(2))
    sizes: list[int] = []
    while shell.under_way is not None:
        sizes.append(len(shell.under_way.unstored))
        shell.store()
    assert sizes == [1, 50, 1]


def a_target_of_many_batches(shell: Shell, batches_stored: int) -> None:
    """One of which a part was stored counts for nothing: it is computed again."""
    shell.change_topics(topics(t=40))
    ranges = READS_T._replace(assignor="range")  # of which a newcomer moves almost everything
    members = [Member(shell, name, reads=ranges) for name in ("c", "b", "a", "d")]
    for _ in range(6):
        for member in members:
            member.converge()
    assert sum(len(member.owned) for member in members) == 40
    late = Member(shell, "0", reads=ranges)
    members.append(late)
    late.beat()
    shell.store()
    shell.compute()
    for _ in range(batches_stored):
        shell.store()
    shell.crash(stored=False)
    for _ in range(8):
        for member in members:
            member.converge()
    owned = [slot for member in members for slot in member.owned]
    assert len(owned) == len(set(owned)) == 40


def a_group_of_many_offsets_is_deleted(shell: Shell) -> None:
    shell.change_topics(topics(t=40))
    for number in range(40):
        shell.commit("s", NOBODY, at(number, number))
    shell.settle()
    gone = shell.delete_group("s")
    assert gone not in shell.answers
    shell.settle()
    assert refusal_of(shell, gone) is None
    assert committed(shell, "s") == {}


DIRECTED: list[Callable[[Shell], None]] = [
    o2_o4_a_commit_is_answered_when_it_is_stored,
    o2_metadata_has_a_bound_in_bytes,
    o3_rb7_gp6_who_may_commit,
    rb6_rb8_a_fenced_member_after_a_move,
    o3_rb5_a_commit_is_a_sign_of_life,
    o4_rb8_everybody_is_answered_when_it_is_lost,
    o8_nothing_is_served_before_the_log_is_read,
    o7_groups_are_deleted_when_nobody_reads,
    a_target_of_a_group_that_went,
    o6_x19_offsets_expire,
    o1_o7_a_deleted_topic_takes_its_offsets,
    f104_bounds_refuse,
    a_batch_has_a_bound,
    a_group_of_many_offsets_is_deleted,
]


# --- everything at once ------------------------------------------------------------------------

GROUPS = ("g", "h")


class Sweep:
    """Members and commits of two groups, as a seed has it."""

    def __init__(self, seed: int, shell: Shell) -> None:
        self.rng = random.Random(seed)
        self.shell = shell
        self.members = [Member(shell, name, g) for g in GROUPS for name in ("a", "b")]
        self.offset = 0

    def step(self) -> None:
        shell, member = self.shell, self.rng.choice(self.members)
        group_id, partition = self.rng.choice(GROUPS), self.rng.randrange(3)
        events: list[tuple[int, Callable[[], object]]] = [
            (9, member.beat),
            (6, member.take),
            (7, lambda: self.commit(member)),
            (2, lambda: shell.commit(group_id, NOBODY, at(self.next_offset(), partition))),
            (3, lambda: shell.fetch(group_id, self.rng.choice((NOBODY, member.committer)))),
            (9, shell.store),
            (5, shell.compute),
            (2, lambda: shell.pass_time(self.rng.choice((1.0, 3.0, 20.0)))),
            (2, member.leave),
            (1, lambda: shell.delete_group(group_id)),
            (1, lambda: shell.delete_offsets(group_id, Slot("id-t", partition))),
            (1, lambda: shell.change_topics(topics(t=partition + 1))),
            (1, lambda: shell.crash(stored=partition > 0, clean=partition > 1)),
        ]
        self.rng.choices([event for _, event in events], [weight for weight, _ in events])[0]()

    def next_offset(self) -> int:
        self.offset += 1
        return self.offset

    def commit(self, member: Member) -> None:
        """With what it was told last. Who was told that it is no member any more may not."""
        slot = self.rng.choice(sorted(member.owned) or [Slot("id-t", 0)])
        one = at(self.next_offset(), slot.partition)
        token = self.shell.commit(member.group_id, member.committer, one)
        if member.epoch == JOIN_EPOCH:
            assert token in self.shell.answers, "GP-6: who is no member commits"
            assert refusal_of(self.shell, token) is not None

    def finish(self) -> None:
        """Everything heals; each group's members share what there is."""
        shell = self.shell
        shell.change_topics(topics(t=3))
        shell.settle()
        for _ in range(8):
            for member in self.members:
                member.beat()
                shell.settle()
                member.take()
            shell.pass_time(3.0)
        for group_id in GROUPS:
            owned = [m.owned for m in self.members if m.group_id == group_id]
            assert sum(map(len, owned)) == len({slot for slots in owned for slot in slots}) == 3
        shell.settle()
        shell.judge_log()


def run(seed: int, shell_type: type[Shell] = Shell, steps: int = 60) -> None:
    """Also with a crash after each step, at every twentieth seed."""
    sweep = Sweep(seed, shell_type())
    for _ in range(steps):
        sweep.step()
    sweep.finish()
    for moment in range(steps) if seed % 20 == 0 else ():
        sweep = Sweep(seed, shell_type())
        for step in range(moment + 6):
            sweep.step()
            if step == moment:
                sweep.shell.crash(stored=bool(moment % 2))
        sweep.shell.settle()
        sweep.shell.judge_log()
