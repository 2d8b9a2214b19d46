"""The partitions that a broker serves, by name, and who follows them as they come and go."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import NamedTuple

from octavo.serving.partition.shell import PartitionShell

PartitionKey = tuple[str, int]
"""A topic's name and a partition of it."""


class PartitionListener(NamedTuple):
    """Follows partitions; called on the event loop, must not raise, wait or change what is served.

    For each shell `served` is called once and then `left` once. A metadata session that is lost
    for a while is not told: who acts for a partition asks `PartitionRegistry.find` each time.
    """

    served: Callable[[PartitionShell], None]
    """It takes requests from now on."""
    left: Callable[[PartitionShell], None]
    """It takes none any more: it is about to be unloaded in good order, or was given up."""


class Served:
    """One open partition and the bundle it lies in."""

    __slots__ = ("bundle", "is_leaving", "shell")

    def __init__(self, shell: PartitionShell, bundle: int) -> None:
        self.shell = shell
        self.bundle = bundle
        self.is_leaving = False


class ServedPartitions:
    """The table of open partitions; at most one shell has a key."""

    def __init__(self) -> None:
        self.by_key: dict[PartitionKey, Served] = {}
        self._listeners: list[PartitionListener] = []

    def __len__(self) -> int:
        return len(self.by_key)

    def __iter__(self) -> Iterator[PartitionShell]:
        """Every shell as of now; the table may change meanwhile."""
        return iter([served.shell for served in self.by_key.values()])

    def listen(self, listener: PartitionListener) -> None:
        """Tell `listener` what comes and goes; what is served already it is told at once."""
        self._listeners.append(listener)
        for served in tuple(self.by_key.values()):
            if not served.is_leaving:
                listener.served(served.shell)

    def add(self, shell: PartitionShell, bundle: int) -> PartitionShell | None:
        """`shell` is served; returns the one it replaces, of the name's earlier life."""
        key = (shell.name.topic, shell.name.partition)
        before = self.by_key.get(key)
        if before is not None:
            self._leave(before)
        self.by_key[key] = Served(shell, bundle)
        for listener in self._listeners:
            listener.served(shell)
        return before.shell if before is not None else None

    def leave(self, shell: PartitionShell) -> None:
        """`shell` is about to be unloaded: it stays here, to say where its partition went."""
        served = self.by_key.get((shell.name.topic, shell.name.partition))
        if served is not None and served.shell is shell:
            self._leave(served)

    def forget(self, shell: PartitionShell) -> None:
        """`shell` is not served any more; one that was replaced is not here."""
        key = (shell.name.topic, shell.name.partition)
        served = self.by_key.get(key)
        if served is not None and served.shell is shell:
            self._leave(served)
            del self.by_key[key]

    def of_bundle(self, bundle: int) -> list[PartitionShell]:
        """The shells of one bundle."""
        return [served.shell for served in self.by_key.values() if served.bundle == bundle]

    def of_topic(self, topic_id: uuid.UUID) -> list[PartitionShell]:
        """The shells of one life of a topic."""
        return [shell for shell in self if shell.name.topic_id == topic_id]

    def _leave(self, served: Served) -> None:
        if served.is_leaving:
            return
        served.is_leaving = True
        for listener in self._listeners:
            listener.left(served.shell)
