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
# child that only wanted to exec (subprocess with preexec_fn, as PySpark starts its JVM) too. What
# was forked while a client is open gets ForkedClientError anyway (docs/forking.md), so they are
# turned off before gRPC starts. Set the variable yourself to keep them for other uses of gRPC in
# the same process.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

__version__ = "0.1.0"

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncGroupConsumer",
    "AsyncProducer",
    "AsyncReader",
    "AsyncTableView",
    "Client",
    "Consumer",
    "DataclassDeserializer",
    "DataclassSerializer",
    "GroupConsumer",
    "GroupMetadata",
    "OffsetAndMetadata",
    "Producer",
    "Reader",
    "Record",
    "RecordMetadata",
    "SendFuture",
    "SendReport",
    "TableView",
    "TopicPartition",
    "trace_processing",
]

if TYPE_CHECKING:
    from octavo.client.messaging import (
        Admin,
        AsyncAdmin,
        AsyncClient,
        AsyncConsumer,
        AsyncGroupConsumer,
        AsyncProducer,
        AsyncReader,
        AsyncTableView,
        Client,
        Consumer,
        DataclassDeserializer,
        DataclassSerializer,
        GroupConsumer,
        GroupMetadata,
        OffsetAndMetadata,
        Producer,
        Reader,
        Record,
        RecordMetadata,
        SendFuture,
        SendReport,
        TableView,
        TopicPartition,
        trace_processing,
    )
else:  # a type checker must not see this: with it every misspelt name would be an `object`

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'octavo' has no attribute {name!r}")
        return getattr(import_module("octavo.client.messaging"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
