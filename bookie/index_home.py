"""The folder of an index that lies on another disk than the journal (B-27, ADR 65).

Owns whether that folder is the one this bookie registered, and the cookie in it. The index itself
is a cache (ADR 20); but one that is older than its journal names segments that were emptied since,
so a folder that was lost, put back from a copy or mounted by mistake is told from the right one
before anything is opened in it. Pure judgement, then the thin `IndexHome` over files.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from octavo.bookie.config import BookieConfig
from octavo.bookie.identity import (
    DIRECTORY_ROLE,
    INDEX_COOKIE_FILE,
    INDEX_ROLE,
    BootKind,
    Identity,
    read_local_cookie,
)
from octavo.bookie.journal.replay import Evidence
from octavo.bookie.journal.segment import HEADER_BYTES, Position
from octavo.metadata.bookies import Cookie
from octavo.runtime.disk import Disk
from octavo.runtime.errors import StorageDamaged, StorageFailed, StorageUnavailable
from octavo.runtime.telemetry import get_logger

INDEX_DIR = "index"
"""Folder of the index itself, in the data folder or in a folder of its own."""

LOST_HINT = (
    "mount or name the right folder (index_dir). If its disk is lost, start once with "
    "-X accept_index_loss=true: the index is built anew from the journal"
)

_log = get_logger("octavo.bookie.index")


@dataclass(frozen=True)
class FolderFacts:
    """What a look at the folder of the index found."""

    cookie: Cookie | None = None
    damage: str = ""
    """Why the cookie in it cannot be read; then `cookie` is None."""
    has_index: bool = False
    elsewhere: bool = False
    """Another index lies in the data folder."""


@dataclass(frozen=True)
class HomeVerdict:
    """What may be done with the folder."""

    lost: str = ""
    """Not empty: it does not hold this bookie's index as of its last start, and why."""
    moves_in: bool = False
    """The cluster does not know it yet: the index was moved there from the data folder."""
    counter: int = 0
    """Newest segment that its cookie counts: it was durable (ADR 14). 0: not known."""


def judge_home(
    kind: BootKind,
    bookie_id: str,
    instance_id: str,
    facts: FolderFacts,
    *,
    known: Set[str],
    known_data: Set[str],
    counter: int,
    separate: bool,
) -> HomeVerdict:
    """B-27 for the folder of the index.

    Args:
        kind: what the cookies of the data folder mean.
        known: uuids of the index's folder by those cookies; empty: it is none of its own.
        known_data: the same of the data folder.
        counter: boot counter of the data folder; the other one's is written first.
        separate: the index is configured to lie outside of the data folder.

    Raises StorageFailed for a folder of somebody else's, which no command may override.
    """
    if not known and not separate:
        return HomeVerdict()
    cookie = facts.cookie
    if cookie is not None and (cookie.bookie_id, cookie.instance_id) != (bookie_id, instance_id):
        raise StorageFailed(
            f"the index folder belongs to bookie {cookie.bookie_id!r} of cluster "
            f"{cookie.instance_id}, this is {bookie_id!r} of {instance_id}",
            hint="check index_dir",
        )
    if kind is BootKind.NEW:
        if cookie is not None or facts.damage or facts.has_index:
            raise StorageFailed(
                f"bookie {bookie_id!r} is new, but its index folder is not empty",
                hint="give a new bookie an empty one",
            )
        return HomeVerdict()
    if not known:
        return _judge_newcomer(kind, facts, known_data)
    if cookie is not None and cookie.directories.get(INDEX_ROLE) not in known:
        raise StorageFailed(
            f"the index folder is not the one bookie {bookie_id!r} registered",
            hint="a copy, or the disk of a former life of this bookie, is mounted here",
        )
    if kind is not BootKind.NORMAL:
        return HomeVerdict()  # what it lacks is made by a first start, or given up by a renewal
    if cookie is None:
        why = facts.damage or "it is empty, or not mounted"
        return HomeVerdict(lost=f"the index folder lost its cookie: {why}")
    if cookie.boot_counter < counter:
        return HomeVerdict(
            lost=f"the index folder was rolled back: its counter is {cookie.boot_counter}, that of "
            f"the data folder {counter}"
        )
    return HomeVerdict(counter=cookie.boot_counter)


