"""Who of a group reads what: the targets that a coordinator declares (S1, S8 to S10, RB2).

Pure and deterministic: the same members, topics and previous target give the same answer in any
order of the input, also after the coordinator moved. Members count in the order of their instance
id, else of their member id; partitions in the order of topic name and number.

`uniform` (the default; `sticky` and `cooperative-sticky` are accepted names of it) keeps what the
previous target gave and moves only what validity or balance asks for. `range` gives each topic in
runs, so that equal numbers of several topics meet at one member; `roundrobin` deals out.

A plan of 1,000 members and 10,000 partitions takes well below a second; the shell computes it
beside its loop.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from types import MappingProxyType
from typing import NamedTuple

from octavo.proto.group_records import Slot
from octavo.runtime.errors import ConfigError
from octavo.runtime.suggestion import did_you_mean

DEFAULT_ASSIGNOR = "uniform"


class Subscriber(NamedTuple):
    """What an assignor knows of a member."""

    member_id: str
    topics: frozenset[str]
    """Ids of the topics it reads; those that no longer exist are passed over."""
    instance_id: str | None = None
    rack: str | None = None


class SubscribedTopic(NamedTuple):
    """What an assignor knows of a topic."""

    name: str
    partitions: int
    racks: Mapping[int, frozenset[str]] = MappingProxyType({})
    """Racks from which a partition is read cheaply, of those partitions where it is known."""
    removed: frozenset[int] = frozenset()
    """Partitions that nobody is assigned to any more (F027)."""

    @property
    def assigned(self) -> int:
        """How many partitions are to be read."""
        return self.partitions - len(self.removed)


Topics = Mapping[str, SubscribedTopic]
"""By topic id."""
Target = dict[str, tuple[Slot, ...]]
"""By member id, every member named, partitions in the order of topic name and number."""
Previous = Mapping[str, Collection[Slot]]
"""By member id, members that went included."""


def assign(
    assignor: str, members: Iterable[Subscriber], topics: Topics, previous: Previous
) -> Target:
    """The target of a group. Raises ConfigError for an assignor that does not exist (S1)."""
    plan = Plan(members, topics)
    named(assignor)(plan, previous)
    return plan.target()


class Plan:
    """A target in the making. Members and partitions are numbers in their order here."""

    def __init__(self, members: Iterable[Subscriber], topics: Topics) -> None:
        self.members: Sequence[Subscriber] = sorted(
            members, key=lambda one: (one.instance_id or one.member_id, one.member_id)
        )
        """Their index is what `owner`, `held` and `readers` speak of."""
        self.number = {member.member_id: index for index, member in enumerate(self.members)}
        self.topic_ids = sorted(
            {name for member in self.members for name in member.topics if name in topics},
            key=lambda topic_id: (topics[topic_id].name, topic_id),
        )
        """Of the topics that somebody reads, in the order of their names."""
        self.topics = topics
        self.readers: dict[str, list[int]] = {topic_id: [] for topic_id in self.topic_ids}
        """Members of each topic, ascending."""
        for index, member in enumerate(self.members):
            for topic_id in member.topics:
                if topic_id in self.readers:
                    self.readers[topic_id].append(index)
        self.owner: dict[Slot, int] = {}
        self.load = [0] * len(self.members)

    @property
    def equal(self) -> bool:
        """Whether all members read the same topics."""
        return all(len(readers) == len(self.members) for readers in self.readers.values())

    def slots(self, topic_id: str) -> Iterable[Slot]:
        """Partitions of a topic, ascending."""
        topic = self.topics[topic_id]
        numbers = range(topic.partitions)
        return (Slot(topic_id, number) for number in numbers if number not in topic.removed)

    def all_slots(self) -> Iterable[Slot]:
        """Every partition that somebody reads."""
        return (slot for topic_id in self.topic_ids for slot in self.slots(topic_id))

    def claims(self, previous: Previous) -> dict[Slot, int]:
        """What members had and may keep: valid, and not claimed twice (then nobody keeps it)."""
        found: dict[Slot, int] = {}
        doubled: set[Slot] = set()
        for member_id, slots in previous.items():
            index = self.number.get(member_id)
            if index is None:
                continue
            wanted = self.members[index].topics
            for slot in slots:
                topic = self.topics.get(slot.topic_id)
                if slot.topic_id not in wanted or topic is None:
                    continue
                if not 0 <= slot.partition < topic.partitions or slot.partition in topic.removed:
                    continue
                if found.setdefault(slot, index) != index:
                    doubled.add(slot)
        return {slot: index for slot, index in found.items() if slot not in doubled}

    def give(self, slot: Slot, member: int) -> None:
        """A free partition to a member."""
        self.owner[slot] = member
        self.load[member] += 1

    def move(self, slot: Slot, member: int) -> None:
        """A partition that has an owner to another member."""
        self.load[self.owner[slot]] -= 1
        self.give(slot, member)

    def near(self, slot: Slot) -> frozenset[str]:
        """Racks from which the partition is read cheaply."""
        return self.topics[slot.topic_id].racks.get(slot.partition, frozenset())

    def target(self) -> Target:
        """As it stands."""
        given: list[list[Slot]] = [[] for _ in self.members]
        for slot in self.all_slots():
            owner = self.owner.get(slot)
            if owner is not None:
                given[owner].append(slot)
        return {
            member.member_id: tuple(slots)
            for member, slots in zip(self.members, given, strict=True)
        }


def _range(plan: Plan, previous: Previous) -> None:
    for topic_id in plan.topic_ids:
        readers = plan.readers[topic_id]
        each, extra = divmod(plan.topics[topic_id].assigned, len(readers))
        slots = iter(plan.slots(topic_id))
        for place, member in enumerate(readers):
            for _ in range(each + (place < extra)):
                plan.give(next(slots), member)


def _round_robin(plan: Plan, previous: Previous) -> None:
    turn = 0
    count = len(plan.members)
    for slot in plan.all_slots():
        while slot.topic_id not in plan.members[turn % count].topics:
            turn += 1
        plan.give(slot, turn % count)
        turn += 1


def _uniform(plan: Plan, previous: Previous) -> None:
    if plan.equal:
        _uniform_equal(plan, plan.claims(previous))
    else:
        _uniform_unequal(plan, plan.claims(previous))


def _uniform_equal(plan: Plan, claims: Mapping[Slot, int]) -> None:
    """S8: every member gets P div C, the first ones that have more keep one more."""
    count = len(plan.members)
    total = sum(plan.topics[topic_id].assigned for topic_id in plan.topic_ids)
    if not count or not total:
        return
    low, extra = divmod(total, count)
    had = Counter(claims.values())
    may_keep = [low] * count
    for member in range(count):
        if had[member] > low and extra:
            may_keep[member] += 1
            extra -= 1
    free: list[Slot] = []
    for slot in plan.all_slots():
        member = claims.get(slot, -1)
        if member >= 0 and plan.load[member] < may_keep[member]:
            plan.give(slot, member)
        else:
            free.append(slot)
    slots = deque(free)
    _deal(plan, slots, lambda member: plan.load[member] < low)
    _deal(plan, slots, lambda member: plan.load[member] == low)


def _deal(plan: Plan, slots: deque[Slot], wants: Callable[[int], bool]) -> None:
    """Round after round one partition to each member that wants one, near ones before others."""
    members = range(len(plan.members))
    while slots:
        turn = OrderedDict.fromkeys(member for member in members if wants(member))
        if not turn:
            return
        in_rack: dict[str, OrderedDict[int, None]] = {}
        for member in turn:
            if rack := plan.members[member].rack:
                in_rack.setdefault(rack, OrderedDict())[member] = None
        while turn and slots:
            slot = slots.popleft()
            member = min(
                (next(iter(ready)) for rack in plan.near(slot) if (ready := in_rack.get(rack))),
                default=-1,
            )
            if member < 0:
                member = next(iter(turn))
            del turn[member]
            if rack := plan.members[member].rack:
                del in_rack[rack][member]
            plan.give(slot, member)


def _uniform_unequal(plan: Plan, claims: Mapping[Slot, int]) -> None:
    """S9: valid claims stand, free partitions go to the least loaded, then loads are levelled."""
    for slot in plan.all_slots():
        if (member := claims.get(slot)) is not None:
            plan.give(slot, member)
    order = sorted(plan.topic_ids, key=lambda topic_id: len(plan.readers[topic_id]))
    for topic_id in order:
        free = [slot for slot in plan.slots(topic_id) if slot not in plan.owner]
        if free:
            _give_least_loaded(plan, free, plan.readers[topic_id])
    held = {topic_id: Held(plan, claims) for topic_id in plan.topic_ids}
    for slot in plan.all_slots():
        held[slot.topic_id].add(slot, plan.owner[slot])
    # Each move brings two loads at least 2 apart nearer: the sum of their squares falls, so this
    # ends.
    while any([held[topic_id].level(plan.readers[topic_id]) for topic_id in order]):
        pass


def _give_least_loaded(plan: Plan, free: Iterable[Slot], readers: Iterable[int]) -> None:
    loads = [(plan.load[member], member) for member in readers]
    heapify(loads)
    for slot in free:
        load, member = loads[0]
        near = plan.near(slot)
        if near and plan.members[member].rack not in near:
            equals = (
                other
                for level, other in loads
                if level == load and plan.members[other].rack in near
            )
            member = min(equals, default=member)
        plan.give(slot, member)
        if member == loads[0][1]:
            heapreplace(loads, (load + 1, member))
        else:
            loads.remove((load, member))
            loads.append((load + 1, member))
            heapify(loads)


_NOBODY = -1
_Pile = dict[int, list[Slot]]


class Held:
    """Partitions of one topic: who has them in the plan, and who had them before."""

    def __init__(self, plan: Plan, claims: Mapping[Slot, int]) -> None:
        self._plan = plan
        self._claims = claims
        self._piles: dict[int, _Pile] = {}
        """By owner, then by the member that had them before."""

    def add(self, slot: Slot, owner: int) -> None:
        before = self._claims.get(slot, _NOBODY)
        self._piles.setdefault(owner, {}).setdefault(before, []).append(slot)

    def level(self, readers: Iterable[int]) -> bool:
        """Move from the most to the least loaded while they are 2 apart; whether any moved."""
        load = self._plan.load
        donors = [(-load[member], member) for member in self._piles]
        takers = [(load[member], member) for member in readers]
        heapify(donors)
        heapify(takers)
        moved = False
        while donors:
            most, donor = donors[0]
            pile = self._piles[donor]
            if -most != load[donor] or not pile:
                if pile and -load[donor] > most:
                    heapreplace(donors, (-load[donor], donor))
                else:
                    heappop(donors)
                continue
            least, taker = takers[0]
            if least != load[taker]:
                heapreplace(takers, (load[taker], taker))
                continue
            if load[donor] - load[taker] < 2:
                break
            slot, taker = self._returning(donor, taker)
            self._plan.move(slot, taker)
            self.add(slot, taker)
            heappush(donors, (-load[taker], taker))
            moved = True
        return moved

    def _returning(self, donor: int, taker: int) -> tuple[Slot, int]:
        """Rather what was the taker's, then another's who has room too, then what is new."""
        pile = self._piles[donor]
        load = self._plan.load
        before = taker
        if taker not in pile:
            others = (m for m in pile if m not in (donor, _NOBODY) and load[donor] - load[m] >= 2)
            before = min(others, key=lambda m: (load[m], m), default=_NOBODY)
            if before != _NOBODY:
                taker = before
            elif _NOBODY not in pile:
                before = donor if donor in pile else min(pile)
        slots = pile[before]
        slot = slots.pop()
        if not slots:
            del pile[before]
        return slot, taker


_ASSIGNORS: Mapping[str, Callable[[Plan, Previous], None]] = {
    "uniform": _uniform,
    "sticky": _uniform,
    "cooperative-sticky": _uniform,
    "range": _range,
    "roundrobin": _round_robin,
}


def named(assignor: str) -> Callable[[Plan, Previous], None]:
    """The function behind a name. Raises ConfigError."""
    found = _ASSIGNORS.get(assignor)
    if found is None:
        raise ConfigError(
            f"no assignor is called {assignor!r}",
            hint=did_you_mean(assignor, _ASSIGNORS) or f"one of: {', '.join(_ASSIGNORS)}",
        )
    return found
