"""What happens in a group's small world: schedules of seeds, one fault at each moment, plays.

`Schedule` lets a seed choose each event; `plays` is exhaustive for one fault in one play; DIRECTED
are the plays that take more than one fault at the right places.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from octavo.serving.groups.assignors import SubscribedTopic
from octavo.serving.groups.topics import TopicDirectory
from octavo.serving.groups.values import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    Heartbeat,
)
from tests.group_world import (
    INTERVAL_S,
    READS_T,
    SESSION_S,
    TOPIC_ID,
    Client,
    Commit,
    Request,
    World,
    directory,
    slots,
)


class Schedule:
    """A world whose next event a seed chooses."""

    def __init__(self, seed: int, world: World) -> None:
        self.rng = random.Random(seed)
        self.world = world
        self.usual: list[Callable[[], None]] = [
            *[self.beat] * 5,
            *[self.deliver] * 6,
            *[self.store] * 5,
            *[self.answer] * 5,
            *[self.compute] * 4,
            *[self.carry_out] * 3,
            *[self.commit] * 2,
            *[self.deliver_commit] * 2,
            self.lose_reply,
            self.give_up,
            self.go_astray,
            self.come_back,
            self.duplicate,
            self.pass_time,
        ]
        self.rare: list[Callable[[], None]] = [
            *[self.join] * 3,
            self.join_static,
            self.leave,
            self.freeze,
            self.restart,
            self.stick,
            self.static_stop,
            self.static_return,
            *[world.move] * 3,
            *[self.partitions] * 3,
        ]

    def run(self, steps: int = 200) -> None:
        for _ in range(2):
            self.join()
        for _ in range(steps):
            self.rng.choice(self.rare if self.rng.random() < 0.06 else self.usual)()
            self.world.judge()
        self.world.settle()

    def some(self) -> Client | None:
        alive = self.world.alive
        return self.rng.choice(alive) if alive else None

    def beat(self) -> None:
        if client := self.some():
            client.heartbeat()

    def deliver(self) -> None:
        if self.world.network.requests:
            self.world.deliver(self.world.network.requests.pop(0))

    def store(self) -> None:
        self.world.store()

    def answer(self) -> None:
        replies = self.world.network.replies
        if replies:
            self.world.answer(*replies.pop(self.rng.randrange(min(2, len(replies)))))

    def compute(self) -> None:
        if self.world.computing:
            self.world.compute()

    def carry_out(self) -> None:
        if client := self.some():
            client.carry_out()

    def commit(self) -> None:
        if (client := self.some()) and client.owned:
            slot = self.rng.choice(sorted(client.owned))
            self.world.network.commits.append(Commit(client, client.life, client.epoch, slot))

    def deliver_commit(self) -> None:
        commits = self.world.network.commits
        if commits:
            self.world.deliver_commit(commits.pop(self.rng.randrange(len(commits))))

    def lose_reply(self) -> None:
        if self.world.network.replies:
            self.world.network.replies.pop(0)

    def give_up(self) -> None:
        if (client := self.some()) and client.waiting is not None:
            client.give_up_waiting()

    def go_astray(self) -> None:
        """A request is late; its member does not wait for it for ever."""
        network = self.world.network
        if network.requests:
            request = network.requests.pop(0)
            network.astray.append(request)
            if self.rng.random() < 0.7:
                client = self.world.owner_of[request.token]
                client.give_up_waiting()

    def come_back(self) -> None:
        if self.world.network.astray and self.rng.random() < 0.5:
            network = self.world.network
            network.requests.insert(0, network.astray.pop(self.rng.randrange(len(network.astray))))

    def duplicate(self) -> None:
        """Its answer is nobody's."""
        network = self.world.network
        if network.requests:
            request = network.requests[0]
            network.astray.append(Request(self.world.copy_of(request.token), request.beat))

    def pass_time(self) -> None:
        self.world.pass_time(self.rng.choice((0.5, 1.0, 3.0, 3.0, 12.0)))

    def join(self) -> None:
        if len(self.world.alive) < 3:
            self.world.join()

    def join_static(self) -> None:
        """Perhaps a second one, or one that takes the place of a dead one."""
        if len(self.world.alive) < 4:
            self.world.join("i1")

    def leave(self) -> None:
        if client := self.some():
            client.goodbye(LEAVE_EPOCH)

    def freeze(self) -> None:
        """It says and hears nothing any more."""
        if client := self.some():
            client.alive = False

    def restart(self) -> None:
        """Its process ends and begins anew with the same id."""
        if client := self.some():
            client.lose()

    def stick(self) -> None:
        if client := self.some():
            client.stuck = True

    def static_stop(self) -> None:
        for client in self.world.alive:
            if client.instance_id is not None:
                client.goodbye(STATIC_LEAVE_EPOCH)

    def static_return(self) -> None:
        if not any(client.instance_id for client in self.world.alive):
            self.world.join("i1")

    def partitions(self) -> None:
        self.world.change_partitions(self.rng.randint(1, 4))


