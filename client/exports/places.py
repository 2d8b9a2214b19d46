"""Where an export may lie: a folder, or a URI of an object store that `pyarrow.fs` knows (ADR 69).

A place is a string: an absolute path, or `scheme://bucket/prefix?option=…` with the options of
`pyarrow.fs.FileSystem.from_uri` (`endpoint_override`, `scheme` and `region` of `s3://`). It travels
in plans and appears in errors, so it never holds credentials: those come from the environment of
whoever opens it.
"""

from __future__ import annotations

import os
import pathlib
import urllib.parse

from octavo.client.exports.checked_file import BlockSource
from octavo.client.exports.layout import CONTROL, EXPORT_FILE, is_uri
from octavo.client.exports.object_tree import ObjectTree
from octavo.client.exports.tree import LocalTree, Tree
from octavo.runtime.errors import ConfigError

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs")
"""Of object stores and remote file systems; `file` is a folder."""


def checked_root(place: str | os.PathLike[str]) -> str:
    """The place in its one form: an absolute path, or a URI without a slash behind its path.

    Raises ConfigError for a scheme that nobody knows and for a URI that holds credentials.
    """
    text = os.fspath(place)
    if "://" not in text:
        return os.path.abspath(text.removeprefix("file:"))
    scheme, _, rest = text.partition("://")
    if scheme == "file":
        return os.path.abspath(urllib.parse.unquote(rest))
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in ("s3", "gs", "abfs", "hdfs"))
        meant = " (s3a is Hadoop's name of it: write s3://)" if scheme == "s3a" else ""
        raise ConfigError(
            f"{scheme}:// is not supported{meant}", hint=f"use a folder, or one of {known}"
        )
    parts = urllib.parse.urlsplit(text)
    if scheme in ("s3", "gs", "gcs") and "@" in parts.netloc:
        raise ConfigError(
            f"a {scheme}:// target holds credentials, which would appear in plans and logs",
            hint="leave them to the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, …)",
        )
    if not parts.netloc:
        raise ConfigError(f"{text} names no bucket", hint=f"write {scheme}://BUCKET/PREFIX")
    return urllib.parse.urlunsplit(parts._replace(path=parts.path.rstrip("/"), fragment=""))


def format_of(place: str) -> str:
    """The format of a data file at a place, by its name."""
    path = urllib.parse.urlsplit(place).path if is_uri(place) else place
    return path.rpartition(".")[2]


def tree_at(place: str | os.PathLike[str]) -> Tree:
    """The export root at a place; raises ConfigError where there can be none."""
    root = checked_root(place)
    if is_uri(root):
        return ObjectTree.at(root)
    text = os.fspath(place)
    return LocalTree(root if text.startswith("file:") else text)


def source_at(place: str) -> pathlib.Path | BlockSource:
    """A file at a place, to be opened by `CheckedFile`; raises StorageFailed when it is gone."""
    if not is_uri(place):
        return pathlib.Path(place)
    parts = urllib.parse.urlsplit(place)
    folder, _, name = parts.path.rpartition("/")
    tree = ObjectTree.at(urllib.parse.urlunsplit(parts._replace(path=folder)))
    return tree.open(urllib.parse.unquote(name))


def check_outside(tree: Tree) -> None:
    """Raise ConfigError where a new root would lie in a folder of another export: programs that
    open that one would take our control files for data."""
    if not isinstance(tree, LocalTree):
        return
    place = tree.root.absolute()
    for root in place.parents:
        name = place.relative_to(root).parts[0]
        if name == CONTROL or (root / CONTROL / name / EXPORT_FILE).exists():
            raise ConfigError(
                f"{tree.where()} lies in the export {root}",
                hint=f"export to {root}, or to a folder outside of it",
            )
