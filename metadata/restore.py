"""Putting a copy of the metadata into a store (ID-3, INV-11, ADR 23, ADR 51).

Order: a mark that a restoration is under way; what is there goes, if that was asked for; every key
of the copy; the new epoch of ids; a mark that says what was restored; the first mark goes. While
the first mark is there no server starts, and the same call goes on from wherever it was cut.

Counters are not restored. Ids come from a new epoch, above the copy's, above the store's, and above
every epoch that an earlier restoration of the same copy can have begun: it counts minutes. What was
counted of deletions begins at nought, which is one of the things that keep bookies from deleting.
"""

from __future__ import annotations

import asyncio
import json
import pathlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import NamedTuple

from octavo.metadata.backup import CopyRules, require_nobody
from octavo.metadata.backup_file import BackupFile, BackupHead
from octavo.metadata.ledger_ids import EPOCH_MAX as LEDGER_EPOCH_MAX
from octavo.metadata.paths import Paths
from octavo.metadata.producer_ids import EPOCH_MAX as PRODUCER_EPOCH_MAX
from octavo.metadata.restored_mark import RestoredMark
from octavo.metadata.settled import SettledWrites
from octavo.metadata.store import MetadataStore
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import (
    IllegalStateError,
    KeyExists,
    KeyMissing,
    MetadataCorrupt,
    WrongCluster,
)

EPOCHS_FROM_MS = 1_767_225_600_000
"""2026-01-01: epochs of restorations count minutes from here."""
EPOCH_MAX = min(LEDGER_EPOCH_MAX, PRODUCER_EPOCH_MAX)
WRITES_AT_ONCE = 32

Writing = Callable[[int, int], None]
"""Told how many keys of how many were written."""


class Restored(NamedTuple):
    """What was done."""

    head: BackupHead
    keys: int
    epoch: int


@dataclass(frozen=True)
class _UnderWay:
    """The mark of a restoration that has begun."""

    digest: str
    epoch: int


async def restore(
    store: MetadataStore,
    paths: Paths,
    path: pathlib.Path,
    *,
    clock: Clock,
    entropy: Entropy,
    replace: bool = False,
    on_write: Writing = lambda _done, _all: None,
) -> Restored:
    """Make the store hold what the copy at `path` holds, under a new epoch of ids.

    `replace`: what the store has of this cluster goes first. Raises MetadataCorrupt (the file),
    UnsupportedVersion, IllegalStateError (servers are registered, the store is not empty),
    WrongCluster, MetadataUnavailable, UnknownOutcome, OSError. Once it has begun servers do not
    start until it was run to its end, whatever it raises.
    """
    copy = await asyncio.to_thread(BackupFile.opened, path)
    work = _Restoration(store, paths, copy, clock, entropy)
    await require_nobody(store, paths)
    under_way = await work.begun(replace=replace)
    await require_nobody(store, paths)  # who looked for the mark before it was there
    await work.clear()
    keys = await work.write(on_write)
    await work.finish(under_way)
    return Restored(copy.head, keys, under_way.epoch)