def run(seed: int, world_type: type[World] = World) -> None:
    Schedule(seed, world_type()).run()


# --- one fault at each moment ------------------------------------------------------------------


def _now(come: Callable[[], None]) -> None:
    come()


class Play:
    """Members that come, go and return, in order; one fault happens at one moment of it.

    A moment is one step of the exchange of a round; the fault stands for something that takes
    longer, so that what it holds up comes at the end of the next round.
    """

    def __init__(self, world: World, moment: int, fault: str, victim: int) -> None:
        self.world = world
        self.moment = moment
        self.fault = fault
        self.victim = victim
        self.held_up: list[Callable[[], None]] = []
        self.slow: set[str] = set()
        self.possible: list[tuple[str, ...]] = []
        """At each moment."""

    def run(self) -> None:
        world = self.world
        first = world.join()
        self.rounds(2)
        second = world.join()
        self.rounds(2)
        world.join("i1")
        world.change_partitions(4)
        self.rounds(2)
        second.goodbye(LEAVE_EPOCH)
        world.change_partitions(3)
        self.rounds(2)
        world.clients[2].goodbye(STATIC_LEAVE_EPOCH)
        self.rounds(1)
        world.join("i1")
        world.join()
        self.rounds(2)
        first.die()
        self.rounds(1)
        world.settle()

    def faults(self) -> Iterator[str]:
        """What may happen now."""
        network = self.world.network
        if network.replies:
            yield from ("lose reply", "late reply")
        if network.requests:
            yield from ("lose request", "late request", "late request, given up", "duplicate")
        if self.world.appending:
            yield "slow store"
        if self.world.computing:
            yield "slow compute"
        yield from ("slow callbacks", "move", "restart")
        if any(client.owned for client in self.world.alive):
            yield from ("commit", "late commit")

    def rounds(self, count: int) -> None:
        for _ in range(count):
            late, self.held_up, self.slow = self.held_up, [], set()
            self.world.pass_time(3.0)
            for client in self.world.alive:
                client.heartbeat()
            while self.due():
                self.step()
                self.world.judge()
            for client in self.world.alive:
                if "callbacks" not in self.slow:
                    client.carry_out()
            for come in late:
                come()
            self.world.judge()

    def due(self) -> bool:
        world, network = self.world, self.world.network
        appending = world.appending and "store" not in self.slow
        computing = world.computing and "compute" not in self.slow
        return bool(
            network.requests or network.replies or network.commits or appending or computing
        )

    def step(self) -> None:
        self.possible.append(tuple(self.faults()))
        if len(self.possible) - 1 == self.moment:
            self.strike()
        world, network = self.world, self.world.network
        if network.requests:
            world.deliver(network.requests.pop(0))
        elif world.appending and "store" not in self.slow:
            world.store()
        elif network.replies:
            world.answer(*network.replies.pop(0))
        elif world.computing and "compute" not in self.slow:
            world.compute()
        elif network.commits:
            world.deliver_commit(network.commits.pop(0))

    def strike(self) -> None:
        world, network = self.world, self.world.network
        alive = world.alive
        client = alive[self.victim % len(alive)]
        request = network.requests[0] if network.requests else None
        if request and "request" in self.fault:
            network.requests.remove(request)
        match self.fault:
            case "lose reply":
                self.forget(network.replies.pop(0)[0])
            case "late reply":
                late = network.replies.pop(0)
                self.held_up.append(lambda: world.answer(*late))
            case "lose request" if request:
                self.forget(request.token)
            case "late request" if request:
                self.held_up.append(lambda: network.requests.append(request))
            case "late request, given up" if request:
                self.forget(request.token)
                self.held_up.append(lambda: network.requests.append(request))
            case "duplicate" if request:
                again = Request(world.copy_of(request.token), request.beat)
                self.held_up.append(lambda: network.requests.append(again))
            case "move":
                world.move()
                for one in alive:
                    one.give_up_waiting()
            case "restart":
                client.lose()
            case "commit" | "late commit":
                commits = [Commit(client, client.life, client.epoch, one) for one in client.owned]
                late_s = self.held_up.append if self.fault == "late commit" else _now
                late_s(lambda: network.commits.extend(commits))
            case _:
                self.slow.add(self.fault.removeprefix("slow "))

    def forget(self, token: int) -> None:
        client = self.world.owner_of[token]
        if client.waiting == token and client.alive:
            client.give_up_waiting()
            client.heartbeat()


