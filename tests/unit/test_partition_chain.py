"""`SegmentChain.change`: the one way in which an owner publishes a new list (ML-5, ML-7, M-3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from octavo.metadata.ledger_record import LedgerMetadata, Quorum
from octavo.metadata.ledgers import LedgerCatalog
from octavo.metadata.measured import MeasuredStore
from octavo.metadata.topics import (
    PartitionCatalog,
    PartitionState,
    TrashedLedger,
    VersionedPartition,
)
from octavo.proto.segment_entries import SegmentFigures
from octavo.proto.segments import Segment
from octavo.runtime.clock import SystemClock
from octavo.runtime.errors import (
    InvariantViolation,
    KeyMissing,
    MetadataUnavailable,
    NotLeader,
    UnknownOutcome,
    UnknownTopic,
    VersionConflict,
)
from octavo.runtime.ids import LedgerId
from octavo.serving.partition.chain import CHANGE_ATTEMPTS_MAX, SegmentChain
from octavo.serving.segments import advanced, sealed_segment
from tests.memory_ledgers import MemoryBackend
from tests.serving_rig import NAME, NOW_MS, Broker, Rig

TRASH = TrashedLedger(LedgerId(77), "test", NOW_MS)
MORE_TRASH = TrashedLedger(LedgerId(78), "test", NOW_MS)


class Catalog:
    """The real catalog, with something that happens around its next writes."""

    def __init__(self, broker: Broker) -> None:
        self._real = broker.catalog
        self.reads = 0
        self.writes = 0
        self.before: list[Callable[[], None]] = []
        """Called in turn, one before each write; may raise instead of it."""
        self.after: list[Callable[[], None]] = []
        """As `before`; what it raises is told of a write that happened."""

    async def read(self, topic_id: object, partition: int) -> VersionedPartition | None:
        self.reads += 1
        assert topic_id == NAME.topic_id
        return await self._real.read(NAME.topic_id, partition)

    async def create(self, state: PartitionState) -> VersionedPartition:
        return await self._real.create(state)

    async def cas(
        self,
        old: VersionedPartition,
        new: PartitionState,
        *,
        creates: LedgerMetadata | None = None,
    ) -> VersionedPartition:
        self.writes += 1
        if self.before:
            self.before.pop(0)()
        written = await self._real.cas(old, new, creates=creates)
        if self.after:
            self.after.pop(0)()
        return written


class Owner:
    """A chain that was claimed."""

    def __init__(self, rig: Rig) -> None:
        self.broker = rig.broker()
        self.catalog = Catalog(self.broker)
        self.chain = SegmentChain(
            NAME,
            Quorum(3, 3, 2),
            backend=self.broker.backend,
            catalog=self.catalog,  # type: ignore[arg-type]
            clock=rig.clock,
            allow_degraded=True,
        )
        self.heard: list[PartitionState] = []

    async def claim(self) -> Owner:
        async def load(_state: PartitionState, closed: object) -> dict[LedgerId, Segment]:
            assert closed == {}
            return {}

        await self.chain.claim(load)
        self.chain.listen(self.heard.append)
        self.catalog.writes = self.catalog.reads = 0
        return self

    async def stored(self) -> PartitionState:
        found = await self.broker.catalog.read(NAME.topic_id, NAME.partition)
        assert found is not None
        return found.state

    async def ledgers(self) -> set[int]:
        """Those that exist."""
        rig = self.broker.rig
        store = rig.metadata.connect()
        catalog = LedgerCatalog(store, rig.paths, clock=rig.clock, entropy=rig.entropy)
        return {ledger_id async for ledger_id in catalog.walk()}

    async def other_writes(self, change: Callable[[PartitionState], PartitionState]) -> None:
        found = await self.broker.catalog.read(NAME.topic_id, NAME.partition)
        assert found is not None
        await self.broker.catalog.cas(found, change(found.state))


@pytest.fixture
async def owner() -> AsyncIterator[Owner]:
    rig = Rig()
    yield await Owner(rig).claim()
    await rig.close()


def counts(store: MeasuredStore) -> dict[str, int]:
    """Operations so far."""
    return {name: sum(histogram.counts) for name, histogram in store.seconds.items()}


def trashed(state: PartitionState) -> PartitionState:
    """The change that these tests publish; done already when the list shows it."""
    return state if TRASH in state.trash else replace(state, trash=(*state.trash, TRASH))


def raising(error: Exception) -> Callable[[], None]:
    def run() -> None:
        raise error

    return run


async def test_a_change_is_one_write_and_told_once(owner: Owner) -> None:
    made = await owner.chain.change(trashed)
    assert made == owner.chain.state == await owner.stored()
    assert made.trash == (TRASH,)
    assert (owner.catalog.writes, owner.catalog.reads) == (1, 0)
    assert owner.heard == [made]


async def test_a_change_that_changes_nothing_writes_nothing(owner: Owner) -> None:
    before = owner.chain.state
    assert await owner.chain.change(lambda state: state) is before
    assert (owner.catalog.writes, owner.heard) == (0, [])


async def test_ml7_a_write_of_unknown_outcome_that_happened_is_not_repeated(owner: Owner) -> None:
    owner.catalog.after = [raising(UnknownOutcome("lost"))]
    made = await owner.chain.change(trashed)
    assert made.trash == (TRASH,)
    assert (owner.catalog.writes, owner.catalog.reads) == (1, 1)
    assert [state.trash for state in owner.heard] == [(TRASH,)]


async def test_ml7_a_write_of_unknown_outcome_that_did_not_happen_is_repeated(
    owner: Owner,
) -> None:
    owner.catalog.before = [raising(UnknownOutcome("lost"))]
    await owner.chain.change(trashed)
    assert (await owner.stored()).trash == (TRASH,)
    assert (owner.catalog.writes, owner.catalog.reads) == (2, 1)
    assert len(owner.heard) == 1


async def test_a_conflict_with_ones_own_epoch_is_changed_on_top(owner: Owner) -> None:
    """A list that changed under the same owner: `fn` is given what was read again."""
    await owner.other_writes(lambda state: replace(state, trash=(MORE_TRASH,)))
    made = await owner.chain.change(trashed)
    assert made.trash == (MORE_TRASH, TRASH)
    assert [state.trash for state in owner.heard] == [(MORE_TRASH,), (MORE_TRASH, TRASH)]


async def test_another_epoch_is_another_owner(owner: Owner) -> None:
    """Ledger §8.3, point 2: nothing is written on top of a successor's list."""
    await owner.other_writes(lambda state: replace(state, owner_epoch=state.owner_epoch + 1))
    with pytest.raises(NotLeader, match="owned under epoch 2, ours was 1"):
        await owner.chain.change(trashed)
    assert (await owner.stored()).trash == ()
    assert owner.heard == []
    with pytest.raises(NotLeader):  # and it stays so: the next one reads first
        await owner.chain.change(trashed)
    assert owner.catalog.writes == 1
    assert not await owner.chain.still_ours()


