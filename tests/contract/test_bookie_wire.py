"""What a ledger client relies on at a bookie, judged alike for the fake and for the real server.

Each test speaks the framed wire through `BookiePool` and `BookieCalls`; rule ids are of
spec/ledger.md §6. If one of the two passes and the other fails, one of them lies.
"""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from octavo.bookie.config import BookieConfig
from octavo.bookie.server import BookieServer
from octavo.bookie.storage.index import IndexEngine
from octavo.bookie.storage.memory_index import MemoryEngine
from octavo.bookie.storage.rocks_index import RocksEngine
from octavo.client.ledger import LedgerClientConfig, Quorum
from octavo.client.ledger.calls import BookieCalls, LacReply, encode_lac
from octavo.client.ledger.entry_run import EntryRun
from octavo.client.ledger.pool import BookiePool
from octavo.metadata.ledgers import LedgerCatalog
from octavo.metadata.memory import MemoryCluster
from octavo.metadata.paths import Paths
from octavo.proto.bookie_wire import FrameType, ReadReply, ReadRequest, Status
from octavo.proto.endpoints import SocketNetwork
from octavo.proto.entry import encode_header
from octavo.proto.memory_transport import MemoryNetwork
from octavo.proto.transport import Network
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.ids import EntryId, LedgerId, Member
from tests.fake_bookie import FakeBookie
from tests.static_addresses import StaticAddresses


@dataclass
class Bench:
    """One bookie under test and a client's view of it."""

    member: Member
    pool: BookiePool
    calls: BookieCalls
    catalog: LedgerCatalog

    async def ledger(self) -> LedgerId:
        """An OPEN ledger on this bookie, so that admission lets its writer in (B-31)."""
        created = await self.catalog.create(Quorum(1, 1, 1), [self.member])
        return created.metadata.ledger_id

    async def add(self, entries: Sequence[bytes], member: Member | None = None) -> list[Status]:
        lane = Lane(member or self.member)
        lengths = [len(e) for e in entries]
        parts = [part for e in entries for part in (e[:36], e[36:])]
        run = EntryRun(range(len(entries)), lengths, parts, sum(lengths))
        self.pool.channel(self.member.bookie_id, "add").enqueue(lane, run)
        return await lane.result

    async def read(
        self, ledger: LedgerId, first: int, count: int = 1, *, recovery: bool = False
    ) -> ReadReply:
        request = ReadRequest(self.member.incarnation.bytes, ledger, first, count, 1 << 20)
        return await self.calls.read(request, self.member, recovery=recovery, timeout_s=5)

    async def fence(self, ledger: LedgerId) -> tuple[Status, EntryId]:
        return await self.calls.fence(ledger, self.member, timeout_s=5)


class Lane:
    """Collects the outcome of one run."""

    def __init__(self, member: Member) -> None:
        self.incarnation = member.incarnation.bytes
        self.result: asyncio.Future[list[Status]] = asyncio.get_running_loop().create_future()

    def confirmed(self, run: EntryRun) -> None:
        self.result.set_result([Status.OK] * len(run.lengths))

    def answered(self, run: EntryRun, statuses: Sequence[int]) -> None:
        self.result.set_result([Status(s) for s in statuses])

    def failed(self, run: EntryRun, status: Status) -> None:
        self.result.set_result([status] * len(run.lengths))


def entry(ledger: LedgerId, number: int, payload: bytes = b"x", lac: int | None = None) -> bytes:
    known = number - 1 if lac is None else lac
    return encode_header(ledger, number, known, (number + 1) * len(payload), payload) + payload


