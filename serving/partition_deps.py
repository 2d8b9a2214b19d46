"""What partitions of a broker share, and small pieces of `PartitionShell`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from octavo.metadata.topics import PartitionCatalog
from octavo.proto.batch import BatchHeader
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import (
    InvalidProducerEpoch,
    NotLeader,
    OctavoError,
    OutOfOrderSequence,
)
from octavo.serving.cache import TailCache
from octavo.serving.chain import PartitionName
from octavo.serving.cold import ColdReader
from octavo.serving.config import BrokerConfig
from octavo.serving.ledger_backend import LedgerBackend
from octavo.serving.partition_log import Append
from octavo.serving.producers import Kind, Verdict


class PartitionStateName(Enum):
    """Life of a shell; it never goes back."""

    LOADING = "loading"
    SERVING = "serving"
    CLOSING = "closing"
    CLOSED = "closed"


@dataclass(frozen=True)
class PartitionDeps:
    """What all partitions of a broker share."""

    backend: LedgerBackend
    catalog: PartitionCatalog
    config: BrokerConfig
    clock: Clock
    entropy: Entropy
    tail_cache: TailCache
    cold: ColdReader
    live_bookies: Callable[[], int]
    """Writable bookies as last seen."""
    metadata_connected: Callable[[], bool]
    """Whether a roll could succeed: the metadata session is live."""
    certain: Callable[[], bool]
    """Whether the session surely lives: nobody else owns what this broker holds."""
    confirm: Callable[[], Awaitable[bool]]
    """Ask the metadata store whether it does."""


def refusal(
    name: PartitionName, header: BatchHeader, verdict: Verdict[Append], *, certain: bool
) -> OctavoError:
    """The error of a verdict that turns a batch away (I2).

    NotLeader unless it is `certain` that nobody else owns the partition: a successor may know of
    batches that this one follows.
    """
    if not certain:
        return NotLeader(f"{name}: what comes next is not known while the session is in doubt")
    if verdict.kind is Kind.OLD_EPOCH:
        return InvalidProducerEpoch(
            f"{name}: producer {header.producer_id} epoch {header.producer_epoch} "
            f"is older than {verdict.known_epoch}",
            known_epoch=verdict.known_epoch,
        )
    return OutOfOrderSequence(
        f"{name}: producer {header.producer_id} sent sequence {header.base_sequence}, "
        f"last known is {verdict.last_sequence}",
        last_sequence=verdict.last_sequence,
    )


async def pause(clock: Clock, seconds: float, cut_short: asyncio.Event | None) -> None:
    """Wait `seconds`, or until `cut_short` is set."""
    waiting: list[asyncio.Future[None] | asyncio.Future[Literal[True]]]
    waiting = [asyncio.ensure_future(clock.sleep(seconds))]
    if cut_short is not None:
        waiting.append(asyncio.ensure_future(cut_short.wait()))
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for future in waiting:
            future.cancel()
        await asyncio.wait(waiting)
