"""M-3 on every schedule of a small model: lost replies, and others who write at the same time.

The oracle knows whether our write was executed. `SettledWrites` may say "done" or "refused" only
when that is true; everything else is UnknownOutcome. Exhaustive over: what happens to each of our
attempts (answered, executed and its reply lost, lost on the way), what others do before and after
it, and whether the settling read gets through.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence

import pytest

from octavo.metadata.envelope import seal, unseal
from octavo.metadata.memory import MemoryCluster, MemoryStore
from octavo.metadata.settled import SettledWrites
from octavo.runtime.clock import SystemClock
from octavo.runtime.errors import (
    KeyExists,
    KeyMissing,
    MetadataRefused,
    MetadataUnavailable,
    UnknownOutcome,
    VersionConflict,
)

KEY = "/octavo/record"
OURS = b"life-1 ours"
OLD = b"life-1 old"


def same_life(value: bytes) -> bool:
    return value.startswith(b"life-1")


class PatientClock(SystemClock):
    """Pauses between attempts take one turn of the loop."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(0)


Deed = Callable[[MemoryCluster], None]


def raise_version(cluster: MemoryCluster) -> None:
    found = cluster.tree.get(KEY)
    if found is not None:
        cluster.tree.put(KEY, seal(unseal(KEY, found.value) + b" theirs"), None)


def remove(cluster: MemoryCluster) -> None:
    if cluster.tree.get(KEY) is not None:
        cluster.tree.delete(KEY, None)


def make_again(cluster: MemoryCluster) -> None:
    remove(cluster)
    cluster.tree.create(KEY, seal(b"life-2 theirs"), 0)


def twice(cluster: MemoryCluster) -> None:
    raise_version(cluster)
    raise_version(cluster)


def nothing(_cluster: MemoryCluster) -> None:
    return


DEEDS: list[Deed] = [nothing, raise_version, twice, remove, make_again]
FATES = ["answered", "reply-lost", "request-lost"]


Step = tuple[Deed, str, Deed]
"""What others do before our attempt, what becomes of it, what others do after it."""
UNDISTURBED: Step = (nothing, "answered", nothing)


class Scripted(MemoryStore):
    """A store whose writes meet a fate each, with deeds of others before and after them."""

    def __init__(self, cluster: MemoryCluster, script: Sequence[Step], *, dark: bool) -> None:
        super().__init__(cluster)
        self._shared = cluster
        self._script = list(script)
        self._dark = dark
        self.executed = 0

    async def _attempt(self, run: Callable[[], int]) -> int:
        before, fate, after = (
            self._script.pop(0) if self._script else (nothing, "answered", nothing)
        )
        before(self._shared)
        try:
            if fate == "request-lost":
                raise UnknownOutcome("the request was lost")
            result = run()
            self.executed += 1
            if fate == "reply-lost":
                raise UnknownOutcome("the reply was lost")
            return result
        finally:
            after(self._shared)

    async def put(self, key: str, value: bytes, *, expected: int | None) -> int:
        return await self._attempt(lambda: self._shared.tree.put(key, seal(value), expected)[0])

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        return await self._attempt(lambda: self._shared.tree.create(key, seal(value), 0)[0])

    async def delete(self, key: str, *, expected: int | None) -> None:
        await self._attempt(lambda: len(self._shared.tree.delete(key, expected)))

    async def barrier(self) -> None:
        if self._dark:
            raise MetadataUnavailable("the store is away")


SCRIPTS: list[Sequence[Step]] = [
    [(before, first, between), (nothing, second, after)]
    for before, first, between, second, after in itertools.product(
        DEEDS, FATES, DEEDS, FATES, DEEDS
    )
]


async def outcome(call: Callable[[], Awaitable[object]]) -> str:
    try:
        await call()
    except UnknownOutcome:
        return "unknown"
    except MetadataRefused:
        return "refused"
    return "done"


