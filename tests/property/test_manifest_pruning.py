"""Versions of a manifest that were pruned never come back (ADR 76; spec spark §5, M-3).

Writers, readers and pruners of one manifest, each of which may stand still before any operation on
the tree while the others go on, for days, or die there. What was told to be published is in the log
of versions once; every reader sees that log; a version that is named is never lost.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.client.exports import history, manifest
from octavo.client.exports.history import (
    History,
    Route,
    Step,
    checkpoint_name,
    version_name,
)
from octavo.client.exports.manifest import Change, Manifest, ManifestState
from octavo.client.exports.tree import ABANDONED_AFTER_S, LocalTree
from octavo.runtime.errors import MetadataCorrupt
from tests.unit.test_spark_manifest import entry

EVERY, KEPT = 2, 3
"""Of checkpoints and of versions that stay: few make a history."""
DEPTH_MAX = 3
"""How many actors stand still at once."""
EVENTS_MAX = 12
"""Less than three times the listings of one reader: nobody is chased for ever."""
FOLDER = "_octavo/orders/_manifest/"


class Killed(BaseException):
    """An actor died before an operation."""


class ShakenTree(LocalTree):
    """A tree in memory, where others may do anything before each operation."""

    def __init__(self, shake: Callable[[], None]) -> None:
        super().__init__("nowhere")
        self.shake = shake
        self.files: dict[str, tuple[bytes, float]] = {}
        self.now_s = 0.0
        self.log: list[bytes] = []
        """What each version was when it was created for the first time."""

    def names(self, folder: str) -> list[str]:
        self.shake()
        return sorted(n[len(folder) + 1 :] for n in self.files if n.startswith(f"{folder}/"))

    def read(self, name: str) -> bytes | None:
        self.shake()
        return self.files.get(name, (None, 0))[0]

    def make_folder(self, folder: str) -> None:
        self.shake()

    def settle(self, folder: str) -> None:
        self.shake()

    def create_exclusive(self, name: str, data: bytes) -> bool:
        self.shake()
        if name in self.files:
            return False
        self.files[name] = (data, self.now_s)
        version = int(name.removeprefix(FOLDER).removesuffix(".json"))
        assert version <= len(self.log) + 1, "a number was left out"
        if version > len(self.log):
            self.log.append(data)
        self.shake()  # created, and nobody was told yet
        return True

    def replace(self, name: str, data: bytes) -> None:
        self.shake()
        self.files[name] = (data, self.now_s)

    def remove(self, name: str) -> None:
        self.shake()
        self.files.pop(name, None)

    def abandoned(self, folder: str, now_s: float | None = None) -> list[str]:
        limit_s = (self.now_s if now_s is None else now_s) - ABANDONED_AFTER_S
        return [n for n in self.names(folder) if self.files[f"{folder}/{n}"][1] < limit_s]


class World:
    """All who use one manifest, as a seed has them meet."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.tree = ShakenTree(self.shake)
        self.told: list[str] = []
        """Files whose publication was answered."""
        self.depth = self.events = self.files = 0
        self.calm = False

    def shake(self) -> None:
        """Something else happens first, now and then, or this is the end of who asks."""
        if self.calm or self.depth >= DEPTH_MAX or self.events >= EVENTS_MAX:
            return
        if self.random.randrange(8):
            return
        self.events += 1
        self.depth += 1
        try:
            self.something()
        except Killed:
            pass  # of somebody else
        finally:
            self.depth -= 1
        if not self.random.randrange(10):
            raise Killed

    def something(self) -> None:
        what = self.random.randrange(4)
        if what == 0:
            self.publish(Manifest(self.tree, "orders"), self.random.randrange(1, 2 * EVERY))
        elif what == 1:
            self.tree.now_s += ABANDONED_AFTER_S + 1
        elif what == 2:
            Manifest(self.tree, "orders").prune()
        else:
            self.days_pass()

    def days_pass(self) -> None:
        """What a writer that stood still meets: others went on, and pruned."""
        self.publish(Manifest(self.tree, "orders"), 2 * EVERY + KEPT)
        self.tree.now_s += ABANDONED_AFTER_S + 1
        Manifest(self.tree, "orders").prune()

    def publish(self, mine: Manifest, count: int) -> None:
        for _ in range(count):
            made: list[str] = []

            def decide(state: ManifestState, made: list[str] = made) -> Change:
                """One more file; sometimes it takes the place of the two before it."""
                self.files += 1
                old = state.of_partition(0)[-2:] if self.files % 4 == 0 else []
                at = state.next_offset(0)
                one = entry(old[0].first if old else at, at + 1)
                made.append(f"{self.files}-{one.file}")
                return Change((replace(one, file=made[-1]),), tuple(e.file for e in old))

            mine.publish(decide)
            self.told.append(made[-1])

    def run(self) -> None:
        """A writer, a reader and a pruner that keep what they know, and are shaken."""
        writer, reader = (Manifest(self.tree, "orders") for _ in range(2))
        for _ in range(3):
            for act in (
                lambda: self.publish(writer, self.random.randrange(2 * EVERY)),
                reader.load,
                lambda: Manifest(self.tree, "orders").prune(),
            ):
                with suppress(Killed):
                    act()
        self.check(reader)

    def check(self, reader: Manifest) -> None:
        """Who comes now and who stood still read what was published."""
        self.calm = True
        whole = ShakenTree(self.shake)
        for version, data in enumerate(self.tree.log, 1):
            whole.files[f"{FOLDER}{version_name(version)}"] = (data, 0.0)
        truth = Manifest(whole, "orders").load()
        for one in (Manifest(self.tree, "orders"), reader):
            seen = one.load()
            assert (seen.version, seen.files) == (truth.version, truth.files)
        named = b"".join(self.tree.log).decode()
        for file in self.told:
            assert f'"file": "{file}"' in named, f"{file} was told to be published"


