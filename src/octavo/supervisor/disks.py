"""In words: why a bookie takes no new entries, and why it gives no space back."""

from __future__ import annotations

import pathlib
import shutil

from octavo.proto.bookie_pb2 import InfoReply
from octavo.supervisor.cluster_file import ProcessEntry

READ_ONLY = "ro"


def read_only_because(entry: ProcessEntry, info: InfoReply, data_dir: pathlib.Path) -> str | None:
    """One sentence about a bookie that is read-only, None for any other."""
    if info.state != READ_ONLY:
        return None
    folder = pathlib.Path(info.full_index_folder or data_dir / entry.name)
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return f"{entry.name} is read-only, and its folder cannot be looked at: {error}"
    part = 1 - usage.free / usage.total if usage.total else 1.0
    return (
        f"{entry.name} is read-only: the disk of {folder} is {part:.0%} full "
        f"({size_of(usage.free)} of {size_of(usage.total)} free); it takes records again by itself "
        f"when there is room, else its log says why: `octavo logs {entry.name} --data {data_dir}`"
    )


def keeps_space_because(entry: ProcessEntry, info: InfoReply) -> str | None:
    """One sentence about a bookie that deletes nothing because it does not trust the metadata,
    None for any other."""
    if not info.collection_alarm:
        return None
    return (
        f"{entry.name} deletes no ledgers, so the space of deleted topics does not return: "
        f"{info.collection_alarm}"
    )


def size_of(count: int) -> str:
    """Bytes as a person reads them: `1.5 GiB`."""
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
