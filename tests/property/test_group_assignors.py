"""S10: every target is complete, valid, balanced, sticky and deterministic, and wrong ones show."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.proto.group_records import Slot
from octavo.runtime.errors import ConfigError
from octavo.serving.groups import assignors
from octavo.serving.groups.assignors import (
    Plan,
    Previous,
    SubscribedTopic,
    Subscriber,
    Target,
    Topics,
    assign,
)

Assign = Callable[[str, Iterable[Subscriber], Topics, Previous], Target]
NAMES = ("uniform", "range", "roundrobin")


class Group:
    """Members and topics that change: one world of the sweep."""

    def __init__(self, rng: random.Random, *, equal: bool) -> None:
        self.rng = rng
        self.equal = equal
        self.made = 0
        self.topics: dict[str, SubscribedTopic] = {}
        self.members: dict[str, Subscriber] = {}
        for _ in range(rng.randint(1, 5)):
            self.add_topic()
        for _ in range(rng.randint(1, 7)):
            self.join()

    def add_topic(self) -> None:
        self.made += 1
        name = self.rng.choice("zyxwvabc") + str(self.made)
        self.topics[f"id{self.made}"] = SubscribedTopic(name, self.rng.randint(0, 9))

    def subscription(self) -> frozenset[str]:
        names = sorted(self.topics)
        if self.equal:
            return frozenset(names)
        return frozenset(self.rng.sample(names, self.rng.randint(0, len(names)))) | {"gone"}

    def join(self) -> None:
        self.made += 1
        member_id = f"{self.rng.choice('qrstab')}{self.made}"
        static = f"s{self.rng.randint(0, 99)}-{self.made}" if self.rng.random() < 0.3 else None
        self.members[member_id] = Subscriber(member_id, self.subscription(), static)

    def step(self) -> None:
        """One thing that happens to a group."""
        what = self.rng.random()
        if what < 0.35:
            self.join()
        elif what < 0.6 and self.members:
            del self.members[self.rng.choice(sorted(self.members))]
        elif what < 0.75:
            topic_id = self.rng.choice(sorted(self.topics))
            topic = self.topics[topic_id]
            self.topics[topic_id] = topic._replace(partitions=topic.partitions + 3)
        elif what < 0.8:  # F027
            topic_id = self.rng.choice(sorted(self.topics))
            topic = self.topics[topic_id]
            if topic.assigned:
                gone = topic.removed | {self.rng.randrange(topic.partitions)}
                self.topics[topic_id] = topic._replace(removed=gone)
        elif what < 0.85:
            self.add_topic()
        elif len(self.topics) > 1:
            del self.topics[self.rng.choice(sorted(self.topics))]
        if self.equal:
            wanted = self.subscription()
            for member_id, member in self.members.items():
                self.members[member_id] = member._replace(topics=wanted)


def owners(target: Target) -> dict[Slot, str]:
    return {slot: member for member, slots in target.items() for slot in slots}


def subscribed(group: Group) -> set[Slot]:
    return {
        Slot(topic_id, number)
        for topic_id, topic in group.topics.items()
        for number in set(range(topic.partitions)) - topic.removed
        if any(topic_id in member.topics for member in group.members.values())
    }


def faults(name: str, group: Group, before: Target, target: Target) -> Iterator[str]:
    """Everything that S10 finds wrong with a target."""
    given = [slot for slots in target.values() for slot in slots]
    if len(given) != len(set(given)):
        yield "given twice"
    if set(given) != subscribed(group):
        yield "not complete"
    if set(target) != set(group.members):
        yield "not every member is named"
    for member_id, slots in target.items():
        member = group.members.get(member_id)
        if member is None or any(slot.topic_id not in member.topics for slot in slots):
            yield "to one who does not read it"
            return
    if name != "uniform":
        return
    load = {member_id: len(slots) for member_id, slots in target.items()}
    if group.equal:
        if load and max(load.values()) - min(load.values()) > 1:
            yield "not balanced"
        yield from sticky_faults(group, before, target)
        return
    for slot, owner in owners(target).items():
        for other in group.members.values():
            if slot.topic_id in other.topics and load[owner] - load[other.member_id] >= 2:
                yield "one move would balance it"
                return


def sticky_faults(group: Group, before: Target, target: Target) -> Iterator[str]:
    """Equal subscriptions: moves are sum over members of max(0, owned - allowed), never more."""
    total, count = len(subscribed(group)), len(group.members)
    if not count:
        return
    low, extra = divmod(total, count)
    held = Counter(
        owner
        for slot, owner in owners(before).items()
        if owner in group.members and slot in subscribed(group)
    )
    allowed = sum(max(0, held[member] - low) for member in group.members)
    keep_more = min(extra, sum(held[member] > low for member in group.members))
    now = owners(target)
    moves = sum(
        now[slot] != owner
        for slot, owner in owners(before).items()
        if owner in group.members and slot in now
    )
    if moves > allowed - keep_more:
        yield f"{moves} moves where {allowed - keep_more} are enough"


def found(name: str, how: Assign, seed: int, *, equal: bool) -> set[str]:
    """What the sweep finds wrong in one world of that seed."""
    rng = random.Random(seed)
    group = Group(rng, equal=equal)
    before: Target = {}
    wrong: set[str] = set()
    for _ in range(6):
        members = list(group.members.values())
        target = how(name, members, group.topics, before)
        wrong.update(faults(name, group, before, target))
        rng.shuffle(members)
        shuffled_topics = dict(rng.sample(sorted(group.topics.items()), len(group.topics)))
        shuffled = dict(rng.sample(sorted(before.items()), len(before)))
        if how(name, members, shuffled_topics, shuffled) != target:
            wrong.add("depends on the order of its input")
        if name == "uniform" and how(name, members, group.topics, target) != target:
            wrong.add("moves without a reason")
        before = target
        group.step()
    return wrong


@given(st.integers(0, 2**32), st.booleans(), st.sampled_from(NAMES))
@settings(max_examples=250, deadline=None)
def test_s10_targets_are_complete_valid_balanced_sticky_and_deterministic(
    seed: int, equal: bool, name: str
) -> None:
    assert found(name, assign, seed, equal=equal) == set()


def _dropping(name: str, members: Iterable[Subscriber], topics: Topics, old: Previous) -> Target:
    target = assign(name, members, topics, old)
    return {member: slots[:-1] if len(slots) > 2 else slots for member, slots in target.items()}


def _doubling(name: str, members: Iterable[Subscriber], topics: Topics, old: Previous) -> Target:
    target = assign(name, members, topics, old)
    for member in target:
        target[member] = (*target[member], *next(iter(target.values()))[:1])
    return target


class _InputOrder(Plan):
    """Members in the order in which they came."""

    def __init__(self, members: Iterable[Subscriber], topics: Topics) -> None:
        given = list(members)
        super().__init__(given, topics)
        self.members = given
        self.number = {member.member_id: index for index, member in enumerate(given)}
        self.readers = {
            topic_id: [i for i, member in enumerate(given) if topic_id in member.topics]
            for topic_id in self.topic_ids
        }


class _Unclaimed(Plan):
    """Forgets what members had."""

    def claims(self, previous: Previous) -> dict[Slot, int]:
        return {}


class _ClaimsOfAnyTopic(Plan):
    """Believes claims for topics that a member does not read (any more)."""

    def claims(self, previous: Previous) -> dict[Slot, int]:
        alive = set(self.all_slots())
        return {
            slot: self.number[member]
            for member, slots in previous.items()
            if member in self.number
            for slot in slots
            if slot in alive
        }


class _Uncounted(Plan):
    """Forgets to count what was kept."""

    def give(self, slot: Slot, member: int) -> None:
        self.owner[slot] = member


def _with(plan: type[Plan]) -> Assign:
    def planted(name: str, members: Iterable[Subscriber], topics: Topics, old: Previous) -> Target:
        made = plan(members, topics)
        assignors.named(name)(made, old)
        return made.target()

    return planted


def _keeping(name: str, members: Iterable[Subscriber], topics: Topics, old: Previous) -> Target:
    """Whoever had it keeps it, whatever the balance."""
    plan = Plan(members, topics)
    claims = plan.claims(old)
    assignors.named("roundrobin")(plan, {})
    for slot, member in claims.items():
        plan.owner[slot] = member
    return plan.target()


def _changing_subscriptions(seed: int, how: Assign) -> set[str]:
    """Members that stop reading a topic which they had."""
    rng = random.Random(seed)
    group = Group(rng, equal=False)
    before = how("uniform", group.members.values(), group.topics, {})
    for member_id, member in group.members.items():
        group.members[member_id] = member._replace(topics=group.subscription())
    target = how("uniform", group.members.values(), group.topics, before)
    return set(faults("uniform", group, before, target))


@pytest.mark.parametrize(
    ("planted", "shows_as"),
    [
        (_dropping, "not complete"),
        (_doubling, "given twice"),
        (_with(_InputOrder), "depends on the order of its input"),
        (_with(_Unclaimed), "moves where"),
        (_keeping, "not balanced"),
        (_with(_Uncounted), "not balanced"),
    ],
)
def test_s10_a_planted_fault_is_found(planted: Assign, shows_as: str) -> None:
    seen = set[str]().union(*(found("uniform", planted, seed, equal=True) for seed in range(40)))
    assert any(shows_as in fault for fault in seen), seen


def test_s10_believing_a_claim_of_a_topic_no_longer_read_is_found() -> None:
    def seen(how: Assign) -> set[str]:
        return set[str]().union(*(_changing_subscriptions(seed, how) for seed in range(40)))

    assert seen(assign) == set()
    assert "to one who does not read it" in seen(_with(_ClaimsOfAnyTopic))


def test_s9_levelling_by_the_first_pass_only_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = assignors.Held.level

    def once(self: assignors.Held, readers: Iterable[int]) -> bool:
        real(self, readers)
        return False

    monkeypatch.setattr(assignors.Held, "level", once)
    seen = set[str]().union(*(found("uniform", assign, seed, equal=False) for seed in range(300)))
    assert "one move would balance it" in seen, seen


def test_f092_a_fifth_member_of_four_partitions_is_idle() -> None:
    topics = {"t": SubscribedTopic("orders", 4)}
    members = [Subscriber(f"m{number}", frozenset({"t"})) for number in range(5)]
    before = assign("uniform", members[:4], topics, {})
    target = assign("uniform", members, topics, before)
    assert target == {**before, "m4": ()}


def test_f023_sixty_four_members_have_one_of_sixty_four_partitions_and_one_more_has_none() -> None:
    topics = {"t": SubscribedTopic("orders", 64)}
    members = [Subscriber(f"m{number:02}", frozenset({"t"})) for number in range(65)]
    before = assign("uniform", members[:64], topics, {})
    assert {len(slots) for slots in before.values()} == {1}
    assert assign("uniform", members, topics, before) == {**before, "m64": ()}


def test_s8_f101_one_more_member_moves_its_share_and_one_less_only_what_was_its() -> None:
    topics = {"t": SubscribedTopic("orders", 30)}
    members = [Subscriber(f"m{number:02}", frozenset({"t"})) for number in range(10)]
    ten = assign("uniform", members, topics, {})
    eleven = assign("uniform", [*members, Subscriber("n", frozenset({"t"}))], topics, ten)
    assert sum(owners(ten)[slot] != owner for slot, owner in owners(eleven).items()) == 30 // 11
    nine = assign("uniform", members[1:], topics, ten)
    moved = {slot for slot, owner in owners(nine).items() if owners(ten)[slot] != owner}
    assert moved == set(ten["m00"])


def test_s1_range_gives_equal_numbers_of_several_topics_to_one_member() -> None:
    topics = {"a": SubscribedTopic("left", 5), "b": SubscribedTopic("right", 5)}
    members = [Subscriber(name, frozenset(topics)) for name in ("x", "y")]
    target = assign("range", members, topics, {})
    assert [slot.partition for slot in target["x"]] == [0, 1, 2, 0, 1, 2]
    assert [slot.partition for slot in target["y"]] == [3, 4, 3, 4]


def test_s1_roundrobin_passes_over_who_does_not_read_the_topic() -> None:
    topics = {"a": SubscribedTopic("a", 2), "b": SubscribedTopic("b", 3)}
    members = [Subscriber("x", frozenset("ab")), Subscriber("y", frozenset("b"))]
    target = assign("roundrobin", members, topics, {})
    assert target == {
        "x": (Slot("a", 0), Slot("a", 1), Slot("b", 1)),
        "y": (Slot("b", 0), Slot("b", 2)),
    }


@pytest.mark.parametrize("equal", [True, False])
def test_among_equals_the_one_in_the_rack_of_the_copy_is_chosen(equal: bool) -> None:
    racks = {number: frozenset({"r1" if number % 2 else "r2"}) for number in range(6)}
    topics = {"t": SubscribedTopic("t", 6, racks), "u": SubscribedTopic("u", 0)}
    more = frozenset({"t", "u"})
    members = [
        Subscriber("a", more, rack="r1"),
        Subscriber("b", more if equal else frozenset({"t"}), rack="r2"),
    ]
    target = assign("uniform", members, topics, {})
    assert [slot.partition for slot in target["a"]] == [1, 3, 5]
    assert [slot.partition for slot in target["b"]] == [0, 2, 4]


def test_static_members_count_by_their_instance_and_an_unknown_name_is_refused() -> None:
    topics = {"t": SubscribedTopic("t", 1)}
    restarted = [
        Subscriber("id-of-now", frozenset("t"), instance_id="a"),
        Subscriber("another", frozenset("t"), instance_id="b"),
    ]
    assert assign("range", restarted, topics, {})["id-of-now"] == (Slot("t", 0),)
    with pytest.raises(ConfigError, match="uniformm") as raised:
        assign("uniformm", restarted, topics, {})
    assert "'uniform'" in str(raised.value.hint)
