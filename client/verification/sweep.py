"""The whole of a cluster, looked at once: ledgers in order of their ids, the lists of topics, the
files of the tier, and what bookies store beside that.

Owns the order of the work and its bounds: `at_once` ledgers or lists are looked at together, one
rate of bytes holds for all of them, and what has been found is handed on and not kept. It changes
nothing and takes no locks: what is created, moved or deleted meanwhile is looked at again before
anything is said of it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from octavo.client.autorecovery.audit_core import Fleet
from octavo.client.autorecovery.found import Verified
from octavo.client.autorecovery.operator import Operator
from octavo.client.autorecovery.pace import Pace
from octavo.client.autorecovery.verify import LedgerVerifier
from octavo.client.verification.held import collection_alarm, held_ledgers, unrecorded
from octavo.client.verification.lists import OffsetRun, judge_list
from octavo.client.verification.owners import Owners
from octavo.client.verification.tier_sweep import Job, TierSweep
from octavo.client.verification.totals import Finding, Totals, Verdict
from octavo.metadata.bookies import BookieRegistration
from octavo.metadata.ledger_record import LedgerMetadata
from octavo.metadata.paths import Paths
from octavo.metadata.topic_walk import WalkedTopic, walk_topics
from octavo.metadata.topics import PartitionCatalog, TopicCatalog, VersionedPartition
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import (
    BookieUnavailable,
    MetadataCorrupt,
    NoSuchLedger,
    OctavoError,
    UnknownTopic,
    UnsupportedVersion,
)
from octavo.runtime.ids import LedgerId
from octavo.runtime.tasks import TaskOwner

AT_ONCE = 4
AT_ONCE_MAX = 64
FLEET_AGE_S = 5.0
"""How old what is known of the bookies may be when a ledger is looked at."""
LIST_READS_MAX = 4
"""Of a list that keeps changing while its ledgers are looked up."""
LIST_PROBLEMS_TOLD_MAX = 20


class Sweep:
    """One verification. `totals` is true at any time.

    Args:
        read: read and compare every copy; else bookies are asked which entries they have.
        bytes_per_s: of all reading together.
        at_once: ledgers, lists, or partitions with files, looked at together.
        tier_root: the brokers' `tier_root` as this machine sees it; empty: files are not looked at,
            and what has any is unknown.
    """

    def __init__(
        self,
        operator: Operator,
        paths: Paths,
        *,
        read: bool,
        bytes_per_s: int,
        at_once: int = AT_ONCE,
        tier_root: str = "",
    ) -> None:
        self._operator = operator
        self._paths = paths
        self._catalog = operator.client.catalog
        self._clock = operator.clock
        entropy = SystemEntropy()
        self._topics = TopicCatalog(operator.store, paths, clock=self._clock, entropy=entropy)
        self._partitions = PartitionCatalog(
            operator.store, paths, clock=self._clock, entropy=entropy
        )
        self._owners = Owners(self._topics, self._partitions, self._clock)
        self._verifier: LedgerVerifier = operator.verifier(bytes_per_s)
        self._read = read
        self._at_once = max(1, min(at_once, AT_ONCE_MAX))
        self._fleet: Fleet | None = None
        self._fleet_until_s = 0.0
        self.totals = Totals()
        self._tier = TierSweep(
            operator,
            paths,
            self._partitions,
            tier_root=tier_root,
            read=read,
            pace=Pace(bytes_per_s, self._clock),
            totals=self.totals,
        )

    async def findings(self) -> AsyncGenerator[Finding]:
        """Everything that is not as it should be, as it is found; close it to stop.

        Raises MetadataUnavailable: what was found until then stands.
        """
        await self._operator.store.barrier()
        for jobs in (self._ledgers(), self._lists(), self._tier.jobs(), self._holders()):
            async with aclosing(self._each(jobs)) as found:
                async for finding in found:
                    yield finding
        self.totals.ended = True

    async def _each(self, jobs: AsyncIterator[Job]) -> AsyncGenerator[Finding]:
        owner = TaskOwner("verification")
        running: set[asyncio.Task[list[Finding] | OctavoError]] = set()
        try:
            async for job in jobs:
                running.add(owner.spawn(job, name="look"))
                if len(running) < self._at_once:
                    continue
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for finding in self._counted(done):
                    yield finding
            while running:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for finding in self._counted(done):
                    yield finding
        finally:
            await owner.close()

    def _counted(self, done: set[asyncio.Task[list[Finding] | OctavoError]]) -> list[Finding]:
        found: list[Finding] = []
        for task in done:
            result = task.result()
            if isinstance(result, OctavoError):
                raise result
            found += result
        for finding in found:
            self.totals.add(finding)
        return found

    # --- ledgers ----------------------------------------------------------------------------

    async def _ledgers(self) -> AsyncIterator[Job]:
        async for ledger_id in self._catalog.walk():
            yield self._ledger(ledger_id)

    async def _ledger(self, ledger_id: LedgerId) -> list[Finding] | OctavoError:
        """One ledger. An error that ends everything is a value: it is nobody's failed task."""
        try:
            return await self._look_at(ledger_id)
        except NoSuchLedger:
            return []  # deleted meanwhile
        except OctavoError as error:
            return error

    async def _look_at(self, ledger_id: LedgerId) -> list[Finding]:
        subject = f"ledger {ledger_id}"
        try:
            versioned = await self._catalog.read(ledger_id)
        except (MetadataCorrupt, UnsupportedVersion):
            verified = await self._verifier.verify(ledger_id, await self._bookies(), read=False)
            return self._told(subject, verified)
        owner = await self._owners.find(versioned.metadata)
        run = OffsetRun(owner.segment) if owner.segment is not None and self._read else None
        verified = await self._verifier.verify_record(
            versioned,
            await self._bookies(),
            read=self._read,
            on_entry=None if run is None else run.entry,
        )
        problem = run.problem() if run is not None else ""
        found = self._told(subject, verified, problem, owner.unknown)
        if owner.orphan:
            await self._catalog.read(ledger_id, barrier=True)  # deleted meanwhile: no orphan
            found.append(Finding(subject, Verdict.ORPHAN, (owner.orphan,)))
        return found

    def _told(
        self, subject: str, verified: Verified, problem: str = "", unknown: str = ""
    ) -> list[Finding]:
        """Count a ledger, and say what is not as it should be."""
        self.totals.add_ledger(verified)
        problems = (*verified.problems, *((problem,) if problem else ()))
        unsure = (*verified.unknown, *((unknown,) if unknown else ()))
        if not problems and not unsure:
            return []
        verdict = Verdict.WRONG if problems else Verdict.UNKNOWN
        return [Finding(subject, verdict, (*problems, *unsure))]

    async def _bookies(self) -> Fleet:
        """The bookies, as of `FLEET_AGE_S` ago at most."""
        now_s = self._clock.monotonic()
        if self._fleet is None or now_s >= self._fleet_until_s:
            self._fleet_until_s = now_s + FLEET_AGE_S
            self._fleet = await self._operator.fleet()
        return self._fleet

    # --- ledgers that only bookies know -----------------------------------------------------

    async def _holders(self) -> AsyncIterator[Job]:
        for bookie in self._operator.client.directory.live():
            if bookie.control_address:
                yield self._unrecorded(bookie)

    async def _unrecorded(self, bookie: BookieRegistration) -> list[Finding] | OctavoError:
        """Ledgers that one bookie stores and no record tells of: deleted a while ago, or made after
        the copy that the metadata was restored from."""
        try:
            held = held_ledgers(bookie.control_address)
            found = await unrecorded(held, self._catalog)
            alarm = await collection_alarm(bookie.control_address) if found.number else ""
        except BookieUnavailable as error:
            text = f"which ledgers it stores is not known: {error.cause}"
            return [Finding(f"bookie {bookie.bookie_id}", Verdict.UNKNOWN, (text,))]
        except OctavoError as error:
            return error
        self.totals.unrecorded += found.number
        if not found.number:
            return []
        texts = (found.said(), *((f"it deletes nothing: {alarm}",) if alarm else ()))
        return [Finding(f"bookie {bookie.bookie_id}", Verdict.UNRECORDED, texts)]

    # --- lists of topics --------------------------------------------------------------------

    async def _lists(self) -> AsyncIterator[Job]:
        async for walked in walk_topics(self._operator.store, self._paths):
            if walked.topic is None:
                yield _unreadable(walked)
            elif not walked.topic.deleting:
                for partition in range(walked.topic.partitions):
                    yield self._list(walked.topic.name, walked.topic.topic_id, partition)

    async def _list(
        self, topic: str, topic_id: uuid.UUID, partition: int
    ) -> list[Finding] | OctavoError:
        subject = f"list of {topic}-{partition}"
        try:
            problems = await self._judge(topic_id, partition)
            if problems and not await self._exists(topic, topic_id):
                return []
        except (MetadataCorrupt, UnsupportedVersion) as error:
            problems = [error.cause]
        except OctavoError as error:
            return error
        self.totals.lists += 1
        if not problems:
            return []
        more = len(problems) - LIST_PROBLEMS_TOLD_MAX
        told = (*problems[:LIST_PROBLEMS_TOLD_MAX], *((f"and {more} more",) if more > 0 else ()))
        return [Finding(subject, Verdict.WRONG, told)]

    async def _judge(self, topic_id: uuid.UUID, partition: int) -> list[str]:
        """What is wrong with a list; a list that changed meanwhile is judged anew."""
        problems: list[str] = []
        before: VersionedPartition | None = None
        for _ in range(LIST_READS_MAX):
            found = await self._partitions.read(topic_id, partition)
            if found is None:
                return []  # never opened: it has no records
            if before is not None and before.version == found.version:
                return problems
            records: dict[int, LedgerMetadata | str | None] = {
                segment.ledger_id: await self._record_of(segment.ledger_id)
                for segment in found.state.segments
            }
            problems = judge_list(found.state, records.__getitem__)
            if not problems:
                return []
            before = found
        return problems

    async def _record_of(self, ledger_id: LedgerId) -> LedgerMetadata | str | None:
        try:
            return (await self._catalog.read(ledger_id)).metadata
        except NoSuchLedger:
            return None
        except (MetadataCorrupt, UnsupportedVersion) as error:
            return error.cause  # told with the ledger

    async def _exists(self, topic: str, topic_id: uuid.UUID) -> bool:
        """Whether the topic is there and stays; its lists go before it does."""
        try:
            found = (await self._topics.get(topic, barrier=True)).topic
        except UnknownTopic:
            return False
        return found.topic_id == topic_id and not found.deleting


async def _unreadable(walked: WalkedTopic) -> list[Finding] | OctavoError:
    return [Finding(f"topic {walked.folded_name}", Verdict.WRONG, (walked.error,))]
