"""Who this bookie is and whether its directory is the one it claims (B-23, B-25, B-27).

Owns the decision over the two cookies (metadata store, data directory) and the boot counter. A mix
that is not clearly right is refused with a sentence that says what to do; it is never repaired.
"""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from octavo.bookie.faults import from_os_error, is_full
from octavo.bookie.journal.replay import Evidence
from octavo.bookie.journal.segment import HEADER_BYTES, Position
from octavo.metadata.bookies import Cookie, CookieCatalog, VersionedCookie
from octavo.metadata.envelope import seal, unseal
from octavo.runtime.disk import Disk
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import (
    IllegalStateError,
    KeyExists,
    MetadataCorrupt,
    StorageDamaged,
    StorageFailed,
    StorageFull,
    UnknownOutcome,
    UnsupportedVersion,
    VersionConflict,
)
from octavo.runtime.telemetry import get_logger

COOKIE_FILE = "cookie"
FIRST_COOKIE_FILE = "cookie.first"
"""The first cookie of the incarnation that this directory is about to register: tells a first boot,
or a renewal, that was cut short from a lost or foreign directory. Of no use afterwards.
"""
CONFIRMED_COOKIE_FILE = "cookie.confirmed"
"""The cookie that the metadata store last confirmed to have. A store with an older one is a copy
that was put back (ADR 23). Missing or damaged it proves nothing; the next boot writes it.
"""
DIRECTORY_ROLE = "data"
INDEX_ROLE = "index"
"""Of the folder of an index that lies outside of the data folder (ADR 65)."""
INDEX_COOKIE_FILE = "index.cookie"
"""The cookie in that folder."""

ACCEPT_HINT = (
    "restore the right directory if it exists. Else start once with -X accept_data_loss=true; it "
    "costs: the bookie takes a new incarnation, none of its copies counts any more, and records "
    "whose other copies are lost too are lost for good"
)

OLDER_STORE_HINT = (
    "stop the cluster and restore the newest metadata. If there is none, start each bookie once "
    "with accept_older_metadata=true; it costs: topics, settings and records written since that "
    "copy was made are not found any more, and offsets may be given again"
)

_log = get_logger("octavo.bookie.identity")


class BootKind(Enum):
    """What the two cookies mean."""

    NEW = "new"
    RESUMED = "resumed"
    """A first boot that was cut short before it served anything."""
    RENEWED = "renewed"
    """A renewal that was cut short after it was committed: it goes on (B-25)."""
    NORMAL = "normal"
    DOUBTFUL = "doubtful"
    """The history is in doubt (B-23): only with accept-data-loss, under a new incarnation."""
    OLDER_STORE = "older-store"
    """The metadata store forgot what it had confirmed (ADR 23): only with accept-older-metadata."""


@dataclass(frozen=True)
class Judgement:
    """Result of comparing the cookies."""

    kind: BootKind
    cause: str = ""


def judge_cookies(
    bookie_id: str,
    instance_id: str,
    stored: Cookie | None,
    local: Cookie | None,
    *,
    directory_empty: bool,
    intended: Cookie | None = None,
    confirmed: Cookie | None = None,
    damage: str = "",
) -> Judgement:
    """B-27: what two cookies together say about a directory.

    `intended` is what this directory's interrupted first boot or renewal wanted to
    register, `confirmed` what the store was last known to have, `damage` says what is wrong with a
    local cookie that cannot be read. Raises StorageFailed for mixes that no data-loss command may
    override.
    """
    _check_owner(bookie_id, instance_id, local)
    if stored is None:
        if local is not None:
            raise StorageFailed(
                f"the cluster does not know bookie {bookie_id!r}, but its directory has a cookie",
                hint="the cookie was deleted (decommissioned?) or the metadata store was replaced",
            )
        if not directory_empty:
            raise StorageFailed(
                f"bookie {bookie_id!r} is new, but its data directory is not empty",
                hint="give a new bookie an empty directory",
            )
        return Judgement(BootKind.NEW)
    older = _older_store(stored, local, confirmed)
    if older:
        return Judgement(BootKind.OLDER_STORE, older)
    # The counter moves only after the directory has its cookie, so it is part of the comparison.
    if intended == stored and (local is None or local.incarnation != stored.incarnation):
        return Judgement(BootKind.RENEWED if stored.salvage else BootKind.RESUMED)
    if damage:
        return Judgement(BootKind.DOUBTFUL, damage)
    if local is None:
        return Judgement(BootKind.DOUBTFUL, "the data directory lost its cookie, or was replaced")
    return _judge_both(bookie_id, stored, local)


