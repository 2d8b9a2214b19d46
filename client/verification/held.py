"""Ledgers that bookies store and no record tells of (6.14).

Every bookie lists its ledgers in order of ids, and so does the metadata store: the two are walked
side by side, in bounded memory. What is in the bookie's list alone is read again behind a barrier.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

import grpc

from octavo.metadata.ledgers import LedgerCatalog
from octavo.proto.bookie_pb2 import InfoRequest, ListLedgersRequest
from octavo.proto.bookie_pb2_grpc import BookieControlStub
from octavo.proto.endpoints import open_channel
from octavo.runtime.errors import (
    BookieUnavailable,
    MetadataCorrupt,
    NoSuchLedger,
    UnsupportedVersion,
)
from octavo.runtime.ids import LedgerId

PAGE = 50_000
CALL_TIMEOUT_S = 30.0
TOLD_MAX = 10


class Unrecorded(NamedTuple):
    """Ledgers of one bookie that no record tells of."""

    number: int
    first: tuple[int, ...]
    """The first of them."""

    def said(self) -> str:
        """In words."""
        more = ", ..." if self.number > len(self.first) else ""
        numbers = ", ".join(map(str, self.first)) + more
        return f"it stores {self.number} ledgers that no record tells of: {numbers}"


async def held_ledgers(control_address: str) -> AsyncIterator[int]:
    """Ids of all ledgers that a bookie has entries of, in order; raises BookieUnavailable."""
    above, more = -1, True
    async with open_channel(control_address) as channel:
        while more:
            request = ListLedgersRequest(above=above, limit=PAGE)
            try:
                reply = await BookieControlStub(channel).ListLedgers(
                    request, timeout=CALL_TIMEOUT_S
                )
            except grpc.aio.AioRpcError as error:
                raise _unavailable(error) from error
            more = reply.more and bool(reply.ledger_ids)
            for ledger_id in reply.ledger_ids:
                above = ledger_id
                yield ledger_id


async def collection_alarm(control_address: str) -> str:
    """Why a bookie deletes nothing, in its words; raises BookieUnavailable."""
    async with open_channel(control_address) as channel:
        try:
            reply = await BookieControlStub(channel).Info(InfoRequest(), timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise _unavailable(error) from error
    return reply.collection_alarm


def _unavailable(error: grpc.aio.AioRpcError) -> BookieUnavailable:
    return BookieUnavailable(error.details() or error.code().name)


async def unrecorded(held: AsyncIterator[int], catalog: LedgerCatalog) -> Unrecorded:
    """Which of `held`, ascending, have no record now; raises MetadataUnavailable."""
    count, first = 0, list[int]()
    listed = catalog.walk()
    at: int | None = -1
    async for ledger_id in held:
        while at is not None and at < ledger_id:
            at = await anext(listed, None)
        if at == ledger_id or await _exists(catalog, ledger_id):
            continue
        count += 1
        if len(first) < TOLD_MAX:
            first.append(ledger_id)
    return Unrecorded(count, tuple(first))


async def _exists(catalog: LedgerCatalog, ledger_id: int) -> bool:
    try:
        await catalog.read(LedgerId(ledger_id), barrier=True)
    except NoSuchLedger:
        return False
    except (MetadataCorrupt, UnsupportedVersion):
        return True
    return True
