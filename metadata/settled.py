"""Conditional writes whose lost replies are settled by reading back (M-1, M-3, M-4).

The stores never repeat a write. `SettledWrites` is the one place that does: after an unknown
outcome it reads the key behind a barrier, on the same session, and only then decides. A write of
the same session that is still under way cannot arrive after that read: every store keeps the
order of one session's calls.

What the read proves is decided by the pure `judge_*` functions. They say OURS or OTHERS only from
proof; a record in which our write *may* have been, and that others changed, removed or made again
since, is UNKNOWN, and the caller gets UnknownOutcome: never a "no" that may be false.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum

from octavo.metadata.store import MetadataStore, Put, Versioned, life_of
from octavo.runtime.clock import Clock
from octavo.runtime.errors import (
    KeyExists,
    MetadataCorrupt,
    MetadataUnavailable,
    UnknownOutcome,
    VersionConflict,
)

ATTEMPTS_MAX = 8
"""How often a write or its settling read is tried before the outcome is reported as unknown."""

_PAUSE_FIRST_S = 0.05
_PAUSE_MAX_S = 2.0


SameLife = Callable[[bytes], bool]
"""Whether a record is of the life that the caller means; keys such as topics can be made again."""


class Verdict(Enum):
    """What a read behind a barrier proves of a write whose reply was lost."""

    OURS = "ours"
    """It happened."""
    NOT_DONE = "not-done"
    """It did not happen and cannot any more: it may be sent again."""
    OTHERS = "others"
    """It did not happen and is refused now: somebody else was first."""
    UNKNOWN = "unknown"
    """It may have happened; what it wrote was changed or removed since, if it did."""


def judge_create(
    found: Versioned | None,
    value: bytes,
    is_ours: Callable[[bytes], bool] | None = None,
    *,
    lasting: bool = False,
) -> Verdict:
    """What `found` proves of the lost creation of `value`.

    `is_ours` recognises our record also after others changed it (default: equal bytes, which only
    proves something while nobody changed it). `lasting`: nobody else can have deleted ours yet.
    """
    if found is None:
        return Verdict.NOT_DONE if lasting else Verdict.UNKNOWN
    if found.value == value if is_ours is None else is_ours(found.value):
        return Verdict.OURS
    recognisable = is_ours is not None or found.version == 0
    return Verdict.OTHERS if lasting and recognisable else Verdict.UNKNOWN


def judge_put(
    found: Versioned | None, value: bytes, expected: int, same_life: SameLife | None = None
) -> Verdict:
    """What `found` proves of a lost compare-and-set of version `expected` to `value` (M-3)."""
    if found is None or _is_another_life(found, expected, same_life):
        return Verdict.UNKNOWN
    if found.version == expected:
        return Verdict.NOT_DONE
    if found.version == expected + 1:
        return Verdict.OURS if found.value == value else Verdict.OTHERS
    return Verdict.UNKNOWN


def judge_delete(
    found: Versioned | None, expected: int | None, same_life: SameLife | None = None
) -> Verdict:
    """What `found` proves of a lost deletion; OURS: the life that was meant is gone."""
    if found is None or _is_another_life(found, expected, same_life):
        return Verdict.OURS
    if expected is None or found.version == expected:
        return Verdict.NOT_DONE
    return Verdict.OTHERS if found.version > expected else Verdict.UNKNOWN


def _is_another_life(found: Versioned, expected: int | None, same_life: SameLife | None) -> bool:
    """Whether the key was made again.

    The store's own word for it where both versions carry it, and else what is stored.
    """
    meant, life = life_of(expected), life_of(found.version)
    if meant and life:
        return meant != life
    return same_life is not None and not same_life(found.value)


class SettledWrites:
    """create, put and delete that end with a definite answer unless the store stays away."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def read(self, key: str) -> Versioned | None:
        """Linearizable read: absence is proven (M-4). Retries; raises MetadataUnavailable."""
        for attempt in range(ATTEMPTS_MAX):
            try:
                await self._store.barrier()
                return await self._store.get(key)
            except MetadataUnavailable:
                if attempt + 1 == ATTEMPTS_MAX:
                    raise
                await self._pause(attempt)
        raise MetadataUnavailable(f"no answer about {key}")

    async def children(self, key: str) -> list[str]:
        """Names of the children as of now; raises MetadataUnavailable."""
        await self._store.barrier()
        return await self._store.children(key)

    async def create(
        self,
        key: str,
        value: bytes,
        *,
        ephemeral: bool = False,
        is_ours: Callable[[bytes], bool] | None = None,
        lasting: bool = False,
    ) -> int:
        """Create; after a lost reply a record that `is_ours` (default: equal bytes) is success.

        `value` must carry something unique to the caller, except where any record will do.
        `lasting`: nobody but us deletes this key at this time, so that its absence proves that
        nothing happened (an ephemeral key is always made again). Returns the version found or
        made. Raises KeyExists when it is somebody else's, UnknownOutcome when it was not settled.
        """
        lost = False
        for attempt in range(ATTEMPTS_MAX):
            try:
                return await self._store.create(key, value, ephemeral=ephemeral)
            except UnknownOutcome:
                lost = True
            except KeyExists:
                if not lost:
                    raise
            found = await self._settle(key)
            verdict = judge_create(found, value, is_ours, lasting=lasting or ephemeral)
            if verdict is Verdict.OURS and found is not None:
                return found.version
            if verdict is Verdict.OTHERS:
                raise KeyExists(f"{key} exists", key=key)
            if verdict is Verdict.UNKNOWN:
                raise _may_be_ours("creation", key, found)
            await self._pause(attempt)
        raise UnknownOutcome(f"could not settle the creation of {key}", key=key)

    async def put(
        self, key: str, value: bytes, expected: int, *, same_life: SameLife | None = None
    ) -> int:
        """Compare and set; a lost reply is settled by version+1 and equal bytes (M-3).

        `same_life` None: the key is never made again after its deletion. Raises VersionConflict or
        KeyMissing only when ours is proven not to have happened, else UnknownOutcome.
        """
        return await self._put(
            lambda: self._store.put(key, value, expected=expected),
            Put(key, value, expected),
            same_life,
        )

    async def create_and_put(self, key: str, value: bytes, put: Put) -> int:
        """Create `key` and compare-and-set another one, or neither; the other's new version.

        What was put tells of both (M-3), so it must carry something unique to the caller and never
        be made again. Raises KeyExists, VersionConflict or KeyMissing only when nothing happened,
        else UnknownOutcome.
        """
        return await self._put(lambda: self._store.create_and_put(key, value, put), put, None)

    async def _put(
        self, write: Callable[[], Awaitable[int]], put: Put, same_life: SameLife | None
    ) -> int:
        key = put.key
        for attempt in range(ATTEMPTS_MAX):
            try:
                return await write()
            except UnknownOutcome:
                found = await self._settle(key)
            verdict = judge_put(found, put.value, put.expected, same_life)
            if verdict is Verdict.OURS and found is not None:
                return found.version
            if verdict is Verdict.OTHERS:
                raise VersionConflict(f"{key} was changed by somebody else", key=key)
            if verdict is Verdict.UNKNOWN:
                raise _may_be_ours("update", key, found)
            await self._pause(attempt)
        raise UnknownOutcome(f"could not settle the update of {key}", key=key)

    async def delete(
        self, key: str, expected: int | None, *, same_life: SameLife | None = None
    ) -> None:
        """Delete; after a lost reply a key (or a life of it) that is gone counts as deleted by us.

        Raises VersionConflict, KeyMissing, or UnknownOutcome when it could not be settled.
        """
        for attempt in range(ATTEMPTS_MAX):
            try:
                await self._store.delete(key, expected=expected)
                return
            except UnknownOutcome:
                found = await self._settle(key)
            verdict = judge_delete(found, expected, same_life)
            if verdict is Verdict.OURS:
                return
            if verdict is Verdict.OTHERS:
                raise VersionConflict(f"{key} was changed by somebody else", key=key)
            if verdict is Verdict.UNKNOWN:
                raise _may_be_ours("deletion", key, found)
            await self._pause(attempt)
        raise UnknownOutcome(f"could not settle the deletion of {key}", key=key)

    async def _settle(self, key: str) -> Versioned | None:
        try:
            return await self.read(key)
        except (MetadataUnavailable, MetadataCorrupt) as error:
            raise UnknownOutcome(f"could not read back {key}: {error.cause}", key=key) from error

    async def _pause(self, attempt: int) -> None:
        await self._clock.sleep(min(_PAUSE_MAX_S, _PAUSE_FIRST_S * 2**attempt))


def _may_be_ours(what: str, key: str, found: Versioned | None) -> UnknownOutcome:
    now = "is gone" if found is None else f"has version {found.version}"
    return UnknownOutcome(
        f"the reply to the {what} of {key} was lost, and the key {now}: it may have been ours",
        key=key,
    )