def _check_owner(bookie_id: str, instance_id: str, local: Cookie | None) -> None:
    if local is not None:
        if local.bookie_id != bookie_id:
            raise StorageFailed(
                f"the data directory belongs to bookie {local.bookie_id!r}, this is {bookie_id!r}",
                hint="check --id and --data",
            )
        if local.instance_id != instance_id:
            raise StorageFailed(
                f"the data directory belongs to cluster {local.instance_id}, not {instance_id}",
                hint="check --metadata and --data",
            )


def _older_store(stored: Cookie, local: Cookie | None, confirmed: Cookie | None) -> str:
    """How the store's cookie lies before one that the store had; empty: it does not.

    A renewal changes the store before the directory, so an incarnation that the directory has left
    behind cannot be the store's latest.
    """
    for known in (local, confirmed):
        if known is not None and stored.incarnation in known.salvage:
            return (
                f"the metadata store went back: it has incarnation {stored.incarnation}, "
                f"replaced by {known.incarnation} since"
            )
    if confirmed is None or confirmed.incarnation != stored.incarnation:
        return ""
    had = (confirmed.boot_counter, confirmed.durable_up_to)
    has = (stored.boot_counter, stored.durable_up_to)
    if has[0] >= had[0] and has[1] >= had[1]:
        return ""
    return (
        f"the metadata store went back: it confirmed boot counter {had[0]} and a log up to "
        f"{had[1]}, now it says {has[0]} and {has[1]}"
    )


def _judge_both(bookie_id: str, stored: Cookie, local: Cookie) -> Judgement:
    if local.incarnation in stored.salvage:
        return Judgement(BootKind.DOUBTFUL, "the directory is of an older incarnation")
    if not _same_directories(stored, local):
        raise StorageFailed(
            f"the directory is not the one bookie {bookie_id!r} registered",
            hint="another bookie's directory, or a copy, is mounted here",
        )
    if stored.incarnation != local.incarnation:
        return Judgement(BootKind.DOUBTFUL, "the directory is of an older incarnation")
    if local.boot_counter < stored.boot_counter:
        return Judgement(
            BootKind.DOUBTFUL,
            f"the directory was rolled back: boot counter {local.boot_counter}, "
            f"the cluster knows {stored.boot_counter}",
        )
    return Judgement(BootKind.NORMAL)


def _same_directories(stored: Cookie, local: Cookie) -> bool:
    """Whether the store lists the directory's folders.

    It may not know yet that the index was given a folder of its own.
    """
    if stored.directories == local.directories:
        return True
    before = {role: name for role, name in local.directories.items() if role != INDEX_ROLE}
    return INDEX_ROLE not in stored.directories and stored.directories == before


def read_local_cookie(data_dir: pathlib.Path, disk: Disk, name: str = COOKIE_FILE) -> Cookie | None:
    """A cookie of the directory; raises StorageDamaged when it cannot be trusted, OSError."""
    path = data_dir / name
    try:
        data = disk.read(path)
    except FileNotFoundError:
        return None
    try:
        return Cookie.from_bytes(unseal(str(path), data))
    except MetadataCorrupt as error:
        raise StorageDamaged(f"{path} is damaged: {error.cause}", file=str(path)) from error


def _uuids_of(role: str, *cookies: Cookie | None) -> frozenset[str]:
    return frozenset(
        cookie.directories[role]
        for cookie in cookies
        if cookie is not None and role in cookie.directories
    )


