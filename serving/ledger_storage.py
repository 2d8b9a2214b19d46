"""`Storage` over the quorum client: the one place where a broker meets `octavo.client.ledger`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from octavo.client.ledger.calls import BookieCalls
from octavo.client.ledger.client import LedgerClient
from octavo.client.ledger.config import LedgerClientConfig
from octavo.client.ledger.counters import LedgerCounters
from octavo.metadata.bookies import BookieRegistration
from octavo.metadata.ledger_record import LedgerMetadata
from octavo.metadata.ledgers import ReadLedger
from octavo.metadata.paths import Paths
from octavo.metadata.store import MetadataStore
from octavo.proto.bookie_wire import Status
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy
from octavo.runtime.ids import LedgerId
from octavo.serving.config import BrokerConfig
from octavo.serving.ledger_backend import LedgerBackend
from octavo.serving.storage import Holder

INSPECT_TIMEOUT_S = 2.0


class LedgerStorage:
    """`Storage` over the quorum client."""

    def __init__(
        self,
        store: MetadataStore,
        paths: Paths,
        config: BrokerConfig,
        *,
        counters: LedgerCounters | None = None,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._client = LedgerClient(
            store,
            paths,
            config=LedgerClientConfig(
                client_name=config.broker_id,
                recovery_timeout_s=config.recovery_timeout_s,
                quarantine_s=config.bookie_quarantine_s,
            ),
            counters=counters,
            clock=clock,
            entropy=entropy,
        )

    @property
    def backend(self) -> LedgerBackend:
        """The ledger client."""
        return self._client

    async def start(self) -> None:
        """Load the directory of bookies."""
        await self._client.start()

    async def close(self) -> None:
        """Close every handle and connection."""
        await self._client.close()

    def bookies(self) -> list[BookieRegistration]:
        """Registered bookies, as last seen."""
        return self._client.directory.live()

    async def read_record(self, ledger_id: LedgerId) -> LedgerMetadata:
        """The record; absence is proven (M-4)."""
        return (await self._client.catalog.read(ledger_id)).metadata

    async def read_records(self, ledger_ids: Sequence[LedgerId]) -> list[ReadLedger]:
        """The records; absence is proven (M-4)."""
        return await self._client.catalog.read_many(ledger_ids)

    async def holders(self, record: LedgerMetadata) -> list[Holder]:
        """One LAC request for each member, all at once."""
        members = list(dict.fromkeys(m for _, ensemble in record.fragments for m in ensemble))
        calls = BookieCalls(self._client.pool)
        replies = await asyncio.gather(
            *(
                calls.read_lac(
                    record.ledger_id, member, previous=-1, wait_s=0, timeout_s=INSPECT_TIMEOUT_S
                )
                for member in members
            )
        )
        return [
            Holder(
                member,
                reply.status not in (Status.DISCONNECTED, Status.TIMEOUT),
                reply.lac,
                reply.fenced,
                "" if reply.status is Status.OK else reply.status.name,
            )
            for member, reply in zip(members, replies, strict=True)
        ]
