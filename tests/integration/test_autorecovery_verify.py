"""`octavo ledger verify` and `recover`: each thing that can be wrong with copies is said, and what
could not be looked at is never called whole (A-2, INV-5, INV-6)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import NamedTuple

import pytest
import pytest_asyncio

from octavo.client.autorecovery.audit_core import Fleet
from octavo.client.autorecovery.found import PROBLEMS_TOLD_MAX, Tallies, Verified
from octavo.client.autorecovery.operator import Operator
from octavo.metadata.bookies import Cookie
from octavo.metadata.ledgers import Quorum
from octavo.proto.bookie_wire import FrameType, Status
from octavo.proto.entry import decode_header, encode_header
from octavo.runtime.clock import SystemClock
from octavo.runtime.errors import NoSuchLedger
from octavo.runtime.ids import LedgerId
from tests.fake_bookie import FakeBookie
from tests.fix_ledger import FakeCluster, until

COUNT = 200


class Scene(NamedTuple):
    cluster: FakeCluster
    operator: Operator
    ledger_id: LedgerId

    async def verify(self, *, read: bool = True) -> Verified:
        found = [
            one
            async for one in self.operator.verified(
                [self.ledger_id], read=read, bytes_per_s=1 << 30
            )
        ]
        assert len(found) == 1
        return found[0]

    def copies(self, number: int) -> dict[int, bytes]:
        return self.cluster.bookies[number].ledger(self.ledger_id).entries


async def _scene(
    cluster: FakeCluster, *, close: bool = True, quorum: Quorum | None = None
) -> Scene:
    client = await cluster.client()
    wanted = quorum or Quorum(3, 3, 2)
    writer = await client.create_ledger(wanted, {})
    for number in range(COUNT):
        await writer.append(b"%d" % number)

    def stored() -> int:
        return sum(len(b.ledger(writer.ledger_id).entries) for b in cluster.bookies)

    await until(lambda: stored() == min(wanted.write, len(cluster.bookies)) * COUNT)
    if close:
        await writer.close()
    store = cluster.meta.connect()
    operator = Operator(store, cluster.paths, SystemClock())
    instance = await operator.cookies.cluster_id()
    for bookie in cluster.bookies:
        await operator.cookies.create_cookie(Cookie(bookie.bookie_id, instance, bookie.incarnation))
    await operator.client.start()
    cluster.clients.append(operator.client)
    return Scene(cluster, operator, writer.ledger_id)


@pytest_asyncio.fixture
async def scene(ledgers: FakeCluster) -> AsyncIterator[Scene]:
    yield await _scene(ledgers)


def flipped(entry: bytes) -> bytes:
    return entry[:-1] + bytes([entry[-1] ^ 1])


async def test_a_whole_ledger_is_whole(scene: Scene) -> None:
    stored = sum(map(len, scene.copies(0).values()))
    for read in (False, True):
        found = await scene.verify(read=read)
        tallies = Tallies(replicas=3, read_bytes=3 * stored * read)
        assert found == Verified(scene.ledger_id, "CLOSED", COUNT, 3, tallies=tallies)


async def test_missing_copies_are_named_as_runs(scene: Scene) -> None:
    for entry in (3, 4, 5, 9):
        del scene.copies(1)[entry]
    for read in (False, True):
        found = await scene.verify(read=read)
        assert not found.unknown
        assert found.problems == ("b1 lacks entries 3-5, 9",)
        assert found.tallies.missing == 4, "each copy counts once, asked for and read"


async def test_only_reading_sees_a_damaged_copy(scene: Scene) -> None:
    scene.copies(2)[COUNT - 1] = flipped(scene.copies(2)[COUNT - 1])
    assert not (await scene.verify(read=False)).problems
    (problem,) = (await scene.verify()).problems
    assert problem == f"b2: entry {COUNT - 1} cannot be read: EIO"
    assert (await scene.verify()).tallies.damaged == 1


async def test_inv5_two_intact_copies_of_different_bytes_are_no_copies(scene: Scene) -> None:
    payload = b"another one"
    head = encode_header(scene.ledger_id, 70, 69, 1000, payload)
    scene.copies(0)[70] = head + payload
    assert (await scene.verify()).problems == ("entry 70 differs: b0 | b1, b2 (INV-5)",)


@pytest.mark.parametrize(
    ("field", "text"),
    [("length", "bytes, with it they are"), ("lac", "was acknowledged (E-3)")],
)
async def test_e1_e3_a_header_that_does_not_follow_the_one_before_it(
    scene: Scene, field: str, text: str
) -> None:
    old = decode_header(scene.copies(0)[70])
    length = old.length + (5 if field == "length" else 0)
    lac = 75 if field == "lac" else 69
    payload = b"70"
    wrong = encode_header(scene.ledger_id, 70, lac, length, payload) + payload
    for number in range(3):  # the same on all: only the order of entries tells
        scene.copies(number)[70] = wrong
    problems = (await scene.verify()).problems
    assert text in problems[0]
    assert not (await scene.verify(read=False)).problems


async def test_e1_the_length_of_the_record_is_that_of_its_last_entry(scene: Scene) -> None:
    catalog = scene.operator.client.catalog
    found = await catalog.read(LedgerId(scene.ledger_id))
    await catalog.cas(found, replace(found.metadata, length=(found.metadata.length or 0) + 1))
    (problem,) = (await scene.verify()).problems
    assert problem.startswith("its record says")


async def test_a_copy_that_arrives_late_is_not_missing(ledgers: FakeCluster) -> None:
    """The last acknowledged entry of an open ledger may be on its way to its third bookie."""
    scene = await _scene(ledgers, close=False)
    late = scene.copies(2).pop(7)
    listed = scene.cluster.bookies[2].received
    looks = listed.count(FrameType.LIST_ENTRIES)

    async def arrives() -> None:
        await until(lambda: listed.count(FrameType.LIST_ENTRIES) > looks)
        scene.copies(2)[7] = late

    found, _ = await asyncio.gather(scene.verify(read=False), arrives())
    assert not found.problems


async def test_a_ledger_that_goes_while_it_is_looked_at_is_no_loss(scene: Scene) -> None:
    """Its topic is deleted: bookies may give its entries up before the look is over."""
    asked = asyncio.Event()
    scene.cluster.bookies[0].hold[FrameType.LIST_ENTRIES] = asked
    scene.copies(1).clear()

    async def deleted() -> None:
        listed = scene.cluster.bookies[0].received
        await until(lambda: FrameType.LIST_ENTRIES in listed)
        catalog = scene.operator.client.catalog
        await catalog.delete(await catalog.read(LedgerId(scene.ledger_id)))
        asked.set()

    with pytest.raises(NoSuchLedger):
        await asyncio.gather(scene.verify(read=False), deleted())


async def test_who_could_not_be_asked_is_told_apart(scene: Scene) -> None:
    gone = scene.cluster.bookies[0]
    await gone.unregister()
    await gone.stop()
    await until(lambda: len(scene.operator.client.directory.live()) == 2)
    found = await scene.verify()
    assert not found.problems
    assert set(found.unknown) == {"b0 is away"}
    assert found.tallies[1:4] == (0, 0, COUNT), "all its copies are unknown, and none is missing"


@pytest.mark.parametrize("frame", [FrameType.LIST_ENTRIES, FrameType.READ])
async def test_a_bookie_that_does_not_tell_is_unknown_and_not_wrong(
    scene: Scene, frame: FrameType
) -> None:
    scene.cluster.bookies[1].statuses[frame] = [Status.OVERLOADED] * COUNT
    found = await scene.verify()
    assert not found.problems
    assert "OVERLOADED" in found.unknown[0]


async def test_what_is_told_of_one_ledger_is_bounded(scene: Scene) -> None:
    scene.copies(0).clear()
    for entry in range(0, COUNT, 2):
        scene.copies(1)[entry] = flipped(scene.copies(1)[entry])
    found = await scene.verify()
    problems = found.problems
    assert len(problems) == PROBLEMS_TOLD_MAX + 1
    assert found.tallies[1:3] == (COUNT, COUNT // 2), "everything is counted"
    assert problems[0] == f"b0 lacks entries 0-{COUNT - 1}"
    assert problems[-1].endswith("more")


async def test_an_open_ledger_is_looked_at_up_to_what_is_acknowledged(ledgers: FakeCluster) -> None:
    scene = await _scene(ledgers, close=False)
    found = await scene.verify()
    assert (found.state, found.problems, found.unknown) == ("OPEN", (), ())
    assert COUNT - 1 <= found.entries <= COUNT
    del scene.copies(2)[7]
    assert (await scene.verify(read=False)).problems == ("b2 lacks entries 7",)


async def test_a_striped_ledger_has_each_entry_on_its_write_set_only(ledgers: FakeCluster) -> None:
    await ledgers.add_bookie()
    scene = await _scene(ledgers, quorum=Quorum(4, 2, 2))
    assert not (await scene.verify()).problems
    holder = next(number for number in range(4) if 5 in scene.copies(number))
    del scene.copies(holder)[5]
    assert f"b{holder} lacks entries 5" in (await scene.verify()).problems


async def test_a_ledger_of_too_few_bookies_is_told(ledgers: FakeCluster) -> None:
    gone = ledgers.bookies.pop()
    await gone.unregister()
    await gone.stop()
    scene = await _scene(ledgers)
    (problem,) = (await scene.verify()).problems
    assert problem == "it was opened with 2 copies, too few bookies"


async def test_a_lost_bookie_and_an_unreadable_record_are_wrong(scene: Scene) -> None:
    retired: FakeBookie = scene.cluster.bookies[2]
    cookie = await scene.operator.cookies.read_cookie(retired.bookie_id)
    assert cookie is not None
    await scene.operator.cookies.delete_cookie(cookie)
    await retired.unregister()
    await until(lambda: len(scene.operator.client.directory.live()) == 2)
    (problem,) = (await scene.verify(read=False)).problems
    assert "is lost, which should hold entries 0 to" in problem
    key = scene.cluster.paths.ledger(scene.ledger_id)
    found = await scene.cluster.store.get(key)
    assert found is not None
    await scene.cluster.store.put(key, b"\xff", expected=found.version)
    torn = await scene.verify()
    assert (torn.state, torn.entries) == ("UNREADABLE", 0)
    assert torn.problems


async def test_a_ledger_that_is_not_there_is_told(scene: Scene) -> None:
    verified = scene.operator.verified([999], read=False, bytes_per_s=1)
    with pytest.raises(NoSuchLedger):
        await anext(verified)


async def test_a_recovered_ledger_ends_where_its_acknowledged_entries_end(
    ledgers: FakeCluster,
) -> None:
    scene = await _scene(ledgers, close=False)
    assert isinstance(await scene.operator.fleet(), Fleet)
    for was_open in (True, False):
        changed, record = await scene.operator.recover(scene.ledger_id, timeout_s=5)
        assert (changed, record.last_entry) == (was_open, COUNT - 1)
    assert (await scene.verify()).state == "CLOSED"
    with pytest.raises(NoSuchLedger):
        await scene.operator.recover(999, timeout_s=5)
