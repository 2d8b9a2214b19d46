"""Brokers and bundles as `client.admin` tells of them, and how it waits for one to move (O-3)."""

from __future__ import annotations

import pytest

from octavo import AsyncClient
from octavo.client.messaging.api.descriptions import BundleDescription
from octavo.errors import ConfigError, RequestTimedOut
from octavo.proto import broker_pb2 as pb
from tests.fake_broker import FakeCluster


async def test_a_load_that_is_not_known_is_none_and_not_zero(
    client: AsyncClient, fake: FakeCluster
) -> None:
    brokers = await client.admin.list_brokers()
    assert [one.load for one in brokers] == [None, None]
    fake.bundles[7] = pb.BundleView(bundle=7, owner_id="broker-0", placed_on="broker-0")
    assert await client.admin.list_bundles() == [
        BundleDescription(0, "broker-1", "", 0.25),
        BundleDescription(7, "broker-0", "broker-0", None),
    ]


async def test_unloading_waits_until_the_bundle_has_arrived(
    client: AsyncClient, fake: FakeCluster
) -> None:
    found = await client.admin.unload_bundle(0, "broker-0")
    assert (found.owner_id, found.placed_on) == ("broker-0", "broker-0")
    (asked,) = fake.unloads
    assert (asked.bundle, asked.away_from, asked.to_broker) == (0, "broker-1", "broker-0")


async def test_unloading_that_is_not_waited_for_says_what_is_noted(
    client: AsyncClient, fake: FakeCluster
) -> None:
    fake.hands_over = False
    found = await client.admin.unload_bundle(0, wait=False)
    assert (found.owner_id, found.placed_on) == ("broker-1", "broker-0")


async def test_a_bundle_that_does_not_arrive_in_time_is_an_error_that_says_so(
    client: AsyncClient, fake: FakeCluster
) -> None:
    fake.hands_over = False
    with pytest.raises(RequestTimedOut, match="bundle 0 is not served by broker-0") as caught:
        await client.admin.unload_bundle(0, timeout=0.7)
    assert "list_bundles" in caught.value.hint


async def test_a_bundle_that_nobody_serves_is_not_waited_for(
    client: AsyncClient, fake: FakeCluster
) -> None:
    fake.hands_over = False
    fake.bundles[3] = pb.BundleView(bundle=3)
    found = await client.admin.unload_bundle(3, "broker-1")
    assert (found.owner_id, found.placed_on) == ("", "broker-1")


async def test_a_lost_answer_is_asked_again_with_the_owner_that_was_seen_first(
    client: AsyncClient, fake: FakeCluster
) -> None:
    for broker in fake.brokers:
        broker.faults.lose_replies = 1
    found = await client.admin.unload_bundle(0)
    assert found.owner_id == "broker-0"
    assert len(fake.unloads) > 1
    assert {one.away_from for one in fake.unloads} == {"broker-1"}


async def test_numbers_that_cannot_be_are_refused_before_anything_is_asked(
    client: AsyncClient, fake: FakeCluster
) -> None:
    with pytest.raises(ConfigError, match="bundle=-1"):
        await client.admin.unload_bundle(-1)
    with pytest.raises(ConfigError, match="partition=-1"):
        await client.admin.find_bundle("orders", -1)
    assert fake.unloads == []