@pytest_asyncio.fixture(params=["fake", "real", "real in memory"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    meta = MemoryCluster()
    clock, entropy, paths = SystemClock(), SystemEntropy(), Paths("/octavo")
    fake = FakeBookie("b0")
    real: BookieServer | None = None
    network: Network = SocketNetwork()
    indexes: IndexEngine = RocksEngine()
    if request.param == "real in memory":  # but for its journal
        network, indexes = MemoryNetwork(), MemoryEngine()
    if request.param != "fake":
        config = BookieConfig(
            bookie_id="b0", data_dir=tmp_path, metadata_url="memory://wire/octavo",
            segment_bytes=4 << 20,
        )  # fmt: skip
        real = BookieServer(
            config,
            store=meta.connect(),
            clock=clock,
            entropy=entropy,
            indexes=indexes,
            network=network,
        )
        await real.start()
        address, member = real.wire_address, real.member
    else:
        await fake.start()
        address, member = fake.address, Member("b0", fake.incarnation)
    pool = BookiePool(
        StaticAddresses({"b0": address}),
        config=LedgerClientConfig(),
        network=network,
        clock=clock,
        entropy=entropy,
    )
    pool.start()
    catalog = LedgerCatalog(meta.connect(), paths, clock=clock, entropy=entropy)
    yield Bench(member, pool, BookieCalls(pool), catalog)
    await pool.close()
    if real is not None:
        await real.stop()
    await fake.stop()


async def test_add_then_read_back_verbatim(bench: Bench) -> None:
    ledger = await bench.ledger()
    entries = [entry(ledger, n, b"payload") for n in range(5)]
    assert await bench.add(entries) == [Status.OK] * 5
    reply = await bench.read(ledger, 1, 3)
    assert (reply.status, reply.entries) == (Status.OK, entries[1:4])
    assert (await bench.read(ledger, 3, 100)).entries == entries[3:]


async def test_absent_entries_are_explicit_negatives(bench: Bench) -> None:
    """INV-9."""
    ledger = await bench.ledger()
    assert await bench.add([entry(ledger, 0)]) == [Status.OK]
    assert (await bench.read(ledger, 1)).status is Status.NO_SUCH_ENTRY
    unknown = await bench.read(LedgerId(ledger + 1000), 0)
    assert unknown.status in (Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER)


async def test_same_bytes_again_are_ok_other_bytes_conflict(bench: Bench) -> None:
    """B-3, INV-5."""
    ledger = await bench.ledger()
    first = entry(ledger, 0, b"one")
    assert await bench.add([first]) == [Status.OK]
    assert await bench.add([first, entry(ledger, 1)]) == [Status.OK, Status.OK]
    assert await bench.add([entry(ledger, 0, b"two")]) == [Status.CONFLICT]


async def test_bad_digest_is_refused_and_the_others_stored(bench: Bench) -> None:
    """B-1."""
    ledger = await bench.ledger()
    bad = entry(ledger, 1)[:-1] + b"!"
    statuses = await bench.add([entry(ledger, 0), bad, entry(ledger, 2)])
    assert statuses == [Status.OK, Status.BAD_DIGEST, Status.OK]
    assert (await bench.read(ledger, 1)).status is Status.NO_SUCH_ENTRY


async def test_older_incarnation_is_refused(bench: Bench) -> None:
    """B-2: by the client already, because the hello told it the incarnation."""
    ledger = await bench.ledger()
    old = Member("b0", uuid.uuid4())
    assert await bench.add([entry(ledger, 0)], old) == [Status.WRONG_INCARNATION]


async def test_fence_tells_the_lac_and_refuses_later_adds(bench: Bench) -> None:
    """B-F1..B-F3, RD-5."""
    ledger = await bench.ledger()
    await bench.add([entry(ledger, n) for n in range(4)])
    assert await bench.fence(ledger) == (Status.OK, 2)
    assert await bench.add([entry(ledger, 4)]) == [Status.FENCED]
    assert await bench.fence(ledger) == (Status.OK, 2)
    assert (await bench.read(ledger, 3, recovery=True)).status is Status.OK
    assert (await bench.read(ledger, 4, recovery=True)).status is Status.NO_SUCH_ENTRY


async def test_a_recovery_read_fences(bench: Bench) -> None:
    """R-13."""
    ledger = await bench.ledger()
    await bench.add([entry(ledger, 0)])
    assert (await bench.read(ledger, 1, recovery=True)).status is Status.NO_SUCH_ENTRY
    assert await bench.add([entry(ledger, 1)]) == [Status.FENCED]


async def test_an_unknown_ledger_can_be_fenced(bench: Bench) -> None:
    """R-2, B-F2."""
    ledger = await bench.ledger()
    status, lac = await bench.fence(ledger)
    assert status in (Status.OK, Status.NO_SUCH_LEDGER)
    assert lac == -1
    assert await bench.add([entry(ledger, 0)]) == [Status.FENCED]


async def test_recovery_adds_pass_the_fence(bench: Bench) -> None:
    """R-17."""
    ledger = await bench.ledger()
    await bench.fence(ledger)
    data = entry(ledger, 0)
    assert await bench.calls.add_recovered(bench.member, data, timeout_s=5) is Status.OK
    assert (await bench.read(ledger, 0)).entries == [data]


async def test_explicit_lac_and_long_poll(bench: Bench) -> None:
    """RD-6, RD-7."""
    ledger = await bench.ledger()
    await bench.add([entry(ledger, n, lac=-1) for n in range(3)])

    async def poll(previous: int, wait_s: float) -> LacReply:
        return await bench.calls.read_lac(
            ledger, bench.member, previous=previous, wait_s=wait_s, timeout_s=5
        )

    assert (await poll(-1, 0.0)).lac == -1
    waiting = asyncio.ensure_future(poll(-1, 20.0))
    channel = bench.pool.channel("b0", "add")
    channel.post(FrameType.WRITE_LAC, encode_lac(ledger, EntryId(2), bench.member))
    assert (await waiting).lac == 2
    assert (await poll(2, 0.05)).lac == 2
    fenced = asyncio.ensure_future(poll(2, 20.0))
    await bench.fence(ledger)
    assert (await fenced).fenced


async def test_batch_read_is_bounded_by_bytes_but_gives_one(bench: Bench) -> None:
    """RD-4."""
    ledger = await bench.ledger()
    await bench.add([entry(ledger, n, bytes(1000)) for n in range(10)])
    request = ReadRequest(bench.member.incarnation.bytes, ledger, 0, 10, 2500)
    reply = await bench.calls.read(request, bench.member, recovery=False, timeout_s=5)
    assert 1 <= len(reply.entries) <= 3
    request = request._replace(max_bytes=1)
    reply = await bench.calls.read(request, bench.member, recovery=False, timeout_s=5)
    assert len(reply.entries) == 1


async def test_many_runs_in_one_turn_share_frames(bench: Bench) -> None:
    ledgers = [await bench.ledger() for _ in range(20)]
    results = await asyncio.gather(*(bench.add([entry(x, 0), entry(x, 1)]) for x in ledgers))
    assert results == [[Status.OK, Status.OK]] * 20


async def test_header_lac_layout(bench: Bench) -> None:
    """E-4: the crc covers big-endian ledger id and LAC; a wrong one changes nothing."""
    ledger = await bench.ledger()
    await bench.add([entry(ledger, 0, lac=-1)])
    body = encode_lac(ledger, EntryId(0), bench.member)
    assert struct.pack(">qq", ledger, 0)
    frame = await bench.pool.channel("b0", "read").call(FrameType.WRITE_LAC, body, timeout_s=5)
    assert frame.type == FrameType.WRITE_LAC_REPLY


async def test_a2_held_entries_are_listed(bench: Bench) -> None:
    """Only what is durable there; another incarnation's absence is never told (B-25)."""
    ledger = await bench.ledger()
    held = [entry(ledger, n) for n in (0, 1, 4)]
    assert await bench.add(held) == [Status.OK] * 3

    async def runs_of(member: Member, first: int, last: int) -> tuple[Status, set[int]]:
        reply = await bench.calls.list_entries(ledger, member, first, last, timeout_s=5)
        assert reply.through == (last if reply.status is Status.OK else -1)
        return reply.status, {e for a, b in reply.runs for e in range(a, b + 1)}

    for _ in range(500):  # the index is a moment behind the acknowledgement
        if (await runs_of(bench.member, 0, 9))[1] == {0, 1, 4}:
            break
        await asyncio.sleep(0.01)
    assert await runs_of(bench.member, 1, 3) == (Status.OK, {1})
    other = Member("b0", uuid.uuid4())
    status, found = await runs_of(other, 0, 9)
    assert status not in (Status.OK, Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER)
    assert not found
    nothing = await bench.calls.list_entries(LedgerId(ledger + 1), bench.member, 0, 9, timeout_s=5)
    assert nothing.runs == ()
    backwards = await bench.calls.list_entries(ledger, bench.member, 5, 4, timeout_s=5)
    assert backwards.status is not Status.OK or not backwards.runs
