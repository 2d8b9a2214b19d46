"""Which versions of a manifest are there, where a reader starts, and which may go (ADR 76). Pure.

Versions are counted for ever and made one after the other; every `CHECKPOINT_EVERY` of them a
checkpoint holds their sum, and a reader starts at the newest one that it sees. So what lies before
a checkpoint may go, oldest first, once nobody can be on the way through it:

- the newest `VERSIONS_KEPT` versions stay, and all that are younger than the grace time;
- the newest checkpoint is never the last one: the one before it and each version behind that stay,
  so that a damaged checkpoint can be removed and loses nothing;
- versions up to a checkpoint go only after they were summed again and gave what it says.

A version number that was removed could be created again, by a writer that stood still meanwhile.
Whoever creates a version therefore looks once more: where a checkpoint of this number or a later
one is there, his version may count or not (`History.overtaken`), and he decides anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain
from typing import NamedTuple

CHECKPOINT_EVERY = 100
VERSIONS_KEPT = 500
"""The newest versions, which stay whatever their age."""
STEPS_MAX = 100
"""Checkpoints that one pruning passes; the next one goes on there."""

_SUFFIX = ".json"
_CHECKPOINT = "checkpoint-"


def version_name(version: int) -> str:
    """The file name of a version."""
    return f"{version:020d}{_SUFFIX}"


def checkpoint_name(version: int) -> str:
    """The file name of the checkpoint behind a version."""
    return f"{_CHECKPOINT}{version:020d}{_SUFFIX}"


class Route(NamedTuple):
    """How a reader comes to the newest state."""

    checkpoint: int | None
    """To begin with; None: what the reader knows already, or nothing."""
    versions: range
    """To apply after that."""
    missing: int | None
    """The first version that ought to be there and is not."""


class Step(NamedTuple):
    """What may go because a checkpoint holds it."""

    floor: int
    """The checkpoint that readers of old versions have from now on."""
    base: int | None
    """Where the sum begins that must give the checkpoint: another one, or 0 for nothing. None: a
    part is gone already, so somebody compared it and was stopped while removing."""
    versions: tuple[int, ...]
    """To be removed, in this order; before the checkpoints."""
    checkpoints: tuple[int, ...]


class History(NamedTuple):
    """The versions and checkpoints in a manifest's folder, as one listing shows them."""

    versions: frozenset[int]
    checkpoints: tuple[int, ...]
    """Ascending."""

    @classmethod
    def of(cls, names: Iterable[str]) -> History:
        """What names of files stand for; other names are nobody's."""
        versions: set[int] = set()
        checkpoints: list[int] = []
        for name in names:
            number = name.removeprefix(_CHECKPOINT).removesuffix(_SUFFIX)
            if not number.isdecimal() or not name.endswith(_SUFFIX):
                continue
            if name.startswith(_CHECKPOINT):
                checkpoints.append(int(number))
            else:
                versions.add(int(number))
        return cls(frozenset(versions), tuple(sorted(checkpoints)))

    @property
    def newest(self) -> int:
        """The newest version, 0 when there is none."""
        return max((*self.checkpoints[-1:], *self.versions), default=0)

    @property
    def oldest(self) -> int:
        """The oldest version that is there; what older ones removed is gone for long."""
        return min(self.versions, default=0)

    def route(self, known: int) -> Route:
        """The way to the newest state of a reader that knows the state after version `known`."""
        last = self.checkpoints[-1] if self.checkpoints else 0
        start = max(known, last)
        ahead = range(start + 1, self.newest + 1)
        wanted = chain(ahead, (self.newest,) if self.newest else ())
        missing = next((version for version in wanted if version not in self.versions), None)
        return Route(last if last > known else None, ahead, missing)

    def overtaken(self, version: int) -> bool:
        """Whether the number of a version that was just created may have been used before."""
        return self.checkpoints[-1:] >= (version,)

    def prunable(self, old: Collection[int]) -> list[Step]:
        """What may go, oldest first; `old`: checkpoints written longer ago than the grace time."""
        floors = [
            one
            for one in self.checkpoints[:-1]
            if one in old and one <= self.newest - VERSIONS_KEPT
        ]
        steps: list[Step] = []
        passed = 0
        for floor in floors[:STEPS_MAX]:
            versions = sorted(one for one in self.versions if passed < one <= floor)
            older = tuple(one for one in self.checkpoints if passed <= one < floor)
            if versions or older:
                base = self._base_of(floor, (passed,) if steps else (0, *older))
                steps.append(Step(floor, base, tuple(versions), older))
            passed = floor
        return steps

    def _base_of(self, floor: int, bases: Iterable[int]) -> int | None:
        """The first of `bases` from which each version up to `floor` is there."""
        for base in bases:
            if all(version in self.versions for version in range(base + 1, floor + 1)):
                return base
        return None
