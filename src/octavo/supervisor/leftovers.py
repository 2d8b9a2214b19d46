"""Children of a supervisor that died: found by the old cluster.json, ended before a new start.

They normally die with their supervisor by themselves; this covers the moment in between and systems
without that feature. Nothing is ended unless it is proven to be this folder's: the caller holds the
folder's lock and read the file of this very folder (a copy's names no process), the process has the
pid and the start time that the file says, and its command line is that child's.
"""

from __future__ import annotations

import psutil

from octavo.supervisor.cluster_file import ClusterFile, ProcessEntry, is_same_process

END_TIMEOUT_S = 10.0


def end_leftovers(old: ClusterFile) -> list[str]:
    """Kill what is left of the cluster that wrote `old` and wait; returns the names found."""
    found: list[psutil.Process] = []
    names: list[str] = []
    for entry in old.children:
        process = _leftover(entry, old.metadata)
        if process is not None:
            process.kill()  # psutil compares the start time once more
            found.append(process)
            names.append(entry.name)
    psutil.wait_procs(found, timeout=END_TIMEOUT_S)
    return names


def _leftover(entry: ProcessEntry, metadata_url: str) -> psutil.Process | None:
    if not is_same_process(entry.pid, entry.started):
        return None
    try:
        process = psutil.Process(entry.pid)
        words = process.cmdline()
    except psutil.Error:
        return None
    wanted = ("octavo", entry.role, "--id", entry.name, "--metadata", metadata_url)
    return process if all(word in words for word in wanted) else None
