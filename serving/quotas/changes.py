"""Quotas of single clients as they are looked at and changed; any broker may do it (X24).

A change is one compare-and-set of the cluster's record, made again on what another change left, and
says how things are to be: asking again after a lost reply is harmless.
"""

from __future__ import annotations

from octavo.metadata.quotas import CLIENTS_MAX, QuotaCatalog, QuotaLimits, StoredQuotas
from octavo.runtime.errors import InvalidConfig, InvalidRequest, UnknownOutcome
from octavo.serving.quotas.identity import check_client_id

ATTEMPTS_MAX = 8
"""Compare-and-sets of one change; each but the first follows a read."""
VALUE_MAX = 1 << 50
"""Of a rate or a number of connections."""


def changed(before: StoredQuotas, client_id: str, wanted: QuotaLimits) -> dict[str, QuotaLimits]:
    """All quotas with those values of `wanted` that are not None. Raises InvalidConfig."""
    clients = dict(before.clients)
    kept = clients.get(client_id, QuotaLimits())
    pairs = zip(wanted, kept, strict=True)
    clients[client_id] = QuotaLimits(*(old if new is None else new for new, old in pairs))
    if len(clients) > CLIENTS_MAX:
        raise InvalidConfig(
            f"{CLIENTS_MAX} clients have quotas of their own, there is no room for another",
            hint="take others back with `octavo quotas unset`, or change the brokers' default",
        )
    return clients


class QuotaChanges:
    """Changes the record."""

    def __init__(self, catalog: QuotaCatalog) -> None:
        self._catalog = catalog

    async def read(self) -> StoredQuotas:
        """What is noted now."""
        return await self._catalog.read()

    async def set(self, client_id: str, wanted: QuotaLimits) -> QuotaLimits:
        """What the client has then of its own.

        Raises InvalidRequest, InvalidConfig; UnknownOutcome when the record kept changing or no
        answer is certain.
        """
        check_client_id(client_id)
        for name, value in wanted._asdict().items():
            if value is not None and not 0 <= value <= VALUE_MAX:
                raise InvalidConfig(f"{name} must be between 0 and {VALUE_MAX}, not {value}")
        if wanted == QuotaLimits():
            raise InvalidRequest(f"no quota of client {client_id!r} is to be changed")
        for _ in range(ATTEMPTS_MAX):
            before = await self._catalog.read()
            clients = changed(before, client_id, wanted)
            if clients == before.clients or await self._catalog.replace(before, clients):
                return clients[client_id]
        raise _kept_changing()

    async def unset(self, client_id: str) -> None:
        """The brokers' default counts for the client again; raises as `set`."""
        check_client_id(client_id)
        for _ in range(ATTEMPTS_MAX):
            before = await self._catalog.read()
            clients = {name: limits for name, limits in before.clients.items() if name != client_id}
            if clients == before.clients or await self._catalog.replace(before, clients):
                return
        raise _kept_changing()


def _kept_changing() -> UnknownOutcome:
    return UnknownOutcome(
        "the quotas kept changing while they were changed", hint="look at them, and ask again"
    )
