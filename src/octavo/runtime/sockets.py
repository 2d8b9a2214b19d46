"""How many connections a port of this machine has, as the kernel tells."""

from __future__ import annotations

import pathlib
import re

_TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")


def established(port: int) -> int | None:
    """Connections that were made to this local port and live; blocks, so call it on a thread.

    None where the kernel does not tell: it is not Linux, or the files may not be read.
    """
    # `local_address rem_address st`, all hexadecimal; 01 is ESTABLISHED.
    line = re.compile(rb": [0-9A-F]+:%04X [0-9A-F]+:[0-9A-F]{4} 01 " % port)
    found, known = 0, False
    for name in _TABLES:
        try:
            table = pathlib.Path(name).read_bytes()
        except OSError:
            continue
        known = True
        found += len(line.findall(table))
    return found if known else None
