"""The async client of one event loop: the door to producers, consumers, readers and the admin."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Literal, Self, Unpack, overload

from octavo.client.messaging.api.admin import AsyncAdmin
from octavo.client.messaging.api.binding import Binding
from octavo.client.messaging.api.callbacks import Callbacks, OnChange
from octavo.client.messaging.api.consumer import AsyncConsumer
from octavo.client.messaging.api.group_consumer import AsyncGroupConsumer
from octavo.client.messaging.api.group_opening import GroupOpening, Topics, topics_and_pattern
from octavo.client.messaging.api.leaving import leave_async
from octavo.client.messaging.api.opening import Opening
from octavo.client.messaging.api.options import (
    ClientOptions,
    ConsumerOptions,
    GroupOptions,
    Plain,
    ProducerOptions,
    V,
)
from octavo.client.messaging.api.producer import AsyncProducer
from octavo.client.messaging.api.reader import AsyncReader, ReaderOpening, Start
from octavo.client.messaging.api.table_view import AsyncTableView
from octavo.client.messaging.config import (
    ClientConfig,
    ConsumerConfig,
    GroupConfig,
    ProducerConfig,
    load,
    normalise,
    parse_servers,
)
from octavo.client.messaging.reading.limits import check_topic
from octavo.client.messaging.user_code import ClientLog
from octavo.runtime.errors import ConfigError

_log = ClientLog("octavo.client")
GROUP_HINT = 'for example group="billing"'


class AsyncClient:
    """A connection to a cluster.

    Lazy: nothing is connected until something is used; `connect(timeout=)` checks at once.

    Args:
        bootstrap_servers: `"host:port"`, several separated by commas, or a list.
        options: settings of `ClientConfig`; dotted names as `**{"client.id": "me"}`.
    """

    def __init__(
        self, bootstrap_servers: str | Iterable[str], **options: Unpack[ClientOptions]
    ) -> None:
        config = load(ClientConfig, options, inherited={})
        self._binding = Binding(parse_servers(bootstrap_servers), config)
        self._admin = AsyncAdmin(self._binding)

    def __repr__(self) -> str:
        return self._binding.describe("AsyncClient")

    @property
    def admin(self) -> AsyncAdmin:
        """Administration of this cluster."""
        return self._admin

    async def connect(self, timeout: float = 5.0) -> None:
        """Check that a broker answers; BrokerUnavailable names every address tried and why."""
        await self._binding.cluster().topics.metadata([], timeout_s=timeout)

    @overload
    def producer(
        self,
        *,
        serializer: None = None,
        key_serializer: None = None,
        **options: Unpack[ProducerOptions],
    ) -> AsyncProducer[Plain]: ...

    @overload
    def producer(
        self,
        *,
        serializer: Callable[[V], bytes],
        key_serializer: Literal["json"] | Callable[[V], bytes] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> AsyncProducer[V]: ...

    @overload
    def producer(
        self,
        *,
        serializer: Literal["json"],
        key_serializer: Literal["json"] | Callable[[Any], bytes] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> AsyncProducer[Any]: ...

    @overload
    def producer(
        self,
        *,
        serializer: None = None,
        key_serializer: Literal["json"] | Callable[[Any], bytes],
        **options: Unpack[ProducerOptions],
    ) -> AsyncProducer[Any]: ...

    def producer(self, **options: Any) -> AsyncProducer[Any]:
        """A producer; options are those of `ProducerConfig`.

        Without a serializer it takes `Plain` keys and values, with a function what that takes
        (`V`), else anything.
        """
        producer = AsyncProducer(self._binding, producer_config(self._binding.config, options))
        self._binding.add(producer)
        return producer

    @overload
    def consumer(
        self,
        topics: str | Iterable[str] = (),
        *,
        group: None = None,
        **options: Unpack[ConsumerOptions],
    ) -> AsyncConsumer: ...

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
    ) -> AsyncGroupConsumer: ...

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
    ) -> AsyncConsumer:
        """A consumer of `topics`, or of those whose whole names match `pattern`.

        With a group it reads what the group assigns to it, and the group keeps the offsets; the
        callbacks are those of `subscribe`. Without one it reads all partitions, or those given to
        `assign()`. Options are those of `ConsumerConfig`, with a group those of `GroupConfig`.
        """
        group, given = group_of(group, options)
        names, text = topics_and_pattern(topics, pattern)
        callbacks = Callbacks(on_assign, on_revoke, on_lost)
        if group is None:
            if text is not None or callbacks != Callbacks():
                raise ConfigError("a pattern and callbacks need a group", hint=GROUP_HINT)
            config = load(ConsumerConfig, given, inherited=self._binding.config.shared())
            consumer = AsyncConsumer(Opening(self._binding, names, config))
        else:
            of_group = load(GroupConfig, given, inherited=self._binding.config.shared())
            opening = GroupOpening(self._binding, names, of_group, group)
            opening.pattern = text
            consumer = AsyncGroupConsumer(opening, callbacks)
        self._binding.add(consumer)
        return consumer

    def reader(
        self,
        topics: str | Iterable[str],
        *,
        start: Start = "earliest",
        partitions: Iterable[int] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> AsyncReader:
        """A reader of `topics` from earliest, latest, an offset or an aware datetime."""
        config = reader_config(self._binding.config, options)
        chosen = None if partitions is None else list(partitions)
        names = topic_list(topics)
        reader = AsyncReader(ReaderOpening(self._binding, names, config, start, chosen))
        self._binding.add(reader)
        return reader

    def table_view(
        self, topics: str | Iterable[str], **options: Unpack[ConsumerOptions]
    ) -> AsyncTableView:
        """The last value of each key of `topics`, kept up to date (F086).

        Options are those of `ConsumerConfig`; deserializers are applied to keys and values.
        """
        config = reader_config(self._binding.config, options)
        opening = ReaderOpening(self._binding, topic_list(topics), config, "earliest", None)
        view = AsyncTableView(self._binding, AsyncReader(opening))
        self._binding.add(view)
        return view

    async def close(self, timeout: float | None = None) -> None:
        """Close every part, then the connections; a cancelled close waits for nothing any more.

        Raises the first error of a part (for example FlushTimeout) after everything is closed.
        """
        first: Exception | None = None
        leave: BaseException | None = None
        for part in list(self._binding.parts):
            try:
                await part.close(timeout if leave is None else 0.0)
            except Exception as error:  # noqa: BLE001  it is raised when all is closed
                _log.error("closing %s: %s", type(part).__name__, error)
                first = first or error
            except BaseException as error:  # noqa: BLE001  cancelled: the others end at once
                leave = error
        await self._binding.close()
        if leave is not None:
            raise leave
        if first is not None:
            raise first

    async def __aenter__(self) -> Self:
        self._binding.cluster()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await leave_async(self.close, error)


def topic_list(topics: str | Iterable[str]) -> list[str]:
    """One topic or several."""
    out = [topics] if isinstance(topics, str) else list(topics)
    return list(dict.fromkeys(check_topic(topic) for topic in out))


def producer_config(client: ClientConfig, options: Mapping[str, object]) -> ProducerConfig:
    """A producer's settings over the client's."""
    return load(ProducerConfig, options, inherited=client.shared())


def group_of(
    group: str | None, options: Mapping[str, object]
) -> tuple[str | None, dict[str, object]]:
    """The group's name, also when it is given as `group_id`, and the other options."""
    given = normalise(options)
    named = given.pop("group_id", None)
    if named is not None and group is not None:
        raise ConfigError("group and group_id are given", hint="keep one of them")
    chosen: object = named if group is None else group
    if chosen is not None and (not isinstance(chosen, str) or not chosen):
        raise ConfigError(f"group={chosen!r} is no name of a group", hint=GROUP_HINT)
    return chosen, given


def reader_config(client: ClientConfig, options: Mapping[str, object]) -> ConsumerConfig:
    """A reader's settings; what lies before its position is gone, so it goes on at the start."""
    given = normalise(options)
    given.setdefault("auto_offset_reset", "earliest")
    return load(ConsumerConfig, given, inherited=client.shared())
