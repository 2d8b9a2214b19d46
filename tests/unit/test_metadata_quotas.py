"""Quotas of clients in the metadata store: one record, of whose writers one is first (M-3, M-7)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from octavo.metadata.memory import MemoryCluster, MemoryStore
from octavo.metadata.quotas import CLIENTS_MAX, NO_QUOTAS, QuotaCatalog, QuotaLimits, StoredQuotas
from octavo.proto import records_pb2
from octavo.proto.client_ids import CLIENT_ID_BYTES_MAX, CLIENT_ID_KEY
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import (
    InvalidConfig,
    InvalidRequest,
    MetadataCorrupt,
    UnknownOutcome,
    UnsupportedVersion,
)
from octavo.serving.quotas.changes import ATTEMPTS_MAX, QuotaChanges
from octavo.serving.quotas.identity import client_id_of
from tests.unit.metadata_stores import CLOCK, PATHS

MINE = QuotaLimits(1_000_000, None, 0, 3)


class Followed:
    """A catalog, and what it told last."""

    def __init__(self, store: MemoryStore) -> None:
        self.seen: Mapping[str, QuotaLimits] = {}
        self.told = asyncio.Event()
        self.catalog = QuotaCatalog(
            store, PATHS, clock=CLOCK, entropy=SystemEntropy(), changed=self._changed
        )
        self.changes = QuotaChanges(self.catalog)

    def _changed(self, seen: Mapping[str, QuotaLimits]) -> None:
        self.seen = seen
        self.told.set()

    async def until(self, wanted: Mapping[str, QuotaLimits]) -> None:
        async with asyncio.timeout(30):
            while self.seen != wanted:
                self.told.clear()
                await self.told.wait()


async def test_x24_what_one_broker_notes_every_broker_follows() -> None:
    cluster = MemoryCluster()
    first, second = Followed(cluster.connect()), Followed(cluster.connect())
    await first.catalog.start()
    await second.catalog.start()
    assert await first.changes.read() == NO_QUOTAS
    assert await first.changes.set("app", QuotaLimits(bytes_in_per_s=1_000_000)) == QuotaLimits(
        1_000_000
    )
    wanted = QuotaLimits(requests_per_s=0, connections_max=3)
    assert await second.changes.set("app", wanted) == MINE
    for one in (first, second):
        await one.until({"app": MINE})
    await first.changes.unset("app")
    await first.changes.unset("nobody")
    for one in (first, second):
        await one.until({})
        await one.catalog.close()


async def test_of_two_changes_at_once_both_count() -> None:
    cluster = MemoryCluster()
    first, second = Followed(cluster.connect()), Followed(cluster.connect())
    await asyncio.gather(
        *(one.changes.set(name, MINE) for one, name in ((first, "a"), (second, "b"), (first, "c")))
    )
    assert set((await first.changes.read()).clients) == {"a", "b", "c"}


async def test_a_lost_reply_is_settled_and_a_record_that_never_rests_is_unknown() -> None:
    store = MemoryCluster().connect()
    one = Followed(store)
    store.faults.lose_reply()
    assert await one.changes.set("app", MINE) == MINE
    store.faults.lose_request()
    assert await one.changes.set("app", QuotaLimits(bytes_out_per_s=5)) == MINE._replace(
        bytes_out_per_s=5
    )

    class Restless(QuotaCatalog):
        attempts = 0

        async def replace(self, before: StoredQuotas, clients: Mapping[str, QuotaLimits]) -> bool:
            self.attempts += 1
            return False

    restless = Restless(
        store, PATHS, clock=CLOCK, entropy=SystemEntropy(), changed=lambda _own: None
    )
    with pytest.raises(UnknownOutcome, match="kept changing"):
        await QuotaChanges(restless).set("other", MINE)
    assert restless.attempts == ATTEMPTS_MAX
    with pytest.raises(UnknownOutcome, match="kept changing"):
        await QuotaChanges(restless).unset("app")


async def test_a_record_that_nobody_can_read_leaves_the_last_one_in_force() -> None:
    store = MemoryCluster().connect()
    one = Followed(store)
    await one.changes.set("app", MINE)
    await one.catalog.start()
    await one.until({"app": MINE})
    newer = records_pb2.QuotaRecord(format_version=2).SerializeToString()
    await store.put(PATHS.quotas, newer, expected=None)
    with pytest.raises(UnsupportedVersion):
        await one.changes.read()
    await store.put(PATHS.quotas, b"\xff", expected=None)
    with pytest.raises(MetadataCorrupt):
        await one.changes.set("app", MINE)
    assert one.seen == {"app": MINE}
    await one.catalog.close()
    for wrong in (
        records_pb2.QuotaRecord(),
        records_pb2.QuotaRecord(
            format_version=1, clients=[records_pb2.ClientQuota(client_id="a", bytes_in_per_s=-1)]
        ),
    ):
        with pytest.raises(MetadataCorrupt):
            StoredQuotas.from_bytes(wrong.SerializeToString(), 0)


async def test_bounds_of_quotas_are_refused_with_their_reason() -> None:
    one = Followed(MemoryCluster().connect())
    with pytest.raises(InvalidConfig, match="requests_per_s must be between 0"):
        await one.changes.set("app", QuotaLimits(requests_per_s=-1))
    with pytest.raises(InvalidRequest, match="no quota of client 'app' is to be changed"):
        await one.changes.set("app", QuotaLimits())
    with pytest.raises(InvalidRequest, match="limit 200"):
        await one.changes.set("ä" * CLIENT_ID_BYTES_MAX, MINE)
    full = {f"client-{number}": MINE for number in range(CLIENTS_MAX)}
    assert await one.catalog.replace(NO_QUOTAS, full)
    with pytest.raises(InvalidConfig, match="no room for another"):
        await one.changes.set("one-more", MINE)
    await one.changes.set("client-7", QuotaLimits(bytes_in_per_s=1))


def test_a_client_id_is_bounded_and_text() -> None:
    assert client_id_of(None) == ""
    assert client_id_of([("user-agent", "x")]) == ""
    assert client_id_of([("user-agent", "x"), (CLIENT_ID_KEY, "zählt".encode())]) == "zählt"
    assert client_id_of([(CLIENT_ID_KEY, b"x" * CLIENT_ID_BYTES_MAX)]) != ""
    with pytest.raises(InvalidRequest, match="201 bytes"):
        client_id_of([(CLIENT_ID_KEY, b"x" * (CLIENT_ID_BYTES_MAX + 1))])
    with pytest.raises(InvalidRequest, match="UTF-8"):
        client_id_of([(CLIENT_ID_KEY, b"\xff")])