class _Restoration:
    def __init__(
        self, store: MetadataStore, paths: Paths, copy: BackupFile, clock: Clock, entropy: Entropy
    ) -> None:
        self._store = store
        self._paths = paths
        self._copy = copy
        self._clock = clock
        self._entropy = entropy
        self._writes = SettledWrites(store, clock)
        self._rules = CopyRules(paths)

    async def begun(self, *, replace: bool) -> _UnderWay:
        """The mark, written or found; raises IllegalStateError, WrongCluster."""
        found = await self._writes.read(self._paths.restoring)
        if found is not None:
            under_way = _parse_mark(found.value)
            if under_way.digest != self._copy.digest and not replace:
                raise IllegalStateError(
                    "a restoration of another copy was begun here and not ended",
                    hint="end it with that copy, or add --replace to take this one",
                )
        else:
            await self._check_present(replace=replace)
        epoch = max(
            self._copy.head.epoch + 1, await self._present_epoch() + 1, self._epoch_of_now()
        )
        if found is not None:
            epoch = max(epoch, _parse_mark(found.value).epoch)
        if epoch > EPOCH_MAX:
            raise IllegalStateError(f"epoch {epoch} of ids is above {EPOCH_MAX}")
        mark = _UnderWay(self._copy.digest, epoch)
        value = json.dumps(asdict(mark)).encode()
        if found is None:
            await self._writes.create(self._paths.restoring, value)
        elif found.value != value:
            await self._writes.put(self._paths.restoring, value, found.version)
        return mark

    def _epoch_of_now(self) -> int:
        minutes = (self._clock.wall_ms() - EPOCHS_FROM_MS) // 60_000
        return minutes if 0 <= minutes <= EPOCH_MAX // 2 else 0

    async def _present_epoch(self) -> int:
        found = await self._writes.read(self._paths.idgen)
        if found is None or not found.value.isdigit():
            return 0
        return min(int(found.value), EPOCH_MAX)

    async def _check_present(self, *, replace: bool) -> None:
        """Refuse to write over what somebody may need."""
        names = await self._writes.children(self._paths.root)
        if not names:
            return
        found = await self._writes.read(self._paths.instance_id)
        cluster_id = "" if found is None else found.value.decode("ascii", "replace")
        if cluster_id != self._copy.head.cluster_id and await self._is_used():
            raise WrongCluster(
                f"the store holds cluster {cluster_id or 'without an id'}, the copy is of "
                f"{self._copy.head.cluster_id}",
                hint="check --metadata and the file; an empty place takes any copy",
            )
        if not replace:
            raise IllegalStateError(
                f"the store is not empty: it has {', '.join(names[:8])}",
                hint="back it up first; then --replace removes what is there",
            )

    async def _is_used(self) -> bool:
        """Whether anything that was stored depends on it."""
        paths = self._paths
        for folder in (paths.ledgers, paths.topics, paths.partitions_root, paths.cookies):
            if await self._writes.children(folder):
                return True
        return False

    async def clear(self) -> None:
        """Remove everything but the mark; the cluster's id goes last."""
        paths = self._paths
        names = await self._writes.children(paths.root)
        keep = (paths.restoring, paths.instance_id)
        for key in (f"{paths.root}/{name}" for name in names):
            if key not in keep:
                await self._remove(key)
        if await self._writes.read(paths.instance_id) is not None:
            await self._remove(paths.instance_id)

    async def _remove(self, root: str) -> None:
        """A key and all below it; memory holds one directory of each level."""
        for name in await self._store.children(root):
            await self._remove(f"{root}/{name}")
        with suppress(KeyMissing):
            await self._writes.delete(root, None)

    async def write(self, on_write: Writing) -> int:
        """Every key of the copy but counters; how many they are."""
        done = 0
        batch: list[tuple[str, bytes]] = []
        for item in self._copy.items():
            key = self._paths.root + item.key
            if self._rules.is_counter(key) or key in (self._paths.idgen, self._paths.restored):
                continue
            if not self._rules.is_copied(key):
                raise MetadataCorrupt(f"the copy holds {key}, which lives with a session")
            batch.append((key, item.value))
            if len(batch) == WRITES_AT_ONCE:
                done += await self._write_some(batch)
                batch = []
                on_write(done, self._copy.keys)
        done += await self._write_some(batch)
        on_write(done, self._copy.keys)
        return done

    async def _write_some(self, batch: list[tuple[str, bytes]]) -> int:
        await asyncio.gather(*(self._write(key, value) for key, value in batch))
        return len(batch)

    async def _write(self, key: str, value: bytes) -> None:
        try:
            await self._writes.create(key, value)
        except KeyExists:  # a directory that a key below it made
            found = await self._writes.read(key)
            if found is not None and found.value != value:
                await self._writes.put(key, value, found.version)

    async def finish(self, under_way: _UnderWay) -> None:
        """The epoch, what was restored, and the end of the mark: in this order."""
        await self._write(self._paths.idgen, b"%d" % under_way.epoch)
        mark = RestoredMark(
            nonce=self._entropy.uuid().hex,
            made_ms=self._copy.head.made_ms,
            restored_ms=self._clock.wall_ms(),
            epoch=under_way.epoch,
        )
        await self._write(self._paths.restored, mark.to_bytes())
        with suppress(KeyMissing):
            await self._writes.delete(self._paths.restoring, None)


def _parse_mark(value: bytes) -> _UnderWay:
    try:
        fields = json.loads(value)
        return _UnderWay(str(fields["digest"]), int(fields["epoch"]))
    except (ValueError, KeyError, TypeError) as error:
        raise MetadataCorrupt(f"the mark of a restoration cannot be read: {error}") from error
