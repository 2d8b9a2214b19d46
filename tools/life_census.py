"""What the metadata say of a soak's topics while it runs: lists, trash, ledgers, cleaners' work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

from octavo.metadata.connect import connect_store, root_of
from octavo.metadata.ledgers import LedgerCatalog
from octavo.metadata.paths import Paths
from octavo.metadata.store import MetadataStore
from octavo.metadata.topics import PartitionCatalog, TopicCatalog
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import OctavoError

LOOK_S = 0.25


class Census(threading.Thread):
    """Looks at the lists of topics, with so many partitions each, over and over."""

    def __init__(self, url: str, topics: Mapping[str, int]) -> None:
        super().__init__(name="census", daemon=True)
        self._url = url
        self._topics = topics
        self._ends = threading.Event()
        self.named: set[int] = set()
        """Ledgers that a list or a trash named at some moment."""
        self.listed: dict[tuple[str, int], set[int]] = {}
        """Of these, the segments of each partition that no cleaner wrote: one for each roll."""
        self.compacted: set[int] = set()
        """Of these, the ones that a cleaner wrote and listed."""
        self.orphans: set[int] = set()
        """At the end: ledgers that exist, and no list and no trash names (ML-9)."""
        self.failed = ""

    def run(self) -> None:
        try:
            asyncio.run(self._run())
        except OctavoError as error:
            self.failed = f"the census failed: {error}"

    def end(self, timeout_s: float) -> None:
        """Look a last time."""
        self._ends.set()
        self.join(timeout_s)
        if self.is_alive():
            self.failed = "the census does not end"

    async def _run(self) -> None:
        clock, entropy = SystemClock(), SystemEntropy()
        store = await connect_store(self._url, client_name="soak", clock=clock, entropy=entropy)
        try:
            while not self._ends.is_set():
                await self._look(store)
                await asyncio.to_thread(self._ends.wait, LOOK_S)
            ledgers = LedgerCatalog(store, Paths(root_of(self._url)), clock=clock, entropy=entropy)
            there = {int(ledger_id) async for ledger_id in ledgers.walk()}
            named = await self._look(store)  # a ledger is named from the moment it exists
            self.orphans = there - named
            self.orphans &= {int(ledger_id) async for ledger_id in ledgers.walk()}
        finally:
            await store.close()

    async def _look(self, store: MetadataStore) -> set[int]:
        clock, entropy = SystemClock(), SystemEntropy()
        paths = Paths(root_of(self._url))
        topics = TopicCatalog(store, paths, clock=clock, entropy=entropy)
        lists = PartitionCatalog(store, paths, clock=clock, entropy=entropy)
        now: set[int] = set()
        for name, partitions in self._topics.items():
            topic = (await topics.get(name)).topic
            for partition in range(partitions):
                found = await lists.read(topic.topic_id, partition)
                if found is None:
                    continue
                segments, trash = found.state.segments, found.state.trash
                now |= {one.ledger_id for one in segments} | {one.ledger_id for one in trash}
                self.compacted |= {one.ledger_id for one in segments if one.compacted}
                rolled = self.listed.setdefault((name, partition), set())
                rolled |= {one.ledger_id for one in segments if not one.compacted}
        self.named |= now
        return now