def plays() -> Iterator[tuple[int, str, int]]:
    quiet = Play(World(), -1, "", 0)
    quiet.run()
    for moment, faults in enumerate(quiet.possible):
        yield from ((moment, fault, moment % 3) for fault in faults)


# --- what takes more than one fault ------------------------------------------------------------


def rb4_a_list_beside_its_assignment(world: World) -> None:
    """An owned list was sent while an assignment that gives more was being carried out."""
    first = world.join()
    first.heartbeat()
    world.exchange()
    second = world.join()
    second.heartbeat()
    world.exchange()
    first.heartbeat()
    world.exchange()  # slot 2 is to go; the member does not hear of it
    first.seen, first.newest = 1, slots(0, 1, 2)
    first.give_up_waiting()
    first.heartbeat()
    first.carry_out()
    second.heartbeat()
    world.exchange()
    second.carry_out()
    world.judge()
    world.settle()


def rb7_commits_of_an_earlier_life(world: World) -> None:
    """A process begins anew with its id; what it sent before arrives before and after its join."""
    client = world.join()
    world.round()
    late = [Commit(client, client.life, client.epoch, slot) for slot in client.owned]
    assert len(late) == 3
    client.lose()
    client.heartbeat()
    world.deliver(world.network.requests.pop())
    while world.appending or world.network.replies:
        world.store()
        for token, reply in world.network.replies:
            world.answer(token, reply)
        world.network.replies.clear()
    client.carry_out()
    world.network.commits += late
    for commit in late:
        world.deliver_commit(commit)
    world.round()
    world.network.commits += late
    world.settle()


def rb6_x01_a_return_during_a_computation(world: World) -> None:
    """A static member comes back under another id while a target for its old one is computed."""
    first = world.join("i1")
    second = world.join()
    world.round()
    world.round()
    world.round()
    second.goodbye(LEAVE_EPOCH)
    world.deliver(world.network.requests.pop())
    assert world.computing
    first.goodbye(STATIC_LEAVE_EPOCH)
    world.deliver(world.network.requests.pop())
    epoch = world.core.state.epoch
    third = world.join("i1")
    third.heartbeat()
    world.deliver(world.network.requests.pop())
    assert world.core.state.epoch == epoch, "RB6: nobody notices"
    world.exchange()
    world.round()
    world.round()
    assert third.owned == slots(0, 1, 2)
    world.settle()


def rb6_a_number_of_an_earlier_life(world: World) -> None:
    """A member comes back under its id, and its first target takes longer than an interval."""
    client = world.join()
    world.round()
    world.pass_time(SESSION_S)
    assert not world.core.state.members
    client.heartbeat()
    world.deliver(world.network.requests.pop())
    orders, world.computing = world.computing, []
    world.pass_time(INTERVAL_S)
    world.exchange()
    assert client.epoch == JOIN_EPOCH
    client.heartbeat()
    world.exchange()
    world.computing = orders
    world.exchange()
    client.carry_out()
    assert client.owned == slots(0, 1, 2)
    world.settle()


