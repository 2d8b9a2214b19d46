"""How many connections a broker takes: as its setting says, or as the limit of open files allows.

A process that may open no file any more cannot reach bookies either: then all of its clients
suffer, not the last ones. So connections leave room for everything else.
"""

from __future__ import annotations

from octavo.runtime.errors import ConfigError
from octavo.runtime.telemetry import get_logger

DESCRIPTORS_RESERVED = 256
"""Of bookies, metadata, other brokers, logs and libraries; bookies have three connections each."""
CONNECTIONS_MIN = 64
"""A broker that could take fewer does not start."""

_log = get_logger("octavo.serving.connections")


def connections_allowed(connections_max: int, descriptors: int) -> int:
    """Connections that a broker takes whose process may have so many descriptors.

    Raises ConfigError when they are too few for any work; fewer than `connections_max` are logged.
    """
    room = descriptors - DESCRIPTORS_RESERVED
    if room >= connections_max:
        return connections_max
    wanted = connections_max + DESCRIPTORS_RESERVED
    if room < CONNECTIONS_MIN:
        raise ConfigError(
            f"this process may open {descriptors} files, a broker needs at least "
            f"{CONNECTIONS_MIN + DESCRIPTORS_RESERVED}",
            hint=f"`ulimit -n {wanted}` before it is started (LimitNOFILE of a systemd unit)",
        )
    _log.warning(
        "open-files-limit-is-low",
        limit=descriptors,
        connections=room,
        connections_max=connections_max,
        hint=f"`ulimit -n {wanted}` allows all of them",
    )
    return room
