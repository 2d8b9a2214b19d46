"""Groups over the wire: real brokers on loopback ports, ledgers in memory."""

from __future__ import annotations

import asyncio

from tests.group_brokers import shared, world
from tests.group_client import code_of
from tests.serving_rig import until
from tests.serving_server import create_topic


async def test_f008_f097_members_share_a_topic_and_take_over_from_each_other() -> None:
    async with world(group_session_timeout_ms=1_500) as found:
        await create_topic(found.brokers[0], "t", 6)
        first = found.member("a", "t")
        await until(lambda: len(first.owned) == 6)
        second = found.member("b", "t")
        both = [first, second]
        await until(lambda: shared(both, 6) and len(second.owned) == 3)
        await second.leave()
        await until(lambda: len(first.owned) == 6)
        await first.stop()  # silent: its session ends
        third = found.member("c", "t")
        await until(lambda: len(third.owned) == 6)


async def test_f090_rb7_commits_are_kept_and_fenced() -> None:
    async with world() as found:
        await create_topic(found.brokers[0], "t", 2)
        assert await found.client.committed("g") == {}
        one = await found.offset(0, 5)
        reply = await found.client.commit("g", one)
        assert not code_of(reply), reply
        assert await found.client.committed("g") == {("t", 0): 5}
        member = found.member("a", "t")
        await until(lambda: len(member.owned) == 2)
        refused = await found.client.commit("g", one)
        assert code_of(refused) == "UNKNOWN_MEMBER_ID", "O3: while it has members"
        who = member.committer()
        later = await found.offset(1, 7)
        wrong = await found.offset(9, 7)
        reply = await found.client.commit("g", later, wrong, who=who)
        assert not code_of(reply)
        assert [(one.partition, one.error.code) for one in reply.errors] == [(9, "UNKNOWN_TOPIC")]
        assert await found.client.committed("g") == {("t", 0): 5, ("t", 1): 7}


async def test_rb8_f103_a_coordinator_that_moves_changes_no_epoch() -> None:
    """RB8."""
    async with world(brokers=2) as found:
        await create_topic(found.brokers[0], "t", 4)
        members = [found.member(name, "t") for name in ("a", "b")]
        await until(lambda: shared(members, 4) and all(len(one.owned) == 2 for one in members))
        (owner,) = [one for one in members if any(slot[1] == 0 for slot in one.owned)]
        reply = await found.client.commit("g", await found.offset(0, 1), who=owner.committer())
        assert not code_of(reply), reply
        await until(lambda: len({one.epoch for one in members}) == 1)
        before = [list(one.epochs) for one in members]
        address = (await found.client.find("g")).address
        await found.stop_broker(address)
        assert (await found.client.find("g")).address != address
        group = await found.client.describe("g")
        assert (group.state, len(group.members)) == ("STABLE", 2)
        await asyncio.sleep(0.5)
        assert [one.epochs for one in members] == before
        assert not any(one.error for one in members)
        assert shared(members, 4)
        assert await found.client.committed("g") == {("t", 0): 1}


async def test_a_deadline_comes_though_nothing_else_happens() -> None:
    """RB5: nobody asks anything any more, and the session of the last member ends all the same."""
    async with world(group_session_timeout_ms=1_500) as found:
        await create_topic(found.brokers[0], "t", 2)
        member = found.member("a", "t")
        await until(lambda: len(member.owned) == 2)
        partition = await found.partition()
        await member.stop()
        core = partition._core  # pyright: ignore[reportPrivateUsage]
        assert core is not None
        assert len(core.snapshot()) > 1
        await until(lambda: len(core.snapshot()) == 1)  # the group, without a member
        timer = partition._timer  # pyright: ignore[reportPrivateUsage]
        due_s = core.next_deadline_s()
        assert timer is not None
        assert due_s is not None
        assert timer.when() >= due_s, "it rings when something is due, not before"
        address = (await found.client.find("g")).address
        await found.stop_broker(address)
        assert partition._timer is None  # pyright: ignore[reportPrivateUsage]
