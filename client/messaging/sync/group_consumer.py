"""The blocking consumer of a group.

Written by `tools/gen_sync.py` from `api/group_consumer.py`: change that, then run `make sync`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from octavo.client.messaging.api.callbacks import OnChange
from octavo.client.messaging.api.group_consumer import UserOffset
from octavo.client.messaging.api.group_opening import Topics
from octavo.client.messaging.membership.tickets import CommitCallback
from octavo.client.messaging.records import GroupMetadata, OffsetAndMetadata, TopicPartition
from octavo.client.messaging.sync.by_hand import GroupConsumerByHand
from octavo.client.messaging.sync.consumer import Consumer


class GroupConsumer(GroupConsumerByHand, Consumer):
    """A member of a consumer group; made by `Client.consumer()` with a group.

    For one thread at a time.

    It joins with the first call that asks for records, and reads what the group assigns. Callbacks
    run in such calls, so whoever asks for none for `max_poll_interval_ms` leaves the group.
    """

    def subscribe(
        self,
        topics: Topics = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_assign: OnChange | None = None,
        on_revoke: OnChange | None = None,
        on_lost: OnChange | None = None,
    ) -> None:
        """Read these topics, or those whose whole names match `pattern`, instead of earlier ones.

        Topics need not exist yet. Each callback gets a list of partitions: `on_revoke` before they
        go, `on_assign` when more came (perhaps none), `on_lost` when they are somebody else's
        already; without it `on_revoke` is called then, too.
        """
        self._thread.run(
            self._async.subscribe(
                topics, pattern=pattern, on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost
            )
        )

    def unsubscribe(self) -> None:
        """Commit (with auto-commit), call `on_revoke` and leave the group; nothing is read then."""
        self._thread.run(self._async.unsubscribe())

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read exactly these partitions without being a member; offsets are committed all the same.

        Positions begin at what the group committed. IllegalStateError with a subscription; commits
        are refused while the group has members (O3).
        """
        self._thread.run(self._async.assign(list(partitions)))

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are its own at this moment, those about to go included."""
        return self._thread.run(self._async.assignment())

    def group_metadata(self) -> GroupMetadata:
        """Group, member id, epoch and instance id at this moment; epoch 0: no member."""
        return self._async.group_metadata()

    def commit(self, offsets: Mapping[TopicPartition, UserOffset] | None = None) -> None:
        """Commit the positions of everything assigned, or these next offsets to read, durably.

        Raises CommitFailed when the partitions are somebody else's now: nothing is stored. What is
        wrong with one partition alone is raised, too, and the others are stored.
        """
        self._thread.run(self._async.commit(offsets))

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, UserOffset] | None = None,
        callback: CommitCallback | None = None,
    ) -> None:
        """The same without waiting for the outcome.

        The next call that asks for records tells it to `callback(offsets, error)`. A later commit
        of the same partitions takes the place of one that is not under way yet: CommitReplaced.
        """
        self._thread.run(self._async.commit_async(offsets, callback))

    def committed(
        self, *partitions: TopicPartition
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group committed of the given (default: all assigned) partitions."""
        return self._thread.run(self._async.committed(*partitions))
