"""`octavo ledger verify` and `recover`: each thing that can be wrong with copies is said, and what
could not be looked at is never called whole (A-2, INV-5, INV-6)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import pytest_asyncio

from octavo.client.autorecovery.audit_core import Fleet
from octavo.client.autorecovery.operator import Operator
from octavo.client.autorecovery.verify import PROBLEMS_TOLD_MAX, Verified
from octavo.metadata.bookies import Cookie
from octavo.metadata.ledgers import Quorum
from octavo.proto.bookie_wire import FrameType, Status
from octavo.proto.entry import encode_header
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
    for read in (False, True):
        found = await scene.verify(read=read)
        assert found == Verified(scene.ledger_id, "CLOSED", COUNT, 3)


async def test_missing_copies_are_named_as_runs(scene: Scene) -> None:
    for entry in (3, 4, 5, 9):
        del scene.copies(1)[entry]
    for read in (False, True):
        found = await scene.verify(read=read)
        assert not found.unknown
        assert found.problems[0] == "b1 lacks entries 3-5, 9"


async def test_only_reading_sees_a_damaged_copy(scene: Scene) -> None:
    scene.copies(2)[COUNT - 1] = flipped(scene.copies(2)[COUNT - 1])
    assert not (await scene.verify(read=False)).problems
    (problem,) = (await scene.verify()).problems
    assert problem == f"b2: entry {COUNT - 1} cannot be read: EIO"


async def test_inv5_two_intact_copies_of_different_bytes_are_no_copies(scene: Scene) -> None:
    payload = b"another one"
    head = encode_header(scene.ledger_id, 70, 69, 1000, payload)
    scene.copies(0)[70] = head + payload
    assert (await scene.verify()).problems == ("entry 70 differs: b0 | b1, b2 (INV-5)",)


async def test_who_could_not_be_asked_is_told_apart(scene: Scene) -> None:
    gone = scene.cluster.bookies[0]
    await gone.unregister()
    await gone.stop()
    await until(lambda: len(scene.operator.client.directory.live()) == 2)
    found = await scene.verify()
    assert not found.problems
    assert set(found.unknown) == {"b0 is away"}


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
    problems = (await scene.verify()).problems
    assert len(problems) == PROBLEMS_TOLD_MAX + 1
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
