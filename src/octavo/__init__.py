"""Octavo: a distributed message queue with quorum-written ledgers and Arrow from end to end.

The public names are loaded on first use, so `import octavo` stays fast and a process that needs
only one part never loads the others.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

# gRPC's own fork handlers, on by default in its core, restart its threads in a forked child while
# its Python layer does not take part; the child then dies of a segmentation fault now and then, a
# child that only wanted to exec (subprocess with preexec_fn, as PySpark starts its JVM) too. A
# client is refused after a fork anyway (ForkedClientError), so they are turned off before gRPC
# starts. Set the variable yourself to keep them for other uses of gRPC in the same process.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

__version__ = "0.1.0"

_LAZY = {
    "Admin": "octavo.client.messaging",
    "AsyncClient": "octavo.client.messaging",
    "Client": "octavo.client.messaging",
    "Record": "octavo.client.messaging",
    "RecordMetadata": "octavo.client.messaging",
    "TopicPartition": "octavo.client.messaging",
}

__all__ = ["Admin", "AsyncClient", "Client", "Record", "RecordMetadata", "TopicPartition"]

if TYPE_CHECKING:
    from octavo.client.messaging import (
        Admin,
        AsyncClient,
        Client,
        Record,
        RecordMetadata,
        TopicPartition,
    )


def __getattr__(name: str) -> object:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    return getattr(import_module(module), name)