def rb10_a_subscription_that_changes_and_an_older_heartbeat(world: World) -> None:
    """What was overtaken does not undo what the member declared later, also after a move."""
    client = world.join()
    world.round()
    old = Heartbeat(client.name, client.epoch, None, READS_T, client.owned, 50, 1, 1)
    reads_more = READS_T._replace(topics=frozenset({"t", "u"}))
    new = old._replace(subscription=reads_more, sequence=51)
    for beat in (new, old):
        world.tokens += 1
        world.owner_of[world.tokens], world.sent_s[world.tokens] = client, world.now_s
        world.deliver(Request(world.tokens, beat))
        world.exchange()
        world.move()
    assert world.core.state.members[client.name].subscription == reads_more


def x33_one_active_member_and_a_standby(world: World) -> None:
    """Of one partition there is one reader; a standby takes over within the session timeout."""
    world.change_partitions(1)
    first, second = world.join(), world.join()
    for _ in range(4):
        world.round()
    active, standby = (first, second) if first.owned else (second, first)
    assert (active.owned, standby.owned) == (slots(0), slots())
    died_s = world.now_s
    active.die()
    while not standby.owned:
        world.pass_time(INTERVAL_S)
        world.round()
        assert world.now_s - died_s <= SESSION_S + INTERVAL_S
    assert world.now_s - died_s > INTERVAL_S, "not before its session ends: it might live"
    active.alive = True
    active.lose()  # its process begins again: it is the standby now
    for _ in range(4):
        world.pass_time(INTERVAL_S)
        world.round()
    assert (active.owned, standby.owned) == (slots(), slots(0))
    world.settle()


def f6_partitions_that_came_behind_the_subscription_of_the_group(world: World) -> None:
    """Members that join later, and a coordinator that moves meanwhile, hear of them too."""

    def rounds() -> None:
        for _ in range(4):
            world.pass_time(INTERVAL_S)
            world.round()

    def moved_and_grown(partitions: int) -> None:
        world.directory = directory(partitions)  # nobody sees it happen
        world.move()
        for one in world.alive:
            one.give_up_waiting()
        rounds()

    first = world.join()
    rounds()
    assert (first.owned, first.later) == (slots(0, 1, 2), {})
    world.change_partitions(5)
    second = world.join()
    rounds()
    assert first.later == second.later == {TOPIC_ID: 3}
    world.change_partitions(4)
    moved_and_grown(6)
    assert first.later == second.later == {TOPIC_ID: 3}, "the first of them, for ever"
    for client in (first, second):
        client.goodbye(LEAVE_EPOCH)
    world.exchange()
    third = world.join()
    rounds()
    assert (len(third.owned), third.later) == (6, {}), "another subscription begins"
    moved_and_grown(7)
    assert third.later == {TOPIC_ID: 6}
    world.settle()


def f6_a_topic_that_came_behind_the_subscription(world: World) -> None:
    """It was named, or matched by a pattern, before it was there; another is subscribed later."""
    world.directory = TopicDirectory()
    world.perform(world.core.topics_changed(world.directory, world.now_s))
    client = world.join()
    world.round()
    world.change_partitions(2)
    world.round()
    assert (client.newest, client.later) == (slots(0, 1), {TOPIC_ID: 0})
    world.directory = directory(2)._replace(
        topics={**directory(2).topics, "u": ("id-u", SubscribedTopic("u", 2))}
    )
    world.perform(world.core.topics_changed(world.directory, world.now_s))
    assert world.core.state.later == {TOPIC_ID: 0}, "nobody reads the other one"
    both = READS_T._replace(topics=frozenset({"t", "u"}))
    for number, (wanted, later) in enumerate(
        ((both, {TOPIC_ID: 0}), (READS_T._replace(topics=frozenset({"u"})), {})), 90
    ):
        beat = Heartbeat(client.name, client.epoch, None, wanted, client.owned, number, 1, 1)
        world.tokens += 1
        world.owner_of[world.tokens], world.sent_s[world.tokens] = client, world.now_s
        world.deliver(Request(world.tokens, beat))
        assert world.core.state.later == later, "what is subscribed now was there before"


DIRECTED: list[Callable[[World], None]] = [
    rb4_a_list_beside_its_assignment,
    rb7_commits_of_an_earlier_life,
    rb6_x01_a_return_during_a_computation,
    rb6_a_number_of_an_earlier_life,
    rb10_a_subscription_that_changes_and_an_older_heartbeat,
    x33_one_active_member_and_a_standby,
    f6_partitions_that_came_behind_the_subscription_of_the_group,
    f6_a_topic_that_came_behind_the_subscription,
]
