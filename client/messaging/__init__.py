"""The application SDK: producers, consumers, readers and administration over gRPC to brokers.

The names are loaded on first use, so importing the package costs nothing (see DESIGN.md).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

_HOMES = {
    "Admin": "sync.admin",
    "AsyncAdmin": "api.admin",
    "AsyncClient": "api.client",
    "AsyncConsumer": "api.consumer",
    "AsyncGroupConsumer": "api.group_consumer",
    "AsyncProducer": "api.producer",
    "AsyncReader": "api.reader",
    "AsyncTableView": "api.table_view",
    "Client": "sync.client",
    "Consumer": "sync.consumer",
    "DataclassDeserializer": "dataclass_values",
    "DataclassSerializer": "dataclass_values",
    "GroupConsumer": "sync.group_consumer",
    "GroupMetadata": "records",
    "LagHistory": "group_admin.lag",
    "LastRecords": "group_admin.resets",
    "OffsetAndMetadata": "records",
    "Producer": "sync.producer",
    "Reader": "sync.reader",
    "Record": "records",
    "RecordMetadata": "records",
    "SendFuture": "producing.futures",
    "SendReport": "producing.bulk",
    "ShiftBy": "group_admin.resets",
    "TableView": "sync.table_view",
    "TopicPartition": "records",
    "trace_processing": "tracing",
}

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
    "LagHistory",
    "LastRecords",
    "OffsetAndMetadata",
    "Producer",
    "Reader",
    "Record",
    "RecordMetadata",
    "SendFuture",
    "SendReport",
    "ShiftBy",
    "TableView",
    "TopicPartition",
    "trace_processing",
]

if TYPE_CHECKING:
    from octavo.client.messaging.api.admin import AsyncAdmin
    from octavo.client.messaging.api.client import AsyncClient
    from octavo.client.messaging.api.consumer import AsyncConsumer
    from octavo.client.messaging.api.group_consumer import AsyncGroupConsumer
    from octavo.client.messaging.api.producer import AsyncProducer
    from octavo.client.messaging.api.reader import AsyncReader
    from octavo.client.messaging.api.table_view import AsyncTableView
    from octavo.client.messaging.dataclass_values import (
        DataclassDeserializer,
        DataclassSerializer,
    )
    from octavo.client.messaging.group_admin.lag import LagHistory
    from octavo.client.messaging.group_admin.resets import LastRecords, ShiftBy
    from octavo.client.messaging.producing.bulk import SendReport
    from octavo.client.messaging.producing.futures import SendFuture
    from octavo.client.messaging.records import (
        GroupMetadata,
        OffsetAndMetadata,
        Record,
        RecordMetadata,
        TopicPartition,
    )
    from octavo.client.messaging.sync.admin import Admin
    from octavo.client.messaging.sync.client import Client
    from octavo.client.messaging.sync.consumer import Consumer
    from octavo.client.messaging.sync.group_consumer import GroupConsumer
    from octavo.client.messaging.sync.producer import Producer
    from octavo.client.messaging.sync.reader import Reader
    from octavo.client.messaging.sync.table_view import TableView
    from octavo.client.messaging.tracing import trace_processing
else:  # a type checker must not see this: with it every misspelt name would be an `object`

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{home}"), name)