@pytest.mark.parametrize("happened", [False, True])
async def test_another_epoch_after_an_unknown_outcome(owner: Owner, happened: bool) -> None:
    fault = raising(UnknownOutcome("lost"))
    owner.catalog.before, owner.catalog.after = ([], [fault]) if happened else ([fault], [])
    taken_over = owner.chain.state.owner_epoch + 1
    read = owner.catalog.read

    async def read_late(topic_id: object, partition: int) -> VersionedPartition | None:
        await owner.other_writes(lambda state: replace(state, owner_epoch=taken_over))
        return await read(topic_id, partition)

    owner.catalog.read = read_late  # type: ignore[method-assign]
    with pytest.raises(NotLeader):
        await owner.chain.change(trashed)
    assert ((await owner.stored()).trash == (TRASH,)) == happened


async def test_a_deleted_topic_is_said_so(owner: Owner) -> None:
    owner.catalog.before = [raising(KeyMissing("gone"))]
    with pytest.raises(UnknownTopic):
        await owner.chain.change(trashed)


async def test_a_list_that_is_gone_when_it_is_read_again(owner: Owner) -> None:
    found = await owner.broker.catalog.read(NAME.topic_id, NAME.partition)
    assert found is not None
    await owner.broker.catalog.delete(found)
    with pytest.raises(UnknownTopic):
        await owner.chain.change(trashed)


async def test_a_silent_store_leaves_a_doubt_that_the_next_change_settles(owner: Owner) -> None:
    owner.catalog.before = [raising(MetadataUnavailable("silent"))]
    with pytest.raises(MetadataUnavailable):
        await owner.chain.change(trashed)
    assert owner.heard == []
    await owner.chain.change(trashed)
    assert (owner.catalog.writes, owner.catalog.reads) == (2, 1)
    assert (await owner.stored()).trash == (TRASH,)


async def test_a_silent_store_after_an_unknown_outcome(owner: Owner) -> None:
    """The doubt outlives a re-read that finds nobody."""
    owner.catalog.after = [raising(UnknownOutcome("lost"))]
    read, silent = owner.catalog.read, [True]

    async def read_late(topic_id: object, partition: int) -> VersionedPartition | None:
        if silent and silent.pop():
            raise MetadataUnavailable("silent")
        return await read(topic_id, partition)

    owner.catalog.read = read_late  # type: ignore[method-assign]
    with pytest.raises(MetadataUnavailable):
        await owner.chain.change(trashed)
    assert (await owner.chain.change(trashed)).trash == (TRASH,)
    assert owner.catalog.writes == 1  # it had happened


