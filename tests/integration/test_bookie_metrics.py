"""What a bookie's page says after what was done to it; a real journal and index, real sockets."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import pathlib
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType

from octavo.bookie.metrics import BookieMetrics
from octavo.client.autorecovery.service import Autorecovery
from octavo.client.ledger.config import LedgerClientConfig
from octavo.metadata.bookies import BookieRegistration
from octavo.metadata.measured import MeasuredStore
from octavo.metadata.paths import Paths
from octavo.metrics import catalogue
from octavo.proto.bookie_wire import Status
from octavo.runtime.ids import EntryId
from tests.bookie_rig import ROOT, BookieRig, entry, flip, until
from tests.metrics_client import Page, page_of
from tests.unit import test_bookie_scrub as scrubs

SCRUB = "octavo_bookie_scrub_"


class Shown:
    """A bookie and its page."""

    def __init__(self, rig: BookieRig, store: MeasuredStore, healing: Autorecovery | None) -> None:
        self.rig = rig
        self.healing = healing
        server = rig.server
        self.metrics = BookieMetrics(
            server.config,
            server.desk,
            lambda: server.connections,
            store=store,
            healing=healing,
            clock=rig.clock,
        )

    async def page(self) -> Page:
        return await page_of(self.metrics.page.address)


@asynccontextmanager
async def shown(
    folder: pathlib.Path,
    *,
    heals: bool = False,
    settings: Mapping[str, object] = MappingProxyType({}),
) -> AsyncGenerator[Shown]:
    ours: dict[str, object] = {"metrics_port": 0, "fleet_poll_s": 0.02, "audit_interval_s": 0.05}
    async with BookieRig(folder, None, **{**ours, **settings}) as rig:
        store = MeasuredStore(rig.metadata, rig.clock)
        healing = None
        if heals:
            healing = Autorecovery(
                store,
                Paths(ROOT),
                settings=rig.server.config,
                name="bookie-1",
                clock=rig.clock,
                entropy=rig.entropy,
                client_config=LedgerClientConfig(client_name="test"),
            )
        made = Shown(rig, store, healing)
        await made.metrics.start()
        try:
            yield made
        finally:
            if healing is not None:
                await healing.close()
            await made.metrics.close()


async def test_adds_reads_syncs_and_refusals_are_on_the_page(tmp_path: pathlib.Path) -> None:
    async with shown(tmp_path) as made:
        rig = made.rig
        client = await rig.client()
        good, fenced = await rig.ledger(), await rig.ledger()
        assert await client.add(*(entry(good, n) for n in range(5))) == [Status.OK] * 5
        await rig.server.store.fence(fenced)
        refused = await client.add(entry(good, 5), entry(fenced, 0), entry(fenced, 1))
        assert refused == [Status.OK, Status.FENCED, Status.FENCED]
        assert len((await client.read(good, 0, 3)).entries) == 3
        await until(lambda: rig.server.store.stats.entries_added == 6)
        page = await made.page()
        syncs = rig.server.store._journal.syncs
    assert page.value("octavo_bookie_entries_total", direction="in") == 6
    assert page.value("octavo_bookie_entries_total", direction="out") == 3
    assert page.value("octavo_fenced_adds_total") == 2
    assert page.value("octavo_bookie_refused_adds_total", status="FENCED") == 2
    assert page.value("octavo_bookie_state", state="rw") == 1
    assert page.value("octavo_bookie_state", state="ro") == 0
    assert page.value("octavo_connections") == 1
    assert page.value("octavo_bookie_journal_queue_entries") == 0
    assert page.value("octavo_bookie_journal_bytes_total") > 0
    assert 1 <= page.value("octavo_bookie_journal_add_seconds_count") <= 3
    assert page.value("octavo_bookie_journal_fsync_seconds_count") >= syncs
    entries_and_controls = page.value("octavo_bookie_journal_group_size_sum")
    assert entries_and_controls >= 6 + 1  # the fence as well
    assert page.value("octavo_bookie_disk_free_bytes", disk="data") > 0
    assert page.value("octavo_bookie_corrupt_entries_total") == 0
    assert page.value("octavo_bookie_index_rebuilds_total") == 0
    assert page.value("octavo_metrics_failures_total") == 0
    assert page.values("octavo_auditor") == []  # it heals nothing here
    assert page.families.keys() == {m.name for m in catalogue.of_server("bookie")}


async def test_damage_that_a_read_meets_is_counted(tmp_path: pathlib.Path) -> None:
    async with shown(tmp_path) as made:
        rig = made.rig
        ledger = await rig.ledger()
        await rig.add(*(entry(ledger, n) for n in range(3)))
        await until(lambda: rig.server.store.stats.entries_added == 3)
        path = rig.segments()[-1]
        flip(path, path.read_bytes().index(b"payload of %d/1" % ledger))
        assert (await rig.read(ledger, 1))[0] is Status.EIO
        assert (await made.page()).value("octavo_bookie_corrupt_entries_total") == 1


async def test_615_what_the_scrub_finds_and_repairs_is_on_the_page(tmp_path: pathlib.Path) -> None:
    async with shown(tmp_path, settings=scrubs.SETTINGS) as made:
        rig = made.rig
        ledger = await scrubs.filled(rig)
        page = await made.page()
        read, passes = page.value(SCRUB + "bytes_total"), page.value(SCRUB + "passes_total")
        assert (read > 0, passes > 0) == (True, True)
        assert page.value(SCRUB + "ended_timestamp_seconds") * 1000 <= rig.clock.wall_ms()
        assert found(page) == (0, 0, 0, 0)
        number, offset, _ = scrubs.place_of(rig, ledger, 7)
        scrubs.flip_at(rig, number, offset + 2000)
        await scrubs.scrubbed(rig)
        page = await made.page()
        assert page.value(SCRUB + "bytes_total") > read
        assert page.value(SCRUB + "passes_total") > passes
        assert found(page) == (1, 0, 1, 1)
        assert await rig.add(entry(ledger, 7, scrubs.PAYLOAD), recovery=True) == [Status.OK]
        await scrubs.left(rig, number)
        assert found(await made.page()) == (1, 1, 0, 0)


def found(page: Page) -> tuple[float, ...]:
    """Entries that were damaged, that were repaired, that wait; segments in quarantine."""
    names = "damaged_entries_total", "repaired_entries_total", "waiting_entries"
    return tuple(page.value(SCRUB + name) for name in (*names, "quarantined_segments"))


async def test_a_bookie_that_does_not_scrub_tells_no_time_of_its_last_look(
    tmp_path: pathlib.Path,
) -> None:
    async with shown(tmp_path, settings={"scrub_bytes_per_s": 0}) as made:
        page = await made.page()
    assert page.values(SCRUB + "ended_timestamp_seconds") == []
    assert found(page) == (0, 0, 0, 0)


async def test_a_full_disk_shows_as_read_only(tmp_path: pathlib.Path) -> None:
    async with shown(tmp_path) as made:
        made.rig.disk.space = (1_000, 1_000_000)
        await until(lambda: not made.rig.server.store.writable)
        page = await made.page()
        assert page.value("octavo_bookie_state", state="ro") == 1
        assert page.value("octavo_bookie_disk_free_bytes", disk="data") == 1_000
        assert page.value("octavo_bookie_disk_total_bytes", disk="data") == 1_000_000


async def test_before_it_is_opened_a_bookie_tells_its_state_only(tmp_path: pathlib.Path) -> None:
    async with shown(tmp_path) as made:
        made.rig.server._opened, opened = None, made.rig.server._opened
        page = await made.page()
        made.rig.server._opened = opened
    assert page.value("octavo_metrics_failures_total") == 0
    assert page.values("octavo_bookie_ledgers") == []
    assert page.values("octavo_bookie_journal_fsync_seconds_count") == []


async def test_ledgers_that_lack_copies_are_shown_by_the_auditor_alone(
    tmp_path: pathlib.Path,
) -> None:
    async with shown(tmp_path, heals=True) as made:
        assert made.healing is not None
        page = await made.page()
        assert page.value("octavo_auditor") == 0
        assert page.values("octavo_ledgers_underreplicated") == []  # unknown is no 0
        await made.healing.start()
        await until(lambda: made.healing is not None and made.healing.audit is not None)
        page = await made.page()
        assert page.value("octavo_auditor") == 1
        assert page.value("octavo_ledgers_underreplicated") == 0
        assert page.value("octavo_audit_ended_timestamp_seconds") > 1.7e9
        assert page.value("octavo_ledgers_repaired_total") == 0
        gone = BookieRegistration("bookie-2", uuid.uuid4(), "127.0.0.1:1").member
        catalog, member = made.rig.catalog, made.rig.server.member
        ledger = await made.rig.ledger(member, gone)
        closed = await catalog.read(ledger)
        await catalog.cas(closed, closed.metadata.in_recovery().closed(EntryId(-1), 0))
        report = made.healing.audit
        async with asyncio.timeout(30):
            while report is None or not (report.ledgers and (report.short or report.unchecked)):
                await asyncio.sleep(0.01)
                report = made.healing.audit
        page = await made.page()
        short = page.value("octavo_ledgers_underreplicated")
        assert short + page.value("octavo_ledgers_unchecked") == 1


async def test_sessions_and_operations_of_the_metadata_store(tmp_path: pathlib.Path) -> None:
    async with shown(tmp_path) as made:
        store = made.metrics._store
        await store.get("/octavo/nothing")
        made.rig.metadata.suspend()
        page = await made.page()
        made.rig.metadata.resume()
    assert page.value("octavo_zk_op_seconds_count", op="get") == 1
    assert page.value("octavo_zk_op_seconds_count", op="put") == 0
    assert page.value("octavo_zk_session_state", state="suspended") == 1
