"""The blocking admin.

Written by `tools/gen_sync.py` from `api/admin.py`: change that, then run `make sync`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Literal

from octavo.client.messaging.api.admin import DEFAULT_TIMEOUT_S
from octavo.client.messaging.api.descriptions import (
    ClusterHealth,
    CompactionResult,
    LedgerDescription,
    LogDescription,
    TopicDescription,
)
from octavo.client.messaging.sync.sink_admin import SinkAdmin


class Admin(SinkAdmin):
    """Administration of the cluster a client is connected to: `client.admin`.

    Every call retries what is retriable until `timeout` seconds are over.
    """

    def create_topic(
        self,
        name: str,
        partitions: int = 6,
        config: Mapping[str, str] | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> TopicDescription:
        """Create a topic; `config` has dotted names such as `segment.ms`.

        Raises UnknownOutcome when a broker that may have got the request did not answer in time.
        """
        return self._thread.run(self._async.create_topic(name, partitions, config, timeout=timeout))

    def delete_topic(self, name: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """Delete a topic and its data. Raises UnknownTopic.

        Raises UnknownOutcome when a broker that may have got the request did not answer in time:
        the deletion may still go on. A topic that is created under the name meanwhile stays.
        """
        self._thread.run(self._async.delete_topic(name, timeout=timeout))

    def alter_topic(
        self,
        name: str,
        config: Mapping[str, str] | None = None,
        *,
        unset: Iterable[str] = (),
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> TopicDescription:
        """Change settings of a topic while it is used; the brokers go by them without a restart.

        `config` has dotted names such as `retention.ms`, `unset` names of settings that are to have
        their default again. Another replication counts for what is written afterwards.

        Raises UnknownTopic, InvalidConfig, InvalidReplicationFactor. Asking again is safe.
        """
        return self._thread.run(
            self._async.alter_topic(name, config, unset=list(unset), timeout=timeout)
        )

    def create_partitions(
        self, name: str, partitions: int, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> TopicDescription:
        """Let a topic have `partitions` partitions, which is never fewer than it has.

        Records with a key go to other partitions from then on: the order of one key holds among
        those sent before, and among those sent after. Producers and readers find the new partitions
        within their `metadata_max_age_ms`.

        Raises UnknownTopic, InvalidPartitions. Asking again is safe.
        """
        return self._thread.run(self._async.create_partitions(name, partitions, timeout=timeout))

    def decommission_partition(
        self, name: str, partition: int, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> TopicDescription:
        """Have a partition take no new records; what is in it is read until retention empties it.

        Producers send to the other partitions as soon as they hear of it: records with a key go to
        other partitions from then on, and the order of one key holds among those sent before, and
        among those sent after. Producers that have not heard of it may still write for
        `decommission_grace_ms`; after that, and at once where a partition is named, a record for it
        is refused with PARTITION_DECOMMISSIONED. Once it is empty, groups are not assigned to it
        any more. Its number is never given again, and it cannot be taken back.

        Raises UnknownTopic, InvalidPartition, InvalidPartitions when no other partition takes
        records. Asking again is safe.
        """
        return self._thread.run(
            self._async.decommission_partition(name, partition, timeout=timeout)
        )

    def list_topics(
        self, *, include_internal: bool = False, timeout: float = DEFAULT_TIMEOUT_S
    ) -> list[TopicDescription]:
        """Every topic, sorted by name."""
        return self._thread.run(
            self._async.list_topics(include_internal=include_internal, timeout=timeout)
        )

    def describe_topic(self, name: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> TopicDescription:
        """Partitions, owners and settings. Raises UnknownTopic."""
        return self._thread.run(self._async.describe_topic(name, timeout=timeout))

    def describe_log(
        self, topic: str, partition: int, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> LogDescription:
        """Segments of a partition and the bookies that hold them."""
        return self._thread.run(self._async.describe_log(topic, partition, timeout=timeout))

    def roll(self, topic: str, partition: int, *, timeout: float = DEFAULT_TIMEOUT_S) -> int:
        """Close the open segment, so that exports see it; returns the high watermark."""
        return self._thread.run(self._async.roll(topic, partition, timeout=timeout))

    def delete_records(
        self, topic: str, partition: int, before: int = -1, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> int:
        """Delete the records below offset `before` of a partition; returns the log's start.

        -1: all records that can be read now. The end of the log does not move, and what producers
        were told stays known. Readers below the start get OFFSET_OUT_OF_RANGE, which their reset
        policy answers. Space is freed in whole segments, some minutes later.

        Raises OffsetOutOfRange when `before` lies above the high watermark, UnknownTopic. After an
        error that leaves the outcome open, asking again is safe.
        """
        return self._thread.run(
            self._async.delete_records(topic, partition, before, timeout=timeout)
        )

    def compact(self, topic: str, partition: int, *, timeout: float = 300.0) -> CompactionResult:
        """Keep of each key of a partition only its last record, now (K3).

        The open segment is closed first, so all that is there is cleaned; what has been deleted for
        `delete.retention.ms` goes too. Offsets stay, those that went are gaps. Raises
        InvalidRequest unless the topic's `cleanup.policy` names compact, UnknownTopic. After a
        timeout it goes on; asking again waits for the same.
        """
        return self._thread.run(self._async.compact(topic, partition, timeout=timeout))

    def list_offsets(
        self,
        topic: str,
        at: Literal["earliest", "latest"] | int | datetime = "latest",
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> dict[int, int | None]:
        """Offset per partition: of its first record at or after a time, or of an end of the log.

        `at` is "earliest", "latest" (the offset behind the last record), epoch milliseconds or an
        aware datetime. None: the partition has no record that late.
        """
        return self._thread.run(self._async.list_offsets(topic, at, timeout=timeout))

    def cluster_health(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> ClusterHealth:
        """Brokers, bookies and metadata as one broker sees them."""
        return self._thread.run(self._async.cluster_health(timeout=timeout))

    def show_ledger(
        self, ledger_id: int, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> LedgerDescription:
        """A ledger's state, ensembles, last entry, and what each bookie holds of it."""
        return self._thread.run(self._async.show_ledger(ledger_id, timeout=timeout))
