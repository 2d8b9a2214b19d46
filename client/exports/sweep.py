"""What lies in a tree and belongs to nobody any more (spec/spark.md §5). Blocking.

Old temporary files, files that no manifest version names, files that a version removed longer ago
than the grace time, their indexes with them, and versions that a checkpoint holds (ADR 76). Of the
data folder only files with names of ours are looked at: others are not ours. And only those that
begin below the end of their partition: what lies ahead was left by an exporter that died, the next
one gives its own file the same name, and it must not meet somebody who is about to remove it.
"""

from __future__ import annotations

from octavo.client.exports.layout import (
    control_folder,
    folder_of,
    index_folder,
    indexed_by,
    is_data_file,
    start_of,
)
from octavo.client.exports.manifest import FOLDER, Manifest
from octavo.client.exports.tree import Tree


def sweep(tree: Tree, manifest: Manifest, topic: str) -> None:
    """Delete all of it."""
    state = manifest.load()
    keep = {*state.files, *manifest.recently_removed(state)}
    ends: dict[int, int] = {}
    for entry in state.files.values():
        ends[entry.partition] = max(ends.get(entry.partition, 0), entry.last + 1)

    def ahead(name: str) -> bool:
        start = start_of(name)
        return start is not None and start[1] >= ends.get(start[0], 0)

    data, control, indexes = folder_of(topic), control_folder(topic), index_folder(topic)
    old = [(data, n) for n in tree.abandoned(data) if is_data_file(n)]
    old += [(indexes, n) for n in tree.abandoned(indexes)]
    owners = {n: n if folder == data else indexed_by(n) for folder, n in old}
    old = [(f, n) for f, n in old if owners[n] not in keep and not ahead(owners[n])]
    for folder in (control, f"{control}/{FOLDER}"):
        visible = set(tree.names(folder))
        old += [(folder, n) for n in tree.abandoned(folder) if n not in visible]
    for folder, name in old:
        tree.remove(f"{folder}/{name}")
    manifest.prune()
