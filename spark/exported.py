"""Exported topics below one root folder, as the planner sees them (spec/spark.md §5)."""

from __future__ import annotations

import os
from typing import NamedTuple

from octavo.client.exports.layout import CONTROL, EXPORT_FILE, is_uri, topic_of
from octavo.client.exports.manifest import ExportInfo, Manifest, ManifestState
from octavo.client.exports.places import checked_root, tree_at
from octavo.runtime.errors import ConfigError, UnknownTopic
from octavo.spark.options import ReadOptions


class ExportedTopic(NamedTuple):
    """One topic's tree at one manifest version."""

    info: ExportInfo
    state: ManifestState

    def partitions(self) -> list[int]:
        """All partitions: those counted at creation and any that appeared later."""
        found = {entry.partition for entry in self.state.files.values()}
        return sorted(found | set(range(self.info.partitions)))


def root_of(path: str) -> str:
    """The folder or the URI of an object store that a `path` option names; raises ConfigError."""
    try:
        return checked_root(path)
    except ConfigError as error:
        raise ConfigError(f"option path: {error.cause}", hint=error.hint, option="path") from error


class ExportedTopics:
    """The subscribed topics below the option `path`; looks anew at each `load`."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._root = "" if options.path is None else root_of(options.path)
        self._manifests: dict[str, Manifest] = {}
        """They read only what was published since they were last asked."""

    def load(self) -> dict[str, ExportedTopic]:
        """What is exported now; raises UnknownTopic when a named topic is missing.

        With a cluster given as well, a topic that was never exported is not an error.
        """
        options, root = self._options, self._root
        if options.path is None:
            return {}
        tree = tree_at(root)
        folders = tree.names(CONTROL)
        if not folders and not is_uri(root):
            _refuse_topic_folder(root)
        found: dict[str, ExportedTopic] = {}
        for name in map(topic_of, folders):
            if not options.wants(name):
                continue
            manifest = self._manifests.setdefault(name, Manifest(tree, name))
            info = manifest.info()
            if info is not None:
                found[name] = ExportedTopic(info, manifest.load())
        missing = [name for name in (*options.topics, *options.assign) if name not in found]
        if missing and options.bootstrap is None:
            raise UnknownTopic(
                f"{root} holds no export of topic {missing[0]!r}",
                hint=f"run `octavo export {missing[0]} --to {root}`",
            )
        return found


def _refuse_topic_folder(root: str) -> None:
    """Raise ConfigError when `root` is the folder of one topic below a root."""
    above, name = os.path.split(root)
    if os.path.exists(os.path.join(above, CONTROL, name, EXPORT_FILE)):
        raise ConfigError(
            f"option path: {root} is the folder of one topic",
            hint=f"use .option('path', {above!r}) and subscribe to the topic",
            option="path",
        )