async def run(operation: str, script: Sequence[Step], *, dark: bool) -> None:
    cluster = MemoryCluster()
    if operation != "create":
        cluster.tree.create(KEY, seal(OLD), 0)
    store = Scripted(cluster, script, dark=dark)
    writes = SettledWrites(store, PatientClock())
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "put": lambda: writes.put(KEY, OURS, 0, same_life=same_life),
        "create": lambda: writes.create(KEY, OURS, is_ours=same_life),
        "delete": lambda: writes.delete(KEY, 0, same_life=same_life),
    }
    said = await outcome(calls[operation])
    if said == "refused":
        assert store.executed == 0, f"{operation} was executed and called refused: {script}"
    if said == "done" and operation != "delete":
        assert store.executed >= 1, f"{operation} never happened and is called done: {script}"
    if said == "done" and operation == "delete":
        found = cluster.tree.get(KEY)
        assert found is None or not same_life(unseal(KEY, found.value)), (
            f"what was to go is there: {script}"
        )
    if operation == "put":
        assert store.executed <= 1, f"one compare-and-set happened twice: {script}"
    assert said != "unknown" or any(fate != "answered" for _, fate, _ in script)


@pytest.mark.parametrize("operation", ["put", "create", "delete"])
@pytest.mark.parametrize("dark", [False, True], ids=["readable", "dark"])
async def test_m3_says_done_or_refused_only_when_that_is_true(operation: str, dark: bool) -> None:
    for script in SCRIPTS:
        await run(operation, script, dark=dark)


async def test_m3_a_version_raised_by_others_after_our_lost_write_is_unknown() -> None:
    """What lost an acknowledged entry: executed, its reply lost, then IN_RECOVERY by another."""
    script = [(nothing, "reply-lost", raise_version)]
    cluster = MemoryCluster()
    cluster.tree.create(KEY, seal(OLD), 0)
    writes = SettledWrites(Scripted(cluster, script, dark=False), PatientClock())
    with pytest.raises(UnknownOutcome, match="may have been ours"):
        await writes.put(KEY, OURS, 0)


async def test_m3_somebody_else_at_the_next_version_is_a_definite_refusal() -> None:
    script = [(raise_version, "request-lost", nothing)]
    cluster = MemoryCluster()
    cluster.tree.create(KEY, seal(OLD), 0)
    writes = SettledWrites(Scripted(cluster, script, dark=False), PatientClock())
    with pytest.raises(VersionConflict):
        await writes.put(KEY, OURS, 0)


async def test_m3_a_deletion_never_takes_the_next_life_of_its_key() -> None:
    """Both lives begin at version 0: only what is stored tells them apart."""
    script = [(nothing, "reply-lost", make_again)]
    cluster = MemoryCluster()
    cluster.tree.create(KEY, seal(OLD), 0)
    writes = SettledWrites(Scripted(cluster, script, dark=False), PatientClock())
    await writes.delete(KEY, 0, same_life=same_life)
    assert cluster.snapshot()[KEY].value == b"life-2 theirs"


async def test_m3_a_creation_that_may_have_been_deleted_again_is_not_repeated() -> None:
    cluster = MemoryCluster()
    writes = SettledWrites(
        Scripted(cluster, [(nothing, "reply-lost", remove)], dark=False), PatientClock()
    )
    with pytest.raises(UnknownOutcome):
        await writes.create(KEY, OURS, is_ours=same_life)
    assert KEY not in cluster.snapshot()


async def test_m3_a_creation_nobody_can_have_deleted_is_repeated() -> None:
    cluster = MemoryCluster()
    writes = SettledWrites(
        Scripted(cluster, [(nothing, "request-lost", nothing)], dark=False), PatientClock()
    )
    assert await writes.create(KEY, OURS, lasting=True) == 0


async def test_refusals_that_were_answered_stay_definite() -> None:
    cluster = MemoryCluster()
    writes = SettledWrites(Scripted(cluster, [], dark=False), PatientClock())
    with pytest.raises(KeyMissing):
        await writes.put(KEY, OURS, 0)
    cluster.tree.create(KEY, seal(OLD), 0)
    with pytest.raises(KeyExists):
        await writes.create(KEY, OURS)
