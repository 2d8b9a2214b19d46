"""What a bookie tells of itself, and what an operator asks of it: the control service."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

import octavo
from octavo.bookie.config import BookieConfig
from octavo.bookie.opened import OpenedStore
from octavo.bookie.space import SpaceGauge
from octavo.proto import bookie_pb2
from octavo.runtime.errors import IllegalStateError

STATES = ("starting", "rw", "ro", "reopening", "stopping")
"""The words for what a bookie is doing."""
LISTED_MAX = 100_000
"""Ledgers in one answer: less than a megabyte."""


class InformationDesk:
    """Answers for one bookie, in every state of it.

    Args:
        state: the word for what it is doing.
        opened: its storage; None before it is opened.
    """

    def __init__(
        self,
        config: BookieConfig,
        gauge: SpaceGauge,
        *,
        state: Callable[[], str],
        opened: Callable[[], OpenedStore | None],
    ) -> None:
        self._config = config
        self.gauge = gauge
        self.state = state
        self.opened = opened
        self.index_rebuilds = 0
        """How often this process built the index anew from the journal, over all openings."""
        self.beside: list[Callable[[bookie_pb2.InfoReply], None]] = []
        """What else runs in this process and has gauges sets them here."""

    def info(self) -> bookie_pb2.InfoReply:
        """Who it is, and all gauges."""
        reply = bookie_pb2.InfoReply(
            bookie_id=self._config.bookie_id, state=self.state(), version=octavo.__version__
        )
        opened = self.opened()
        if opened is not None:
            journal, store, cookie = (
                opened.booted.journal,
                opened.store,
                opened.booted.identity.cookie,
            )
            reply.incarnation = str(cookie.incarnation)
            reply.cluster_id = cookie.instance_id
            reply.journal_bytes_written = journal.bytes_written
            reply.journal_syncs = journal.syncs
            reply.entries_added = store.stats.entries_added
            reply.entries_read = store.stats.entries_read
            reply.free_bytes = self.gauge.data.free_bytes
            reply.disk_total_bytes = self.gauge.data.total_bytes
            if self.gauge.index is not None and self.gauge.index.full and not self.gauge.data.full:
                reply.full_index_folder = str(self._config.index_home)
            reply.segments = journal.segment
            reply.ledgers = store.ledgers_in_memory
            reply.queue_bytes = journal.queued_bytes
            opened.reclaimer.tell(reply)
            opened.scrubber.tell(reply)
        for tell in self.beside:
            tell(reply)
        return reply

    def scrub(self) -> None:
        """Read all segments at once; raises IllegalStateError before it is opened, or if it does
        not scrub."""
        opened = self.opened()
        if opened is None:
            raise IllegalStateError("the bookie is not started")
        if not opened.scrubber.enabled:
            raise IllegalStateError("this bookie does not scrub: scrub_bytes_per_s is 0")
        opened.scrubber.hurry()

    async def list_ledgers(
        self, request: bookie_pb2.ListLedgersRequest
    ) -> bookie_pb2.ListLedgersReply:
        """A page of the ledgers stored here; raises IllegalStateError before it is opened."""
        opened = self.opened()
        if opened is None:
            raise IllegalStateError("the bookie is not started")
        held = await opened.reclaimer.collector.held()
        first = bisect_right(held, request.above)
        end = first + max(1, min(request.limit, LISTED_MAX))
        return bookie_pb2.ListLedgersReply(
            ledger_ids=held[first:end], more=end < len(held), stored=len(held)
        )

    def collect(self, request: bookie_pb2.CollectRequest) -> None:
        """Look for what may be deleted at once; raises IllegalStateError before it is opened."""
        opened = self.opened()
        if opened is None:
            raise IllegalStateError("the bookie is not started")
        reclaimer = opened.reclaimer
        if request.accept_missing:
            reclaimer.collector.accept()
        else:
            reclaimer.collector.hurry()
            reclaimer.surplus.hurry()
        if request.compact:
            reclaimer.compactor.compact_all()
