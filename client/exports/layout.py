"""Where the files of an export lie, as names below its root (spec/spark.md §5, ADR 13).

    ROOT/<topic>/p<partition:05d>-<first:020d>-<last:020d>-<ledger>-<digest8>.arrow|.parquet
    ROOT/_octavo/<topic>/_export.json, _manifest/…       control files; temporary files too
    ROOT/_octavo/<topic>/_index/<data file>-<digest8>.index   headers of its batches (ADR 68)

A topic's folder holds data files and nothing else, side by side, so that any program opens it: one
that lists folders meets no control file, and one that reads `name=value` folders as columns meets
no second `partition`. Pure: names only, no file is touched.
"""

from __future__ import annotations

import re
import urllib.parse

CONTROL = "_octavo"
"""Folder of all control files of a root; no topic's folder starts with an underscore."""

EXPORT_FILE = "_export.json"
"""In a topic's control folder: what the export is."""

_HIDDEN = {".": "%2E", "_": "%5F"}
_DATA_FILE = re.compile(r"p(\d{5,})-(\d{20})-\d{20}-\d+-[0-9a-f]{8}\.(arrow|parquet)")


def folder_of(topic: str) -> str:
    """The folder name of a topic: its own name wherever no reader would misunderstand that.

    Other programs take a leading dot or underscore for "hidden" and `name=value` for a column, so
    these are percent-encoded. Different topics have different folders: topic names hold no `%`.
    """
    name = urllib.parse.quote(topic, safe="")
    return _HIDDEN.get(name[:1], name[:1]) + name[1:]


def topic_of(folder: str) -> str:
    """The topic that `folder_of` gave this folder to."""
    return urllib.parse.unquote(folder)


def control_folder(topic: str) -> str:
    """The folder of a topic's control files, relative to the root."""
    return f"{CONTROL}/{folder_of(topic)}"


def data_file(partition: int, first: int, last: int, ledger: int, digest: str, fmt: str) -> str:
    """Name of a data file, made of its content: the same rows give the same name (P13)."""
    return f"p{partition:05d}-{first:020d}-{last:020d}-{ledger}-{digest[:8]}.{fmt}"


def index_folder(topic: str) -> str:
    """The folder of a topic's index files, relative to the root."""
    return f"{control_folder(topic)}/_index"


def index_file(data_file_name: str, digest: str) -> str:
    """Name of the index of a data file, made of its own content too."""
    return f"{data_file_name}-{digest[:8]}.index"


def indexed_by(name: str) -> str:
    """The data file that an index of this name belongs to."""
    return name.rpartition("-")[0]


def is_data_file(name: str) -> bool:
    """Whether a name is one that `data_file` gives; others in the folder are somebody else's."""
    return start_of(name) is not None


def start_of(name: str) -> tuple[int, int] | None:
    """Partition and first offset of a data file, by its name; None for what is none of ours."""
    found = _DATA_FILE.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]))


def is_uri(place: str) -> bool:
    """Whether a place is an object store rather than a folder."""
    return "://" in place


def joined(root: str, name: str) -> str:
    """The place of a file below a root, by its name in the tree."""
    if not is_uri(root):
        return f"{root}/{name}" if name else root
    parts = urllib.parse.urlsplit(root)
    path = f"{parts.path}/{urllib.parse.quote(name)}" if name else parts.path
    return urllib.parse.urlunsplit(parts._replace(path=path))
