"""`octavo verify` over a whole cluster: ledgers, lists of topics, what belongs to nobody, and what
is said when it is stopped on the way (ML-9, INV-13, A-2)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from octavo.cli.failures import ExitCode
from octavo.cli.program import run
from octavo.client.autorecovery.found import Verified
from octavo.client.autorecovery.operator import Operator
from octavo.client.autorecovery.verify import LedgerVerifier
from octavo.client.ledger import LedgerClient
from octavo.client.verification.held import unrecorded
from octavo.client.verification.sweep import Sweep
from octavo.client.verification.totals import Finding, Totals, Verdict
from octavo.metadata.bookies import Cookie
from octavo.metadata.ledgers import Quorum
from octavo.metadata.partition_record import PartitionState, TrashedLedger
from octavo.metadata.topics import PartitionCatalog, Topic, TopicCatalog
from octavo.proto.segments import Segment
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import MetadataUnavailable
from octavo.runtime.ids import EntryId, LedgerId
from tests.fix_ledger import FakeCluster, until
from tests.segment_world import snapshot, stored_batch

SEGMENTS = 3
BATCHES = 5
OLD_MS = 3_600_000


class LaterClock(SystemClock):
    """An hour later, so that what was made now is old."""

    def wall_ms(self) -> int:
        return super().wall_ms() + OLD_MS


class Scene(NamedTuple):
    cluster: FakeCluster
    operator: Operator
    topics: TopicCatalog
    partitions: PartitionCatalog
    topic: Topic
    ledgers: list[LedgerId]

    async def verify(self, *, read: bool = True) -> tuple[Totals, list[Finding]]:
        sweep = Sweep(self.operator, self.cluster.paths, read=read, bytes_per_s=1 << 30)
        return sweep.totals, [finding async for finding in sweep.findings()]

    async def change_list(self, **changes: object) -> None:
        """As nobody may: without the rules of a successor."""
        found = await self.partitions.read(self.topic.topic_id, 0)
        assert found is not None
        changed = replace(found.state, **changes)  # type: ignore[arg-type]
        key = self.cluster.paths.partition(self.topic.topic_id, 0)
        await self.cluster.store.put(key, changed.to_bytes(), expected=None)


async def segment_of(client: LedgerClient, topic: Topic, base: int) -> Segment:
    custom = {"topic": topic.name, "topic_id": topic.topic_id.hex, "partition": "0"}
    writer = await client.create_ledger(Quorum(3, 3, 2), custom)
    await writer.append(snapshot(base))
    for number in range(BATCHES):
        await writer.append(stored_batch(2, base + 2 * number))
    await writer.close()
    end = base + 2 * BATCHES
    return Segment(writer.ledger_id, base, end, last_entry=EntryId(BATCHES))


@pytest_asyncio.fixture
async def scene(ledgers: FakeCluster) -> AsyncIterator[Scene]:
    """A topic of one partition with three closed ledgers, all of them older than an hour."""
    clock, entropy = SystemClock(), SystemEntropy()
    client = await ledgers.client()
    topics = TopicCatalog(ledgers.store, ledgers.paths, clock=clock, entropy=entropy)
    partitions = PartitionCatalog(ledgers.store, ledgers.paths, clock=clock, entropy=entropy)
    topic = (await topics.create("orders", 2)).topic
    segments = [await segment_of(client, topic, 2 * BATCHES * n) for n in range(SEGMENTS)]
    ids = [segment.ledger_id for segment in segments]
    await partitions.create(
        PartitionState(topic.topic_id, 0, tuple(segments), max_ledger_id_ever=ids[-1])
    )
    wanted = 3 * SEGMENTS * (BATCHES + 1)

    def stored() -> int:
        return sum(len(b.ledger(i).entries) for b in ledgers.bookies for i in ids)

    await until(lambda: stored() == wanted)
    operator = Operator(ledgers.meta.connect(), ledgers.paths, LaterClock())
    instance = await operator.cookies.cluster_id()
    for bookie in ledgers.bookies:
        await operator.cookies.create_cookie(Cookie(bookie.bookie_id, instance, bookie.incarnation))
    await operator.client.start()
    ledgers.clients.append(operator.client)
    yield Scene(ledgers, operator, topics, partitions, topic, ids)


async def test_a_whole_cluster_is_whole_and_everything_was_counted(scene: Scene) -> None:
    for read in (True, False):
        totals, findings = await scene.verify(read=read)
        assert findings == []
        assert totals.verdict is Verdict.OK
        assert (totals.ledgers, totals.replicas, totals.lists) == (SEGMENTS, 3 * SEGMENTS, 2)
        assert totals.entries == SEGMENTS * (BATCHES + 1)
        assert (totals.read_bytes > 0) == read


async def test_damage_and_loss_are_named_and_counted(scene: Scene) -> None:
    first, second, third = scene.ledgers
    bookies = scene.cluster.bookies
    copies = bookies[2].ledger(first).entries
    copies[3] = copies[3][:-1] + bytes([copies[3][-1] ^ 1])
    del bookies[1].ledger(second).entries[2]
    totals, findings = await scene.verify()
    assert {(f.subject, f.verdict) for f in findings} == {
        (f"ledger {first}", Verdict.WRONG),
        (f"ledger {second}", Verdict.WRONG),
    }
    assert (totals.damaged, totals.missing, totals.unknown) == (1, 1, 0)
    assert totals.verdict is Verdict.WRONG
    assert third not in {int(f.subject.split()[1]) for f in findings}


async def test_a_bookie_that_is_away_is_unknown_and_not_missing(scene: Scene) -> None:
    gone = scene.cluster.bookies[0]
    await gone.unregister()
    await gone.stop()
    await until(lambda: len(scene.operator.client.directory.live()) == 2)
    totals, findings = await scene.verify()
    assert {f.verdict for f in findings} == {Verdict.UNKNOWN}
    assert (totals.missing, totals.unknown) == (0, SEGMENTS * (BATCHES + 1))
    assert totals.verdict is Verdict.UNKNOWN


async def test_ml4_a_ledger_that_a_list_names_and_nobody_has(scene: Scene) -> None:
    key = scene.cluster.paths.ledger(scene.ledgers[1])
    await scene.cluster.store.delete(key, expected=None)
    totals, (finding,) = await scene.verify()
    assert (finding.subject, finding.verdict) == ("list of orders-0", Verdict.WRONG)
    assert f"ledger {scene.ledgers[1]} (offsets 10 to 19) does not exist" in finding.texts[0]
    assert totals.ledgers == SEGMENTS - 1


async def test_inv13_a_list_of_other_offsets_than_its_ledgers_hold(scene: Scene) -> None:
    found = await scene.partitions.read(scene.topic.topic_id, 0)
    assert found is not None
    one, two, three = found.state.segments
    moved = (one, replace(two, end_offset=25), replace(three, base_offset=25))
    await scene.change_list(segments=moved)
    _, findings = await scene.verify()
    said = {f.subject: f.texts[0] for f in findings}
    assert "its batches end at offset 20, the list says 25" in said[f"ledger {two.ledger_id}"]
    assert "entry 1 begins at offset 20, not at 25" in said[f"ledger {three.ledger_id}"]
    assert not (await scene.verify(read=False))[1], "only reading sees it"


async def test_records_that_cannot_be_read_are_wrong_and_stop_nothing(scene: Scene) -> None:
    """M-7: of a ledger, of a list, of a topic."""
    paths, store = scene.cluster.paths, scene.cluster.store
    await store.put(paths.ledger(scene.ledgers[0]), b"\xff", expected=None)
    await store.put(paths.partition(scene.topic.topic_id, 0), b"\xff", expected=None)
    await scene.topics.create("broken", 1)
    await store.put(paths.topic("broken"), b"\xff", expected=None)
    totals, findings = await scene.verify()
    verdicts = {f.subject: f.verdict for f in findings}
    assert verdicts.pop("topic broken") is Verdict.WRONG
    assert verdicts.pop("list of orders-0") is Verdict.WRONG
    assert verdicts.pop(f"ledger {scene.ledgers[0]}") is Verdict.WRONG
    assert set(verdicts.values()) == {Verdict.UNKNOWN}, "whose the others are is not known"
    assert totals.ledgers == SEGMENTS
    assert totals.orphans == 0


# --- what belongs to nobody (ML-9) --------------------------------------------------------------


async def test_ml9_ledgers_of_no_list_are_orphans_and_no_failure(scene: Scene) -> None:
    client = scene.cluster.clients[0]
    stray = (await segment_of(client, scene.topic, 0)).ledger_id
    toolmade = (await client.create_ledger(Quorum(3, 3, 2), {})).ledger_id
    other = replace(scene.topic, name="gone", topic_id=uuid.uuid4())
    left = (await segment_of(client, other, 0)).ledger_id
    again = replace(scene.topic, topic_id=uuid.uuid4())  # of an earlier life of the name
    earlier = (await segment_of(client, again, 0)).ledger_id
    totals, findings = await scene.verify(read=False)
    orphans = {f.subject: f.texts[0] for f in findings if f.verdict is Verdict.ORPHAN}
    assert orphans == {
        f"ledger {stray}": "partition 0 of orders does not list it",
        f"ledger {toolmade}": "it was made for no topic",
        f"ledger {left}": "topic gone is gone, and it was left",
        f"ledger {earlier}": "topic orders is gone, and it was left",
    }
    assert (totals.orphans, totals.verdict) == (4, Verdict.OK)


async def test_what_lies_in_the_trash_or_is_young_is_no_orphan(scene: Scene) -> None:
    client = scene.cluster.clients[0]
    trashed = (await segment_of(client, scene.topic, 0)).ledger_id
    await scene.change_list(trash=(TrashedLedger(trashed, "trimmed", 1),))
    assert (await scene.verify(read=False))[0].orphans == 0
    await segment_of(client, scene.topic, 0)  # made, and not listed yet
    now = Operator(scene.operator.store, scene.cluster.paths, SystemClock())
    await now.client.start()
    scene.cluster.clients.append(now.client)
    young, _ = await scene._replace(operator=now).verify(read=False)
    assert young.orphans == 0
    assert (await scene.verify(read=False))[0].orphans == 1


async def test_a_list_that_lost_a_ledger_meanwhile_is_judged_anew(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trim lists first and deletes then: who read the older list finds no ledger."""
    read, reads = scene.operator.client.catalog.read, 0

    async def trimmed(ledger_id: LedgerId, *, barrier: bool = False) -> object:
        nonlocal reads
        if ledger_id == scene.ledgers[0]:
            reads += 1
            if reads == 2:  # the first one is the ledger's own
                found = await scene.partitions.read(scene.topic.topic_id, 0)
                assert found is not None
                await scene.change_list(segments=found.state.segments[1:], log_start_offset=10)
                await scene.cluster.store.delete(
                    scene.cluster.paths.ledger(ledger_id), expected=None
                )
        return await read(ledger_id, barrier=barrier)

    monkeypatch.setattr(scene.operator.client.catalog, "read", trimmed)
    totals, findings = await scene.verify(read=False)
    assert findings == []
    assert (reads, totals.lists) == (2, 2)


