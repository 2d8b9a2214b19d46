"""Copying the metadata of a running cluster, as it was at one moment (spec ledger ID-3).

The tree is read again and again, each time whole, into a file of its own, until two readings one
after the other found the same keys, values, versions and lives: then nothing of it changed between
the end of the first and the beginning of the second, and the copy is the state of that moment.
Memory holds the names of a few directories, whatever the size of the tree.

What changes all the time on a running cluster and is a hint, or is judged anew by whoever restores
it, is copied as it was read last and does not hold a copy up: cookies (ADR 23), marks and reports
of autorecovery. Counters are not compared either: a restored cluster goes on in a new epoch of ids.
What lives with a session (registrations, owners, locks) is no part of a copy.
"""

from __future__ import annotations

import asyncio
import hashlib
import pathlib
import struct
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from octavo.metadata.backup_file import BackupHead, BackupItem, BackupWriter
from octavo.metadata.paths import Paths
from octavo.metadata.store import MetadataStore, Versioned, life_of
from octavo.runtime.clock import Clock
from octavo.runtime.errors import IllegalStateError, NotReady

PASSES_MAX = 20
"""Readings of the whole tree before a cluster that keeps changing is given up."""
READS_AT_ONCE = 32
_ITEM = struct.Struct(">IIqQ")

Reading = Callable[[int, int], None]
"""Told the number of the pass and how many keys were read in it."""


class Copied(NamedTuple):
    """What was written."""

    head: BackupHead
    keys: int
    nbytes: int
    passes: int


class CopyRules:
    """Which keys of a cluster are copied, compared and restored."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._session_bound = (
            paths.bookies_rw,
            paths.bookies_ro,
            paths.brokers,
            paths.bundles,
            paths.leader,
            paths.leaving_root,
            paths.loads,
            paths.repair_locks,
            paths.auditor,
        )
        self._unsteady = (paths.cookies, paths.ur)
        self._counters = (paths.ledgers_deleted, paths.producer_ids)

    def is_copied(self, key: str) -> bool:
        """False for what lives with a session, and for marks of restoring."""
        return not self._under(self._session_bound, key) and key != self._paths.restoring

    def is_compared(self, key: str) -> bool:
        """Whether a copy waits until it does not change."""
        return not self._under(self._unsteady, key) and not self.is_counter(key)

    def is_counter(self, key: str) -> bool:
        """Its version is what counts; it is not restored."""
        return key in self._counters or key.startswith(self._paths.idgen + "/")

    @staticmethod
    def _under(roots: tuple[str, ...], key: str) -> bool:
        return any(key == root or key.startswith(root + "/") for root in roots)


async def back_up(
    store: MetadataStore,
    paths: Paths,
    path: pathlib.Path,
    *,
    clock: Clock,
    release: str,
    replace: bool = False,
    on_read: Reading = lambda _number, _keys: None,
) -> Copied:
    """Write a copy of the metadata to `path`, durably and under its name only when it is whole.

    Raises IllegalStateError for a store without a cluster or with a restoration cut short, NotReady
    when the metadata keeps changing, MetadataCorrupt naming a damaged record, MetadataUnavailable,
    OSError.
    """
    rules = CopyRules(paths)
    before = b""
    session = store.session_id
    number = 0

    def tell(keys: int) -> None:
        on_read(number, keys)

    while number < PASSES_MAX:
        number += 1
        await store.barrier()
        if await store.get(paths.restoring) is not None:
            raise IllegalStateError(
                "the metadata is being restored, or was in part",
                hint="run `octavo metadata restore` to its end first",
            )
        head = await _head(store, paths, clock, release)
        writer = BackupWriter(path.parent, path.name)
        try:
            digest = await _read(store, paths, rules, writer, tell)
            head = _same_epoch(head, await _head(store, paths, clock, release))
            is_same_session = store.session_id == session
            if digest == before and is_same_session:
                await asyncio.to_thread(writer.finish, head, path, replace=replace)
                return Copied(head, writer.keys, writer.nbytes, number)
            before = digest if is_same_session else b""
            session = store.session_id
        finally:
            await asyncio.to_thread(writer.drop)
    raise NotReady(
        f"the metadata changed in each of {PASSES_MAX} readings: no moment could be copied",
        hint="try again at a quieter time; for a very large cluster copy ZooKeeper's own snapshot",
    )


async def _head(store: MetadataStore, paths: Paths, clock: Clock, release: str) -> BackupHead:
    found = await store.get(paths.instance_id)
    if found is None:
        raise IllegalStateError(
            f"there is no cluster at {paths.root}", hint="check --metadata and its path"
        )
    pointer = await store.get(paths.idgen)
    epoch = int(pointer.value) if pointer is not None and pointer.value.isdigit() else 0
    return BackupHead(found.value.decode("ascii", "replace"), epoch, clock.wall_ms(), release)


def _same_epoch(before: BackupHead, after: BackupHead) -> BackupHead:
    if before.cluster_id != after.cluster_id:
        raise IllegalStateError("the cluster was replaced while it was copied")
    return after


async def _read(
    store: MetadataStore,
    paths: Paths,
    rules: CopyRules,
    writer: BackupWriter,
    on_keys: Callable[[int], None],
) -> bytes:
    """One reading of the tree into `writer`; a digest of what must not change."""
    digest = hashlib.sha256()
    async for key, found in walk_tree(store, paths.root, rules.is_copied):
        item = BackupItem(key.removeprefix(paths.root), found.value, int(found.version))
        writer.add(item)
        if rules.is_compared(key):
            name = item.key.encode()
            digest.update(
                _ITEM.pack(len(name), len(item.value), item.version, life_of(found.version))
            )
            digest.update(name)
            digest.update(item.value)
        if writer.keys % READS_AT_ONCE == 0:
            on_keys(writer.keys)
    on_keys(writer.keys)
    return digest.digest()


async def walk_tree(
    store: MetadataStore, root: str, wanted: Callable[[str], bool]
) -> AsyncIterator[tuple[str, Versioned]]:
    """Every key below `root` that is wanted, in an order that only the tree decides.

    Directories, keys that hold nothing and have children, are left out. A key that goes meanwhile
    is left out, too. Raises MetadataUnavailable, MetadataCorrupt.
    """
    pending = [root]
    while pending:
        key = pending.pop()
        names = await store.children(key)
        below = [child for child in (f"{key}/{name}" for name in names) if wanted(child)]
        for start in range(0, len(below), READS_AT_ONCE):
            some = below[start : start + READS_AT_ONCE]
            pairs = await asyncio.gather(*(_of(store, child) for child in some))
            for child, (found, has_children) in zip(some, pairs, strict=True):
                if found is not None and (found.value or not has_children):
                    yield child, found
                if has_children:
                    pending.append(child)


async def _of(store: MetadataStore, key: str) -> tuple[Versioned | None, bool]:
    found = await store.get(key)
    return found, bool(await store.children(key))


async def require_nobody(store: MetadataStore, paths: Paths) -> None:
    """Raise IllegalStateError while servers are registered; MetadataUnavailable."""
    await store.barrier()
    there: list[str] = []
    for folder in (paths.bookies_rw, paths.bookies_ro, paths.brokers):
        there += await store.children(folder)
    if not there and await store.get(paths.auditor) is not None:
        there.append("a process that runs autorecovery")
    if there:
        named = ", ".join(sorted(set(there))[:8])
        raise IllegalStateError(
            f"servers use this metadata: {named}",
            hint="stop them all first; of one that was killed the session must run out",
        )
