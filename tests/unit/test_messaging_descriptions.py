"""What administration answers, read from replies: order kept, the unknown is None."""

from __future__ import annotations

import pytest

from octavo.cli.topics import partition_row
from octavo.client.messaging.api.descriptions import (
    BookieDescription,
    BrokerDescription,
    LogDescription,
    PartitionDescription,
    StoredPart,
    Told,
    bookie_of,
    health_of,
    ledger_of,
    topic_of,
    topics_of,
)
from octavo.proto import broker_pb2 as pb
from octavo.proto import records_pb2
from octavo.proto.segments import Segment
from octavo.runtime.errors import BrokerUnavailable
from octavo.runtime.ids import EntryId, LedgerId

BOOKIE = pb.BookieInfo(
    bookie_id="b1", incarnation="i1", wire_address="h:1", control_address="h:2", state="rw"
)


def test_partitions_are_in_order_and_an_owner_nobody_knows_is_empty() -> None:
    info = pb.TopicInfo(name="t", topic_id=b"\x01\xff", created_ms=7, config={"segment.ms": "5"})
    info.partitions.add(partition=1)
    info.partitions.add(partition=0, owner_id="o", owner_address="h:3")
    found = topic_of(info)
    assert found.partitions == (
        PartitionDescription(0, "o", "h:3"),
        PartitionDescription(1, "", ""),
    )
    assert (found.name, found.topic_id, found.created_ms) == ("t", "01ff", 7)
    assert found.config == {"segment.ms": "5"}


def test_f028_topics_of_one_list_share_what_is_said_of_their_partitions_and_nothing_else() -> None:
    reply = pb.ListTopicsReply(topics=[pb.TopicInfo(name=name) for name in ("a", "b")])
    for info in reply.topics:
        info.partitions.add(partition=0, owner_id="o", owner_address="h:3")
    reply.topics[0].partitions.add(partition=1, owner_id="o", owner_address="h:3")
    reply.topics[1].partitions.add(
        partition=1, owner_id="o", owner_address="h:3", decommissioned=True
    )
    first, second = topics_of(reply, {})
    assert [first, second] == [topic_of(info) for info in reply.topics]
    assert first.partitions[0] is second.partitions[0]
    assert (first.partitions[1].state, second.partitions[1].state) == ("active", "decommissioned")


def test_f028_a_list_whose_partitions_are_told_once_says_the_same() -> None:
    reply = pb.ListTopicsReply(
        topics=[
            pb.TopicInfo(name="a", shared=[1, 0]),
            pb.TopicInfo(name="b", shared=[0, 1]),
            pb.TopicInfo(name="c", shared=[0]),
        ]
    )
    reply.partitions.add(partition=0, owner_id="o", owner_address="h:3")
    reply.partitions.add(partition=1, decommissioned=True, removed=True)
    told: Told = {}
    a, b, c = topics_of(reply, told)
    assert a.partitions == b.partitions
    assert a.partitions == (
        PartitionDescription(0, "o", "h:3"),
        PartitionDescription(1, "", "", decommissioned=True, removed=True),
    )
    assert c.partitions == a.partitions[:1]
    reply.topics[0].name = "next page"
    assert next(topics_of(reply, told)).partitions[0] is a.partitions[0]
    reply.topics[2].shared[0] = 2
    with pytest.raises(BrokerUnavailable, match="makes no sense"):
        list(topics_of(reply, {}))


def test_a_bookie_is_read_field_by_field() -> None:
    assert bookie_of(BOOKIE) == BookieDescription("b1", "i1", "h:1", "h:2", "rw")


def test_of_health_what_a_broker_leaves_out_is_not_known_and_never_zero() -> None:
    reply = pb.ClusterHealthReply(
        cluster_id="c", metadata_connected=True, write_quorum=3, ack_quorum=2, segments=4
    )
    reply.brokers.add(broker_id="o", address="h:3")
    reply.bookies.append(BOOKIE)
    found = health_of(reply)
    assert (found.cluster_id, found.write_quorum, found.ack_quorum) == ("c", 3, 2)
    assert found.brokers == (BrokerDescription("o", "h:3"),)
    assert found.bookies == (bookie_of(BOOKIE),)
    assert found.segments == 4
    assert (found.degraded_ledgers, found.short_segments) == (None, None)
    assert (found.marked_ledgers, found.audited_ms, found.unchecked_ledgers) == (None, None, None)
    assert not found.healthy, "nobody knows that"
    reply.degraded_ledgers = reply.short_segments = reply.marked_ledgers = 0
    reply.audited_ms, reply.unchecked_ledgers = 1700, 2
    found = health_of(reply)
    assert (found.degraded_ledgers, found.short_segments, found.marked_ledgers) == (0, 0, 0)
    assert (found.audited_ms, found.unchecked_ledgers) == (1700, 2)
    assert found.returned_bookies == ()
    reply.returned_bookies.append("b2")
    assert health_of(reply).returned_bookies == ("b2",)
    assert not found.healthy, "one writable bookie of three"


def test_an_open_ledger_has_no_last_entry_and_an_empty_closed_one_has() -> None:
    record = records_pb2.LedgerRecord(ledger_id=9, ensemble_size=3, write_quorum=3, ack_quorum=2)
    record.fragments.add(first_entry=0, members=["b1@i1", "b2@i2"])
    reply = pb.ShowLedgerReply(ledger_record=record.SerializeToString())
    reply.holders.add(bookie_id="b1", incarnation="i1", reachable=False, error="refused")
    found = ledger_of(reply)
    assert (found.ledger_id, found.last_entry, found.length) == (9, None, None)
    assert found.fragments[0].members == ("b1@i1", "b2@i2")
    assert (found.holders[0].reachable, found.holders[0].error) == (False, "refused")
    record.last_entry, record.length = -1, 0
    closed = ledger_of(pb.ShowLedgerReply(ledger_record=record.SerializeToString()))
    assert (closed.last_entry, closed.length) == (-1, 0)


def test_f088_a_log_says_where_its_bytes_are() -> None:
    def closed(number: int, version: int | None = None, *, in_ledger: bool = True) -> Segment:
        return Segment(
            LedgerId(number),
            number * 10,
            number * 10 + 10,
            100,
            last_entry=EntryId(3),
            object_version=version,
            in_ledger=in_ledger,
        )

    segments = (
        closed(0),  # below the log's start: it goes, and is not copied any more
        closed(1, 4, in_ledger=False),
        closed(2, 4),
        closed(3),
        Segment(LedgerId(4), 40, size_bytes=7),
    )
    log = LogDescription("t", 0, 10, 45, 1, segments, ())
    assert log.local == StoredPart(4, 307)
    assert log.tiered == StoredPart(2, 200)
    assert log.waiting == StoredPart(1, 100)
    shown = partition_row(PartitionDescription(0, "o", "h:3"), log, with_tier=True, copies=True)
    assert (shown["ledgers"], shown["bytes"]) == (4, 407)
    assert [shown[name] for name in TIER_COLUMNS] == [307, 2, 200, 100]
    stopped = partition_row(PartitionDescription(0, "", ""), log, with_tier=True, copies=False)
    assert (stopped["owner"], stopped["waiting_bytes"]) == (None, 0)
    plain = partition_row(PartitionDescription(0, "", ""), log, with_tier=False, copies=False)
    assert not set(TIER_COLUMNS) & set(plain)


TIER_COLUMNS = ("local_bytes", "tiered_segments", "tiered_bytes", "waiting_bytes")
