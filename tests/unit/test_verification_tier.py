"""What `octavo verify` says of files of a tier: how many, which are wrong, what is lost (F088)."""

from __future__ import annotations

import pathlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from octavo.client.autorecovery.operator import Operator
from octavo.client.autorecovery.pace import Pace
from octavo.client.exports.layout import control_folder, folder_of, index_folder
from octavo.client.exports.manifest import FOLDER, Change, FileEntry, Manifest
from octavo.client.exports.run import export_log
from octavo.client.exports.tier_marker import MARKER, TierMark, make_mark
from octavo.client.exports.tier_place import tree_root
from octavo.client.exports.tree import LocalTree
from octavo.client.verification.tier_files import judge_files, needs_files, said_of
from octavo.client.verification.tier_sweep import TierSweep
from octavo.client.verification.totals import Finding, Totals, Verdict
from octavo.metadata.memory import MemoryCluster
from octavo.metadata.partition_record import PartitionState
from octavo.metadata.paths import Paths
from octavo.metadata.tier import TierCatalog
from octavo.metadata.topics import PartitionCatalog, Topic, TopicCatalog
from octavo.proto.segments import Segment
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.errors import StorageFailed
from octavo.runtime.ids import EntryId, LedgerId
from tests.spark_memory import MemoryTopic, numbered

PATHS = Paths("/octavo")
COUNT = 3
OFFSETS = 10
LARGE = 16 << 20
"""A ledger of its size has a file of its own."""


def entry(first: int, end: int, *ledgers: int) -> FileEntry:
    return FileEntry(
        file=f"f{first}",
        partition=0,
        ledgers=ledgers,
        first=first,
        last=end - 1,
        rows=end - first,
        bytes=1,
        arrow_bytes=1,
        min_timestamp_ms=0,
        max_timestamp_ms=0,
        sha256="",
        schema_id=0,
        codec="zstd",
        block_crcs="",
    )


def listed(*, version: int | None = 3, log_start: int = 0) -> PartitionState:
    """Three segments of ten offsets in files, the first two on no bookie, and an open one."""
    segments = tuple(
        Segment(
            LedgerId(n + 1),
            n * OFFSETS,
            n * OFFSETS + OFFSETS,
            100,
            last_entry=EntryId(4),
            object_version=version,
            in_ledger=version is None or n == COUNT - 1,
        )
        for n in range(COUNT)
    )
    return PartitionState(
        uuid.UUID(int=7),
        0,
        (*segments, Segment(LedgerId(9), COUNT * OFFSETS)),
        max_ledger_id_ever=9,
        log_start_offset=log_start,
    )


# --- the judge -----------------------------------------------------------------------------------


def test_files_that_hold_everything_are_the_ones_to_look_at() -> None:
    whole = [entry(20, 30, 3), entry(0, 20, 1, 2)]
    plan = judge_files(listed(), 3, whole)
    assert plan.problems == ()
    assert [one.file for one in plan.files] == ["f0", "f20"]
    below = judge_files(listed(log_start=20), 5, whole)
    assert [one.file for one in below.files] == ["f20"]
    assert not needs_files(listed(version=None))
    assert judge_files(listed(version=None), 0, whole).files == ()


def test_offsets_that_no_file_holds_are_lost_or_on_bookies_still() -> None:
    plan = judge_files(listed(), 3, [entry(0, 5, 1), entry(8, 20, 1, 2)])
    assert plan.problems == (
        "no file holds offsets 5 to 7 of ledger 1; offsets 5 to 7 lost: no bookie holds them",
        "no file holds offsets 20 to 29 of ledger 3; on bookies still",
    )
    nothing = judge_files(listed(log_start=15), 2, [])
    assert nothing.problems[0] == "the manifest ends at version 2, and version 3 was listed"
    assert "offsets 15 to 19 lost" in nothing.problems[1]


def test_gaps_of_a_compacted_segment_are_none() -> None:
    state = listed()
    first = replace(state.segments[0], compacted=True)
    compacted = replace(state, segments=(first, *state.segments[1:]))
    assert judge_files(compacted, 3, [entry(3, 7, 1), entry(10, 30, 2, 3)]).problems == ()


def test_what_a_damaged_file_takes_along_is_said() -> None:
    error = StorageFailed("it is damaged")
    shared = said_of(listed(log_start=4), entry(0, 30, 1, 2, 3), error)
    assert shared == (
        "file f0 (offsets 0 to 29): it is damaged; offsets 4 to 19 lost: no bookie holds them"
    )
    assert said_of(listed(), entry(20, 30, 3), error).endswith("; on bookies still")


# --- the sweep -----------------------------------------------------------------------------------


