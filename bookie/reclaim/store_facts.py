"""What the metadata store says of itself, for garbage collection to judge (G-3)."""

from __future__ import annotations

from octavo.bookie.identity import Identity
from octavo.bookie.reclaim.collection_actions import StoreFacts
from octavo.metadata.bookies import CookieCatalog
from octavo.metadata.ledger_ids import LedgerIdAllocator
from octavo.metadata.ledgers import LedgerCatalog
from octavo.metadata.store import MetadataStore, SessionState
from octavo.runtime.errors import MetadataUnavailable


class StoreWitness:
    """Reads the facts of one store, and its ledgers."""

    def __init__(
        self,
        store: MetadataStore,
        catalog: LedgerCatalog,
        cookies: CookieCatalog,
        ids: LedgerIdAllocator,
        identity: Identity,
    ) -> None:
        self._store = store
        self.catalog = catalog
        self._cookies = cookies
        self._ids = ids
        self._identity = identity

    @property
    def instance_id(self) -> str:
        """The cluster that the bookie belongs to."""
        return self._identity.cookie.instance_id

    async def barrier(self) -> None:
        """What is read from now on is not older than now; raises MetadataUnavailable."""
        await self._store.barrier()

    async def facts(self) -> StoreFacts:
        """Read the facts.

        Raises MetadataUnavailable, also while there is no session or it changes, MetadataCorrupt,
        UnsupportedVersion.
        """
        session_id = self._connected()
        identity = self._identity
        floor, mine = identity.confirmed_version, identity.cookie
        instance_id = await self._cookies.stored_cluster_id()
        found = await self._cookies.read_cookie(mine.bookie_id)
        mark = await self._cookies.restored()
        facts = StoreFacts(
            session_id=session_id,
            instance_id=instance_id,
            cookie_version=-1 if found is None else int(found.version),
            cookie_is_ours=found is not None and found.cookie.incarnation == mine.incarnation,
            cookie_floor=floor,
            went_back=identity.store_went_back,
            last_id=await self._ids.last_id(),
            deletions=await self.catalog.deletions(),
            restored="" if mark is None else mark.nonce,
            restored_words="" if mark is None else mark.words,
        )
        if self._connected() != session_id:
            raise MetadataUnavailable("the session changed while it was asked")
        return facts

    def _connected(self) -> int:
        if self._store.session_state is not SessionState.CONNECTED:
            raise MetadataUnavailable("there is no session with the metadata store")
        return self._store.session_id
