"""The fleet of bookies, read behind a barrier: who is there, who is missed, what operators want."""

from __future__ import annotations

from octavo.client.autorecovery.audit_core import Fleet
from octavo.client.ledger.ensemble_change import candidate_of
from octavo.metadata.bookies import BookieDirectory, BookieRegistration, CookieCatalog
from octavo.metadata.repairs import RepairCatalog
from octavo.metadata.store import MetadataStore
from octavo.runtime.errors import MetadataCorrupt, UnsupportedVersion
from octavo.runtime.ids import Member
from octavo.runtime.telemetry import get_logger

_log = get_logger("octavo.autorecovery.fleet")


def lost_with(bookie: BookieRegistration) -> str:
    """What a bookie is lost together with: its named fault domain, else the host it runs on.

    Never "the default": that several bookies are of no named domain does not make them neighbours
    (A-1).
    """
    return bookie.fault_domain or f"host {bookie.host}"


class FleetReader:
    """Makes `Fleet` values. Raises MetadataUnavailable rather than tell half of it."""

    def __init__(
        self,
        store: MetadataStore,
        cookies: CookieCatalog,
        directory: BookieDirectory,
        repairs: RepairCatalog,
    ) -> None:
        self._store = store
        self._cookies = cookies
        self._directory = directory
        self._repairs = repairs

    async def read(self) -> Fleet:
        """As of now. Registrations are read last: whoever registers meanwhile counts as there."""
        incarnations: dict[str, Member] = {}
        unreadable: set[str] = set()
        for bookie_id in await self._cookies.bookie_ids():
            try:
                found = await self._cookies.read_cookie(bookie_id)
            except (MetadataCorrupt, UnsupportedVersion) as error:
                _log.error("cookie-unreadable", bookie=bookie_id, cause=error.cause)
                unreadable.add(bookie_id)
                continue
            if found is not None:
                incarnations[bookie_id] = Member(bookie_id, found.cookie.incarnation)
        away = await self._repairs.away()
        holds = await self._repairs.holds()
        await self._store.barrier()
        await self._directory.refresh()
        live = self._directory.live()
        return Fleet(
            registered={b.member: lost_with(b) for b in live},
            places={b.member: candidate_of(b) for b in live},
            writable=frozenset(b.member for b in live if b.state == "rw"),
            processes={b.member: b.process_nonce for b in live},
            incarnations=incarnations,
            unreadable=frozenset(unreadable),
            away_since_s={b: one.since_ms / 1000 for b, one in away.items()},
            domains={b: one.fault_domain for b, one in away.items()},
            holds=holds,
        )