@contextmanager
def short_histories() -> Generator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest, "CHECKPOINT_EVERY", EVERY)
        patch.setattr(history, "VERSIONS_KEPT", KEPT)
        yield patch


@given(seed=st.integers(0, 2**32))
def test_what_was_pruned_never_comes_back(seed: int) -> None:
    with short_histories():
        World(seed).run()


def nobody_looks_again(patch: pytest.MonkeyPatch) -> None:
    def never(_history: History, _version: int) -> bool:
        return False

    patch.setattr(History, "overtaken", never)


def one_listing_is_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(manifest, "LOOKS_MAX", 1)


def the_newest_goes(patch: pytest.MonkeyPatch) -> None:
    real = History.prunable

    def prunable(self: History, old: Collection[int]) -> list[Step]:
        return real(self._replace(checkpoints=(*self.checkpoints, self.newest + 1)), old)

    patch.setattr(history, "VERSIONS_KEPT", 0)
    patch.setattr(History, "prunable", prunable)


def the_first_checkpoint_is_taken(patch: pytest.MonkeyPatch) -> None:
    real = History.route

    def route(self: History, known: int) -> Route:
        return real(self._replace(checkpoints=self.checkpoints[:1]), known)

    patch.setattr(History, "route", route)


@pytest.mark.parametrize(
    "plant",
    [nobody_looks_again, one_listing_is_believed, the_newest_goes, the_first_checkpoint_is_taken],
)
def test_planted_bugs_are_found(plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    with short_histories() as patch:
        plant(patch)
        assert any(_fails(seed) for seed in range(300))


def _fails(seed: int) -> bool:
    try:
        World(seed).run()
    except (AssertionError, MetadataCorrupt):
        return True
    return False


def names(versions: list[int], checkpoints: list[int]) -> list[str]:
    return [version_name(v) for v in versions] + [checkpoint_name(v) for v in checkpoints]


@given(
    top=st.integers(0, 60),
    gone=st.integers(0, 60),
    extra=st.sets(st.integers(1, 60)),
    lost=st.sets(st.integers(1, 20)),
    old=st.integers(0, 60),
)
def test_prunable_leaves_a_way_for_every_reader(
    top: int, gone: int, extra: set[int], lost: set[int], old: int
) -> None:
    """Any listing: versions `gone` to `top`, others that came late, checkpoints that fail."""
    checkpoints = [c for c in range(EVERY, top + 1, EVERY) if c not in lost]
    floor = min((c for c in checkpoints if gone <= c <= top - KEPT), default=0) if gone else 0
    checkpoints = [c for c in checkpoints if c >= floor]
    versions = sorted({*range(floor + 1, top + 1), *(one for one in extra if one < floor)})
    with short_histories():
        before = History.of([*names(versions, checkpoints), "other.json", ".tmp-1"])
        steps = before.prunable([c for c in checkpoints if c <= old])
        for count in range(len(steps) + 1):
            done = steps[:count]
            left = History(
                before.versions - {v for step in done for v in step.versions},
                tuple(c for c in checkpoints if all(c not in step.checkpoints for step in done)),
            )
            assert left.newest == before.newest
            assert left.route(0).missing is None, "a new reader"
            second = left._replace(checkpoints=left.checkpoints[:-1])
            if done:
                assert second.route(0).missing is None, "the newest checkpoint can be removed"
            assert len(left.versions) >= min(KEPT, len([v for v in versions if v > floor]))
            young = [c for c in checkpoints if c > old]
            assert set(young) <= set(left.checkpoints) | set(range(done[-1].floor if done else 0))
        for step in steps:
            assert step.floor <= min(old, top - KEPT)