async def test_a_cancelled_write_leaves_a_doubt(owner: Owner) -> None:
    """Whether it happened is not known: the next change reads before it writes."""
    reached, cas = asyncio.Event(), owner.catalog.cas

    async def cas_and_hang(
        old: VersionedPartition, new: PartitionState, *, creates: LedgerMetadata | None = None
    ) -> VersionedPartition:
        await cas(old, new, creates=creates)
        reached.set()
        never: asyncio.Future[VersionedPartition] = asyncio.get_running_loop().create_future()
        return await never

    owner.catalog.cas = cas_and_hang  # type: ignore[method-assign]
    task = asyncio.ensure_future(owner.chain.change(trashed))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert owner.chain.state.trash == ()
    owner.catalog.cas = cas  # type: ignore[method-assign]
    assert (await owner.chain.change(trashed)).trash == (TRASH,)
    assert (owner.catalog.writes, owner.catalog.reads) == (1, 1)


async def test_a_list_that_never_rests_is_left_to_the_caller(owner: Owner) -> None:
    owner.catalog.before = [raising(VersionConflict("again")) for _ in range(9)]
    with pytest.raises(UnknownOutcome, match="kept changing"):
        await owner.chain.change(trashed)
    assert owner.catalog.writes == CHANGE_ATTEMPTS_MAX


async def test_a_function_that_breaks_the_list_writes_nothing(owner: Owner) -> None:
    """Only the last segment may be open: two open ones cannot be told apart by an opener."""
    with pytest.raises(InvariantViolation, match="one open segment"):
        await owner.chain.change(
            lambda state: advanced(
                replace(state, segments=(Segment(LedgerId(1), 0),)),
                sealed=None,
                opened=(LedgerId(2), 0),
                now_ms=NOW_MS,
            )
        )
    assert owner.catalog.writes == 0


async def test_nothing_is_changed_before_it_is_claimed() -> None:
    rig = Rig()
    unclaimed = Owner(rig)
    with pytest.raises(NotLeader, match="not loaded"):
        await unclaimed.chain.change(trashed)
    await rig.close()


# --- changes made of it ------------------------------------------------------------------------


async def test_ml5_a_new_ledger_may_be_written_to_once_it_is_listed(owner: Owner) -> None:
    writer = await owner.chain.publish(sealed=None, open_new=True, base_offset=0)
    assert writer is not None
    (listed,) = (await owner.stored()).segments
    assert (listed.ledger_id, listed.base_offset) == (writer.ledger_id, 0)
    assert owner.chain.state.max_ledger_id_ever == writer.ledger_id


async def test_ml7_the_ledger_that_waits_to_be_listed_is_kept(owner: Owner) -> None:
    """An earlier write may have listed it: the same one is tried again, not a second one."""
    owner.catalog.before = [raising(MetadataUnavailable("silent"))]
    with pytest.raises(MetadataUnavailable):
        await owner.chain.publish(sealed=None, open_new=True, base_offset=0)
    assert await owner.ledgers() == set()
    writer = await owner.chain.publish(sealed=None, open_new=True, base_offset=0)
    assert writer is not None
    assert await owner.ledgers() == {writer.ledger_id} == {1}


async def test_ml3_a_ledger_that_was_overtaken_before_it_was_listed_never_exists(
    owner: Owner,
) -> None:
    """A cleaner's has a higher id and was listed meanwhile."""
    owner.catalog.before = [raising(MetadataUnavailable("silent"))]
    with pytest.raises(MetadataUnavailable):
        await owner.chain.publish(sealed=None, open_new=True, base_offset=0)
    await owner.chain.change(lambda state: replace(state, max_ledger_id_ever=5))
    writer = await owner.chain.publish(sealed=None, open_new=True, base_offset=0)
    assert writer is not None
    assert await owner.ledgers() == {writer.ledger_id} == {6}


