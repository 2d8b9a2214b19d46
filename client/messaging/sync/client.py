"""The blocking client.

Written by `tools/gen_sync.py` from `api/client.py`: change that, then run `make sync`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, Literal, Unpack, cast, overload

from octavo.client.messaging.api.callbacks import OnChange
from octavo.client.messaging.api.consumer import AsyncConsumer
from octavo.client.messaging.api.group_consumer import AsyncGroupConsumer
from octavo.client.messaging.api.group_opening import Topics
from octavo.client.messaging.api.options import (
    ConsumerOptions,
    GroupOptions,
    Plain,
    ProducerOptions,
    V,
)
from octavo.client.messaging.api.reader import Start
from octavo.client.messaging.sync.admin import Admin
from octavo.client.messaging.sync.by_hand import ClientByHand
from octavo.client.messaging.sync.consumer import Consumer
from octavo.client.messaging.sync.group_consumer import GroupConsumer
from octavo.client.messaging.sync.producer import Producer
from octavo.client.messaging.sync.reader import Reader
from octavo.client.messaging.sync.table_view import TableView


class Client(ClientByHand):
    """A connection to a cluster.

    Safe to use from many threads. Unsent records are sent before the interpreter exits;
    what cannot be sent is reported.

    Lazy: nothing is connected until something is used; `connect(timeout=)` checks at once.

    Args:
        bootstrap_servers: `"host:port"`, several separated by commas, or a list.
        options: settings of `ClientConfig`; dotted names as `**{"client.id": "me"}`.
    """

    @property
    def admin(self) -> Admin:
        """Administration of this cluster."""
        return self._kept_admin

    @cached_property
    def _kept_admin(self) -> Admin:
        return Admin(self._thread, self._async.admin, self._held)

    def connect(self, timeout: float = 5.0) -> None:
        """Check that a broker answers; BrokerUnavailable names every address tried and why."""
        self._thread.run(self._async.connect(timeout))

    @overload
    def producer(
        self,
        *,
        serializer: None = None,
        key_serializer: None = None,
        **options: Unpack[ProducerOptions],
    ) -> Producer[Plain]: ...

    @overload
    def producer(
        self,
        *,
        serializer: Callable[[V], bytes],
        key_serializer: Literal["json"] | Callable[[V], bytes] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> Producer[V]: ...

    @overload
    def producer(
        self,
        *,
        serializer: Literal["json"],
        key_serializer: Literal["json"] | Callable[[Any], bytes] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> Producer[Any]: ...

    @overload
    def producer(
        self,
        *,
        serializer: None = None,
        key_serializer: Literal["json"] | Callable[[Any], bytes],
        **options: Unpack[ProducerOptions],
    ) -> Producer[Any]: ...

    def producer(self, **options: Any) -> Producer[Any]:
        """A producer; options are those of `ProducerConfig`.

        Without a serializer it takes `Plain` keys and values, with a function what that takes
        (`V`), else anything.
        """
        self._thread.check()
        return Producer(self._thread, self._async.producer(**options), self._held)

    @overload
    def consumer(
        self,
        topics: str | Iterable[str] = (),
        *,
        group: None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer: ...

    @overload
    def consumer(
        self,
        topics: Topics = (),
        *,
        group: str,
        pattern: str | re.Pattern[str] | None = None,
        on_assign: OnChange | None = None,
        on_revoke: OnChange | None = None,
        on_lost: OnChange | None = None,
        **options: Unpack[GroupOptions],
    ) -> GroupConsumer: ...

    def consumer(
        self,
        topics: Topics = (),
        *,
        group: str | None = None,
        pattern: str | re.Pattern[str] | None = None,
        on_assign: OnChange | None = None,
        on_revoke: OnChange | None = None,
        on_lost: OnChange | None = None,
        **options: Any,
    ) -> Consumer:
        """A consumer of `topics`, or of those whose whole names match `pattern`.

        With a group it reads what the group assigns to it, and the group keeps the offsets; the
        callbacks are those of `subscribe`. Without one it reads all partitions, or those given to
        `assign()`. Options are those of `ConsumerConfig`, with a group those of `GroupConfig`.
        """
        self._thread.check()
        make = cast(Callable[..., AsyncConsumer], self._async.consumer)
        made = make(
            topics,
            group=group,
            pattern=pattern,
            on_assign=on_assign,
            on_revoke=on_revoke,
            on_lost=on_lost,
            **options,
        )
        if isinstance(made, AsyncGroupConsumer):
            return GroupConsumer(self._thread, made, self._held)
        return Consumer(self._thread, made, self._held)

    def reader(
        self,
        topics: str | Iterable[str],
        *,
        start: Start = "earliest",
        partitions: Iterable[int] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Reader:
        """A reader of `topics` from earliest, latest, an offset or an aware datetime."""
        self._thread.check()
        return Reader(
            self._thread,
            self._async.reader(
                topics if isinstance(topics, str) else list(topics),
                start=start,
                partitions=partitions,
                **options,
            ),
            self._held,
        )

    def table_view(
        self, topics: str | Iterable[str], **options: Unpack[ConsumerOptions]
    ) -> TableView:
        """The last value of each key of `topics`, kept up to date (F086).

        Options are those of `ConsumerConfig`; deserializers are applied to keys and values.
        """
        self._thread.check()
        return TableView(
            self._thread,
            self._async.table_view(topics if isinstance(topics, str) else list(topics), **options),
            self._held,
        )
