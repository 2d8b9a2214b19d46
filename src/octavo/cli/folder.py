"""The data folder of `octavo up`, as the other commands are given it."""

from __future__ import annotations

import errno
import pathlib
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from octavo.supervisor.cluster_file import ClusterFile

DEFAULT_DATA = pathlib.Path("octavo-data")

DataOption = Annotated[
    pathlib.Path, typer.Option("--data", help="Folder with everything the cluster stores.")
]


def require_cluster(data: pathlib.Path) -> ClusterFile:
    """What runs, or ran, in this folder. Raises FileNotFoundError when nothing ever did."""
    # Imported here: other commands do not need the process table.
    from octavo.supervisor.cluster_file import read_cluster_file

    cluster = read_cluster_file(data.absolute())
    if cluster is None:
        missing = FileNotFoundError(errno.ENOENT, "no cluster was started here", str(data))
        missing.add_note(f"`octavo up --data {data}` starts one; or name another folder")
        raise missing
    return cluster
