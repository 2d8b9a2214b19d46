"""What lies in a tree and belongs to nobody any more (spec/spark.md §5). Blocking.

Old temporary files, files that no manifest version names, files that a version removed longer ago
than the grace time, their indexes with them, and versions that a checkpoint holds (ADR 76). Of the
data folder only files with names of ours are looked at: others are not ours.
"""

from __future__ import annotations

from octavo.client.exports.layout import (
    control_folder,
    folder_of,
    index_folder,
    indexed_by,
    is_data_file,
)
from octavo.client.exports.manifest import FOLDER, Manifest
from octavo.client.exports.tree import Tree


def sweep(tree: Tree, manifest: Manifest, topic: str) -> None:
    """Delete all of it."""
    state = manifest.load()
    keep = {*state.files, *manifest.recently_removed(state)}
    data, control, indexes = folder_of(topic), control_folder(topic), index_folder(topic)
    old = [(data, n) for n in tree.abandoned(data) if is_data_file(n) and n not in keep]
    old += [(indexes, n) for n in tree.abandoned(indexes) if indexed_by(n) not in keep]
    for folder in (control, f"{control}/{FOLDER}"):
        visible = set(tree.names(folder))
        old += [(folder, n) for n in tree.abandoned(folder) if n not in visible]
    for folder, name in old:
        tree.remove(f"{folder}/{name}")
    manifest.prune()