# --- ends ---------------------------------------------------------------------------------------


async def test_what_was_seen_before_it_was_stopped_is_all_that_is_told(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify, looks, second = LedgerVerifier.verify_record, 0, asyncio.Event()

    async def slow(self: LedgerVerifier, *args: Any, **kwargs: Any) -> Verified:
        nonlocal looks
        looks += 1
        if looks == 2:
            second.set()
            await asyncio.Event().wait()
        return await verify(self, *args, **kwargs)

    monkeypatch.setattr(LedgerVerifier, "verify_record", slow)
    sweep = Sweep(scene.operator, scene.cluster.paths, read=False, bytes_per_s=1, at_once=1)

    async def work() -> None:
        async with aclosing(sweep.findings()) as findings:
            async for _ in findings:
                raise AssertionError("nothing is wrong")

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(work())
        await second.wait()
        task.cancel()
    assert sweep.totals.line().startswith("verify: STOPPED ledgers=1 replicas=3 entries=6 ")


async def test_a_store_that_goes_away_ends_it_and_is_no_loss(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(*_: object, **__: object) -> object:
        raise MetadataUnavailable("away")

    monkeypatch.setattr(scene.operator.client.catalog, "read", gone)
    sweep = Sweep(scene.operator, scene.cluster.paths, read=False, bytes_per_s=1)
    with pytest.raises(MetadataUnavailable):
        [_ async for _ in sweep.findings()]
    assert sweep.totals.verdict is Verdict.STOPPED


def test_ctrl_c_ends_the_command_with_what_it_has_seen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def endless(self: Sweep) -> AsyncIterator[Finding]:
        self.totals.ledgers = 7
        yield Finding("ledger 1", Verdict.ORPHAN, ("nobody's",))
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        await asyncio.Event().wait()

    monkeypatch.setattr(Sweep, "findings", endless)
    assert run(["verify", "--metadata", "memory://stopped/octavo"]) == ExitCode.INTERRUPTED
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1].startswith("verify: STOPPED ledgers=7 ")
    assert "nobody's" in printed[-2]


def test_the_object_of_json_is_whole_however_much_was_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for count in (0, 1, 2):

        async def some(self: Sweep, count: int = count) -> AsyncIterator[Finding]:
            for number in range(count):
                finding = Finding(f"ledger {number}", Verdict.WRONG, ("a", "b"))
                self.totals.add(finding)
                yield finding
            self.totals.ended = True

        monkeypatch.setattr(Sweep, "findings", some)
        code = run(["verify", "-o", "json", "--metadata", "memory://shown/octavo"])
        assert code == (ExitCode.ERROR if count else ExitCode.OK)
        shown = json.loads(capsys.readouterr().out)
        assert len(shown["findings"]) == shown["wrong"] == count
        assert shown["verdict"] == ("WRONG" if count else "OK")


# --- ledgers that only bookies know (ADR 51) ----------------------------------------------------


async def test_what_bookies_store_and_no_record_tells_of(scene: Scene) -> None:
    async def held(*ids: int) -> AsyncIterator[int]:
        for ledger_id in ids:
            yield ledger_id

    catalog = scene.operator.client.catalog
    first, *_, last = scene.ledgers
    assert (await unrecorded(held(*scene.ledgers), catalog)).number == 0
    assert (await unrecorded(held(), catalog)).number == 0
    beyond = [last + n for n in range(1, 14)]
    found = await unrecorded(held(0, first, *beyond), catalog)
    assert (found.number, found.first) == (14, (0, *beyond[:9]))
    assert found.said() == (
        f"it stores 14 ledgers that no record tells of: {', '.join(map(str, found.first))}, ..."
    )
    await scene.cluster.store.put(scene.cluster.paths.ledger(first), b"\xff", expected=None)
    assert (await unrecorded(held(first), catalog)).number == 0, "M-7: it exists"


async def test_a_bookie_that_does_not_list_its_ledgers_is_unknown(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = scene.operator.client.directory.live()
    nowhere = [replace(bookie, control_address="127.0.0.1:1") for bookie in live[:1]]
    monkeypatch.setattr(scene.operator.client.directory, "live", lambda: [*live[1:], *nowhere])
    totals, findings = await scene.verify(read=False)
    (finding,) = findings
    assert (finding.subject, finding.verdict) == (
        f"bookie {nowhere[0].bookie_id}",
        Verdict.UNKNOWN,
    )
    assert (totals.verdict, totals.unrecorded) == (Verdict.UNKNOWN, 0)