class Scene:
    """A cluster without servers: metadata, and a tier with three files of one topic."""

    def __init__(self, tier: pathlib.Path) -> None:
        self.tier = tier
        self.store = MemoryCluster().connect()
        self.clock, self.entropy = SystemClock(), SeededEntropy(3)
        self.operator = Operator(self.store, PATHS, self.clock)
        self.topics = TopicCatalog(self.store, PATHS, clock=self.clock, entropy=self.entropy)
        self.partitions = PartitionCatalog(
            self.store, PATHS, clock=self.clock, entropy=self.entropy
        )
        self.topic = Topic("orders", uuid.UUID(int=1), 1)

    async def fill(self) -> None:
        self.topic = (await self.topics.create("orders", 2)).topic
        mark = TierMark(await self.operator.cookies.cluster_id(), uuid.UUID(int=5).hex)
        make_mark(str(self.tier), mark)
        await TierCatalog(self.store, PATHS, self.clock).name(mark.tier_id)
        log = MemoryTopic(topic_id=self.topic.topic_id.hex)
        for number in range(COUNT):
            log.append([numbered(OFFSETS, number * OFFSETS)], size_bytes=LARGE)
        await export_log(log, "orders", self.root, index=True)
        await self.partitions.create(replace(listed(), topic_id=self.topic.topic_id))

    @property
    def root(self) -> str:
        return tree_root(str(self.tier), "orders", self.topic.topic_id)

    def files(self) -> list[pathlib.Path]:
        return sorted(pathlib.Path(self.root, folder_of("orders")).iterdir())

    def versions(self) -> list[pathlib.Path]:
        return sorted(pathlib.Path(self.root, control_folder("orders"), FOLDER).iterdir())

    def indexes(self) -> list[pathlib.Path]:
        return sorted(pathlib.Path(self.root, index_folder("orders")).iterdir())

    async def verify(
        self, *, read: bool = True, tier_root: str | None = None
    ) -> tuple[Totals, list[Finding]]:
        totals = Totals()
        sweep = TierSweep(
            self.operator,
            PATHS,
            self.partitions,
            tier_root=str(self.tier) if tier_root is None else tier_root,
            read=read,
            pace=Pace(1 << 30, self.clock),
            totals=totals,
        )
        found: list[Finding] = []
        async for job in sweep.jobs():
            said = await job
            if not isinstance(said, list):
                raise said
            found += said
        return totals, found


@pytest_asyncio.fixture
async def scene(tmp_path: pathlib.Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path)
    await made.fill()
    yield made
    await made.store.close()


def flip(path: pathlib.Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


async def test_every_file_is_read_and_counted(scene: Scene) -> None:
    totals, found = await scene.verify()
    assert found == []
    sizes = sum(one.stat().st_size for one in (*scene.files(), *scene.indexes()))
    assert (totals.files, totals.read_bytes) == (COUNT, sizes)
    totals, found = await scene.verify(read=False)
    assert (found, totals.files, totals.read_bytes) == ([], COUNT, 0)


@pytest.mark.parametrize("of_index", [False, True])
async def test_a_damaged_or_missing_file_is_named_with_what_is_lost(
    scene: Scene, of_index: bool
) -> None:
    lost, kept = (scene.indexes() if of_index else scene.files())[1:]
    flip(lost)
    totals, (finding,) = await scene.verify()
    assert (finding.subject, finding.verdict) == ("files of orders-0", Verdict.WRONG)
    (text,) = finding.texts
    assert scene.files()[1].name in text
    assert text.endswith("offsets 10 to 19 lost: no bookie holds them")
    assert totals.files == COUNT - 1
    _, quick = await scene.verify(read=False)
    assert quick == []  # its size is right
    lost.unlink()
    kept.unlink()
    totals, (finding,) = await scene.verify(read=False)
    assert "is gone" in finding.texts[0]
    assert finding.texts[1].endswith("; on bookies still")
    assert totals.files == COUNT - 2


async def test_a_manifest_that_lost_a_file_or_its_end_is_told(scene: Scene) -> None:
    manifest = Manifest(LocalTree(scene.root), "orders")
    name = scene.files()[0].name
    manifest.publish(lambda _: Change(remove=(name,)))
    _, (finding,) = await scene.verify()
    assert finding.texts == (
        "no file holds offsets 0 to 9 of ledger 1; offsets 0 to 9 lost: no bookie holds them",
    )
    for path in scene.versions()[2:]:
        path.unlink()
    _, (finding,) = await scene.verify()
    assert finding.texts[0].startswith("the manifest ends at version 2, and version 3")


async def test_unknown_is_not_lost(scene: Scene, tmp_path: pathlib.Path) -> None:
    totals, (finding,) = await scene.verify(tier_root="")
    assert (finding.subject, finding.verdict) == ("tier", Verdict.UNKNOWN)
    assert "nobody said where it is" in finding.texts[0]
    assert totals.files == 0
    other = tmp_path / "other"
    other.mkdir()
    _, (finding,) = await scene.verify(tier_root=str(other))
    assert finding.verdict is Verdict.UNKNOWN
    assert f"{MARKER} is not there" in finding.texts[0]
    make_mark(str(other), TierMark("another cluster", uuid.UUID(int=5).hex))
    _, (finding,) = await scene.verify(tier_root=str(other))
    assert "belongs to cluster another cluster" in finding.texts[0]


async def test_what_changes_while_it_is_looked_at_is_looked_at_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that a trim takes off meanwhile is nobody's loss."""
    scene.files()[0].unlink()
    read = scene.partitions.read
    reads = 0

    async def trimmed_behind(topic_id: uuid.UUID, partition: int) -> object:
        nonlocal reads
        found = await read(topic_id, partition)
        if found is not None:
            reads += 1
            if reads == 1:
                await scene.partitions.cas(found, replace(found.state, log_start_offset=OFFSETS))
        return found

    monkeypatch.setattr(scene.partitions, "read", trimmed_behind)
    totals, found = await scene.verify()
    assert (found, totals.files, reads) == ([], COUNT - 1, 2)


async def test_a_topic_without_files_needs_no_tier(scene: Scene) -> None:
    found = await scene.partitions.read(scene.topic.topic_id, 0)
    assert found is not None
    key = PATHS.partition(scene.topic.topic_id, 0)
    plain = replace(listed(version=None), topic_id=scene.topic.topic_id)
    await scene.store.put(key, plain.to_bytes(), expected=None)
    totals, told = await scene.verify(tier_root="")
    assert (told, totals.files) == ([], 0)
