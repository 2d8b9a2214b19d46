"""Children of a supervisor that died: found through the old cluster.json and ended before a new
start.

They normally die with their supervisor by themselves; this covers the moment in between and systems
without that feature. A process counts as a leftover only when its command line says so: a pid may
have been reused.
"""

from __future__ import annotations

import psutil

from octavo.supervisor.cluster_file import ClusterFile, ProcessEntry

END_TIMEOUT_S = 10.0


def end_leftovers(old: ClusterFile) -> list[str]:
    """Kill what is left of the cluster that wrote `old` and wait; returns the names that were
    found.
    """
    found: list[psutil.Process] = []
    names: list[str] = []
    for entry in old.children:
        process = _leftover(entry, old.metadata)
        if process is not None:
            process.kill()
            found.append(process)
            names.append(entry.name)
    psutil.wait_procs(found, timeout=END_TIMEOUT_S)
    return names


def _leftover(entry: ProcessEntry, metadata_url: str) -> psutil.Process | None:
    if entry.pid <= 0:
        return None
    try:
        process = psutil.Process(entry.pid)
        words = process.cmdline()
    except psutil.Error:
        return None
    wanted = ("octavo", entry.role, "--id", entry.name, "--metadata", metadata_url)
    return process if all(word in words for word in wanted) else None
