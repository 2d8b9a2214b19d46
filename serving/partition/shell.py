"""What the registry and the handlers hold of one partition.

Composes the pure core, the driver that performs its actions, the segment list and the proof of
the end; owns their order of start and end. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from octavo.metadata.topics import is_internal
from octavo.proto.segments import Segment
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import NotLeader, OctavoError
from octavo.runtime.tasks import TaskOwner
from octavo.serving import segments as lists
from octavo.serving.partition.chain import SegmentChain
from octavo.serving.partition.core import PartitionCore, PartitionStateName
from octavo.serving.partition.deps import PartitionDeps
from octavo.serving.partition.driver import PartitionDriver
from octavo.serving.partition.emptying import Emptying
from octavo.serving.partition.end_proof import EndProof
from octavo.serving.partition.limits import limits_of, quorum_of
from octavo.serving.partition.loading import PartitionLoader
from octavo.serving.partition.log import UNCONDITIONAL, Append, Conditions, Reply
from octavo.serving.partition.name import PartitionName
from octavo.serving.partition.open_ledger import OpenLedger
from octavo.serving.partition.producers import ProducerStates
from octavo.serving.partition.read_path import ReadView
from octavo.serving.partition.rewrites import ListRewrites
from octavo.serving.partition.tiers import ListTiers
from octavo.serving.partition.world import World
from octavo.serving.partition.writers import Writers
from octavo.serving.topic_config import TopicSettings


class PartitionShell:
    """The owner's side of one partition.

    Args:
        on_gone: called once when the partition was given up by itself (fenced, topic deleted,
            invariant broken); the caller forgets it.
    """

    def __init__(
        self,
        name: PartitionName,
        settings: TopicSettings,
        deps: PartitionDeps,
        *,
        on_gone: Callable[[PartitionShell, OctavoError], None] | None = None,
    ) -> None:
        self.name = name
        self.is_internal = is_internal(name.topic)
        """Users do not append to it."""
        self.settings = settings
        self.codec = settings.codec
        """What batches are to be stored with; None: with what they were sent with (F039)."""
        self._deps = deps
        self._clock = deps.clock
        self._chain = SegmentChain(
            name,
            quorum_of(settings, deps.config),
            backend=deps.backend,
            catalog=deps.catalog,
            clock=deps.clock,
            allow_degraded=deps.config.allow_degraded_ledgers,
        )
        self._producers: ProducerStates[Append] = ProducerStates(
            expiration_ms=deps.config.producer_expiration_ms,
            max_producers=deps.config.max_producers_per_partition,
        )
        self._spread = deps.entropy.uniform(0, 1)
        self._core = PartitionCore(
            name,
            settings,
            limits_of(settings, deps.config, spread=self._spread),
            producers=self._producers,
            world=World(deps.live_bookies, deps.metadata_connected, deps.certain),
        )
        self._log = self._core.log
        self._tasks = TaskOwner(f"partition {name}", on_failure=lambda _, e: self._driver.failed(e))
        self._driver = PartitionDriver(
            name,
            self._core,
            self._chain,
            deps=deps,
            tasks=self._tasks,
            on_gone=lambda reason: on_gone(self, reason) if on_gone is not None else None,
        )
        self.watchers = self._driver.watchers
        self.rewrites = ListRewrites(
            name,
            core=self._core,
            chain=self._chain,
            driver=self._driver,
            clock=deps.clock,
        )
        self.tiers = ListTiers(self._core, self._chain, self._driver, deps.clock)
        self.emptying = Emptying(self._core, self._chain, self._driver)
        self.writers = Writers(self._core, self._driver, deps.clock)
        self.traffic = self._driver.traffic
        self.backlog = self._core.backlog
        """What groups have not read, and what that means for producers (F162)."""
        self._end_proof = EndProof(
            str(name),
            certain=deps.certain,
            confirm=deps.confirm,
            mark=self._append_mark,
            tasks=self._tasks,
            clock=deps.clock,
        )

    # --- life ---------------------------------------------------------------------------------

    async def open(self) -> None:
        """Load by recovery and claim (A7, ML-4). Raises; then the shell is of no further use."""
        deps = self._deps
        loader = PartitionLoader(
            self.name, deps.backend, self._producers, self._core.dedup, deps.tiered
        )
        await self._chain.claim(loader.load)
        loaded = loader.result
        for ledger_id, index in loaded.indexes.items():
            self._deps.cold.remember_index(ledger_id, index)
        self._core.loaded(
            owner_epoch=self._chain.owner_epoch,
            log_start=self._chain.state.log_start_offset,
            end_offset=loaded.end_offset,
            last_append_ms=loaded.last_append_ms,
            decommissioned=self._chain.state.decommissioned,
        )
        state = self._chain.state
        self._core.seat.loaded(state.writer_epoch, state.writer, self._clock.monotonic())
        self._driver.start()

    async def close(self, deadline_s: float) -> None:
        """Unload in good order (O-3): stop accepting, finish what was sent, footer, close, list.

        What is not finished at the deadline is abandoned: fencing protects the data.
        """
        if self.state is PartitionStateName.SERVING:
            await self._driver.leave(deadline_s)
        await self.abandon(self.gone or NotLeader(f"{self.name} is not open here"))

    async def abandon(self, reason: OctavoError) -> None:
        """Stop at once without touching ledger or list: somebody else owns the partition now."""
        self._driver.end(reason)
        await self._tasks.close()
        self._driver.release()

    @property
    def state(self) -> PartitionStateName:
        """Where in its life it is."""
        return self._core.state

    @property
    def gone(self) -> OctavoError | None:
        """Why requests are refused, once CLOSING or CLOSED."""
        return self._core.gone

    async def still_ours(self) -> bool:
        """Whether the list still carries our epoch (after a lost session, O-5)."""
        return await self._chain.still_ours()

    def tick(self) -> None:
        """Once a second: late answers (A8), age rolls, retention, trash, old producers (I10)."""
        if self.state is PartitionStateName.SERVING:
            self._driver.tick()

    def adopt(self, settings: TopicSettings) -> None:
        """The topic was altered: go by `settings` from now on.

        Another quorum is that of the next ledger, for which the open one is closed.
        """
        if settings == self.settings or self.state is PartitionStateName.CLOSED:
            return
        self.settings, self.codec = settings, settings.codec
        config = self._deps.config
        quorum = quorum_of(settings, config)
        limits = limits_of(settings, config, spread=self._spread)
        has_other_quorum, self._chain.quorum = quorum != self._chain.quorum, quorum
        self._driver.perform(self._core.adopt(settings, limits, new_ledger=has_other_quorum))

    # --- producing ----------------------------------------------------------------------------

    def append(
        self,
        batch: Buffer,
        acks: int,
        reply: Reply,
        conditions: Conditions = UNCONDITIONAL,
    ) -> None:
        """Validate, de-duplicate, give an offset and send; `reply` is called exactly once.

        Raises instead of replying when the batch is refused at once; nothing was written then.
        """
        now_ms, now_s = self._clock.wall_ms(), self._clock.monotonic()
        self._driver.perform(
            self._core.produce(batch, acks, reply, now_ms, now_s, conditions=conditions)
        )

    @property
    def _open(self) -> OpenLedger | None:
        """The ledger being written."""
        return self._driver.ledger

    @property
    def congested(self) -> bool:
        """Whether a produce stream should wait before it sends more (W-10, BP-3)."""
        ledger = self._open
        return ledger is not None and ledger.congested

    async def wait_capacity(self, timeout_s: float) -> None:
        """Return when the ledger takes more, it stopped, or the time is over."""
        if self._open is not None:
            await self._open.wait_capacity(timeout_s)

    @property
    def pending(self) -> int:
        """Batches that have an offset and are not durable."""
        return self._log.pending

    @property
    def degraded(self) -> bool:
        """Whether the open ledger has fewer copies than the topic asks for (A6)."""
        ledger = self._open
        return ledger is not None and ledger.writer.metadata.degraded

    async def roll(self) -> int:
        """Close the open segment, if it holds batches; returns the high watermark."""
        return await self._driver.roll()

    async def trim(self, before: int) -> int:
        """Delete the records below offset `before` (-1: all that can be read); the log's start.

        Listed before any ledger goes: a reader below it gets OFFSET_OUT_OF_RANGE from then on.
        Raises NotLeader, UnknownTopic, OffsetOutOfRange when `before` lies above the high
        watermark, MetadataUnavailable or UnknownOutcome: then it may have happened, and asking
        again is safe. The trim goes on when the caller is cancelled.
        """
        return await self._driver.trim(before)

    # --- reading ------------------------------------------------------------------------------

    def view(self) -> ReadView:
        """For one read; raises NotLeader unless the partition is served here."""
        core = self._core
        core.check_serving()
        return ReadView(
            lists.closed_segments(self._chain.state, core.sealed),
            core.segment.source() if core.segment is not None else None,
            core.log.log_start,
            core.log.high_watermark,
            self._driver.tail,
            self._deps.cold,
            self.name,
            self._deps.tiered,
        )

    def described(self) -> list[Segment]:
        """Closed segments, and the open one with its running figures and no end offset."""
        core = self._core
        core.check_serving()
        closed = list(lists.closed_segments(self._chain.state, core.sealed))
        return [*closed, core.segment.described()] if core.segment is not None else closed

    async def prove_end(self) -> None:
        """Return if the end of the log, as it is now, is the end; raises NotLeader (design §12)."""
        self._core.check_serving()
        await self._end_proof.prove()
        self._core.check_serving()

    async def _append_mark(self) -> None:
        ledger = self._open
        if ledger is None:
            raise NotLeader("no ledger is open that could prove it")
        await ledger.append_mark()

    @property
    def owner_epoch(self) -> int:
        """The epoch under which this broker owns the partition."""
        return self._log.owner_epoch

    @property
    def high_watermark(self) -> int:
        """A3: nobody reads at or above it."""
        return self._log.high_watermark

    @property
    def log_start(self) -> int:
        """The lowest retained offset."""
        return self._log.log_start