def _judge_newcomer(kind: BootKind, facts: FolderFacts, known_data: Set[str]) -> HomeVerdict:
    """A folder of its own that the cluster does not know yet."""
    cookie = facts.cookie
    if cookie is not None and cookie.directories.get(DIRECTORY_ROLE) not in known_data:
        raise StorageFailed(
            "the index folder belongs to another data folder of this bookie",
            hint="name an empty folder, or the one that its index was moved to",
        )
    if kind is not BootKind.NORMAL:
        return HomeVerdict()
    if not facts.has_index:
        return HomeVerdict(lost="the index folder holds no index", moves_in=True)
    if facts.elsewhere:
        raise StorageFailed(
            "an index lies in the index folder and another one in the data folder",
            hint="stop the bookie in good order and move its index; leave no copy behind",
        )
    return HomeVerdict(moves_in=True)


class IndexHome:
    """The folder the index of one bookie lies in (blocking)."""

    def __init__(self, config: BookieConfig, disk: Disk) -> None:
        self._config = config
        self._disk = disk
        self._path = config.index_home
        self.path = self._path / INDEX_DIR
        """The index itself."""
        self.lost = ""
        """Why the index that is there must not be used: an operator said to build it anew."""
        self.moves_in = False
        """The index was moved here and is not registered yet: it must prove to be the newest."""
        self.counter = 0
        """Newest segment that was durable, as the folder's cookie says; 0: it says nothing."""

    def look(self, identity: Identity, kind: BootKind) -> None:
        """Compare the folder with what the cookies say, before anything is opened or changed.

        Raises StorageUnavailable when it does not hold what was there at the last start, unless an
        operator accepts that; StorageFailed for a folder of somebody else's; OSError.
        """
        config = self._config
        separate = config.index_dir is not None
        if not separate and not identity.known_indexes:
            return
        verdict = judge_home(
            kind,
            config.bookie_id,
            identity.instance_id,
            self._facts(),
            known=identity.known_indexes,
            known_data=identity.known_directories,
            counter=identity.cookie.boot_counter if kind is BootKind.NORMAL else 0,
            separate=separate,
        )
        if verdict.lost and not (config.accept_index_loss or config.accept_data_loss):
            hint = LOST_HINT
            if verdict.moves_in:
                old = config.data_dir / INDEX_DIR
                hint = (
                    f"stop the bookie in good order and move {old} to {self.path}, or {LOST_HINT}"
                )
            raise StorageUnavailable(f"{verdict.lost} ({self._path})", hint=hint)
        self.lost, self.moves_in = verdict.lost, verdict.moves_in and not verdict.lost
        if self.lost:
            _log.error("index-loss-accepted", cause=self.lost, folder=str(self._path))
        self.counter = verdict.counter
        identity.keep_index_in(self._path)

    def evidence(self) -> list[Evidence]:
        """What the folder's cookie proves about the log (ADR 14)."""
        proven = Position(self.counter, HEADER_BYTES)
        return [Evidence(proven, "the index folder's cookie")] if self.counter else []

    def require_ours(self, cause: str) -> None:
        """An index that was moved in and cannot be used is not replaced: it may be another's."""
        if self.moves_in:
            raise StorageFailed(
                f"the index that was moved to {self._path} cannot be used: {cause}",
                hint=f"move the index of {self._config.bookie_id!r} there, or none and start once "
                "with -X accept_index_loss=true",
            )

    def require_newest(self, mark: Position, counter: int) -> None:
        """An index that was moved in reaches the newest segment, or it is an old copy."""
        if self.moves_in and mark.segment < counter:
            raise StorageFailed(
                f"the index in {self._path} is of an older moment: it ends in segment "
                f"{mark.segment}, the journal in {counter}",
                hint="stop the bookie in good order before its index is moved",
            )

    def _facts(self) -> FolderFacts:
        elsewhere = self._config.data_dir / INDEX_DIR
        try:
            names = self._disk.list(self._path)
        except FileNotFoundError:
            names = []
        has_index = INDEX_DIR in names and bool(self._disk.list(self.path))
        other = self.path != elsewhere and INDEX_DIR in self._disk.list(self._config.data_dir)
        cookie, damage = None, ""
        try:
            cookie = read_local_cookie(self._path, self._disk, INDEX_COOKIE_FILE)
        except StorageDamaged as error:
            damage = error.cause
        return FolderFacts(cookie, damage, has_index, other)