class Identity:
    """The cookies of a running bookie; moves them forward, directory first (B-27)."""

    def __init__(
        self,
        data_dir: pathlib.Path,
        disk: Disk,
        catalog: CookieCatalog,
        entropy: Entropy,
        bookie_id: str,
        instance_id: str,
    ) -> None:
        self._data_dir = data_dir
        self._disk = disk
        self._catalog = catalog
        self._entropy = entropy
        self._bookie_id = bookie_id
        self._instance_id = instance_id
        self._stored: VersionedCookie | None = None
        self._cookie: Cookie | None = None
        self.store_went_back = ""
        """Not empty: while this process ran the store was seen with an older cookie than the one it
        had confirmed, as after an older copy of the metadata was put back."""
        self.on_went_back: Callable[[], None] = lambda: None
        """Called when that was seen, before the store's cookie is brought forward."""
        self.known_directories: frozenset[str] = frozenset()
        """Uuids of this directory according to the cookies when this boot began."""
        self.known_indexes: frozenset[str] = frozenset()
        """The same of the folder of its index; empty: that is none of its own."""
        self._index_home: pathlib.Path | None = None
        self._bumping = asyncio.Lock()  # one bump at a time; held across I/O on purpose

    @property
    def instance_id(self) -> str:
        """The cluster this bookie belongs to."""
        return self._instance_id

    @property
    def cookie(self) -> Cookie:
        """The identity under which this process serves."""
        if self._cookie is None:
            raise StorageFailed("identity is not established yet")
        return self._cookie

    async def compare(
        self, *, directory_empty: bool, accept_older_store: bool = False
    ) -> Judgement:
        """Read the cookies and judge them.

        With `accept_older_store` a store that went back is brought forward by the next publication
        (ADR 23).
        """
        self._stored = await self._catalog.read_cookie(self._bookie_id)
        damage = ""
        try:
            local = await asyncio.to_thread(read_local_cookie, self._data_dir, self._disk)
        except StorageDamaged as error:
            local, damage = None, error.cause
        intended = await asyncio.to_thread(self._read_aid, FIRST_COOKIE_FILE)
        confirmed = await asyncio.to_thread(self._read_aid, CONFIRMED_COOKIE_FILE)
        stored = self._stored.cookie if self._stored else None
        self.known_directories = _uuids_of(DIRECTORY_ROLE, stored, local)
        self.known_indexes = _uuids_of(INDEX_ROLE, stored, local)
        judgement = judge_cookies(
            self._bookie_id,
            self._instance_id,
            stored,
            local,
            directory_empty=directory_empty,
            intended=intended,
            confirmed=confirmed,
            damage=damage,
        )
        if judgement.kind is BootKind.OLDER_STORE and accept_older_store and local is not None:
            judgement = Judgement(BootKind.NORMAL, judgement.cause)
        if judgement.kind is BootKind.NORMAL and local is not None and stored is not None:
            # Only the store's copy follows the log; a boot must not put it back.
            proven = [stored, *([confirmed] if confirmed is not None else [])]
            known = [c.durable_up_to for c in proven if c.incarnation == local.incarnation]
            self._cookie = replace(local, durable_up_to=max(known, default=(0, 0)))
        elif judgement.kind in (BootKind.RESUMED, BootKind.RENEWED):
            self._cookie = stored
        return judgement

    def _read_aid(self, name: str) -> Cookie | None:
        """A cookie beside the directory's own: one that cannot be read proves nothing."""
        try:
            return read_local_cookie(self._data_dir, self._disk, name)
        except (StorageDamaged, UnsupportedVersion, OSError) as error:
            _log.warning("cookie-unreadable", file=name, cause=str(error))
            return None

    def keep_index_in(self, folder: pathlib.Path) -> None:
        """The index lies in a folder of its own, whose cookie moves before the directory's does.

        From the next of its movements on the cluster knows that folder.
        """
        self._index_home = folder
        if self._cookie is not None:
            self._cookie = replace(self._cookie, directories=self._folders(self._cookie))

    def _folders(self, old: Cookie | None = None) -> dict[str, str]:
        """Roles and uuids: those of `old`, fresh ones for what it lacks."""
        roles = [DIRECTORY_ROLE, *([INDEX_ROLE] if self._index_home is not None else [])]
        known = dict[str, str]() if old is None else dict(old.directories)
        return {**known, **{r: str(self._entropy.uuid()) for r in roles if r not in known}}

    async def _write_cookie(
        self, cookie: Cookie, name: str, folder: pathlib.Path | None = None
    ) -> None:
        """Put a cookie into the directory, or `folder`; raises StorageFull or OSError."""
        path = (folder or self._data_dir) / name
        try:
            await asyncio.to_thread(self._disk.replace, path, seal(cookie.to_bytes()))
        except OSError as error:
            if is_full(error):
                raise from_os_error(f"the cookie {path} cannot be written", error) from error
            raise

    async def create(self) -> None:
        """A new bookie: the store's cookie first, which must not exist (B-27)."""
        cookie = Cookie(
            bookie_id=self._bookie_id,
            instance_id=self._instance_id,
            incarnation=self._entropy.uuid(),
            directories=self._folders(),
        )
        await self._write_cookie(cookie, FIRST_COOKIE_FILE)
        try:
            self._stored = await self._catalog.create_cookie(cookie)
        except KeyExists:
            raise StorageFailed(f"another bookie took the id {self._bookie_id!r}") from None
        self._cookie = cookie

    async def renew(self) -> None:
        """B-25: a new incarnation, committed before anything is served; the old one is salvage.

        Killed before the store's cookie has changed, nothing has happened. Killed after it, the
        next boot finds the store's cookie in FIRST_COOKIE_FILE and goes on (`RENEWED`), until the
        directory's own cookie is written, which is the last step of a boot's replay.
        """
        if self._stored is None:
            raise StorageFailed("there is no incarnation to replace")
        old = self._stored.cookie
        cookie = replace(
            old,
            incarnation=self._entropy.uuid(),
            salvage=(old.incarnation, *old.salvage),
            durable_up_to=(0, 0),  # what the old incarnation proved may be what was lost
            directories=self._folders(),
        )
        await self._write_cookie(cookie, FIRST_COOKIE_FILE)
        try:
            self._stored = await self._catalog.update_cookie(self._stored, cookie)
        except VersionConflict:
            raise StorageFailed(
                f"another process changed the cookie of {self._bookie_id!r}"
            ) from None
        self._cookie = cookie

    def evidence(self) -> list[Evidence]:
        """What the cookies prove about the log, the store's and the directory's (ADR 14)."""
        # The counter moves after the segment was made durable.
        local = Position(self._cookie.boot_counter if self._cookie else 0, HEADER_BYTES)
        found = [Evidence(local, "the directory's cookie")]
        if self._stored is not None:
            stored = self._stored.cookie
            proven = max(Position(stored.boot_counter, HEADER_BYTES), stored.durable_up_to)
            found.append(Evidence(Position(*proven), "the cluster's cookie"))
        return [proof for proof in found if proof.position.segment]

    async def publish(self, durable_up_to: Position) -> None:
        """Tell the cluster how far the log is durable; raises as `bump()` does."""
        async with self._bumping:
            self._cookie = replace(
                self.cookie, durable_up_to=(durable_up_to.segment, durable_up_to.offset)
            )
            await self._publish_cookie()

    async def bump_directory(self, segment: int) -> None:
        """Raise the boot counter to the newest segment's number, in the directory only.

        The store follows once this process has won the registration (B-28): `publish_cookie()`.

        A counter of the directory below the store's means that the directory was rolled back; a
        newest segment below the directory's counter means that segments were lost (B-23, B-27).
        Raises StorageFull, or OSError.
        """
        async with self._bumping:
            await self._bump_directory(segment)

    async def bump(self, segment: int) -> None:
        """Raise the boot counter in the directory, then in the store.

        Raises StorageFull or MetadataUnavailable: both pass, the next call makes up for it; OSError
        (B-8); IllegalStateError when another process goes by this identity (B-28).
        """
        async with self._bumping:
            await self._bump_directory(segment)
            await self._publish_cookie()

    async def publish_cookie(self) -> None:
        """Bring the store's cookie to the directory's; raises as `bump()` does."""
        async with self._bumping:
            await self._publish_cookie()

    async def _bump_directory(self, segment: int) -> None:
        bumped = replace(self.cookie, boot_counter=max(self.cookie.boot_counter, segment))
        if self._index_home is not None:  # first: it is never behind, or it was rolled back
            await self._write_cookie(bumped, INDEX_COOKIE_FILE, self._index_home)
        await self._write_cookie(bumped, COOKIE_FILE)
        self._cookie = bumped

    async def _publish_cookie(self) -> None:
        await self._store_cookie()
        try:
            await self._write_cookie(self.cookie, CONFIRMED_COOKIE_FILE)
        except StorageFull as error:  # the proof is older meanwhile
            _log.warning("cookie-not-confirmed", cause=error.cause)

    async def _store_cookie(self) -> None:
        if self._stored is None:
            raise StorageFailed("identity is not established yet")
        try:
            self._stored = await self._catalog.update_cookie(self._stored, self.cookie)
        except (VersionConflict, UnknownOutcome):
            # An earlier update of ours may have happened after all; go on from what is there.
            found = await self._catalog.read_cookie(self._bookie_id)
            if found is None or not self._is_behind(found.cookie):
                raise IllegalStateError(
                    f"another process changed the cookie of {self._bookie_id!r}",
                    hint="give each process its own id and data folder, or stop the other one",
                ) from None
            self._note_version(found.version)
            self._stored = await self._catalog.update_cookie(found, self.cookie)

    def _note_version(self, found: int) -> None:
        if found < self.confirmed_version:
            self.store_went_back = (
                f"the bookie's cookie has version {found}, it had {self.confirmed_version}"
            )
            self.on_went_back()

    @property
    def confirmed_version(self) -> int:
        """Version of the store's cookie that this process wrote or read last; -1 for none."""
        return -1 if self._stored is None else int(self._stored.version)

    def _is_behind(self, found: Cookie) -> bool:
        """True if `found` can be an earlier state of our own cookie."""
        mine = self.cookie
        return (
            found.incarnation == mine.incarnation
            and _same_directories(found, mine)
            and found.boot_counter <= mine.boot_counter
            and tuple(found.durable_up_to) <= tuple(mine.durable_up_to)
        )