async def test_id3_a_ledger_whose_id_was_used_before_is_left_alone(owner: Owner) -> None:
    """The metadata went back: the list stays as it was, and the next attempt draws another id."""
    catalog = LedgerCatalog(
        owner.broker.store,
        owner.broker.rig.paths,
        clock=owner.broker.rig.clock,
        entropy=owner.broker.rig.entropy,
    )
    other = await catalog.create(Quorum(3, 3, 2), owner.broker.rig.bookies.members)
    counter = owner.broker.rig.paths.idgen_epoch(0)
    owner.broker.rig.metadata.tree.damage(counter, version=other.metadata.ledger_id - 1)
    with pytest.raises(MetadataUnavailable, match="exists already"):
        await owner.chain.publish(sealed=None, open_new=True, base_offset=0)
    assert (await owner.stored()).segments == ()
    assert await catalog.read(other.metadata.ledger_id) == other
    writer = await owner.chain.publish(sealed=None, open_new=True, base_offset=0)
    assert writer is not None
    assert writer.ledger_id > other.metadata.ledger_id
    assert owner.catalog.reads == 0  # nothing was in doubt


async def test_ml9_an_owner_that_was_replaced_creates_no_ledger(owner: Owner) -> None:
    """However late its write arrives: it names a version of the list that is gone."""
    await owner.other_writes(lambda state: replace(state, owner_epoch=state.owner_epoch + 1))
    with pytest.raises(NotLeader):
        await owner.chain.publish(sealed=None, open_new=True, base_offset=0)
    assert await owner.ledgers() == set()
    found = await owner.broker.catalog.read(NAME.topic_id, NAME.partition)
    assert found is not None
    await owner.broker.catalog.delete(found)  # and the topic after it
    with pytest.raises(UnknownTopic):
        await owner.chain.publish(sealed=None, open_new=True, base_offset=0)
    assert await owner.ledgers() == set()


async def test_ml9_a_list_creates_what_it_names_and_nothing_else(owner: Owner) -> None:
    draft = await owner.broker.backend.draft_ledger(Quorum(3, 3, 2), {})
    with pytest.raises(InvariantViolation, match="names it"):
        await owner.chain.change(trashed, creates=draft)
    assert await owner.ledgers() == set()


async def test_a_roll_takes_two_writes_of_metadata_and_the_close_of_the_ledger_before(
    owner: Owner,
) -> None:
    """One draws an id, one creates the ledger and lists it with the end of the one before."""
    store = MeasuredStore(owner.broker.rig.metadata.connect(), SystemClock())
    rig = owner.broker.rig
    clock, entropy = rig.clock, rig.entropy
    ledgers = LedgerCatalog(store, rig.paths, clock=clock, entropy=entropy)
    chain = SegmentChain(
        NAME,
        Quorum(3, 3, 2),
        backend=MemoryBackend(rig.bookies, ledgers),
        catalog=PartitionCatalog(store, rig.paths, clock=clock, entropy=entropy),
        clock=clock,
        allow_degraded=True,
    )

    async def load(_state: PartitionState, _closed: object) -> dict[LedgerId, Segment]:
        return {}

    await chain.claim(load)
    first = await chain.publish(sealed=None, open_new=True, base_offset=0)
    assert first is not None
    await first.append(b"entry")
    before = counts(store)
    closed = await first.close()
    sealed = sealed_segment(Segment(first.ledger_id, 0), closed, 1, SegmentFigures())
    assert await chain.publish(sealed=sealed, open_new=True, base_offset=1) is not None
    after = counts(store)
    made = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert made == {"put": 1, "fetch_add": 1, "create_and_put": 1}


async def test_a_ledger_that_was_listed_unnoticed_is_given_out_although_none_is_asked(
    owner: Owner,
) -> None:
    """The last segment of the list must have a writer, or an end."""
    owner.catalog.after = [raising(MetadataUnavailable("silent"))]
    with pytest.raises(MetadataUnavailable):
        await owner.chain.publish(sealed=None, open_new=True, base_offset=0)
    writer = await owner.chain.publish(sealed=None, open_new=False, base_offset=0)
    assert writer is not None
    assert [one.ledger_id for one in (await owner.stored()).segments] == [writer.ledger_id]
    assert await owner.chain.publish(sealed=None, open_new=False, base_offset=0) is None


async def test_ml9_trash_that_another_change_forgot_already_is_no_failure(owner: Owner) -> None:
    await owner.chain.change(trashed)
    await owner.other_writes(lambda state: replace(state, trash=()))
    assert await owner.chain.sweep_trash(0) == 1  # no such ledger: deleted before
    assert (await owner.stored()).trash == ()


async def test_ml9_trash_stays_until_its_ledger_is_deleted(owner: Owner) -> None:
    await owner.chain.change(trashed)
    assert await owner.chain.sweep_trash(1 << 50) == 0
    owner.catalog.before = [raising(MetadataUnavailable("silent"))]
    assert await owner.chain.sweep_trash(0) == 1  # forgotten at the next sweep
    assert owner.chain.state.trash == (TRASH,)
    assert await owner.chain.sweep_trash(0) == 1
    assert not (await owner.stored()).trash
